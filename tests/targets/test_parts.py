"""Which weights lie before and after a layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frpt
from tests.models import Planner, ResNet, SequenceFirst, ViT


def split(model: nn.Module, x: object, at: str, **kwargs: object) -> tuple[set[str], set[str]]:
    rev = frpt.Reverser(model.eval(), x, **kwargs)  # type: ignore[arg-type]
    return set(rev.upstream(at)), set(rev.frozen(at))


def under(model: nn.Module, *prefixes: str) -> set[str]:
    names = [n for n, _ in (*model.named_parameters(), *model.named_buffers())]
    return {n for n in names if n.startswith(prefixes) and not n.endswith("num_batches_tracked")}


def test_a_stage_splits_the_network_in_two_and_nothing_follows_the_output() -> None:
    model = ResNet().eval()
    rev = frpt.Reverser(model, torch.randn(2, 3, 16, 16))
    assert set(rev.upstream("layer1")) == under(model, "stem", "layer1")
    assert set(rev.frozen("layer1")) == under(model, "layer2", "fc")
    assert set(rev.upstream("out")) == under(model, "")
    assert rev.frozen("out") == []
    assert set(rev.upstream("layer1.0.conv1")) == under(model, "stem", "layer1.0.conv1")  # a skip goes around it
    assert set(rev.frozen("layer1.0.conv1")) == under(model, "") - under(model, "stem", "layer1.0.conv1")


def test_the_gradient_of_the_feature_reaches_exactly_the_upstream_parameters() -> None:
    model, x = ViT().eval(), torch.randn(2, 3, 16, 16)
    upstream, frozen = split(model, x, "layers.1")
    seen: list[Tensor] = []
    hook = model.layers[1].register_forward_hook(lambda m, i, o: seen.append(o))
    model(x)
    hook.remove()
    seen[0].square().sum().backward()
    assert upstream == {n for n, p in model.named_parameters() if p.grad is not None}
    assert frozen == {n for n, p in model.named_parameters() if p.grad is None}


def test_a_branch_beside_the_layer_is_frozen() -> None:
    planner = Planner()
    example = {"image": torch.randn(2, 3, 8, 8), "status": torch.randn(2, 4)}
    upstream, frozen = split(planner, example, "backbone")
    assert upstream == under(planner, "backbone")
    assert frozen == under(planner, "status", "plan")


class Shared(nn.Module):
    """One linear module called twice, and an output layer tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.twice = nn.Linear(6, 6)
        self.head = nn.Linear(6, 4, bias=False)
        self.head.weight = nn.Parameter(torch.randn(4, 6))
        self.tied = self.head.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.twice(self.embed(x)))
        return F.linear(self.twice(h), self.tied)


def test_shared_weights_are_on_both_sides_under_the_name_the_model_gives_them() -> None:
    upstream, frozen = split(Shared(), torch.randn(3, 4), "twice@0")
    assert upstream == {"embed.weight", "embed.bias", "twice.weight", "twice.bias"}
    tied = {n for n, _ in Shared().named_parameters() if n in ("tied", "head.weight")}
    assert len(tied) == 1
    assert frozen == {"twice.weight", "twice.bias"} | tied


def test_samples_of_a_layer_that_keeps_the_batch_elsewhere() -> None:
    rev = frpt.Reverser(SequenceFirst().eval(), torch.randn(3, 7, 4))
    front = rev.batch_axis("encoder").front(torch.zeros(7, 3, 8))
    assert front.shape == (3, *rev.sample_shape("encoder"))
    assert front.flatten(2).shape == (3, 7, 8)
