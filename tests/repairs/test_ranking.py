"""Which layer is named: intervals against scipy's bootstrap, ties, few errors, sound networks."""

from __future__ import annotations

import copy
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt
from frpt.diagnosis.findings import Array
from frpt.diagnosis.report.verdict import verdict
from frpt.repairs.ranking import CLEAR, FEWEST, Ranking, Refits, output_first, own_weights, refit
from tests.diagnosis.small import diagnosis


def losses(seed: int = 0, count: int = 300) -> Array:
    return np.random.default_rng(seed).exponential(size=count)


def said(found: Ranking) -> str:
    """The verdict on the small diagnosis, with these layers."""
    d = diagnosis()
    layers = tuple(
        replace(d.layers[0], name=name, fault=fault.share, fault_interval=(fault.low, fault.high))
        for name, fault in found.faults.items()
    )
    told = replace(d, layers=layers, ranking=tuple(found.faults), suspects=found.suspects)
    with mock.patch("frpt.diagnosis.report.verdict.FEWEST", 0):  # the small diagnosis has few samples
        return " ".join(verdict(told).sentences)


def test_intervals_are_those_of_scipys_bootstrap() -> None:
    before = losses()
    after = before * np.random.default_rng(1).uniform(0, 1, len(before))
    fault = Refits(before, {"a": after}).ranked().faults["a"]
    theirs = bootstrap(
        (before, after), lambda b, a, axis: 1 - a.sum(axis) / b.sum(axis), paired=True, vectorized=True,
        method="percentile", n_resamples=2000, rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert fault.share == pytest.approx(1 - after.sum() / before.sum())
    assert (fault.low, fault.high) == pytest.approx((theirs.low, theirs.high), abs=6e-3)


def test_a_layer_far_ahead_is_named() -> None:
    before = losses()
    found = Refits(before, {"a": 0.9 * before, "b": 0.4 * before, "c": before}).ranked()
    assert tuple(found.faults) == ("b", "a", "c")
    assert found.suspects == ("b",)
    assert "The fault is most likely in" in said(found)


def test_a_tie_names_no_layer() -> None:
    """10.5 % and 10.5 %: both are named, none is called the likeliest."""
    before = losses()
    g = np.random.default_rng(3)
    after = {n: before * (0.895 + 0.1 * g.standard_normal(len(before))) for n in "ab"}
    found = Refits(before, {**after, "c": before}).ranked()
    assert set(found.suspects) == {"a", "b"}
    text = said(found)
    assert "No single layer stands out" in text
    assert "most likely in" not in text


def test_a_small_lead_is_none_however_many_samples() -> None:
    """93 % and 91 %, on a thousand samples that all say so: others make up for a fault nearly as well."""
    before = losses(count=1000)
    found = Refits(before, {"a": 0.07 * before, "b": 0.09 * before, "c": 0.5 * before}).ranked()
    assert found.suspects == ("a", "b")
    assert "do not tell the fault of" in said(found)


def test_if_all_layers_take_back_as_much_none_is_suspected() -> None:
    before = losses()
    found = Refits(before, {"a": 0.10 * before, "b": 0.12 * before, "c": 0.14 * before}).ranked()
    assert found.suspects == ()
    text = said(found)
    assert "do not tell which one carries a fault" in text
    assert "90.0 %" in text
    assert "86.0 %" in text


def test_a_list_of_most_layers_is_not_given() -> None:
    """Four of five have the damaged one among them four times of five by chance."""
    before = losses()
    alike = {n: (0.01 + 0.01 * i) * before for i, n in enumerate("abcd")}
    most = Refits(before, {**alike, "e": 0.6 * before}).ranked()
    assert most.suspects == ()
    text = said(most)
    assert "too close for these samples" in text
    assert "99.0 %" in text
    assert "96.0 %" in text
    assert "40.0 %" not in text
    fewer = {**alike, "e": 0.6 * before, "f": 0.7 * before}
    assert Refits(before, fewer).ranked().suspects == ("a", "b", "c", "d")


@pytest.mark.parametrize("kink", [nn.ReLU(), nn.PReLU()])
@pytest.mark.parametrize("alive", [0, 2])
def test_a_layer_with_hardly_a_filter_left_is_found(kink: nn.Module, alive: int) -> None:
    """Steps from next to zero know the slopes of neither side; what is drawn anew has those of its own size."""
    torch.manual_seed(0)
    x = torch.randn(400, 8)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), kink, nn.Linear(24, 4)).eval()
    with torch.no_grad():
        net[4].weight *= 10
        y = net(x).argmax(1)
        net[2].weight[alive:], net[2].bias[alive:] = 0, 0
    rev = frpt.Reverser(net, x[:8])
    found = refit(rev, [(x[:200], y[:200])], [(x[200:], y[200:])], ["out", "3", "1"]).ranked()
    assert next(iter(found.faults)) == "3"


def test_the_zeros_of_a_padding_token_are_left_alone() -> None:
    """They are no filter: with padding in every sequence the refit is that of the same network without it."""
    torch.manual_seed(0)
    tokens = torch.randint(1, 12, (300, 5))
    table = nn.Embedding(12, 6, padding_idx=0)
    net = nn.Sequential(table, nn.Flatten(), nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 3))
    y = net(tokens).argmax(1)
    with torch.no_grad():
        table.weight[1:6] += torch.randn(5, 6)
    padded = torch.cat([tokens, torch.zeros(300, 1, dtype=torch.long)], 1)
    wide = copy.deepcopy(net)
    wide[2] = nn.Linear(36, 16)
    with torch.no_grad():
        wide[2].weight[:, :30], wide[2].weight[:, 30:] = net[2].weight, 5.0
        wide[2].bias.copy_(net[2].bias)

    def faults(model: nn.Module, x: Tensor) -> dict[str, float]:
        rev = frpt.Reverser(model.eval(), x[:8])
        found = refit(rev, [(x[:150], y[:150])], [(x[150:], y[150:])], ["out", "0"]).ranked()
        return {name: fault.share for name, fault in found.faults.items()}

    assert faults(wide, padded)["0"] == pytest.approx(faults(net, tokens)["0"], abs=0.01)


@pytest.mark.parametrize("kink", [nn.ReLU(), nn.PReLU()])
def test_filters_of_zeros_are_found(kink: nn.Module) -> None:
    """Behind a ReLU they have no slope at all."""
    torch.manual_seed(0)
    x = torch.randn(400, 8)
    net = nn.Sequential(nn.Linear(8, 24), kink, nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)).eval()
    with torch.no_grad():
        net[4].weight *= 10
        y = net(x).argmax(1)
        net[0].weight[:16], net[0].bias[:16] = 0, 0
    rev = frpt.Reverser(net, x[:8])
    found = refit(rev, [(x[:200], y[:200])], [(x[200:], y[200:])], ["out", "3", "1"]).ranked()
    assert next(iter(found.faults)) == "1"


def test_a_few_errors_name_no_layer() -> None:
    """Three samples carry the loss, and one of them is what the better layer takes back."""
    before = np.full(400, 1e-3)
    before[:3] = 5.0
    better, other = before.copy(), before.copy()
    better[0], other[1] = 0.0, 3.0
    found = Refits(before, {"a": better, "b": other, "c": before}).ranked()
    assert len(found.suspects) != 1
    assert "No single layer stands out" in said(found)


def test_a_sound_network_has_no_suspects() -> None:
    before = losses()
    found = Refits(before, {"a": 0.97 * before, "b": 0.99 * before, "c": before}).ranked()
    assert found.faults["a"].high < CLEAR
    assert found.suspects == ()
    assert "No single layer stands out" in said(found)


def test_refits_that_all_failed_say_nothing() -> None:
    before = losses()
    found = Refits(before, {"a": before, "b": before, "c": before}).ranked()
    text = said(found)
    assert "did not lower the loss" in text
    assert "is the best of them" not in text


def test_without_a_loss_there_is_no_fault() -> None:
    none = np.zeros(10)
    found = Refits(none, {"a": none, "b": none}).ranked()
    assert [f.share for f in found.faults.values()] == [0.0, 0.0]
    assert found.suspects == ()


def ending(last: nn.Module | None) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    with torch.no_grad():
        net[2].weight *= 8  # confident, so that probabilities saturate
    return (net if last is None else net.append(last)).eval()


def diagnosed(net: nn.Module, y: Tensor, loss: str | None = None) -> frpt.Diagnosis:
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(1))
    return frpt.diagnose(net, TensorDataset(x, y), ["1"], loss=loss, reference=False, gallery=0, progress=False)


LABELS = torch.randint(4, (200,), generator=torch.Generator().manual_seed(2))


def test_a_final_softmax_changes_no_fault() -> None:
    plain, soft = (diagnosed(ending(last), LABELS) for last in (None, nn.Softmax(1)))
    assert [f.fault for f in soft.layers] == pytest.approx([f.fault for f in plain.layers], rel=1e-4)
    assert soft.suspects == plain.suspects
    assert "before the final softmax" in str(soft)
    assert plain.loss == "the cross-entropy"


def test_a_final_sigmoid_is_the_binary_loss_of_the_logits() -> None:
    many = torch.nn.functional.one_hot(LABELS, 4).float()
    by_id, by_share = (diagnosed(ending(nn.Sigmoid()), y) for y in (LABELS, many))
    plain = diagnosed(ending(None), many, "bce")
    for other in (by_share, plain):
        assert [f.fault for f in other.layers] == pytest.approx([f.fault for f in by_id.layers], rel=1e-4)
    assert by_id.loss == "the binary cross-entropy of the values before the final sigmoid"


def test_an_output_without_axes_but_the_batch() -> None:
    """The same diagnosis as of the output (b, 1)."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).eval()
    y = torch.randn(200)
    column, flat = diagnosed(net, y[:, None]), diagnosed(nn.Sequential(*net, nn.Flatten(0)).eval(), y)
    assert flat.score_name == "mse"
    assert flat.score == pytest.approx(column.score)
    for a, b in zip(flat.layers, column.layers, strict=True):
        assert (a.fault, a.deviation, a.closed) == pytest.approx((b.fault, b.deviation, b.closed), rel=1e-4)


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(frpt.errors.OptionError, match="cross_entropy"):
        diagnosed(ending(None), LABELS, "hinge")


def test_of_few_samples_no_layer_is_named() -> None:
    """Two of them have no spread that a bootstrap could see; a network with nothing but failures is a usual call."""
    before = losses(count=FEWEST - 1)
    assert Refits(before, {"a": 0.1 * before, "b": before}).ranked().suspects == ()
    enough = losses(count=FEWEST)
    assert Refits(enough, {"a": 0.1 * enough, "b": enough}).ranked().suspects == ("a",)
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(200, 4)
    y = (net(x).argmax(1) + 1) % 3
    few = frpt.diagnose(net, TensorDataset(x[:3], y[:3]), gallery=0, progress=False)
    assert few.suspects == ()
    assert f"fewer than {FEWEST} samples are too few" in str(few)


def test_where_nothing_is_wrong_no_layer_has_a_fault_or_a_rank() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(60, 4)
    sound = frpt.diagnose(net, TensorDataset(x, net(x).argmax(1)), gallery=0, progress=False)
    assert sound.ranking == sound.suspects == ()
    assert all(layer.fault == 0 for layer in sound.layers)
    assert "no layer is at fault" in str(sound)


class Skipped(nn.Module):
    """A branch beside a skip: the way from ``a`` to the output is as short as that from ``branch``."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 24)
        self.branch = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 24))
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.head(torch.relu(h + self.branch(h)))


def test_a_layer_before_a_skip_keeps_its_weights() -> None:
    torch.manual_seed(0)
    net, x = Skipped().eval(), torch.randn(400, 6)
    y = net(x).argmax(1)
    with torch.no_grad():
        net.a.weight += 1.2 * net.a.weight.std() * torch.randn(net.a.weight.shape)
    rev = frpt.Reverser(net, x[:8])
    layers = output_first(rev, ["a", "branch"])
    assert layers == output_first(rev, ["branch", "a"]) == ["out", "branch", "a"]
    assert own_weights(rev, layers)["a"] == ["a.weight", "a.bias"]
    found = refit(rev, [(x[:200], y[:200])], [(x[200:], y[200:])], layers).ranked()
    assert next(iter(found.faults)) == "a"


class Parallel(nn.Module):
    """Two branches, neither behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Linear(6, 12), nn.Linear(6, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.one(x)) + torch.relu(self.other(x)))


def test_of_parallel_branches_each_owns_its_weights_and_the_output_none_of_them() -> None:
    rev = frpt.Reverser(Parallel().eval(), torch.randn(8, 6))
    own = own_weights(rev, output_first(rev, ["one", "other"]))
    assert own == {
        "out": ["head.weight", "head.bias"], "other": ["other.weight", "other.bias"], "one": ["one.weight", "one.bias"],
    }  # fmt: skip


def test_weights_of_other_sizes_do_not_hold_up_a_refit() -> None:
    """One matrix a hundred times smaller, the next one larger: the same function, and about the same share."""
    shares = []
    for factor in (1.0, 0.01):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 24), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)).eval()
        x = torch.randn(400, 6)
        y = net(x).argmax(1)
        with torch.no_grad():
            net[0].weight += net[0].weight.std() * torch.randn(net[0].weight.shape)
            for p in net[0].parameters():
                p *= factor
            net[1].weight /= factor
        rev = frpt.Reverser(net, x[:8])
        found = refit(rev, [(x[:200], y[:200])], [(x[200:], y[200:])], ["out", "2"]).ranked()
        shares.append(found.faults["2"].share)
    plain, uneven = shares
    assert plain > 0.2
    assert uneven > 0.9 * plain
