"""Repairs of 20 noisy digits of which so many have one label: what others gain, and how many take that label.

Means over the labels that have 20 failures. Run it with ``python benchmarks/one_sided.py``.
"""

from __future__ import annotations

import torch
from safetensors.torch import load_file

import frpt

CHECKPOINT = "results/checkpoints/mnist_simple_cnn_0.9793_b1737d7e.safetensors"


def main() -> None:
    model = frpt.zoo.simple_cnn("mnist").eval()
    model.load_state_dict(load_file(CHECKPOINT))
    (old, _), (x, y) = frpt.data.digits()
    old, x = (old - 0.1307) / 0.3081, (x - 0.1307) / 0.3081
    noisy = x + 1.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    memory = frpt.remember(model, old, progress=False)
    with torch.no_grad():
        wrong = model(noisy).argmax(1) != y
    for lead in (4, 10, 14, 16, 18, 19, 20):
        drifted, gained = [], []
        for label in range(10):
            own, rest = (wrong & (y == label)).nonzero()[:, 0], (wrong & (y != label)).nonzero()[:, 0]
            if len(own) < 20:
                continue
            order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(label))
            rows = torch.cat([own[:lead], rest[order[: 20 - lead]]])
            fix = frpt.repair(model, noisy[rows], y[rows], memory)
            left = torch.ones(len(y), dtype=torch.bool)
            left[rows] = False
            with torch.no_grad():
                before, after = (net(noisy[left]).argmax(1) for net in (model, fix.model))
            others = y[left] != label
            drifted.append(float(((after == label).double() - (before == label).double())[others].mean()))
            gained.append(float(((after == y[left]).double() - (before == y[left]).double()).mean()))
        points = [100 * sum(values) / len(values) for values in (gained, drifted)]
        print(f"{lead} of 20, {len(gained)} labels: accuracy {points[0]:+.1f}, taken for it {points[1]:+.1f} points")


if __name__ == "__main__":
    main()
