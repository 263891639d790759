"""Targets of a planner's plans, layer by layer: how much of the residual they close, how far they are, what they cost.

The planner is the one of ``frpt reproduce driving`` (synthetic scenes), or one of more scenes and epochs; it is trained
first if OUT does not hold it. Beside the default: plain gradient descent on the squared residual from the same feature
(Adam, as many passes as the default took on average), what a user would write by hand. "alone": how far a target is
from that of the same sample without the rest of its batch, in steps from the anchor, and the most that the closed share
differs by: only rounding can differ. Last, what a layer norm leaves within reach: Adam from many starts on what the
norm takes, which no feature further back can beat. ``python
benchmarks/driving_targets.py OUT [--scenes 64 --first 0 --model resnet10 --train 1536 --epochs 16]``
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import frpt
from frpt.zoo import Planner
from frpt.zoo.planner import ViT
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


def alone(
    rev: frpt.Reverser, x: tuple[Tensor, ...], y: Tensor, layer: str, rec: frpt.Reconstruction, closed: Tensor,
    before: Tensor, count: int = 8,
) -> tuple[float, float]:  # fmt: skip
    """(median, largest) of the first samples: how far targets move, how much the closed share differs."""
    single = [rev.reconstruct(tuple(t[i : i + 1] for t in x), y[i : i + 1], at=layer).target for i in range(count)]
    target = torch.cat(single)
    moved = norm(target - rec.target[:count]) / norm(rec.target[:count] - rec.anchor[:count])
    first = tuple(t[:count] for t in x)
    now = 1 - norm(y[:count] - rev.run(first, layer, target)) / before[:count]
    return float(moved.median()), float((now - closed[:count]).abs().max())


def behind_a_norm(net: Planner, x: tuple[Tensor, ...], y: Tensor, before: Tensor) -> str:
    """Mean share of the residual that any input of a layer norm can close: of planning's second, of the ViT's last."""
    tail = nn.Sequential(net.planning2[1:], net.trajectory)
    said = f"behind the norm of planning z_2 {by_starts(tail, seen(net, net.planning2[1], x), y, before):.3f}"
    if isinstance(net.backbone, ViT):
        status = net.status(x[1])
        head = nn.Sequential(net.planning1, net.planning2, net.trajectory)
        token = seen(net, net.backbone.norm, x)[:, 0]
        closed = by_starts(
            lambda v: head(net.fusion(net.project(net.backbone.norm(v)), status)), token, y, before
        )  # fmt: skip
        said += f", behind the ViT's last {closed:.3f}"
    return said


def seen(net: nn.Module, module: nn.Module, x: tuple[Tensor, ...]) -> Tensor:
    """What a module is given."""
    given: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    net(*x)
    hook.remove()
    return given[0]


def by_starts(rest: Callable[[Tensor], Tensor], given: Tensor, y: Tensor, before: Tensor) -> float:
    """Adam from the input as it is and from three random ones of its length, 1,500 steps each; the best of them."""
    generator = torch.Generator().manual_seed(0)
    length = given.norm(dim=1, keepdim=True)
    others = [torch.randn(given.shape, generator=generator) for _ in range(3)]
    least = torch.full((len(y),), float("inf"), dtype=torch.float64)
    for start in (given, *(length * other / other.norm(dim=1, keepdim=True) for other in others)):
        value = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([value], lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
        for _ in range(1500):
            with torch.enable_grad():
                left = y.flatten(1) - rest(value).flatten(1)
                (value.grad,) = torch.autograd.grad(left.square().sum(), value)
            least = least.minimum(norm(left))
            optimizer.step()
            schedule.step()
    return float((1 - least / before).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scenes", type=int, default=64)
    parser.add_argument("--first", type=int, default=0, help="number of the first scene")
    parser.add_argument("--model", default="resnet10", help="or vit4")
    parser.add_argument("--train", type=int, default=1536, help="scenes it is trained on")
    parser.add_argument("--epochs", type=int, default=16)
    options = parser.parse_args()
    lab = PlannerLab(options.out.resolve(), options.model, options.train, 256, 320, 384, SIZE, options.epochs)
    net = lab.planner(lab.pretrained()).requires_grad_(False)
    layers = [layer for layer in reversed(net.layers.values()) if layer != "out"]
    columns = "closed  median  below 0.9  deviation  seconds  passes  alone  closed | Adam: closed  deviation"
    print(f"scenes    layer             {columns}")
    for name, seed, count in (("held out", TEST, lab.test), ("training", TRAIN, lab.part)):
        x, y = lab.data(seed, count).__getbatch__(range(options.first, min(options.first + options.scenes, count)))
        rev, before = frpt.Reverser(net, x), norm(y - net(*x))
        for layer in layers:
            begun = time.process_time()
            rec = rev.reconstruct(x, y, at=layer)
            seconds = time.process_time() - begun
            closed = 1 - norm(y - rev.run(x, layer, rec.target)) / before
            passes = max(1, round(float(rec.passes.mean())))
            moved, off = alone(rev, x, y, layer, rec, closed, before)
            plain = by_adam(rev, x, y, layer, rec.anchor, passes)
            adam = 1 - norm(y - rev.run(x, layer, plain)) / before
            far = norm(plain - rec.anchor) / norm(rec.anchor)
            said = f"{closed.mean():6.3f}  {closed.median():6.3f}  {int((closed < 0.9).sum()):9}"
            said += f"  {rec.deviation.median():9.2f}  {seconds:7.1f}  {passes:6}  {moved:5.0e}  {off:6.3f}"
            print(f"{name:9} {layer:17} {said} | {adam.mean():12.3f}  {far.median():9.2f}", flush=True)
        print(f"{name:9} {behind_a_norm(net, x, y, before)}", flush=True)


if __name__ == "__main__":
    main()
