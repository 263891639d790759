"""Convolutions inside a network: what the plan says of them, padding as part of them, and factors made once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frpt
from frpt.errors import BudgetError
from frpt.options import CONV_SOLVERS, PRESETS, Convolutions, Preset
from frpt.solvers.conv.choose import ConvPlan
from frpt.solvers.conv.operator import Convolution
from tests.solvers.kinds import normal

WALK = replace(PRESETS["default"], nearest=None)


def walk(**options: Any) -> Preset:
    """The default preset with other solver options; only the walk, no closing step."""
    return replace(WALK, conv=Convolutions(**options))


def images(count: int = 3, seed: int = 0) -> Tensor:
    return normal(count, 3, 8, 8, seed=seed)


def network(middle: Callable[[], list[nn.Module]]) -> nn.Sequential:
    """A convolution, what is of interest, and a linear head, in float64."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), *middle(), nn.Flatten()).double().eval()
    with torch.no_grad():
        width = body(images(1)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 4).double()).eval()


def wanted(model: nn.Module, x: Tensor, size: float = 0.1) -> Tensor:
    """Other outputs, not far from the model's own."""
    with torch.no_grad():
        out: Tensor = model(x)
    return out + size * normal(*out.shape, seed=9)


def rule_of(reverser: frpt.Reverser, at: str, op: str = "conv2d") -> str:
    """What the plan's table says of the one unit with this op."""
    rows = [line for line in str(reverser.plan(at)).splitlines() if op in line]
    assert len(rows) == 1
    return rows[0]


def layers() -> list[nn.Module]:
    """Layers 1 to 6 of a network: one kind of convolution after the other, on 8×8 maps until the last."""
    return [
        nn.Conv2d(6, 5, 1),
        nn.Conv2d(5, 5, 3, padding=1),
        nn.Conv2d(5, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 16, 3, 2, 1, padding_mode="circular"),
        nn.Conv2d(16, 8, 2, 2),
    ]


BLOCKS = "conv (blocks: windows do not overlap)"
SAID: list[tuple[dict[str, Any], dict[int, str]]] = [
    ({}, {1: BLOCKS, 2: "conv (matrix: 102,400 entries)", 3: "conv (matrix: 81,920 entries)", 6: BLOCKS}),
    (
        {"dense_entries": 1},
        {
            1: BLOCKS,
            2: "conv (seam: torus 9×9, boundary system of 170, condition about",
            3: "conv (circulant: torus 9×9, reflect padding, condition about",
            4: "conv (seam: torus 8×8, boundary system of 0, condition about",
            5: "conv (seam: torus 4×4, boundary system of 0, condition about",
            6: BLOCKS,
        },
    ),
    (
        {"dense_entries": 1, "seam_entries": 1},
        {2: "conv (circulant: torus 9×9, boundary system of 170 too large, condition about", 6: BLOCKS},
    ),
    ({"method": "matrix"}, dict.fromkeys(range(1, 7), "conv (matrix: asked for)")),
    ({"method": "cg"}, dict.fromkeys(range(1, 7), "conv (cg: asked for)")),
    ({"method": "fft_boundary"}, dict.fromkeys(range(1, 7), "conv (fft_boundary: asked for)")),
    ({"method": "fft_padded", "budget": 150_000}, {1: "asked for", 5: "asked for; spectra of", 2: "asked for"}),
    ({"budget": 130_000}, {1: BLOCKS, 2: "conv (cg: spectra of "}),
]


@pytest.mark.parametrize(("options", "said"), SAID, ids=lambda v: "-".join(map(str, v)) or "default")
def test_the_plan_says_which_way_and_why(options: dict[str, Any], said: dict[int, str]) -> None:
    plan = str(frpt.Reverser(network(layers), (images(),), preset=walk(**options)).plan("0"))
    for name, words in said.items():
        row = next(line for line in plan.splitlines() if line.split()[1:2] == [str(name)])
        assert words in row
        assert ("pad + conv2d" in row) == (name in (3, 4, 5))


def test_the_way_is_chosen_once_for_each_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the way back is planned; two batches take it from there."""
    calls = []
    choose = Convolutions.choose

    def counted(self: Convolutions, conv: Convolution) -> ConvPlan:
        calls.append(conv.weight.dtype)
        return choose(self, conv)

    monkeypatch.setattr(Convolutions, "choose", counted)
    rev = frpt.Reverser(network(layers), (images(),), preset=walk(dense_entries=1))
    plan = rev.plan("0")
    ways = [u.choice.chosen for u in plan.units if u.choice.rule == "conv"]
    assert len(ways) == len(calls) == 6
    assert calls == [torch.float64] * 6
    assert [str(w) for w in ways] == [u.choice.note for u in plan.units if u.choice.rule == "conv"]
    for _ in range(2):
        rev.reconstruct(images(), torch.zeros(len(images()), dtype=torch.long), at="0")
    assert len(calls) == 6


def test_the_plan_says_what_is_in_the_way() -> None:
    model = network(lambda: [nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(5, 20, 3, 3, 1, padding_mode="circular")])
    with torch.no_grad():
        weight = model.get_parameter("1.weight")
        weight[3] = weight[0]
    rev = frpt.Reverser(model, (images(),), preset=walk(dense_entries=1))
    plan = str(rev.plan("0"))
    assert "conv (cg: filters of deficient rank)" in plan
    assert "conv (circulant: torus 3×3, circular padding" in plan
    assert [row[5] for row in rev.plan("0").rows() if "conv2d" in row[3]] == ["I", "I"]


def test_the_case_is_shown() -> None:
    rev = frpt.Reverser(network(lambda: [nn.Conv2d(6, 20, 3)]), (images(),))
    assert " II " in rule_of(rev, "0")


PADDED: dict[str, Callable[[], list[nn.Module]]] = {
    "reflect": lambda: [nn.Conv2d(6, 5, 3, padding=1, padding_mode="reflect")],
    "reflect-wide": lambda: [nn.Conv2d(6, 5, (5, 3), padding=(2, 1), padding_mode="reflect")],
    "replicate": lambda: [nn.Conv2d(6, 5, 3, padding=1, padding_mode="replicate")],
    "circular": lambda: [nn.Conv2d(6, 5, 3, padding=1, padding_mode="circular")],
    "circular-same": lambda: [nn.Conv2d(6, 5, (4, 3), padding="same", padding_mode="circular")],
    "zero-pad": lambda: [nn.ZeroPad2d((1, 0, 2, 1)), nn.Conv2d(6, 4, 3)],
    "zero-pad-too": lambda: [nn.ZeroPad2d(1), nn.Conv2d(6, 3, 3, stride=2, padding=1)],
    "reflection-pad": lambda: [nn.ReflectionPad2d((2, 1, 0, 1)), nn.Conv2d(6, 5, 3, stride=2)],
}


def assert_reaches(rev: frpt.Reverser, at: str, x: Tensor) -> None:
    """The walk alone finds what makes the network produce another output."""
    target = wanted(rev.model, x)
    found = rev.reconstruct(x, target, at=at)
    unit = next(u for u in found.units if "conv2d" in u.op)
    assert (unit.ccp < 1e-5).all()
    assert not unit.fallback.any()
    torch.testing.assert_close(rev.run(x, at, found.target), target, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PADDED)
def test_padding_and_convolution_are_one_unit(name: str) -> None:
    """Solved as one map; yet as l_R the padded value is a cut point, and the convolution after it a plain one."""
    x, pad = images(), "1" if len(PADDED[name]()) == 2 else "1/pad"
    rev = frpt.Reverser(network(PADDED[name]), (x,), preset=WALK)
    assert "pad + conv2d" in rule_of(rev, "0")
    assert_reaches(rev, "0", x)
    assert pad in rev.layers
    assert "pad + " not in rule_of(rev, pad)
    assert_reaches(rev, pad, x)


@pytest.mark.parametrize("name", ["reflect", "circular-same", "zero-pad"])
def test_padding_and_convolution_on_the_torus(name: str) -> None:
    rev = frpt.Reverser(network(PADDED[name]), (images(),), preset=walk(dense_entries=1))
    assert "torus" in rule_of(rev, "0")
    assert_reaches(rev, "0", images())


class Shared(nn.Module):
    """The padded map is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.pad, self.left, self.right = nn.ZeroPad2d(1), nn.Conv2d(6, 2, 3), nn.Conv2d(6, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        p = self.pad(x)
        return torch.cat([self.left(p), self.right(p)], 1)


NOT_ABSORBED: dict[str, Callable[[], list[nn.Module]]] = {
    "constant": lambda: [nn.ConstantPad2d(1, 0.5), nn.Conv2d(6, 5, 3)],
    "reflect-and-zeros": lambda: [nn.ReflectionPad2d(1), nn.Conv2d(6, 5, 3, padding=1)],
    "negative": lambda: [nn.ZeroPad2d(-1), nn.Conv2d(6, 5, 3)],
    "transposed": lambda: [nn.ZeroPad2d(1), nn.ConvTranspose2d(6, 2, 3)],
    "shared": lambda: [Shared()],
}


@pytest.mark.parametrize("name", NOT_ABSORBED)
def test_other_pads_stay_units_of_their_own(name: str) -> None:
    """And the network is reversed all the same."""
    model, x = network(NOT_ABSORBED[name]), images()
    rev = frpt.Reverser(model, (x,))
    assert "pad + " not in str(rev.plan("0"))
    found = rev.reconstruct(x, wanted(model, x, 0.01), at="0")
    assert (found.closed > 0.5).all()


FACTORISATIONS = (
    "svd",
    "svdvals",
    "cholesky",
    "cholesky_ex",
    "lu_factor",
    "qr",
    "eigh",
    "inv",
    "pinv",
    "solve",
    "lstsq",
)


def spied(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls of every factorisation from here on."""
    calls: Counter[str] = Counter()

    def counting(name: str, genuine: Any) -> Any:
        def call(*args: Any, **keywords: Any) -> Any:
            calls[name] += 1
            return genuine(*args, **keywords)

        return call

    for name in FACTORISATIONS:
        monkeypatch.setattr(torch.linalg, name, counting(name, getattr(torch.linalg, name)))
    return calls


def mixed() -> list[nn.Module]:
    return [
        nn.Conv2d(6, 5, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(5, 4, 3, stride=2, padding=1),
        nn.ConvTranspose2d(4, 3, 3, 2, 1, 1),
        nn.Conv2d(3, 8, 2, 2),
        nn.Conv2d(8, 8, 1, groups=2),
    ]


OPTIONS: dict[str, dict[str, Any]] = {
    **{solver: {"method": solver} for solver in CONV_SOLVERS},
    "seam": {"dense_entries": 1},
    "circulant": {"dense_entries": 1, "seam_entries": 1},
}


@pytest.mark.parametrize("way", OPTIONS)
def test_the_second_batch_finds_everything_prepared(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors depend on the weights only: a batch of another size finds them, and a changed weight is noticed."""
    model, calls = network(mixed), spied(monkeypatch)
    rev = frpt.Reverser(model, (images(),), preset=walk(**OPTIONS[way]))

    def asked(x: Tensor) -> Tensor:
        found = rev.reconstruct(x, wanted(model, x, 1e-3), at="0")
        assert not any(unit.fallback.any() for unit in found.units)
        assert "fft" in way or (found.units[-1].ccp < 1e-4).all()  # layer 1, case I
        return found.target

    first = asked(images())
    assert sum(calls.values()) > 0  # of the linear layer, at least
    calls.clear()
    asked(images(5, seed=7))
    assert torch.equal(asked(images()), first)
    assert not calls
    with torch.no_grad():
        weight = model.get_parameter("1.weight")
        weight.copy_(weight.flip(0, 1))
    asked(images())
    assert way == "cg" or calls


def test_errors_name_the_layer() -> None:
    """A budget that a layer cannot be solved with is found in the plan, before any work."""
    model = network(lambda: [nn.Conv2d(6, 64, 3, padding=1), nn.Tanh(), nn.Conv2d(64, 4, 3, stride=3)])
    rev = frpt.Reverser(model, (images(),), preset=walk(budget=240_000))
    with pytest.raises(
        BudgetError, match=r"^1 \(conv2d.*needs 237\.00 KiB .*budget of 234\.38 KiB.*Convolutions\.budget"
    ):
        rev.plan("0")
    with pytest.raises(BudgetError, match=r"^1 \(conv2d"):
        rev.reconstruct(images(), wanted(model, images()), at="0")
