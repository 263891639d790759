"""The command line: layers, plan, demo, and errors as one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import frpt
from frpt.cli.main import app

runner = CliRunner(env={"COLUMNS": "200"})


def test_layers_lists_names_shapes_and_classes() -> None:
    result = runner.invoke(app, ["layers", "tests.models:ResNet"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[1].split()[0] == "out"
    row = next(line for line in lines if line.startswith("layer1.0.conv1 "))
    assert "Conv2d" in row
    assert "(b, 8," in row


def test_plan_shows_the_table() -> None:
    result = runner.invoke(app, ["plan", "tests.models:VGG", "--at", "features", "--input", "2,3,16,16"])
    assert result.exit_code == 0, result.output
    assert "linear" in result.output
    assert "(b, 5) -> (b, 32)" in result.output
    stages = runner.invoke(app, ["plan", "tests.models:ResNet", "--at", "stem", "--blocks", "stages"])
    assert stages.output.count("composite") == 4
    out = runner.invoke(app, ["plan", "tests.models:ResNet", "--at", "out"])
    assert "nothing to reverse" in out.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "tests.models:ResNet", "--at", "layer9"], "Did you mean"),
        (["layers", "tests.models"], "package.module:factory"),
        (["layers", "tests.models:Nothing"], "Nothing"),
        (["layers", "no.such.module:x"], "cannot import"),
        (["layers", "tests.models:VGG"], "--input"),
        (["layers", "tests.models:ResNet", "--input", "a,b"], "2,3,224,224"),
        (["plan", "tests.models:ResNet", "--at", "fc", "--preset", "mine"], "unknown preset"),
    ],
)
def test_errors_are_one_line_and_exit_code_two(arguments: list[str], words: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_demo_runs_and_reproduces(tmp_path: Path) -> None:
    short = ["--epochs", "1", "--post-epochs", "1", "--seeds", "1", "--seed", "3"]
    tails = []
    for name in ("first", "second"):
        result = runner.invoke(app, ["demo", *short, "--out", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        tail = result.output[result.output.index("test accuracy after") :].replace(name, "")
        table, _, mended = tail.partition("repairing")  # which shows times
        tails.append(table)
        assert "20 of 20 failing samples fixed" in mended
        assert "finetune" in mended
    assert tails[0] == tails[1]
    for words in ("anchor-only", "FR-PT", "broken"):
        assert words in tails[0]
    run = tmp_path / "first" / "seed-3-epochs-1"
    assert (run / "model.safetensors").exists()
    assert len((run / "comparison-stage1.csv").read_text().splitlines()) == 1 + 3
    assert frpt.TargetStore(run / "targets").verify(progress=False) == []
    assert "Where to post-train" in (run / "report.html").read_text()
    assert (run / "diagnosis" / "layers.csv").exists()
