"""`frpt remember`, `frpt repair`, `frpt apply`, from files to files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from frpt.cli.main import app
from frpt.files import atomic

runner = CliRunner(env={"COLUMNS": "200"})
HERE = "tests.repairs.test_repair_command"


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3)).eval()


def old() -> TensorDataset:
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, net()(x).argmax(1))


def old_tensors() -> tuple[torch.Tensor, ...]:
    return old().tensors


def failures() -> TensorDataset:
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, (net()(x).argmax(1) + 1) % 3)


def many_failures() -> TensorDataset:
    x, y = old_tensors()
    return TensorDataset(x, (y + 1) % 3)


def run(*words: str) -> str:
    result = runner.invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_from_files_to_files(tmp_path: Path) -> None:
    memory, out = tmp_path / "memory", tmp_path / "fix"
    said = run("remember", f"{HERE}:net", "--data", f"{HERE}:old", "--out", str(memory))
    assert "Memory(300 inputs, 2 weights" in said
    pair = run("remember", f"{HERE}:net", "--data", f"{HERE}:old_tensors", "--out", str(tmp_path / "of tensors"))
    assert "Memory(300 inputs, 2 weights" in pair
    said = run("repair", f"{HERE}:net", "--data", f"{HERE}:failures", "--memory", str(memory), "--out", str(out),
               "--budget", "1.0")  # fmt: skip
    assert "12 failing samples" in said
    assert "looking for failures" in said
    repaired = net()
    repaired.load_state_dict(load_file(out / "model.safetensors"))
    x, y = failures().tensors
    assert (repaired(x).argmax(1) == y).double().mean() >= 0.75
    file = tmp_path / "applied.safetensors"
    run("apply", f"{HERE}:net", "--patch", str(out / "patch.safetensors"), "--out", str(file))
    there = load_file(out / "model.safetensors")
    assert all(torch.equal(value, there[name]) for name, value in load_file(file).items())
    back = tmp_path / "back.safetensors"
    run("apply", f"{HERE}:net", "--weights", str(file), "--patch", str(out / "patch.safetensors"), "--back",
        "--out", str(back))  # fmt: skip
    assert all(torch.equal(v, net().state_dict()[k]) for k, v in load_file(back).items())


def test_what_most_leaves_out_is_said(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    run("remember", f"{HERE}:net", "--data", f"{HERE}:old", "--out", str(memory))
    some = ["repair", f"{HERE}:net", "--memory", str(memory), "--out", str(tmp_path / "fix")]
    said = run(*some, "--data", f"{HERE}:failures", "--most", "5")
    assert "5 failing samples, the first ones: --most 5 leaves out all others. Of 12 samples 12 fail\n" in said
    said = run(*some, "--data", f"{HERE}:many_failures", "--most", "5")
    assert "Of 256 samples 256 fail; the other 44 were not looked at\n" in said


def test_options_and_the_report(tmp_path: Path) -> None:
    memory, out, page = tmp_path / "memory", tmp_path / "fix", tmp_path / "report.html"
    run("remember", f"{HERE}:net", "--data", f"{HERE}:old", "--out", str(memory))
    said = run("repair", f"{HERE}:net", "--data", f"{HERE}:failures", "--memory", str(memory), "--out", str(out),
               "--keep", f"{HERE}:old", "--modules", "auto", "--margin", "0.3", "--report", str(page),
               "--classes", "a,b,c")  # fmt: skip
    assert "modules='auto'" in said
    assert "of 150 old samples" in said
    text = page.read_text("utf-8")
    assert '<section id="repair"' in text
    moved = safe_open(str(out / "patch.safetensors"), "pt").keys()
    assert len({name.split(".")[0] for name in moved}) <= 1
    said = run("repair", f"{HERE}:net", "--data", f"{HERE}:failures", "--memory", str(memory), "--out", str(out),
               "--keep", f"{HERE}:old", "--method", "replay")  # fmt: skip
    assert said.count("replay: ") == 1


def test_interrupted_anywhere_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped as each file is about to take its place: those before it are whole, it and those after are not there."""
    memory = tmp_path / "memory"
    run("remember", f"{HERE}:net", "--data", f"{HERE}:old", "--out", str(memory))
    files = ["memory/memory.safetensors", "memory/memory.json", "model.safetensors", "patch.safetensors"]
    for stopped, _ in enumerate(files):
        out, made = tmp_path / str(stopped), 0

        def replace(part: Path, path: Path, last: int = stopped) -> None:
            nonlocal made
            made += 1
            if made > last:
                raise KeyboardInterrupt
            Path(part).rename(path)

        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, "replace", replace)
            result = runner.invoke(
                app, ["repair", f"{HERE}:net", "--data", f"{HERE}:failures", "--memory", str(memory), "--out", str(out)]
            )
        assert result.exit_code != 0
        there = sorted(str(file.relative_to(out)) for file in out.rglob("*") if file.is_file())
        assert there == sorted(files[:stopped])
        for file in there:
            if file.endswith("safetensors"):
                load_file(out / file)


def test_what_cannot_be_done_is_one_line(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    run("remember", f"{HERE}:net", "--data", f"{HERE}:old", "--out", str(memory))
    nothing = runner.invoke(
        app, ["repair", f"{HERE}:net", "--data", f"{HERE}:old", "--memory", str(memory), "--out", "x"]
    )
    assert nothing.exit_code == 2
    assert "nothing to repair" in nothing.output
    other = {k: v + 1 for k, v in net().state_dict().items()}
    save_file(other, tmp_path / "other.safetensors")
    refused = runner.invoke(
        app, ["repair", f"{HERE}:net", "--weights", str(tmp_path / "other.safetensors"), "--data", f"{HERE}:failures",
              "--memory", str(memory), "--out", "x"]
    )  # fmt: skip
    assert refused.exit_code == 2
    assert "weights have changed since" in refused.output
    common = ["repair", f"{HERE}:net", "--data", f"{HERE}:failures", "--memory", str(memory), "--out", "x"]
    for more, said in (
        (["--loss", "square"], "--loss must be logistic or hinge"),
        (["--method", "magic"], "method must be nearest"),
        (["--method", "replay"], "needs old inputs"),
        (["--modules", "nowhere"], "no weight that can be moved"),
        (["--mean", "a"], "numbers separated by commas"),
        (["--budget", "-1"], "budget must be a positive number"),
        (["--margin", "nan"], "margin must be a positive number"),
    ):
        bad = runner.invoke(app, [*common, *more])
        assert bad.exit_code == 2
        assert said in bad.output
        assert more == ["--method", "replay"] or "looking for failures" not in bad.output
    gone = runner.invoke(app, [*common[:5], str(tmp_path / "nothing"), *common[6:]])
    assert gone.exit_code == 2
    assert "cannot be read" in gone.output
    assert not Path("x").exists()
