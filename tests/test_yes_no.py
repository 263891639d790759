"""Labels of yes and no: one logit for two classes, several labels a sample, before and after a sigmoid."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt
from frpt.common.yes_no import are_yes_no, lead, moved, opposed, signs
from frpt.errors import LabelError, OptionError
from frpt.train.metrics import accuracy, task_loss

HEADS = {
    "one": (1, ()),
    "flat": (1, (nn.Flatten(0),)),
    "one, sigmoid": (1, (nn.Sigmoid(),)),
    "several": (4, ()),
    "several, sigmoid": (4, (nn.Sigmoid(),)),
}


def network(head: str) -> nn.Sequential:
    count, tail = HEADS[head]
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, count), *tail).eval()


def samples(head: str, count: int = 24) -> tuple[Tensor, Tensor]:
    """Inputs, and labels shaped like the output; half of them as the network says."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, generator=g)
    with torch.no_grad():
        out = network(head)(x)
    said = out > threshold(head)
    return x, torch.where(torch.rand(out.shape, generator=g) < 0.3, ~said, said)


def threshold(head: str) -> float:
    return 0.5 if "sigmoid" in head else 0.0


def right(outputs: Tensor, y: Tensor, head: str) -> Tensor:
    """(b,): every entry on its label's side, without frpt."""
    return ((outputs > threshold(head)).reshape(len(y), -1) == y.reshape(len(y), -1).bool()).all(1)


@pytest.mark.parametrize(("head", "dtype"), [*((head, torch.long) for head in HEADS), ("several", torch.bool)])
def test_all_labels_win_and_right_samples_stay(head: str, dtype: torch.dtype) -> None:
    model, (x, y) = network(head), samples(head)
    rev = frpt.Reverser(model, x)
    rec = rev.reconstruct(x, y.to(dtype), at="1")
    before = right(rev.run(x, "1", rec.anchor), y, head)
    assert rec.corrected.tolist() == (~before).tolist()
    assert 0 < int(rec.corrected.sum()) < len(x)
    assert bool(right(rev.run(x, "1", rec.target), y, head).all())
    assert bool(rec.wins.all())
    assert torch.equal(rec.target[before], rec.anchor[before])


def test_one_logit_is_a_linear_program_with_a_known_answer() -> None:
    """A linear path s = wa + b: the nearest feature with the other sign lies along w, (|s| + margin)/‖w‖ away."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 1)).eval(), torch.randn(9, 5)
    with torch.no_grad():
        s, w = model(x)[:, 0], model[1].weight[0].detach()
    rec = frpt.Reverser(model, x).reconstruct(x, (s < 0).long(), at="0")
    exact = rec.anchor - (s / w.square().sum())[:, None] * w
    assert float((rec.target - exact).norm() / (exact - rec.anchor).norm()) < 1e-3


def test_labels_of_one_logit_may_lack_its_axis() -> None:
    model, (x, y) = network("one"), samples("one")
    rev = frpt.Reverser(model, x)
    assert torch.equal(rev.reconstruct(x, y[:, 0], at="1").target, rev.reconstruct(x, y, at="1").target)


def test_ignored_labels_are_left_alone() -> None:
    model, (x, y) = network("several"), samples("several")
    wrong = ~y.long().bool()
    labels = torch.where(torch.arange(4) < 3, -100, wrong.long())
    rec = frpt.Reverser(model, x).reconstruct(x, labels, at="1")
    out = frpt.Reverser(model, x).run(x, "1", rec.target)
    assert torch.equal(out[:, 3] > 0, wrong[:, 3])
    assert bool(rec.wins.all())


def test_other_numbers_are_refused_and_floats_are_a_regression() -> None:
    model, (x, y) = network("several"), samples("several")
    rev = frpt.Reverser(model, x)
    with pytest.raises(LabelError, match="say yes or no"):
        rev.reconstruct(x, 2 * y.long(), at="1")
    assert rev.reconstruct(x, y.float(), at="1").share is None
    asked = frpt.Reverser(model, x, embed="regression").reconstruct(x, y, at="1")
    assert asked.share is None


def test_a_reference_and_the_other_presets_take_them() -> None:
    for head in ("one",):
        model, (x, y) = network(head), samples(head)
        reference = frpt.Reference.fit(model, TensorDataset(x, y), at=["1"], progress=False)
        rec = frpt.Reverser(model, x, reference=reference).reconstruct(x, y, at="1")
        assert bool(rec.wins.all())
        paper = frpt.Reverser(model, x, preset="paper", margin=0.01).reconstruct(x, y, at="1")
        assert float(paper.wins.double().mean()) > 0.9


@pytest.mark.parametrize("head", ["flat", "several, sigmoid"])
def test_a_diagnosis_counts_them_as_answers(head: str, tmp_path: Path) -> None:
    model, (x, y) = network(head), samples(head, 40)
    found = frpt.diagnose(model, TensorDataset(x, y), ["1"], progress=False)
    assert found.score_name == "accuracy"
    with torch.no_grad():
        share = ((model(x) > threshold(head)) == y).double().mean()
    assert found.score == pytest.approx(float(share))
    assert found.loss.startswith("the binary cross-entropy")
    assert len(found.class_names) == (2 if head != "several, sigmoid" else 0)
    if found.class_names:
        assert int(found.confusion.sum()) == 40
        assert int(found.confusion.trace()) == round(40 * found.score)
    assert found.to_html(tmp_path / "page.html").exists()


@pytest.mark.parametrize("head", ["flat", "several, sigmoid"])
def test_post_training_learns_them(head: str) -> None:
    """Labels that a linear map gives, so that there is something to learn."""
    model, (x, like) = network(head), samples(head, 64)
    teacher = torch.randn(6, HEADS[head][0], generator=torch.Generator().manual_seed(2))
    data = TensorDataset(x, (x @ teacher > 0).reshape(like.shape))
    result = frpt.post_train(
        model, data, at="1", c_rec=0.1, epochs=8, lr=0.03, batch_size=16, val=data, seed=0, progress=False
    )
    assert result.metric == "accuracy"
    assert result.start is not None
    assert (result.last.metric or 0.0) > result.start
    assert result.last.task_loss < result.history[0].task_loss


@pytest.mark.parametrize(
    ("head", "method", "least"),
    [*((head, "nearest", 4) for head in HEADS), ("one, sigmoid", "replay", 2), ("several", "ewc", 1)],
)
def test_a_repair_fixes_them(head: str, method: str, least: int) -> None:
    model, (x, y) = network(head), samples(head, 200)
    with torch.no_grad():
        wrong = (~right(model(x), y, head)).nonzero()[:6, 0]
    memory = frpt.remember(model, x, task="binary", progress=False)
    assert memory.task == "binary"
    fix = frpt.repair(model, x[wrong], y[wrong], memory, method=method, old=x)  # type: ignore[arg-type]
    with torch.no_grad():
        now = right(fix.model(x[wrong]), y[wrong], head)
    assert torch.equal(fix.fixed, now)
    assert int(now.sum()) >= least
    assert len(fix.explain()) > 0


def test_a_memory_of_one_logit_is_binary_by_itself_and_of_another_task_is_refused() -> None:
    x, y = samples("one")
    assert frpt.remember(network("one"), x, progress=False).task == "binary"
    several, (x, y) = network("several"), samples("several")
    memory = frpt.remember(several, x, progress=False)
    assert memory.task == "classification"
    with pytest.raises(OptionError, match='task="binary"'):
        frpt.repair(several, x, y, memory)


def test_pieces() -> None:
    assert are_yes_no((3, 1), torch.tensor([0, 1, 1]))
    assert are_yes_no((3,), torch.tensor([True, False, True]))
    assert are_yes_no((3, 1, 2, 2), torch.zeros(3, 2, 2, dtype=torch.long))
    assert not are_yes_no((3, 4), torch.tensor([0, 1, 3]))
    assert not are_yes_no((3, 4), torch.zeros(3, 4))
    out, y = torch.tensor([[2.0, -1.0], [0.5, 3.0]]), torch.tensor([[1, 1], [0, -100]])
    assert signs(out, y).tolist() == [[1, 1], [-1, 0]]
    assert lead(out, y).tolist() == [[2, -1], [-0.5, torch.inf]]
    assert moved(out, y, 0.25, 0.0).tolist() == [[2, 0.25], [-0.25, 3]]
    scores, label = opposed(out, y, 0.0)
    others = scores.scatter(1, label[:, None], -torch.inf).amax(1)
    least = scores.gather(1, label[:, None])[:, 0] - others
    assert least.tolist() == lead(out, y).amin(1).tolist()
    assert accuracy(out, y).tolist() == [0.5, 0.0]
    expected = -(torch.sigmoid(out[0]).log().sum() + torch.sigmoid(-out[1, 0]).log()) / 3
    torch.testing.assert_close(task_loss(out, y), expected)
    torch.testing.assert_close(task_loss(out.sigmoid(), y, threshold=0.5), expected)
