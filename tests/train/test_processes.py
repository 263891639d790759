"""Two processes on one host give the single-process result at the same global batch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import frpt
from tests.train.toys import blobs, network

MODES = ("none", "offline", "online")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    paths = [str(Path(frpt.__file__).parents[1]), str(ROOT)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*command, str(Path(__file__).with_name("two_processes.py")), str(folder), *MODES],
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
    )
    return folder


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_agree_with_one(written: Path, mode: str) -> None:
    single = frpt.post_train(
        network(), blobs(45), "3", targets=None if mode in ("none", "offline") else mode,
        c_rec=0.0 if mode == "none" else 0.5, val=blobs(21, 1), epochs=2, batch_size=22, lr=1e-2, progress=False,
    )  # fmt: skip
    first, second = (load_file(written / f"{mode}-{rank}" / "model.safetensors") for rank in (0, 1))
    # online, features that differ by rounding have targets that differ by more where the Jacobian is nearly singular
    tolerance = 1e-3 if mode == "online" else 2e-6
    for name, value in single.model.state_dict().items():
        assert torch.equal(first[name], second[name]), name
        assert torch.allclose(first[name], value, rtol=0, atol=tolerance), name
    for rank in (0, 1):
        rows = json.loads((written / f"{mode}-{rank}" / "result.json").read_text())["history"]
        for row, mine in zip(rows, single.history, strict=True):
            assert row["weight"] == pytest.approx(mine.weight, rel=1e-4 if mode != "online" else 1e-2)
            assert row["task_loss"] == pytest.approx(mine.task_loss, rel=1e-5 if mode != "online" else 1e-3)
            assert (row["metric"], row["fixed"], row["broken"]) == (mine.metric, mine.fixed, mine.broken)


@pytest.mark.parametrize("how", ["stop", "die"])
def test_a_process_that_is_lost_ends_the_others_with_a_reason(how: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join([str(Path(frpt.__file__).parents[1]), str(ROOT)])
    together = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "lost", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, str(Path(__file__).with_name("lost_process.py")), how]
    processes = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, **together, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        said, _ = processes[0].communicate(timeout=240)
        assert processes[0].returncode == 7, said
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert "process 0 of 2 has lost another one" in said
    assert "has not answered for 10 s (timeout=)" in said
    assert "partial=" in said
