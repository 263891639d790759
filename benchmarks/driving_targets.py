"""Targets of a planner's plans, layer by layer: how much of the residual they close, how far they are, what they cost.

The planner is the one of ``frpt reproduce driving`` (synthetic scenes), which is trained first if OUT does not hold it.
Beside the default: plain gradient descent on the squared residual from the same feature (Adam, as many passes as the
default took on average), what a user would write by hand. ``python benchmarks/driving_targets.py OUT [--scenes 64
--first 0]``
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

import frpt
from frpt_paper.runs.planners import TEST, TRAIN, PlannerLab

SIZE = (32, 128)
ADAM_RATE = 0.03
"""Of Adam, times the root mean square of the feature's entries. Set by hand; no other rate was tried."""


def norm(t: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(t.detach().flatten(1).double(), dim=1)
    return length


def by_adam(rev: frpt.Reverser, x: tuple[Tensor, ...], y: Tensor, layer: str, anchor: Tensor, passes: int) -> Tensor:
    """The best feature on the way, sample by sample; kept at zero or above where the anchor is."""
    low = 0.0 if bool((anchor >= 0).all()) else float("-inf")
    size = norm(anchor).div(anchor[0].numel() ** 0.5).to(anchor).reshape(-1, *[1] * (anchor.dim() - 1))
    value, best = anchor.clone().requires_grad_(), anchor.clone()
    least = torch.full((len(y),), float("inf"), dtype=torch.float64)
    optimizer = torch.optim.Adam([value], lr=ADAM_RATE)
    for _ in range(passes):
        point, out = rev.run_on(x, layer, (anchor + size * (value.detach() - anchor)).clamp_min(low))
        left = y - out
        better = norm(left) < least
        best[better], least[better] = point.detach()[better], norm(left)[better]
        (value.grad,) = torch.autograd.grad(left.flatten(1).square().sum(), point)
        optimizer.step()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scenes", type=int, default=64)
    parser.add_argument("--first", type=int, default=0, help="number of the first scene")
    options = parser.parse_args()
    lab = PlannerLab(options.out.resolve(), "resnet10", 1536, 256, 320, 384, SIZE, 16)
    net = lab.planner(lab.pretrained())
    print("scenes    layer            closed  median  below 0.9  deviation  seconds  passes | Adam: closed  deviation")
    for name, seed, count in (("held out", TEST, lab.test), ("training", TRAIN, lab.part)):
        x, y = lab.data(seed, count).__getbatch__(range(options.first, min(options.first + options.scenes, count)))
        rev, before = frpt.Reverser(net, x), norm(y - net(*x))
        for layer in ("planning2", "planning1", "fusion", "backbone.layer4", "backbone.layer3"):
            begun = time.process_time()
            rec = rev.reconstruct(x, y, at=layer)
            seconds = time.process_time() - begun
            closed = 1 - norm(y - rev.run(x, layer, rec.target)) / before
            passes = max(1, round(float(rec.passes.mean())))
            plain = by_adam(rev, x, y, layer, rec.anchor, passes)
            adam = 1 - norm(y - rev.run(x, layer, plain)) / before
            far = norm(plain - rec.anchor) / norm(rec.anchor)
            print(
                f"{name:9} {layer:16} {closed.mean():6.3f}  {closed.median():6.3f}  {int((closed < 0.9).sum()):9}  "
                f"{rec.deviation.median():9.2f}  {seconds:7.1f}  {passes:6} | {adam.mean():12.3f}  {far.median():9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
