"""What should the first layer have produced for these labels? The README's example."""

import torch
from torch import nn

import frpt

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(),
    nn.Linear(1024, 64), nn.GELU(), nn.Linear(64, 10),
).eval()  # fmt: skip
x, y = torch.randn(8, 3, 32, 32), torch.arange(8)

rev = frpt.Reverser(model, x)
print(rev.plan("0"))
rec = rev.reconstruct(x, y, at="0")
print(rec)
print("labels", y.tolist(), "predicted from the target", rev.run(x, "0", rec.target).argmax(1).tolist())
