"""Reconstruction from a given feature, quick targets, other precisions and devices' objects."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

import frpt
from tests.models import Planner, mlp
from tests.train.toys import blobs, network, parameters, reverser


def test_from_the_recorded_feature_it_is_the_plain_reconstruction() -> None:
    rev, (x, y) = reverser(), blobs(12).tensors
    plain = rev.reconstruct(x, y, at="3")
    assert 0 < int(plain.corrected.sum()) < 12
    again = rev.reconstruct_from(x, y, "3", plain.anchor)
    assert torch.equal(again.target, plain.target)
    assert torch.equal(again.corrected, plain.corrected)


def test_another_feature_is_corrected_as_little_as_needed_and_nothing_before_it_runs() -> None:
    torch.manual_seed(0)
    model, x = Planner().eval(), {"image": torch.randn(4, 3, 8, 8), "status": torch.randn(4, 4)}
    rev = frpt.Reverser(model, x)
    y = torch.randn(4, 8, 3) * 0.1
    value = torch.rand(4, 32)
    rec = rev.reconstruct_from(x, y, "backbone", value)
    assert torch.equal(rec.anchor, value)
    before, after = (F.mse_loss(rev.run(x, "backbone", v), y) for v in (value, rec.target))
    assert after < 0.3 * before
    changed = {**x, "image": torch.full_like(x["image"], float("nan"))}
    assert torch.equal(rev.reconstruct_from(changed, y, "backbone", value).target, rec.target)


def test_quick_targets_win_and_are_hardly_farther() -> None:
    torch.manual_seed(0)
    model, x = mlp((6, 24, 24, 4), nn.GELU).eval(), torch.randn(40, 6)
    y = (model(x).argmax(1) + (torch.arange(40) % 3 == 0)) % 4
    rec = frpt.Reverser(model, x[:2], preset="online", margin=0.1).reconstruct(x, y, at="1")
    wrong = rec.corrected
    assert float(rec.wins[wrong].double().mean()) > 0.9
    assert torch.equal(rec.target[~wrong], rec.anchor[~wrong])
    careful = frpt.Reverser(model, x[:2], margin=0.1).reconstruct(x, y, at="1")
    both = wrong & rec.wins & careful.wins
    assert float(rec.deviation[both].mean()) < 1.2 * float(careful.deviation[both].mean())
    assert rec.passes is not None
    assert careful.passes is not None
    assert float(rec.passes[wrong].mean()) < float(careful.passes[wrong].mean())


def test_how_ops_are_taken_together_is_checked() -> None:
    with pytest.raises(frpt.errors.OptionError, match="finest"):
        frpt.Reverser(network(), torch.randn(2, 6), blocks="paths").plan("3")


def test_the_same_options_on_a_copy() -> None:
    rev = frpt.Reverser(network(), torch.randn(2, 6), embed="max_assign", margin=0.3, preset="paper", blocks="finest")
    copy = network()
    other = rev.on(copy)
    assert other.model is copy
    assert (other.embedder, other.preset, other.blocks) == (rev.embedder, rev.preset, rev.blocks)


@pytest.mark.parametrize("targets", ["online", "anchor"])
def test_mixed_precision_rounds_the_features_but_not_the_weights(targets: str) -> None:
    options = {"targets": targets, "epochs": 1, "batch_size": 20, "lr": 1e-2, "progress": False, "val": blobs(20, 1)}
    rev = reverser()
    exact = frpt.post_train(rev, blobs(), "3", **options)  # type: ignore[arg-type]
    mixed = frpt.post_train(rev, blobs(), "3", precision="bf16-mixed", **options)  # type: ignore[arg-type]
    a, b = parameters(exact.model), parameters(mixed.model)
    assert next(mixed.model.parameters()).dtype == torch.float32
    assert not torch.equal(a, b)
    assert torch.allclose(a, b, atol=0.08)


def test_a_network_in_double_and_a_fabric_of_ones_own() -> None:
    x, y = blobs().tensors
    double = torch.utils.data.TensorDataset(x.double(), y)
    result = frpt.post_train(network().double(), double, "3", targets="online", epochs=1, progress=False)
    assert next(result.model.parameters()).dtype == torch.float64
    fabric = Fabric(accelerator="cpu", devices=1)
    own = frpt.post_train(reverser(), blobs(), "3", c_rec=0, epochs=1, progress=False, fabric=fabric)
    plain = frpt.post_train(reverser(), blobs(), "3", c_rec=0, epochs=1, progress=False)
    assert torch.equal(parameters(own.model), parameters(plain.model))


class SequenceFirst(nn.Module):
    """Keeps the batch on axis 1 until the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Linear(2, 5), nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.embed(x.unflatten(1, (3, 2)).transpose(0, 1)))
        return self.head(torch.tanh(self.mix(h)).mean(0))


@pytest.mark.parametrize("targets", ["online", "anchor", None])
def test_samples_may_sit_on_another_axis(targets: str | None) -> None:
    torch.manual_seed(0)
    result = frpt.post_train(
        SequenceFirst().eval(), blobs(), "mix", targets=targets, epochs=1, batch_size=20, progress=False, lr=1e-2
    )
    assert result.last.deviation is not None
    assert 0 <= result.last.deviation < 1


def test_targets_do_not_jump_where_features_move_by_rounding() -> None:
    """The frozen part is narrow, its Jacobian nearly of lower rank: noise must not decide (it did, by up to 0.28)."""
    model, (x, y) = network(), blobs(45).tensors
    rev = frpt.Reverser(model, x[:8], preset="online")
    with torch.no_grad():
        value = model[:4](x)
    first = rev.reconstruct_from(x, y, "3", value)
    assert int(first.corrected.sum()) > 10
    g = torch.Generator().manual_seed(0)
    for _ in range(10):
        again = rev.reconstruct_from(x, y, "3", value * (1 + 3e-7 * torch.randn(value.shape, generator=g)))
        assert (again.target - first.target).abs().max() < 0.02
