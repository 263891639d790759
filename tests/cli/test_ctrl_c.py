"""Ctrl-C at any moment ends a command within five seconds, in one line that says how to go on, with exit code 130."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = "import os, sys; os.write(2, b'at start\\n'); from frpt.cli.entry import main; main()"
DATA = ["tests.cli.slow:model", "--data", "tests.cli.slow:Slow"]
COMMANDS = {
    "layers": ["layers", "tests.cli.slow:model"],
    "diagnose": ["diagnose", *DATA, "--at", "0", "--html", "page.html"],
    "loaders": ["diagnose", *DATA, "--at", "0", "--html", "page.html", "--workers", "2"],
    "targets": ["targets", "write", DATA[0], "store", *DATA[1:], "--at", "0"],
    "train": ["train", *DATA, "--at", "0", "--targets", "anchor", "--out", "run"],
    "remember": ["remember", *DATA, "--out", "memory"],
}
GO_ON, START_OVER = "stopped: run again to go on where it was", "stopped: nothing half-done is left, run again"
drawn = random.Random(0)
MOMENTS = [
    ("layers", "start", drawn.uniform(0.05, 0.5)),
    ("diagnose", "start", drawn.uniform(0.5, 2)),
    ("diagnose", "data", drawn.uniform(0, 2)),
    ("loaders", "data", drawn.uniform(0, 2)),
    ("targets", "data", drawn.uniform(0, 2)),
    ("train", "data", drawn.uniform(0, 2)),
    ("remember", "data", drawn.uniform(0, 1)),
]


def begin(command: list[str], folder: Path, code: str = START) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *command], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def stopped(running: subprocess.Popen[str], place: str, wait: float) -> tuple[str, float]:
    """(what it wrote after Ctrl-C, the seconds that took)."""
    assert running.stderr is not None
    while f"at {place}" not in (line := running.stderr.readline()):
        assert line, "the command ended by itself"
    time.sleep(wait)
    begun = time.monotonic()
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does, to all of its processes
    text = running.communicate(timeout=60)[1]
    return text, time.monotonic() - begun


@pytest.mark.parametrize(("name", "place", "wait"), MOMENTS)
def test_it_ends_soon_and_says_how_to_go_on(name: str, place: str, wait: float, tmp_path: Path) -> None:
    running = begin(COMMANDS[name], tmp_path)
    text, took = stopped(running, place, wait)
    assert running.returncode == 130, text
    assert took < 5
    assert "Traceback" not in text
    assert "Error" not in text
    assert START_OVER in text.splitlines()[-1]  # at that time nothing is finished that could be kept


def test_no_process_of_it_is_left(tmp_path: Path) -> None:
    """Ctrl-C to the command alone, as `kill -INT` does, where it has to be ended."""
    parent = (
        "import multiprocessing, os, time\n"
        "import frpt.cli.entry as entry, frpt.cli.main as main\n"
        "def forever():\n"
        "    multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)).start()\n"
        "    os.write(2, b'at work\\n')\n"
        "    while True:\n"
        "        try: time.sleep(60)\n"
        "        except BaseException: pass\n"
        "main.app = forever\n"
        "entry.main()\n"
    )
    running = begin([], tmp_path, parent)
    assert running.stderr is not None
    assert "at work" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)
    running.communicate()


def test_what_cannot_be_interrupted_is_ended(tmp_path: Path) -> None:
    """Code that swallows Ctrl-C, and a log writer's thread that hangs, are not waited for."""
    stubborn = (
        "import os, sys, time\n"
        "import frpt.cli.entry as entry, frpt.cli.main as main\n"
        "def forever():\n"
        "    os.write(2, b'at work\\n')\n"
        "    while True:\n"
        "        try: time.sleep(60)\n"
        "        except BaseException: pass\n"
        "main.app = forever\n"
        "entry.main()\n"
    )
    running = begin([], tmp_path, stubborn)
    text, took = stopped(running, "work", 0.1)
    assert running.returncode == 130
    assert took < 5
    assert START_OVER in text


def test_nothing_is_raised_into_code_that_is_being_loaded(tmp_path: Path) -> None:
    """It may swallow the exception, or abort the process with a message of its own, as torch's C++ does."""
    greedy = (
        "import os, time\n"
        "while True:\n"
        "    try:\n"
        "        os.write(2, b'at import\\n'); time.sleep(60)\n"
        "    except BaseException:\n"
        "        os.write(2, b'Error: it came here')\n"
    )
    (tmp_path / "greedy.py").write_text(greedy)
    running = begin(["layers", "greedy:model"], tmp_path)
    text, took = stopped(running, "import", 0.1)
    assert running.returncode == 130
    assert took < 2  # at once, and not after the time that work is given
    assert text.splitlines() == [START_OVER + " to start over"]


def test_a_second_ctrl_c_is_not_waited_for(tmp_path: Path) -> None:
    hanging = (
        "import os, time\n"
        "import frpt.cli.entry as entry, frpt.cli.main as main\n"
        "def work():\n"
        "    try:\n"
        "        os.write(2, b'at work\\n'); time.sleep(60)\n"
        "    finally:\n"
        "        os.write(2, b'at cleaning\\n'); time.sleep(60)\n"
        "main.app = work\n"
        "entry.main()\n"
    )
    running = begin([], tmp_path, hanging)
    assert running.stderr is not None
    while "at work" not in running.stderr.readline():
        pass
    running.send_signal(signal.SIGINT)
    text, took = stopped(running, "cleaning", 0.1)
    assert running.returncode == 130
    assert took < 2
    assert "Traceback" not in text


def test_a_command_that_is_done_keeps_its_exit_code(tmp_path: Path) -> None:
    """Ctrl-C while Python takes itself apart, when all work is done."""
    ending = (
        "import os, time\n"
        "class Last:\n"
        "    def __del__(self, write=os.write, sleep=time.sleep):\n"
        "        write(2, b'at end\\n')\n"
        "        sleep(1)\n"
        "last = Last()\n"
        "from frpt.cli.entry import main\n"
        "main()\n"
    )
    running = begin(["--version"], tmp_path, ending)
    text, took = stopped(running, "end", 0.1)
    assert running.returncode == 0
    assert took < 5
    assert text == ""


def test_a_stopped_diagnosis_leaves_what_it_goes_on_from(tmp_path: Path) -> None:
    few = [part.replace("Slow", "few") for part in COMMANDS["diagnose"]]
    running = begin([*few, "--batch-size", "10"], tmp_path)
    text, _ = stopped(running, "second pass", 0.5)
    assert running.returncode == 130, text
    assert [file.name for file in tmp_path.iterdir()] == ["page.html.partial"]
    assert text.splitlines()[-1] == GO_ON


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (
            [*COMMANDS["targets"], "--batch-size", "10", "--shard-size", "10", "--mode", "delta"],
            "store/shard-*.safetensors",
        ),
        ([part.replace("Slow", "few") for part in COMMANDS["train"]], "run/partial/state-*[0-9]"),
    ],
)
def test_what_is_kept_is_said(command: list[str], kept: str, tmp_path: Path) -> None:
    running = begin(command, tmp_path)
    until = time.monotonic() + 60
    while not any(tmp_path.glob(kept)):
        assert running.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)
    text = running.communicate(timeout=60)[1]
    assert running.returncode == 130, text
    assert text.splitlines()[-1] == GO_ON
    assert any(tmp_path.glob(kept))
