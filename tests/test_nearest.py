"""The default answer on whole networks: the label wins, nothing else moves, in every precision and company."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frpt
from frpt.errors import LabelError, MarginWarning, OptionError
from frpt.options import PRESETS
from tests.conftest import Captured
from tests.models import VGG, FixedBatch, ResNet, Segmenter, SequenceFirst, ViT, mlp


def images(n: int = 12, size: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def wrong_for_some(model: nn.Module, x: Tensor) -> Tensor:
    """Two of three samples get a label that the network does not predict."""
    with torch.no_grad():
        out = model(x)
    return (out.argmax(1) + (torch.arange(len(x)) % 3 > 0)) % out.shape[1]


NETWORKS = [(ResNet, "layer1"), (ResNet, "stem"), (VGG, "features"), (ViT, "layers.0"), (ViT, "patch")]


@pytest.mark.parametrize(("network", "layer"), NETWORKS)
def test_the_label_wins_and_right_samples_stay(captured: Captured, network: type[nn.Module], layer: str) -> None:
    rev, x = captured(network), images()
    y = wrong_for_some(rev.model, x)
    rec = rev.reconstruct(x, y, at=layer)
    assert rec.corrected.tolist() == (torch.arange(12) % 3 > 0).tolist()
    out = rev.run(x, layer, rec.target)
    others = out.scatter(1, y[:, None], -torch.inf).amax(1)
    assert bool((out.gather(1, y[:, None]).squeeze(1) > others).all())
    assert bool(rec.wins.all())
    assert torch.equal(rec.target[~rec.corrected], rec.anchor[~rec.corrected])
    low, high = rev.interval(layer)
    assert float(rec.target.min()) >= low
    assert float(rec.target.max()) <= high
    assert rec.passes is not None
    assert float(rec.passes[rec.corrected].mean()) < 20
    assert bool((rec.passes[~rec.corrected] == 0).all())


@pytest.mark.parametrize(("network", "layer"), [(ResNet, "layer1"), (VGG, "features.3"), (ViT, "layers.1")])
def test_a_target_does_not_depend_on_companions_or_their_order(
    captured: Captured, network: type[nn.Module], layer: str
) -> None:
    """Bit for bit in batches of one size; to rounding in others."""
    rev, x = captured(network), images(16)
    y = wrong_for_some(rev.model, x)
    rec = rev.reconstruct(x, y, at=layer)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
    assert torch.equal(rev.reconstruct(x[order], y[order], at=layer).target, rec.target[order])
    company = torch.cat([x[:8], images(8, seed=9)])
    labels = torch.cat([y[:8], torch.zeros(8, dtype=torch.long)])
    assert torch.equal(rev.reconstruct(company, labels, at=layer).target[:8], rec.target[:8])
    alone = torch.cat([rev.reconstruct(x[i : i + 1], y[i : i + 1], at=layer).target for i in range(4)])
    scale = float(rec.anchor[:4].norm())
    assert float((alone - rec.target[:4]).norm()) < 1e-3 * scale


def test_a_label_that_wins_by_rounding_only_is_searched_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches may round otherwise than the model; here they err by so much that labels win there and not in truth."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, (5, 1)), nn.ReLU(), nn.Conv2d(4, 4, (3, 1)), nn.Flatten(), nn.Linear(104, 3))
    model, x = nn.Sequential(*layers).eval(), torch.randn(16, 1, 32, 1)
    rev = frpt.Reverser(model, x[:4])
    with torch.no_grad():
        y = (model(x).argmax(1) + 1) % 3
    plain = rev.reconstruct(x, y, at="0")
    calls = []

    def rough(*args: Any) -> Tensor:
        calls.append(out := torch.ops.aten.conv2d.default(*args))
        return out * 1.2

    monkeypatch.setattr("frpt.graph.capture.conv2d", rough)
    rec = rev.reconstruct(x, y, at="0")
    assert calls
    assert bool(rec.wins.all())
    assert bool((rec.deviation < 2 * plain.deviation).all())


def test_a_target_out_of_reach_does_not_depend_on_companions() -> None:
    """Labels that a small network cannot produce, so that no solver ends early; in double, where rounding is small."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = torch.randn(12, 5).double(), torch.randn(12, 3).double()
    rev = frpt.Reverser(model, x[:4])
    for layer in ("0", "2"):
        rec = rev.reconstruct(x, y, at=layer)
        assert float(rec.closed.min()) < 0.9
        alone = torch.cat([rev.reconstruct(x[i : i + 1], y[i : i + 1], at=layer).target for i in range(12)])
        torch.testing.assert_close(alone, rec.target, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_label_wins_in_the_models_own_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = VGG().eval().to(dtype), images().to(dtype)
    y = wrong_for_some(model, x)
    rev = frpt.Reverser(model, x)
    for layer in ("features", "features.3", "out"):
        rec = rev.reconstruct(x, y, at=layer)
        assert rec.target.dtype == dtype
        assert bool(rec.wins.all())
        out = rev.run(x, layer, rec.target).float()
        assert torch.equal(out.argmax(1), y)


def test_margins_are_met_and_the_default_one_is_small() -> None:
    torch.manual_seed(0)
    model, x = mlp((6, 24, 24, 4)).eval(), torch.randn(20, 6)
    y = wrong_for_some(model, x)
    near = frpt.Reverser(model, x).reconstruct(x, y, at="1")
    far = frpt.Reverser(model, x, margin=0.3).reconstruct(x, y, at="1")
    for rec, least in ((near, 0.0), (far, 0.3)):
        out = frpt.Reverser(model, x).run(x, "1", rec.target)
        lead = out.gather(1, y[:, None]).squeeze(1) - out.scatter(1, y[:, None], -torch.inf).amax(1)
        mine = rec.corrected & rec.wins
        assert bool((lead[mine] > least - 1e-6).all())
        if rec is near:
            assert float(lead[mine].median()) < 0.05 * float(out.std())
    assert int(far.corrected.sum()) >= int(near.corrected.sum())
    assert float(far.deviation.mean()) > float(near.deviation.mean())


def test_a_tie_is_no_win() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    with torch.no_grad():
        model[2].weight.copy_(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
        model[2].bias.zero_()
        model[0].weight.zero_()
        model[0].bias.zero_()
    x = torch.randn(2, 3)
    rec = frpt.Reverser(model.eval(), x).reconstruct(x, torch.tensor([0, 1]), at="1")
    assert bool(rec.corrected.all())
    assert bool(rec.wins.all())


class Branch(nn.Module):
    """A side branch too faint to turn the output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.side, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head(10 * h + 1e-6 * torch.tanh(self.side(h)))


def test_a_label_that_cannot_win_leaves_the_anchor_and_says_so() -> None:
    torch.manual_seed(0)
    model, x = Branch().eval(), torch.randn(6, 6)
    y = wrong_for_some(model, x)
    rec = frpt.Reverser(model, x).reconstruct(x, y, at="side")
    assert not bool(rec.wins[rec.corrected].any())
    assert torch.equal(rec.target, rec.anchor)
    assert "was found in which the label wins" in str(rec)
    assert bool(frpt.Reverser(model, x).reconstruct(x, y, at="stem").wins.all())


def test_pixels_win_in_nearly_all_positions() -> None:
    torch.manual_seed(0)
    model, x = Segmenter().eval(), images(4)
    with torch.no_grad():
        out = model(x)
    y = out.argmax(1)
    y[:, :4] = (y[:, :4] + 1) % out.shape[1]
    y[:, 5] = -100
    rev = frpt.Reverser(model, x)
    before = ((out.argmax(1) == y) & (y >= 0)).flatten(1).sum(1) / (y >= 0).flatten(1).sum(1)
    half = rev.reconstruct(x, y, at="down")  # a quarter of the pixels: not every pattern of labels can be had
    assert half.share is not None
    assert bool((half.share > before + 0.1).all())
    layer = "up"
    rec = rev.reconstruct(x, y, at=layer)
    assert rec.share is not None
    assert bool((rec.share == 1).all())
    counted = ((rev.run(x, layer, rec.target).argmax(1) == y) & (y >= 0)).flatten(1).sum(1)
    torch.testing.assert_close(counted / (y >= 0).flatten(1).sum(1), rec.share.to(torch.float32))


def test_output_targets_are_reached_as_near_as_least_squares() -> None:
    """A linear path: the answer is the minimum-norm correction."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 12), nn.Linear(12, 3)).eval(), torch.randn(6, 5)
    y = torch.randn(6, 3)
    rec = frpt.Reverser(model, x).reconstruct(x, y, at="0")
    W = model[1].weight.detach().double()  # type: ignore[union-attr]
    exact = rec.anchor.double() + (y.double() - model(x).detach().double()) @ torch.linalg.pinv(W).T
    assert float((rec.target.double() - exact).norm() / (exact - rec.anchor.double()).norm()) < 5e-3
    assert bool((rec.closed > 0.998).all())
    assert bool(rec.wins.all())


def test_no_output_target_is_worth_a_feature_many_norms_away() -> None:
    torch.manual_seed(0)
    model, x = Branch().eval(), torch.randn(6, 6)
    rec = frpt.Reverser(model, x).reconstruct(x, torch.randn(6, 4), at="side")
    assert float(rec.deviation.max()) <= 10.001
    assert float(rec.closed.max()) < 0.01


def test_a_fixed_batch_size() -> None:
    torch.manual_seed(0)
    model, x = FixedBatch().eval(), torch.randn(4, 6)
    with torch.no_grad():
        out = model(x)
    y = (out.argmax(1) + 1) % out.shape[1]
    rec = frpt.Reverser(model, x).reconstruct(x, y, at="a")
    assert bool(rec.wins.all())


def test_the_walk_is_made_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = VGG().eval(), images(6)
    y = wrong_for_some(model, x)
    rev = frpt.Reverser(model, x)
    walks: list[str] = []
    real = frpt.reverse.backward.Walk.solve  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "frpt.reverse.backward.Walk.solve", lambda self, unit, *a: walks.append(unit.name) or real(self, unit, *a)
    )
    rec = rev.reconstruct(x, y, at="features")
    assert "CCP" not in str(rec)
    assert walks == []
    assert [u.name for u in rec.units] == [u.name for u in rev.plan("features").units]
    assert len(walks) == len(rec.units)
    assert "CCP" in str(rec)
    told = rev.explain(x, y, "features")
    assert [u.op for u in told.units] == [u.op for u in rec.units]
    walked = frpt.Reverser(model, x, preset=replace(PRESETS["default"], nearest=None)).reconstruct(x, y, at="features")
    assert torch.equal(told.target, walked.target)
    assert float(rec.deviation.mean()) <= float(told.deviation.mean())


def test_a_large_batch_is_recorded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    for model, x, layer in (
        (VGG().eval(), images(20), "features.3"),
        (SequenceFirst().eval(), torch.randn(20, 5, 4), "encoder"),
    ):
        y = wrong_for_some(model, x)
        rev = frpt.Reverser(model, x)
        whole = rev.reconstruct(x, y, at=layer)
        again = rev.reconstruct_from(x, y, layer, whole.anchor)
        out, on = rev.run(x, layer, whole.target), rev.run_on(x, layer)[1]
        monkeypatch.setattr("frpt.reverse.forward.AT_ONCE", 8)
        assert torch.equal(rev.run(x, layer, whole.target), out)
        assert torch.equal(rev.run_on(x, layer)[1], on)
        parts = rev.reconstruct(x, y, at=layer)
        assert torch.equal(parts.anchor, whole.anchor)
        assert torch.equal(parts.target, whole.target)
        assert torch.equal(rev.reconstruct_from(x, y, layer, whole.anchor).target, again.target)
        monkeypatch.undo()


@pytest.mark.parametrize("layer", ["1", "4"])
@pytest.mark.parametrize(("end", "several"), [(nn.Softmax(1), False), (nn.Sigmoid(), False), (nn.Sigmoid(), True)])
def test_a_final_softmax_or_sigmoid_changes_no_target(end: nn.Module, several: bool, layer: str) -> None:
    """The same labels win, so the nearest feature is the same; large scores leave probabilities of 0 and 1."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5)).eval()
    with torch.no_grad():
        plain[4].weight *= 40
    x = torch.randn(64, 6)
    y = torch.randint(2, (64, 5)) if several else torch.randint(5, (64,))
    ours = frpt.Reverser(nn.Sequential(*plain, end), x[:4]).reconstruct(x, y, at=layer)
    wanted = frpt.Reverser(plain, x[:4]).reconstruct(x, y, at="1" if layer == "1" else "out")
    assert bool((ours.wins >= wanted.wins).all())
    both = ours.wins & wanted.wins
    assert float((ours.deviation / wanted.deviation.clamp_min(1e-9))[both & wanted.corrected].median()) < 1.01
    assert float(ours.deviation[both].mean()) < 1.05 * float(wanted.deviation[both].mean())


def test_a_side_value_of_the_batch_size_is_made_for_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token of each sequence is picked by arange(batch)."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor, length: Tensor) -> Tensor:
            out: Tensor = self.out(self.embed(x).relu()[torch.arange(len(x)), length - 1])
            return out

    torch.manual_seed(0)
    model, x = Last().eval(), (torch.randn(20, 5, 4), torch.randint(1, 6, (20,)))
    rev = frpt.Reverser(model, x)
    value = torch.randn(20, 5, 8)
    with torch.no_grad():
        hook = model.embed.register_forward_hook(lambda *_: value)
        wanted = model(*x)
        hook.remove()
    monkeypatch.setattr("frpt.reverse.forward.AT_ONCE", 8)
    assert torch.equal(rev.run(x, "embed", value), wanted)
    assert torch.equal(rev.run_on(x, "embed", value)[1], wanted)


@pytest.mark.parametrize("margin", [-1, float("nan"), float("inf"), "a", True])
def test_a_margin_is_a_finite_number(margin: object) -> None:
    with pytest.raises(OptionError, match="margin"):
        frpt.Reverser(mlp().eval(), torch.randn(2, 6), margin=margin)  # type: ignore[arg-type]


def test_a_margin_out_of_reach_still_leaves_a_win() -> None:
    """Probabilities: the label can lead by 1 at most, and is asked to lead by 50."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3), nn.Softmax(1)).eval()
    x = torch.randn(8, 6)
    y = (model(x).argmax(1) + 1) % 3
    rec = frpt.Reverser(model, x, margin=50.0).reconstruct(x, y, at="0")
    assert bool(rec.corrected.all())
    assert float(rec.wins.double().mean()) > 0.7


@pytest.mark.parametrize("preset", ["default", "paper", "online"])
@pytest.mark.parametrize("margin", [0.5, 5.0, 1e6])
def test_a_margin_that_is_not_there_is_told(preset: str, margin: float) -> None:
    """``margin_met`` is what running on from the target says; the text has the count, and one warning is given."""
    torch.manual_seed(0)
    model, x = mlp((6, 24, 24, 4)).eval(), torch.randn(60, 6)
    y, rev = wrong_for_some(model, x), frpt.Reverser(model, x, preset=preset, margin=margin)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        both = rev.reconstruct(x, y, at=["1", "out"])
    rec = both["1"]
    out = rev.run(x, "1", rec.target).double()
    lead = out.gather(1, y[:, None]).squeeze(1) - out.scatter(1, y[:, None], -torch.inf).amax(1)
    there = lead >= 0.99 * margin
    assert rec.margin_met is not None
    assert torch.equal(rec.margin_met, there)
    found = [w for w in told if w.category is MarginWarning]
    assert len(found) == (not all(bool(r.margin_met.all()) for r in both.values() if r.margin_met is not None))
    assert all(w.filename == __file__ and f"margin of {margin:g} is missing" in str(w.message) for w in found)
    count = int(rec.corrected.sum())
    assert f"the margin is there in {int((there & rec.corrected).sum())} of {count}" in str(rec)
    if margin == 1e6:
        assert not there.any()
        assert found


def test_without_a_margin_nothing_is_said_of_one() -> None:
    torch.manual_seed(0)
    model, x = mlp((6, 24, 24, 4)).eval(), torch.randn(20, 6)
    rec = frpt.Reverser(model, x).reconstruct(x, wrong_for_some(model, x), at="1")
    assert rec.margin_met is None
    assert "margin" not in str(rec)
    outputs = frpt.Reverser(model, x, margin=0.5).reconstruct(x, torch.randn(20, 4), at="1")
    assert outputs.margin_met is None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_class_ids_of_every_integer_kind(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = mlp((6, 24, 24, 4)).eval(), torch.randn(6, 6)
    y, rev = wrong_for_some(model, x), frpt.Reverser(model, x)
    assert torch.equal(rev.reconstruct(x, y.to(dtype), at="1").target, rev.reconstruct(x, y, at="1").target)


@pytest.mark.parametrize("labels", [None, "cat", torch.zeros(6, dtype=torch.complex64)])
def test_what_is_no_label_is_refused(labels: object) -> None:
    rev = frpt.Reverser(mlp().eval(), torch.randn(2, 6))
    with pytest.raises(LabelError, match="labels must be"):
        rev.reconstruct(torch.randn(6, 6), labels, at="1")  # type: ignore[arg-type,call-overload]
