"""The shell: quick answers, one line for whatever is wrong, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch import Tensor, nn
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


def test_python_has_the_command_as_a_module() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-m", "frpt", "--version"], env=environment, text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"frpt {frpt.__version__}\n", "")


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
    (["layers", "tests.models:ResNet", "--output", "3"], "the model's output is one tensor"),
    (["diagnose", "tests.cli.slow:model", "--data", "tests.cli.slow:quick", "--output", "0"], "output is one tensor"),
    (["layers", "tests.cli.test_shell:Both"], "pass --input once per input"),
    (["diagnose", "tests.cli.slow:model", "--data", "tests.cli.slow:Slow", "--seed", "-1"], "--seed"),
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


class Both(nn.Module):
    """Its forward takes two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.one(x) + y


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_full_output_throws_no_work_away(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    of = ["tests.cli.slow:model", "--data", "tests.cli.slow:quick"]
    code, _, text = shell("diagnose", *of, "--at", "0", "--html", str(page), stdout="/dev/full")
    assert code == 2, text
    assert [line for line in text.splitlines() if "rror" in line] == ["error: No space left on device"]
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_nobody_reading_throws_no_work_away(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    words = ["repair", "tests.repairs.test_repair_command:net", "--data", "tests.repairs.test_repair_command:failures"]
    made = runner.invoke(app, ["remember", words[1], "--data", "tests.repairs.test_repair_command:old", "--out",
                               str(tmp_path / "memory")])  # fmt: skip
    assert made.exit_code == 0, made.output
    ours, theirs = os.pipe()
    os.close(ours)
    fix, page = tmp_path / "fix", tmp_path / "page.html"
    words += ["--memory", str(tmp_path / "memory"), "--out", str(fix), "--report", str(page)]
    command = [sys.executable, "-c", START, *words]
    done = subprocess.run(command, env=environment, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    assert done.returncode == 1, done.stderr
    assert "rror" not in done.stderr
    assert page.exists()
    assert {file.name for file in fix.iterdir()} == {"memory", "model.safetensors", "patch.safetensors"}


OWN = [
    ("key", 1, "KeyError: 'weights'", "function key"),
    ("state", 1, "Missing key(s) in state_dict", "function state"),
    ("missing_file", 2, "No such file or directory: 'nowhere.txt'", "function missing_file"),
    ("missing_module", 1, "No module named 'nowhere_at_all'", "function missing_module"),
]


@pytest.mark.parametrize(("factory", "code", "message", "place"), OWN)
def test_what_a_factory_raised_is_shown_from_its_own_first_line_on(
    factory: str, code: int, message: str, place: str
) -> None:
    result = runner.invoke(app, ["layers", f"tests.cli.own_errors:{factory}"])
    assert result.exit_code == code, result.output
    lines = result.output.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "own_errors.py" in lines[1]
    assert message in result.output
    assert f"this was raised by your own {place} (" in lines[-1]
    for module in ("src/frpt/", "typer", "click"):
        assert module not in result.output


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_a_data_set_raised_is_shown_too(workers: str, tmp_path: Path) -> None:
    of = ["tests.cli.own_errors:model", "--data", "tests.cli.own_errors:Broken"]
    result = runner.invoke(
        app, ["diagnose", *of, "--at", "0", "--html", str(tmp_path / "page.html"), "--workers", workers]
    )
    assert result.exit_code == 1, result.output
    assert "ValueError: image 29 is broken" in result.output
    assert "own_errors.py" in result.output
    said = {"0": "this was raised by your own function __getitem__ (", "1": "in a process that loads samples"}
    assert said[workers] in result.output.splitlines()[-1]
    assert "diagnose_command.py" not in result.output


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("import torch\nx = = 3\n", 1, "SyntaxError"),
        ("import torch\n\nimport nowhere_at_all\n", 2, "No module named 'nowhere_at_all'"),
        ("import torch\n\nraise RuntimeError('no GPU')\n", 1, "RuntimeError: no GPU"),
    ],
)
def test_a_module_that_cannot_be_imported_is_shown_with_the_line(
    text: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["layers", "broken_module:model"])
    assert result.exit_code == code, result.output
    assert message in result.output
    assert f"your own module ({tmp_path / 'broken_module.py'}, line {2 if 'Syntax' in message else 3})" in result.output
    for module in ("src/frpt/", "importlib", "click"):
        assert module not in result.output


def test_an_error_of_frpt_itself_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        """As a fault in frpt would do."""
        raise KeyError("of ours")

    monkeypatch.setattr("frpt.cli.main.reverser", failing)
    result = runner.invoke(app, ["layers", "tests.cli.own_errors:model"])
    assert isinstance(result.exception, KeyError)


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_has_closed_are_done_without(closed: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = f"{sys.executable} -c '{START}' --version {closed}"
    done = subprocess.run(command, shell=True, env=environment, text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def never() -> None:
    """A factory that is not reached."""
    raise AssertionError("the work has begun")


NEVER = "tests.cli.test_shell:never"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnose", NEVER, "--data", NEVER, "--html", "FOLDER"], "it is a directory"),
        (["diagnose", NEVER, "--data", NEVER, "--html", "."], "it is a directory"),
        (["diagnose", NEVER, "--data", NEVER, "--html", ""], "it is a directory"),
        (["diagnose", NEVER, "--data", NEVER, "--html", "/"], "it is a directory"),
        (["diagnose", NEVER, "--data", NEVER, "--html", "FOLDER/none/page.html"], "a directory that exists"),
        (["diagnose", NEVER, "--data", NEVER, "--html", "FOLDER/pipe"], "it is a pipe"),
        (["diagnose", NEVER, "--data", NEVER, "--html", "FOLDER/x", "--csv", "FOLDER/pipe"], "is no directory"),
        (["diagnose", NEVER, "--data", NEVER, "--html", "FOLDER/x", "--partial", "FOLDER"], "it is a directory"),
        (["repair", NEVER, "--data", NEVER, "--memory", "x", "--out", "FOLDER", "--report", "FOLDER/none/r.html"],
         "a directory that exists"),
        (["repair", NEVER, "--data", NEVER, "--memory", "x", "--out", "FOLDER", "--report", "FOLDER"],
         "it is a directory"),
        (["apply", NEVER, "--patch", "x", "--out", "FOLDER/pipe"], "it is a pipe"),
        (["train", NEVER, "--data", NEVER, "--at", "0", "--out", "FOLDER", "--log-dir", "FOLDER/pipe"], "no directory"),
        (["targets", "write", NEVER, "FOLDER/pipe", "--data", NEVER, "--at", "0"], "is no directory"),
        (["demo", "--out", "FOLDER/pipe"], "is no directory"),
        (["diagnose", NEVER, "--data", NEVER, "--html", "/proc/x.html"], "'/proc' could not be written"),
        (["diagnose", NEVER, "--data", NEVER, "--html", "FOLDER/x", "--csv", "/proc/zz"], "'/proc/zz' could not"),
        (["remember", NEVER, "--data", NEVER, "--out", "/proc/m"], "'/proc/m' could not be written"),
        (["diagnose", NEVER, "--data", NEVER, "--html", "FOLDER/x", "--classes", "no.txt"], "No such file"),
        (["diagnose", NEVER, "--data", NEVER, "--html", "FOLDER/x", "--classes", "FOLDER"], "s a directory"),
        (["repair", NEVER, "--data", NEVER, "--memory", "x", "--out", "FOLDER", "--classes", "FOLDER/n"],
         "No such file"),
        (["repair", NEVER, "--data", NEVER, "--memory", "x", "--out", "FOLDER", "--std", "0.1,0"], "above 0"),
        (["repair", NEVER, "--data", NEVER, "--memory", "x", "--out", "FOLDER", "--mean", "nan"], "must be finite"),
        (["reproduce", "table", "--out", "FOLDER/pipe"], "is no directory"),
    ],
)  # fmt: skip
def test_output_that_cannot_be_written_is_refused_before_the_work(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = runner.invoke(app, [part.replace("FOLDER", str(tmp_path)) for part in arguments])
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert "the work has begun" not in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]
