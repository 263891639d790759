"""Long counts of damage: bits flipped in everything that is read again, and work that is killed at random moments.

For every file of a half-done training or diagnosis, a target store, a table of runs, a memory, a reference and a patch:
so many single bits are flipped, each in the sound file, and the file is read as its owner would. A flip is *noticed* if
an error of ``frpt.errors`` is raised, *raw* if another exception is, and *silent* if nothing is.

Then writing targets, training, diagnosing and a sweep are killed (SIGKILL) after a random share of the time that they
take, started again, killed again, until a run ends by itself. A piece of work is *the same* if it then has what the
undisturbed one has, to the last byte, and *other* if not; *kills* are those that hit a process at work.

Last, commands of the shell are given Ctrl-C, as a terminal does to all of their processes, at random moments of their
first eight seconds, of two in ``frpt layers``, which is soon done: *stopped* ends within five seconds with exit code
130 and one line, *ended* had done its work. What does neither is printed; *not begun* is Python's own traceback, before
anything of frpt was loaded.
Run it with ``python benchmarks/faults.py``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the damage is that of the tests

from tests.cli.test_ctrl_c import COMMANDS, begin
from tests.faults.damage import flips
from tests.faults.test_kept_files import FILES, load, moved
from tests.faults.test_partials import train
from tests.faults.test_tables import JOB, filled, stopped
from tests.faults.test_tables import diagnosed as diagnose_again
from tests.targets.common import contents, data
from tests.targets.common import reverser as small_reverser
from tests.train.toys import blobs, network, parameters, reverser

import frpt
from frpt.errors import FrptError
from frpt.files.progress import Progress
from frpt.train.resume import load as load_state
from frpt_paper import PostTrainingJob, RunsTable
from frpt_paper.runs.sweep import sweep

Reads = dict[Path, Callable[[], object]]


def made(folder: Path) -> Reads:
    """File → how its owner reads it."""
    train(folder / "partial")
    (state,) = (folder / "partial").iterdir()
    reads: Reads = {file: lambda: load_state(state) for file in sorted(state.iterdir())}
    for mode in ("dense", "delta"):
        store = folder / mode
        frpt.write_targets(small_reverser(), data(), "0", store, mode=mode, shard_size=24, progress=False)  # type: ignore[arg-type]
        for name in ("manifest.json", "shard-000001.safetensors"):
            reads[store / name] = lambda store=store: frpt.TargetStore(store).read("0", range(72))  # type: ignore[misc]
    frpt.remember(reverser(), blobs(), progress=False).save(folder / "memory")
    frpt.Reference.fit(reverser(), blobs(), ["3"], progress=False).save(folder / "reference")
    frpt.Patch.between(network(), moved()).save(folder / "patch.safetensors")
    stopped(folder / "diagnosis")
    reads[folder / "diagnosis"] = lambda: diagnose_again(folder / "diagnosis")
    table = filled(folder / "runs.csv")
    reads |= {table.path: table.frame, table.checksums: table.frame}
    for name in FILES:
        kind = name.partition("/")[0]
        reads[folder / name] = lambda kind=kind: load(folder, kind)  # type: ignore[misc]
    return reads


def outcome(read: Callable[[], object]) -> str:
    try:
        read()
    except FrptError:
        return "noticed"
    except Exception as error:
        return f"raw {type(error).__name__}"
    return "silent"


def write(folder: Path) -> object:
    frpt.write_targets(small_reverser(), data(), "0", folder, batch_size=4, shard_size=4, progress=False)
    return {name: bytes_ for name, bytes_ in contents(folder).items() if not name.endswith(".lock")}


def post_train(folder: Path) -> object:
    done = train(folder, targets="online", epochs=4, partial_steps=1)
    return parameters(done.model).tolist(), [row.task_loss for row in done.history]


def diagnose(folder: Path) -> object:
    done = frpt.diagnose(
        reverser(), blobs(480), ["3"], reference=False, gallery=0, batch_size=8, partial=folder / "half", progress=False
    )
    return done.score, done.samples.deviation.tolist(), [layer.fault for layer in done.layers]


def work_off(folder: Path) -> object:
    table = RunsTable(folder / "runs.csv")
    sweep([replace(JOB, seed=seed) for seed in range(12)], slow_rows, table)
    frame = table.frame()
    return frame.sort_values(["seed", "row"]).drop(columns="job").to_csv(index=False)


def slow_rows(job: PostTrainingJob) -> list[dict[str, float]]:
    time.sleep(0.02)
    return [{"epoch": epoch, "metric": job.seed / 7 + epoch, "weight": 1.0} for epoch in (1, 2)]


WORKS: dict[str, Callable[[Path], object]] = {
    "targets": write, "training": post_train, "diagnosis": diagnose, "sweep": work_off,
}  # fmt: skip


def killed(work: Callable[[Path], object], folder: Path, seconds: float, drawn: random.Random) -> int:
    """How often a process at work was killed before one came to its end; it is given more time with every kill."""
    kills = 0
    while True:
        process = multiprocessing.get_context("fork").Process(target=_quietly, args=(work, folder))
        process.start()
        process.join(drawn.uniform(0.05, 1.1) * seconds * 1.2**kills)
        if process.exitcode is None:
            process.kill()
            process.join()
            kills += 1
        elif process.exitcode == 0:
            return kills
        else:
            raise RuntimeError(f"a run that was started again has failed, in {folder}")


def _quietly(work: Callable[[Path], object], folder: Path) -> None:
    try:
        work(folder)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def count_kills(folder: Path, most: int, seed: int) -> None:
    """For each work: kills, pieces of work that ended, how many of them as the undisturbed one."""
    for name, work in WORKS.items():
        drawn = random.Random(seed)
        (folder / name / "whole").mkdir(parents=True)
        work(folder / name / "whole")  # what is captured once is shared by all forks
        shutil.rmtree(folder / name / "whole")
        (folder / name / "whole").mkdir()
        begun = time.perf_counter()
        wanted = work(folder / name / "whole")
        seconds = time.perf_counter() - begun
        kills, found = 0, Counter[str]()
        while kills < most:
            place = folder / name / f"{sum(found.values())}"
            place.mkdir()
            kills += killed(work, place, seconds, drawn)
            found["the same" if work(place) == wanted else "other"] += 1
        print(f"{name:12} {kills} kills of work of {seconds:.2f} s: {dict(found)}", flush=True)


def count_stops(folder: Path, count: int, seed: int) -> None:
    """For each command: how it ends when Ctrl-C comes at a random moment."""
    for name, command in COMMANDS.items():
        drawn, found = random.Random(seed), Counter[str]()
        for i in range(count):
            place, moment = folder / name / f"{i}", drawn.uniform(0, 2 if name == "layers" else 8)
            place.mkdir(parents=True)
            how, text = stop(begin(command, place), moment)
            found[how] += 1
            if how == "other":
                print(f"after {moment:.3f} s:\n{text}", flush=True)
        print(f"{name:12} {dict(found)}", flush=True)


def stop(running: subprocess.Popen[str], moment: float) -> tuple[str, str]:
    """(how it ended, what it wrote)."""
    try:
        text = running.communicate(timeout=moment)[1]
    except subprocess.TimeoutExpired:
        begun = time.monotonic()
        os.killpg(running.pid, signal.SIGINT)
        text = running.communicate()[1]
        quick = time.monotonic() - begun < 5
        if "at start" not in text:
            return "not begun", text
        clean = "Traceback" not in text and "stopped: " in text.splitlines()[-1]
        if quick and clean and running.returncode == 130:
            return "stopped", text
    return ("ended" if running.returncode == 0 and "Traceback" not in text else "other"), text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=500, help="of each file")
    parser.add_argument("--kills", type=int, default=100, help="of each work")
    parser.add_argument("--stops", type=int, default=50, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        reads = made(Path(name))
        counts: dict[Path, Counter[str]] = {file: Counter() for file in reads}
        with Progress("flips", len(reads) * options.flips, unit="flips") as bar:
            for file, read in reads.items():
                for _ in flips(file, options.flips, options.seed):
                    counts[file][outcome(read)] += 1
                    bar.advance()
        for file, found in counts.items() if options.flips else ():
            print(f"{file.relative_to(name)!s:55} {', '.join(f'{k} {n}' for k, n in sorted(found.items()))}")
        if options.kills:
            count_kills(Path(name) / "kills", options.kills, options.seed)
        count_stops(Path(name) / "stops", options.stops, options.seed)


if __name__ == "__main__":
    main()
