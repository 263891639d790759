"""Reference: its statistics, its files, and what reconstructions make of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt
from frpt.errors import NonFiniteError, OptionError, ReferenceMismatchError
from frpt.solvers.variation import Gatherer, Variation
from tests.models import VGG, mlp


def blobs(count: int = 240, seed: int = 0) -> TensorDataset:
    """Four classes around four centres."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 4
    centres = 3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(99))
    return TensorDataset(centres[y] + torch.randn(count, 6, generator=g), y)


def trained(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model, (x, y) = mlp((6, 24, 16, 4)), blobs().tensors
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


def test_the_factors_are_the_covariances_along_each_axis() -> None:
    g = torch.Generator().manual_seed(0)
    mix = [torch.randn(d, d, generator=g, dtype=torch.float64) for d in (3, 4, 5)]
    x = torch.einsum("nabc,ai,bj,ck->nijk", torch.randn(4000, 3, 4, 5, generator=g, dtype=torch.float64), *mix) + 2.0
    gatherer = Gatherer(torch.Size((3, 4, 5)))
    for part in x.split(700):
        gatherer.add(part, None)
    found = gatherer.variation(1.0)
    centred = x - x.mean(0)
    torch.testing.assert_close(found.mean.double(), x.mean(0), rtol=1e-5, atol=1e-5)
    assert found.variance == pytest.approx(float(centred.square().mean()), rel=1e-6)
    for axis, (factor, m) in enumerate(zip(found.factors, mix, strict=True), 1):
        rows = centred.movedim(axis, 0).flatten(1)
        direct = rows @ rows.T
        torch.testing.assert_close(factor.double(), direct / direct.diagonal().mean(), rtol=1e-4, atol=1e-5)
        true = m.T @ m
        torch.testing.assert_close(factor.double(), true / true.diagonal().mean(), rtol=0.2, atol=0.1)


def dense(v: Variation) -> Tensor:
    """Σ as one matrix, shrunk."""
    factors = [(1 - v.shrink) * f.double() + v.shrink * torch.eye(len(f), dtype=torch.float64) for f in v.factors]
    return v.variance * torch.kron(factors[0].contiguous(), factors[1].contiguous())


def test_the_metric_is_that_of_the_kronecker_product() -> None:
    g = torch.Generator().manual_seed(0)
    gatherer = Gatherer(torch.Size((3, 4)))
    gatherer.add(torch.randn(50, 3, 4, generator=g) @ torch.randn(4, 4, generator=g), None)
    v = gatherer.variation(1.0).to(torch.zeros(1, dtype=torch.float64))
    sigma, d = dense(v), torch.randn(5, 12, generator=g, dtype=torch.float64)
    torch.testing.assert_close(v.spread(d), d @ sigma, rtol=1e-5, atol=1e-6)
    direct = (d @ torch.linalg.inv(sigma) * d).sum(1).sqrt()
    torch.testing.assert_close(v.norm(d), direct, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(v.colour(v.whiten(d)), d, rtol=1e-5, atol=1e-6)


def test_an_axis_longer_than_it_can_hold_has_variances() -> None:
    gatherer = Gatherer(torch.Size((2, 6)), longest=3)
    x = torch.randn(400, 2, 6) * torch.arange(1, 7)
    gatherer.add(x, None)
    v = gatherer.variation(0.0)
    assert [f.dim() for f in v.factors] == [2, 1]
    wide = (x - x.mean(0)).square().mean((0, 1))
    torch.testing.assert_close(v.factors[1], wide / wide.mean(), rtol=1e-4, atol=1e-4)
    assert bool(torch.isfinite(v.norm(torch.randn(3, 12))).all())


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    model = trained()
    ref = frpt.Reference.fit(model, blobs(), at=["1", "3"], samples=200, progress=False)
    again = frpt.Reference.load(ref.save(tmp_path / "ref"))
    assert again.digest == ref.digest
    assert again.samples == 200
    x, y = blobs(32, 5).tensors
    y = (y + 1) % 4
    one, two = (frpt.Reverser(model, x, reference=r).reconstruct(x, y, at="1") for r in (ref, again))
    assert torch.equal(one.target, two.target)
    assert "reference's metric" in str(one)
    assert frpt.Reference.fit(model, blobs(), at=["1", "3"], samples=200, progress=False).digest == ref.digest
    assert frpt.Reference.fit(model, blobs(), at=["1", "3"], samples=200, seed=1, progress=False).digest != ref.digest


def test_other_weights_damage_and_shapes_are_refused(tmp_path: Path) -> None:
    model = trained()
    ref = frpt.Reference.fit(model, blobs(), at="1", progress=False)
    with pytest.raises(ReferenceMismatchError, match=r"weights have changed.*0\.bias"):
        frpt.Reverser(trained(1), torch.randn(2, 6), reference=ref)
    with pytest.raises(ReferenceMismatchError, match="has not"):
        frpt.Reverser(VGG().eval(), torch.randn(2, 3, 16, 16), reference=ref)
    place = ref.save(tmp_path / "ref")
    data = bytearray((place / "reference.safetensors").read_bytes())
    data[-3] ^= 1
    (place / "reference.safetensors").write_bytes(data)
    with pytest.raises(ReferenceMismatchError, match="damaged"):
        frpt.Reference.load(place)
    with pytest.raises(ReferenceMismatchError, match="no reference"):
        frpt.Reference.load(tmp_path / "nothing")
    with pytest.raises(OptionError, match="two samples"):
        frpt.Reference.fit(model, blobs(), at="1", samples=1)


def test_with_a_reference_the_answer_moves_towards_the_labels_features_and_wins() -> None:
    model, x = trained(), blobs(64, 7).tensors[0]
    ref = frpt.Reference.fit(model, blobs(), at=["1"], progress=False)
    label = (model(x).argmax(1) + 1) % 4
    near = frpt.Reverser(model, x).reconstruct(x, label, at="1")
    likely = frpt.Reverser(model, x, reference=ref).reconstruct(x, label, at="1")
    assert bool(near.wins.all())
    assert bool(likely.wins.all())
    mean = ref.layers["1"].means[label]
    assert near.reference_deviation is None
    assert likely.reference_deviation is not None
    gone = [(mean - r.target).norm(dim=1) / (mean - r.anchor).norm(dim=1) for r in (near, likely)]
    assert float(gone[1].mean()) < 0.9 * float(gone[0].mean())
    right = frpt.Reverser(model, x, reference=ref).reconstruct(x, model(x).argmax(1), at="1")
    assert torch.equal(right.target, right.anchor)
    assert bool((right.reference_deviation == 0).all())  # type: ignore[union-attr]


def test_of_a_corrupted_sample_it_is_nearer_to_the_truth_than_the_least_change() -> None:
    """The truth: the feature of the clean sample."""
    model, (x, y) = trained(), blobs(400, 11).tensors
    ref = frpt.Reference.fit(model, blobs(), at=["1"], progress=False)
    noisy = x + 2.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    fail = (model(noisy).argmax(1) != y) & (model(x).argmax(1) == y)
    x, noisy, y = x[fail], noisy[fail], y[fail]
    assert len(y) > 40
    plain, measured = frpt.Reverser(model, x), frpt.Reverser(model, x, reference=ref)
    truth = plain.reconstruct(x, y, at="1").anchor
    left = []
    for rev in (plain, measured):
        rec = rev.reconstruct(noisy, y, at="1")
        left.append(float(((rec.target - truth).norm(dim=1) / (rec.anchor - truth).norm(dim=1)).mean()))
    assert left[1] < left[0] < 1.0


def test_labels_without_a_mean_and_output_targets_are_measured_in_the_metric() -> None:
    model, (x, y) = trained(), blobs(16, 3).tensors
    few = TensorDataset(*(t[blobs().tensors[1] < 3] for t in blobs().tensors))
    ref = frpt.Reference.fit(model, few, at=["1"], progress=False)
    assert ref.layers["1"].classes.tolist() == [0, 1, 2]
    label = torch.full_like(y, 3)
    plain, measured = frpt.Reverser(model, x), frpt.Reverser(model, x, reference=ref)
    rec, base = measured.reconstruct(x, label, at="1"), plain.reconstruct(x, label, at="1")
    assert bool(rec.wins.all())
    moved = rec.corrected
    metric = ref.layers["1"]
    inside = metric.norm((base.target - base.anchor)[moved]) / 24**0.5
    assert rec.reference_deviation is not None
    assert float(rec.reference_deviation[moved].mean()) <= 1.02 * float(inside.mean())
    goal = model(x).detach() + 0.5 * torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    near, likely = plain.reconstruct(x, goal, at="1"), measured.reconstruct(x, goal, at="1")
    assert float(likely.closed.mean()) > 0.95
    assert likely.reference_deviation is not None
    inside = metric.norm(near.target - near.anchor) / 24**0.5
    assert float(likely.reference_deviation.mean()) < 1.05 * float(inside.mean())


def test_stores_and_runs_know_their_reference(tmp_path: Path) -> None:
    model, data = trained(), blobs(40, 2)
    ref = frpt.Reference.fit(model, blobs(), at=["1"], progress=False)
    rev = frpt.Reverser(model, data.tensors[0][:4])
    frpt.write_targets(rev, data, "1", tmp_path / "s", reference=ref, progress=False)
    with pytest.raises(frpt.errors.StoreMismatchError, match="reference"):
        frpt.write_targets(rev, data, "1", tmp_path / "s", progress=False)
    with pytest.raises(ReferenceMismatchError):
        frpt.write_targets(frpt.Reverser(trained(1), data.tensors[0][:4]), data, "1", tmp_path / "t", reference=ref)
    result = frpt.post_train(model, data, "1", reference=ref, epochs=1, progress=False)
    assert result.last.distance is not None
    with pytest.raises(OptionError, match="belong to the Reverser"):
        frpt.post_train(rev, data, "1", reference=ref, epochs=1, progress=False)


def test_what_a_reference_cannot_be_made_of_or_used_for(tmp_path: Path) -> None:
    model, (x, y) = trained(), blobs().tensors
    broken = x.clone()
    broken[3, 2] = torch.nan
    with pytest.raises(NonFiniteError, match="NaN"):
        frpt.Reference.fit(model, TensorDataset(broken, y), at="1", progress=False)
    with pytest.raises(OptionError, match="two samples"):
        frpt.Reference.fit(model, TensorDataset(x[:1], y[:1]), at="1", progress=False)
    with pytest.raises(OptionError, match="do not vary"):
        frpt.Reference.fit(model, TensorDataset(x[:1].expand(9, -1), y[:9]), at="1", progress=False)
    ref = frpt.Reference.fit(model, blobs(), at="1", progress=False)
    with pytest.raises(OptionError, match="takes no reference"):
        frpt.Reverser(model, x[:4], preset="paper", reference=ref)
    with pytest.raises(OptionError, match=r"must be a frpt\.Reference"):
        frpt.Reverser(model, x[:4], reference="ref/")  # type: ignore[arg-type]
    rev = frpt.Reverser(model, x[:4])
    with pytest.raises(OptionError, match="knows nothing of '3'"):
        frpt.write_targets(rev, blobs(20), "3", tmp_path / "s", reference=ref, progress=False)
    with pytest.raises(OptionError, match="knows nothing of '3'"):
        frpt.post_train(model, blobs(20), "3", reference=ref, epochs=1, progress=False)
    with pytest.raises(OptionError, match="targets made now"):
        frpt.post_train(model, blobs(20), "1", reference=ref, targets="anchor", epochs=1, progress=False)
    place = ref.save(tmp_path / "ref")
    facts = (place / "reference.json").read_text()
    for old, new in (('"version": 1', '"version": 9'), (f'"samples": {ref.samples}', '"samples": 7')):
        (place / "reference.json").write_text(facts.replace(old, new))
        with pytest.raises(ReferenceMismatchError):
            frpt.Reference.load(place)


def test_where_the_guess_leads_nowhere_the_least_change_is_taken() -> None:
    """Class means of another task: the label wins all the same."""
    model, (x, y) = trained(), blobs(40, 9).tensors
    torch.manual_seed(3)
    wrong = TensorDataset(blobs().tensors[0], torch.randint(4, (240,)))
    ref = frpt.Reference.fit(model, wrong, at=["1"], progress=False)
    rec = frpt.Reverser(model, x, reference=ref).reconstruct(x, (y + 1) % 4, at="1")
    assert bool(rec.wins.all())
