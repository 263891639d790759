"""`frpt demo`: a small CNN on embedded digits; what should each of its layers have produced where it is wrong?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
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
    rev = Reverser(model, x_test[:2], margin=0.1)
    names = [n for n in rev.layers if n != "out"]
    found = rev.reconstruct(x_test[wrong], y_test[wrong], at=names)
    for text in (rev.plan(names[-1]), "", found[names[-1]], ""):
        console.print(str(text), markup=False, highlight=False)
    table = Table("layer", "class", "deviation", "residual closed", "right when run on from the target", box=None)
    for name, rec in found.items():
        right = (rev.run(x_test[wrong], name, rec.target).argmax(1) == y_test[wrong]).float().mean()
        table.add_row(
            name,
            type(model.get_submodule(name)).__name__,
            f"{float(rec.deviation.mean()):.4f}",
            f"{100 * float(rec.closed.mean()):.1f} %",
            f"{100 * float(right):.1f} %",
        )
    console.print(table)
