"""The shell: quick answers, one line for whatever is wrong, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import frpt
from frpt.cli.main import app

ROOT = Path(__file__).parents[2]
START = "from frpt.cli.entry import main; main()"
runner = CliRunner(env={"COLUMNS": "200"})


def shell(*arguments: str, stdout: str | None = None) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of the command in a process of its own."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", START, *arguments]
    if stdout is None:
        done = subprocess.run(command, env=environment, text=True, capture_output=True)
        return done.returncode, done.stdout, done.stderr
    with open(stdout, "w") as stream:
        done = subprocess.run(command, env=environment, text=True, stdout=stream, stderr=subprocess.PIPE)
    return done.returncode, "", done.stderr


def test_the_version() -> None:
    assert shell("--version") == (0, f"frpt {frpt.__version__}\n", "")


@pytest.mark.parametrize("command", ["", "layers", "train", "targets", "diagnose", "repair", "reproduce"])
def test_help_loads_nothing_heavy(command: str) -> None:
    """Under two seconds on a free machine: no torch, numpy or pandas is loaded, which take most of that."""
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from frpt.cli.main import app\n"
        f"result = CliRunner().invoke(app, {[*command.split(), '--help']!r})\n"
        "assert result.exit_code == 0, result.output\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'lightning_fabric', 'safetensors'} & sys.modules.keys()))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    begun = time.process_time()
    done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True)
    assert done.stdout == "[]\n", done.stderr
    assert time.process_time() - begun < 2


WRONG = [
    (["layers", "tests.models:ResNet", "--input", "-1,8"], "an input shape looks like"),
    (["layers", "tests.models:ResNet", "--input", "0,3,16,16"], "an input shape looks like"),
    (["layers", "tests.models:ResNet", "--input", "99999999999999999999,3"], "an input shape looks like"),
    (["layers", "tests.models:ResNet", "--input", "1000000000,1000000000"], "1000000000"),
    (["layers", ":model"], "cannot import"),
    (["layers", "..models:model"], "cannot import"),
    (["layers", "tests.models:mlp.__defaults__"], "no function that makes a model"),
    (["layers", "tests.cli.test_shell:needs_something"], "is called without arguments"),
    (["diagnose", "tests.cli.slow:model", "--data", "tests.cli.slow:Slow", "--html", "/dev/full/page"], "/dev/full"),
    (["diagnose", "tests.cli.slow:model", "--data", "tests.cli.slow:Slow", "--weights", "/nowhere.st"], "nowhere"),
    (["diagnose", "tests.cli.slow:model", "--data", "tests.cli.slow:Slow", "--weights", __file__], "safetensors file"),
    (["train", *["tests.cli.slow:model", "--data", "tests.cli.slow:Slow", "--at", "0"], "--out", "/dev/full"], "/dev"),
    (["remember", "tests.cli.slow:model", "--data", "tests.cli.slow:Slow", "--out", "/dev/null/x"], "/dev/null"),
    (["apply", "tests.cli.slow:model", "--patch", "/nowhere", "--out", "x"], "nowhere"),
    (["targets", "info", "/nowhere"], "nowhere"),
    (["targets", "write", "tests.cli.slow:model", "/dev/full/x", "--data", "tests.targets.common:data", "--at", "0"],
     "/dev/full"),
    (["navsim", "compare", "/nowhere", "/elsewhere"], "nowhere"),
]  # fmt: skip


def needs_something(width: int) -> None:
    """A factory that cannot be called from the shell."""


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], words: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_output_that_cannot_be_written_is_said_in_one_line() -> None:
    code, _, text = shell("--version", stdout="/dev/full")
    assert code == 2
    assert text.count("\n") == 1
    assert "No space left" in text
