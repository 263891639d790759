"""Run by test_processes.py in two processes: the second stops, or dies, in its third step."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.nn.functional as F
from torch import Tensor

import frpt
from frpt.errors import ProcessError
from tests.train.toys import blobs, network

torch.set_num_threads(1)
steps = 0


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    global steps
    steps += 1
    if steps == 3 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP if sys.argv[1] == "stop" else signal.SIGKILL)
    return F.cross_entropy(outputs, labels)


try:
    frpt.post_train(
        network(), blobs(), "3", targets="anchor", task_loss=loss, batch_size=8, epochs=2, timeout=10, progress=False
    )
except ProcessError as error:
    os.write(1, str(error).encode())
    os._exit(7)
