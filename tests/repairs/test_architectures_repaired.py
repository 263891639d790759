"""Repair of networks that nobody here wrote, and of the paper's: unchanged, through their own inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frpt import zoo
from frpt.graph.inputs import Inputs, pick
from frpt.repairs import remember, repair
from frpt.zoo.planner import Planner, PlannerOptions
from frpt.zoo.simple_vit import SimpleViT, ViTShape

Given = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


def images(count: int, seed: int) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def outputs(model: nn.Module, x: Given) -> Tensor:
    inputs = Inputs.of(x)
    return pick(model(*inputs.args, **inputs.kwargs), None)


def tokens(count: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """(ids and mask, label): which of two words is there more often; some sentences are shorter."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 5, (count, 9), generator=g)
    mask = torch.arange(9) < torch.randint(5, 10, (count, 1), generator=g)
    more = ((ids == 1) & mask).sum(1) > ((ids == 2) & mask).sum(1)
    return {"input_ids": ids, "attention_mask": mask.long()}, more.long()


@pytest.mark.parametrize("kind", ["Bert", "DistilBert"])
def test_a_text_classifier(kind: str) -> None:
    """With ids and mask by keyword; trained for a moment, and wrong now and then."""
    transformers: Any = pytest.importorskip("transformers", reason="text classifiers come from transformers")
    torch.manual_seed(0)
    sizes = {
        "Bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
        "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    }
    config = getattr(transformers, f"{kind}Config")(vocab_size=8, num_labels=2, **sizes[kind])
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(25):
        x, y = tokens(64, step)
        optimizer.zero_grad()
        F.cross_entropy(outputs(model, x), y).backward()
        optimizer.step()
    x, y = tokens(600, 1000)
    with torch.no_grad():
        wrong = (outputs(model, x).argmax(1) != y).nonzero().squeeze(1)[:10]
    failing, y = {name: t[wrong] for name, t in x.items()}, y[wrong]
    old, _ = tokens(300, 2000)
    memory = remember(model, old, progress=False)
    fix = repair(model, failing, y, memory)
    with torch.no_grad():
        assert torch.equal(outputs(fix.model, failing).argmax(1) == y, fix.fixed)
    assert len(y) == 10
    assert fix.fixed.double().mean() >= 0.9
    assert any("attention" in name for name in fix.diff.moved)


ZOO: dict[str, Callable[[], nn.Module]] = {
    "SimpleCNN": lambda: zoo.simple_cnn("cifar10"),
    "SimpleViT": lambda: SimpleViT(ViTShape(32, 8, 10, width=32, heads=4, depth=2), norm=True),
}


@pytest.mark.parametrize("name", list(ZOO))
def test_the_papers_classifiers(name: str) -> None:
    """Its ResNets, which take minutes, are in benchmarks/repair.py."""
    torch.manual_seed(0)
    model = ZOO[name]().eval()
    x = images(4, 1)
    with torch.no_grad():
        y = (model(x).argmax(1) + 1) % 10
    fix = repair(model, x, y, remember(model, images(40, 0), progress=False), budget=1e6)
    with torch.no_grad():
        assert torch.equal(fix.model(x).argmax(1) == y, fix.fixed)
    assert int(fix.fixed.sum()) >= 3


def test_the_planner_as_regression() -> None:
    """Two inputs, poses (8, 3); the paper's planner behind a small image encoder."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten())
    model = Planner(encoder, nn.Linear(24, 512), PlannerOptions(), {}).eval()
    g = torch.Generator().manual_seed(1)
    old, x = ((torch.rand(n, 3, 16, 32, generator=g), torch.randn(n, 8, generator=g)) for n in (60, 4))
    with torch.no_grad():
        out = model(*x)
    target = out + 0.2 * torch.randn(out.shape, generator=g)
    memory = remember(model, old, task="regression", progress=False)
    fix = repair(model, x, target, memory, budget=1e6)
    with torch.no_grad():
        left = (fix.model(*x) - target).flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1)
    assert torch.equal(left <= 0.05, fix.fixed)
    assert int(fix.fixed.sum()) >= 3
