"""`frpt demo`: a small CNN on embedded digits; what should each of its layers have produced where it is wrong?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

from frpt.data.digits import digits
from frpt.reverser import Reverser


def small_cnn() -> nn.Sequential:
    """Two convolutions and two linear layers, for 28×28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(console: Console, model: nn.Module, x: Tensor, y: Tensor, epochs: int, seed: int, batch: int = 64) -> None:
    """AdamW with a progress bar; the order of samples follows the seed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    order = torch.Generator().manual_seed(seed)
    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.completed}/{task.total} samples"),
               TextColumn("{task.fields[rate]}"), TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("train", total=epochs * len(x), rate="")
        for _ in range(epochs):
            for rows in torch.randperm(len(x), generator=order).split(batch):
                loss = F.cross_entropy(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                speed = progress.tasks[0].speed
                progress.update(task, advance=len(rows), rate=f"{speed:,.0f} samples/s" if speed else "")


def run_demo(console: Console, seed: int = 0, epochs: int = 3) -> None:
    """Train, find the test samples the network gets wrong, reconstruct at every layer, print the report."""
    torch.manual_seed(seed)
    (x, y), (x_test, y_test) = digits(seed)
    model = small_cnn()
    train(console, model, x, y, epochs, seed)
    model.eval()
    with torch.no_grad():
        wrong = model(x_test).argmax(1) != y_test
    console.print(
        f"\ntest accuracy {100 * (1 - float(wrong.float().mean())):.1f} %, {int(wrong.sum())} samples wrong\n"
    )
    rev = Reverser(model, x_test[:2])
    names = [n for n in rev.layers if n != "out"]
    console.print(str(rev.plan(names[-1])), markup=False, highlight=False)
    found = rev.reconstruct(x_test[wrong], y_test[wrong], at=names)
    deepest = found[names[-1]]
    console.print("\n" + str(deepest), markup=False, highlight=False)
    console.print(
        "\nlayer  class        deviation  residual closed  predicted right when run on from the target (margin 0.1)"
    )
    sure = Reverser(model, x_test[:2], margin=0.1)
    for name in names:
        rec = sure.reconstruct(x_test[wrong], y_test[wrong], at=name)
        right = (sure.run(x_test[wrong], name, rec.target).argmax(1) == y_test[wrong]).float().mean()
        kind = type(model.get_submodule(name)).__name__
        console.print(
            f"{name:5s}  {kind:11s}  {float(rec.deviation.mean()):9.4f}  {100 * float(rec.closed.mean()):13.1f} %  "
            f"{100 * float(right):5.1f} %",
            markup=False,
            highlight=False,
        )
