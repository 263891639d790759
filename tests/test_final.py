"""What a network ends in: a softmax or sigmoid behind which values are moved, copied or clamped."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import frpt
from frpt.errors import LabelWarning


class Ending(nn.Module):
    """A small network with some end. maps: the scores are (b, c, 1, 1)."""

    def __init__(self, classes: int, end: Callable[[Tensor], Tensor], maps: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, classes))
        self.end, self.maps = end, maps

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        return self.end(z[..., None, None] if self.maps else z)


SIGMOIDS: dict[str, Callable[[Tensor], Tensor]] = {
    "squeeze": lambda z: z.sigmoid().squeeze(1),
    "select": lambda z: z.sigmoid()[:, 0],
    "view": lambda z: z.sigmoid().view(-1),
    "reshape": lambda z: z.sigmoid().reshape(-1),
    "flatten": lambda z: nn.Flatten(0)(torch.sigmoid(z)),
    "clamp": lambda z: z.sigmoid().clamp(1e-7, 1 - 1e-7),
    "clamp and squeeze": lambda z: z.sigmoid().clamp(1e-7, 1 - 1e-7).squeeze(1),
    "double": lambda z: z.sigmoid().double(),
    "times one": lambda z: z.sigmoid() * 1.0,
    "transposed": lambda z: z.sigmoid().t()[0],
}
SOFTMAXES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "clamp": (lambda z: z.softmax(1).clamp(1e-6), False),
    "plus": (lambda z: z.softmax(1) + 1e-8, False),
    "slice": (lambda z: z.softmax(1)[:, :], False),
    "flatten": (lambda z: z.softmax(1).flatten(1), True),
    "squeeze": (lambda z: z.softmax(1).squeeze(-1).squeeze(-1), True),
    "unsqueezed": (lambda z: z[:, None].softmax(-1).squeeze(1), False),
}
UNKNOWN: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "sigmoid by hand": (1, lambda z: 1 / (1 + torch.exp(-z))),
    "softmax by hand": (3, lambda z: z.exp() / z.exp().sum(1, keepdim=True)),
    "mean": (3, lambda z: (z.softmax(1) + (2 * z).softmax(1)) / 2),
    "both": (1, lambda z: torch.cat([1 - z.sigmoid(), z.sigmoid()], 1)),
}


def data(model: Ending, classes: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = model.body(x)
    y = (out[:, 0] > 0).long() if classes == 1 else out.argmax(1)
    return x, torch.where(torch.arange(120) % 4 == 0, (y + 1) % max(classes, 2), y)


@pytest.mark.parametrize("name", SIGMOIDS)
def test_behind_a_sigmoid(name: str) -> None:
    model = Ending(1, SIGMOIDS[name]).eval()
    x, y = data(model, 1)
    shown = y if model(x).dim() == 1 else y[:, None]
    rev = frpt.Reverser(model, x[:8])
    ends, before = rev._example.captured.activation()
    assert ends == "sigmoid"
    assert before.meta["val"].dim() == model(x).dim()
    rec = rev.reconstruct(x, shown, at="body.1")
    torch.testing.assert_close(rev.values(x, ["body.1"])[1], model(x), rtol=0, atol=0)
    assert int(rec.corrected.sum()) == 30
    assert bool(rec.wins.all())
    plain = frpt.Reverser(Ending(1, lambda z: z).eval(), x[:8]).reconstruct(x, y[:, None], at="body.1")
    torch.testing.assert_close(rec.target, plain.target)
    diagnosis = frpt.diagnose(model, (x, shown), at=["body.1"], gallery=0, progress=False)
    assert diagnosis.score == pytest.approx(0.75)
    assert "before the final sigmoid" in diagnosis.loss


@pytest.mark.parametrize("name", SOFTMAXES)
def test_behind_a_softmax(name: str) -> None:
    end, maps = SOFTMAXES[name]
    model = Ending(3, end, maps).eval()
    x, y = data(model, 3)
    rev = frpt.Reverser(model, x[:8])
    ends, before = rev._example.captured.activation()
    assert ends == "softmax"
    assert before.meta["val"].dim() == 2
    torch.testing.assert_close(rev.values(x, ["body.1"])[1], model(x))
    rec = rev.reconstruct(x, y, at="body.1")
    plain = frpt.Reverser(Ending(3, lambda z: z).eval(), x[:8]).reconstruct(x, y, at="body.1")
    torch.testing.assert_close(rec.target, plain.target)


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("use", ["reconstruct", "repair"])
def test_other_probabilities_are_asked_about(name: str, use: str) -> None:
    outputs, end = UNKNOWN[name]
    model = Ending(outputs, end).eval()
    x, y = data(model, outputs)
    y = y[:, None] if model(x).shape[1] == 1 else y
    uses = {
        "reconstruct": lambda: frpt.Reverser(model, x[:8]).reconstruct(x, y, at="body.1"),
        "repair": lambda: frpt.repair(model, x[:20], y[:20], keep=(x[20:], y[20:]), progress=False),
    }
    with pytest.warns(LabelWarning, match="look like probabilities|are made of a s"):
        uses[use]()


def test_scores_are_no_probabilities() -> None:
    for classes in (1, 3):
        model = Ending(classes, lambda z: z).eval()
        x, y = data(model, classes)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            frpt.Reverser(model, x[:8]).reconstruct(x, y[:, None] if classes == 1 else y, at="body.1")


def test_a_module_behind_the_sigmoid_keeps_its_name() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid(), nn.Flatten(0)).eval(), torch.randn(8, 6)
    rev = frpt.Reverser(model, x)
    assert {"out", "0", "1", "2"} <= set(rev.layers)
    assert len(rev.plan("2")) == len(rev.plan("1")) == 0
    assert len(rev.plan("0")) > 0
