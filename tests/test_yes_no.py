"""Labels of yes and no: one logit for two classes, several labels a sample, before and after a sigmoid."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import frpt
from frpt.cli.main import app
from frpt.common.yes_no import are_yes_no, lead, moved, opposed, signs
from frpt.diagnosis.sums import SampleTally
from frpt.errors import LabelError, LabelWarning, OptionError
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


@pytest.mark.parametrize("head", ["one", "flat", "one, sigmoid"])
def test_floats_of_zero_and_one_are_asked_about(head: str) -> None:
    """They are a regression by their type, and likely meant as two classes: said once, with both ways out."""
    model, (x, y) = network(head), samples(head)
    with pytest.warns(LabelWarning, match=r"y\.long\(\)"):
        frpt.Reverser(model, x).reconstruct(x, y.float(), at="1")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LabelWarning)
        frpt.Reverser(model, x, embed="regression").reconstruct(x, y.float(), at="1")
        frpt.Reverser(model, x).reconstruct(x, y, at="1")
        frpt.Reverser(model, x).reconstruct(x, y.float() + 0.5, at="1")


def test_one_hot_whole_numbers_are_asked_about() -> None:
    """They are yes and no by their shape, and likely meant as classes: said once, with both ways out."""
    torch.manual_seed(0)
    model, x, y = (
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval(),
        torch.randn(12, 4),
        torch.arange(12) % 3,
    )
    rev, hot = frpt.Reverser(model, x), torch.nn.functional.one_hot(y)
    with pytest.warns(LabelWarning, match=r"class ids \(y\.argmax\(1\)\)"):
        rev.reconstruct(x, hot, at="1")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LabelWarning)
        for labels in (y, hot.bool(), hot.index_fill(0, torch.tensor([3]), 1), hot[:4]):
            rev.reconstruct(x[: len(labels)], labels, at="1")


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


@pytest.mark.parametrize("head", ["one", "flat", "several, sigmoid"])
def test_repairs_are_compared(head: str) -> None:
    """Counts are those of the labels' sides, taken without frpt; a sample of several labels is right as a whole."""
    model, (x, y) = network(head), samples(head, 200)
    with torch.no_grad():
        before = right(model(x), y, head)
    wrong, old = (~before).nonzero()[:6, 0], (x[100:], y[100:])
    memory = frpt.remember(model, x[:100], task="binary", progress=False)
    table = frpt.compare_repairs(
        model, x[wrong], y[wrong], memory, old=old, kind=(x[:100], y[:100]), methods=("nearest", "replay")
    )
    assert table.count == 6
    assert table.old_count == 50
    assert table.old_before == pytest.approx(100 * float(before[101::2].double().mean()))
    assert table.kind_before == pytest.approx(100 * float(before[:100].double().mean()))
    for method, given in (("nearest", None), ("replay", old[0][::2])):
        fix = frpt.repair(model, x[wrong], y[wrong], memory, method=method, old=given)  # type: ignore[arg-type]
        with torch.no_grad():
            fixed, after = right(fix.model(x[wrong]), y[wrong], head), right(fix.model(x), y, head)
        assert table.mean(method, "fixed") == pytest.approx(100 * float(fixed.double().mean()))
        assert table.mean(method, "kind") == pytest.approx(100 * float(after[:100].double().mean()))
        assert table.mean(method, "broken") == int((before & ~after)[101::2].sum())
        assert table.mean(method, "mended") == int((~before & after)[101::2].sum())
    assert table.mean("nearest", "fixed") > 50


def net_of_one() -> nn.Module:
    return network("one")


def data_of_one() -> TensorDataset:
    x, y = samples("one", 60)
    return TensorDataset(x, y[:, 0].long())


def net_of_several() -> nn.Module:
    return network("several, sigmoid")


def data_of_several() -> TensorDataset:
    x, y = samples("several, sigmoid", 60)
    return TensorDataset(x, y.long())


@pytest.mark.parametrize(("which", "head"), [("one", "one"), ("several", "several, sigmoid")])
def test_in_the_shell(which: str, head: str, tmp_path: Path) -> None:
    """Remembered, repaired with a report, and diagnosed: only samples with an answer on the wrong side are failing."""
    model, data = (f"tests.test_yes_no:{kind}_of_{which}" for kind in ("net", "data"))
    memory, out, page = tmp_path / "memory", tmp_path / "fix", tmp_path / "page.html"

    def said(*words: str) -> str:
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words))
        assert result.exit_code == 0, result.output
        return result.output

    x, y = samples(head, 60)
    with torch.no_grad():
        before = right(network(head)(x), y, head)
    said("remember", model, "--data", data, "--out", str(memory), *(["--binary"] if which == "several" else []))
    text = said(
        "repair", model, "--data", data, "--memory", str(memory), "--out", str(out), "--budget", "1.0",
        "--report", str(page),
    )  # fmt: skip
    assert f"{int((~before).sum())} failing samples" in text
    assert '<section id="repair"' in page.read_text()
    repaired = network(head)
    repaired.load_state_dict(load_file(out / "model.safetensors"))
    with torch.no_grad():
        after = right(repaired(x), y, head)
        share = ((network(head)(x) > threshold(head)) == y).double().mean()
    assert int((after & ~before).sum()) >= int((~before).sum()) // 2
    text = said("diagnose", model, "--data", data, "--at", "1", "--html", str(page))
    assert f"an accuracy of {100 * float(share):.1f} % on 60 samples" in text
    assert f"{int((~before).sum())} of them" in text
    assert "The loss is the binary cross-entropy" in text


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
    torch.testing.assert_close(task_loss(out.sigmoid(), y, ends="sigmoid"), expected)


@pytest.mark.parametrize("use", ["reconstruct", "diagnose", "post_train", "back-propagation", "write_targets"])
def test_floats_for_one_logit(use: str, tmp_path: Path) -> None:
    """The labels of BCEWithLogitsLoss without the logit's axis: what they may be is said, and no size of a batch."""
    model, (x, y) = network("one"), samples("one")
    floats = y[:, 0].float()
    ways = {
        "reconstruct": lambda: frpt.Reverser(model, x).reconstruct(x, floats, at="1"),
        "diagnose": lambda: frpt.diagnose(model, (x, floats), at=["1"], gallery=0, progress=False),
        "post_train": lambda: frpt.post_train(model, (x, floats), at="1", epochs=1, progress=False),
        "back-propagation": lambda: frpt.post_train(model, (x, floats), at="1", c_rec=0, epochs=1, progress=False),
        "write_targets": lambda: frpt.write_targets(
            frpt.Reverser(model, x), (x, floats), "1", tmp_path, progress=False
        ),
    }
    said = r"shape \(b, 1\), got \(b,\)\. If they say yes or no, .*y\.long\(\)\. For a regression .*y\.reshape\(-1, 1\)"
    with pytest.raises(LabelError, match=said):
        ways[use]()


def test_floats_of_another_size() -> None:
    with pytest.raises(LabelError, match=r"shape \(b, 4\), got \(b, 3\)\.$"):
        task_loss(torch.zeros(5, 4), torch.zeros(5, 3))
    with pytest.raises(LabelError, match=r"shape \(5, 4\), got \(4,\)\.$"):
        task_loss(torch.zeros(5, 4), torch.zeros(4))


LABELS = ("cat", "dog", "<b>deer</b>", "ship")


def diagnosed(names: tuple[str, ...] | None, ignored: bool = False) -> tuple[nn.Module, Tensor, Tensor, frpt.Diagnosis]:
    x, y = samples("several", 40)
    y = y.long()
    if ignored:
        y[:, 0] = -100
    model = network("several")
    d = frpt.diagnose(model, TensorDataset(x, y), ["1"], class_names=names, gallery=4, progress=False)
    return model, x, y, d


@pytest.mark.parametrize("ignored", [False, True])
def test_several_labels_have_their_names_in_the_diagnosis(tmp_path: Path, ignored: bool) -> None:
    """Label and prediction are the names of the outputs that are yes: in the frame, the gallery, the page."""
    model, x, y, d = diagnosed(LABELS, ignored)
    assert d.output_names == LABELS
    assert d.class_names == ()
    with torch.no_grad():
        out = model(x)

    def words(row: Tensor, i: int) -> str:
        return ", ".join(n for k, n in enumerate(LABELS) if row[k] > 0 and y[i, k] >= 0) or "none"

    frame = d.to_pandas("samples")
    assert list(frame.label) == [words(y[i], i) for i in range(40)]
    assert list(frame.predicted) == [words(out[i], i) for i in range(40)]
    for specimen in d.gallery:
        i = specimen.index
        assert specimen.says == f"label: {words(y[i], i)}; predicted: {words(out[i], i)}"
    fix = frpt.repair(model, x[:6], y[:6].clamp_min(0), frpt.remember(model, x, task="binary", progress=False))
    page = d.to_html(tmp_path / "r.html", repair=fix).read_text("utf-8")
    assert "<b>deer</b>" not in page.split('<script type="application/json"')[0]
    assert ">label<" in page
    assert "dog, &lt;b&gt;deer&lt;/b&gt;" in page
    told = page.split('id="table-repaired"')[1].split("</table>")[0]
    assert any(name in told for name in ("cat", "dog"))
    assert "how far the output is from its target" not in told


def test_a_partial_diagnosis_without_the_answers_is_refused() -> None:
    """As an earlier version saved it: rows with and without them do not go together."""
    tally = SampleTally(["out"], 4)
    tally.extend({"index": np.arange(2)})
    with pytest.raises(OptionError, match="other columns"):
        tally.extend({"index": np.arange(2, 4), "label_yes": np.ones((2, 3), bool)})


def test_several_labels_without_names_have_their_numbers_and_too_few_are_refused() -> None:
    _, _, y, d = diagnosed(None)
    assert d.output_names == ("0", "1", "2", "3")
    assert d.to_pandas("samples").label[0] == (", ".join(str(k) for k in range(4) if y[0, k]) or "none")
    with pytest.raises(OptionError, match="class_names has 2 names, the output 4"):
        diagnosed(("a", "b"))
