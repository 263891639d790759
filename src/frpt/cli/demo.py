"""`frpt demo`: the whole job on embedded digits: a CNN, its diagnosis, post-training beside its controls, a repair."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from frpt.data.digits import digits
from frpt.diagnosis import diagnose
from frpt.diagnosis.tables import show
from frpt.files.progress import Progress
from frpt.repairs import Fix, compare_repairs, remember, repair
from frpt.reverser import Reverser
from frpt.targets import write_targets
from frpt.train import Comparison, compare
from frpt.train.comparison import BACKPROP
from frpt.zoo import simple_cnn

LAYERS = ("stage2", "stage1")
_NOISE, _FAILURES = 1.0, 20  # of a pixel, whose deviation is 1: half of the digits fail
_RATE, _BATCH = 5e-3, 64  # AdamW's rate and batch size on 4,000 digits; a choice, nothing in the demo hangs on it


def train(console: Console, model: nn.Module, x: Tensor, y: Tensor, epochs: int, seed: int) -> None:
    """AdamW with a rate that falls to zero, and a progress bar; the order of samples follows the seed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(x) // _BATCH))
    order = torch.Generator().manual_seed(seed)
    with Progress("training", epochs * len(x), console=console) as bar:
        for _ in range(epochs):
            for rows in torch.randperm(len(x), generator=order).split(_BATCH):
                loss = F.cross_entropy(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.advance(len(rows))


def run_demo(
    console: Console, out: Path, seed: int = 0, epochs: int = 30, post_epochs: int = 5, seeds: int = 3
) -> None:
    """Train the paper's MNIST SimpleCNN, diagnose it, write targets, post-train in three ways, write the report."""
    torch.manual_seed(seed)
    (x, y), (x_test, y_test) = digits(seed)
    model = simple_cnn("mnist")
    train(console, model, x, y, epochs, seed)
    model.eval()
    out = out / f"seed-{seed}-epochs-{epochs}"
    out.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), out / "model.safetensors")
    rev = Reverser(model, x[:8])
    console.print("", str(rev.plan(LAYERS[-1])), sep="\n", markup=False, highlight=False)
    console.print("\nwhere it goes wrong on the test set:")
    diagnosis = diagnose(rev, TensorDataset(x_test, y_test), LAYERS, seed=seed)
    show(diagnosis, console)
    data, val = TensorDataset(x, y), TensorDataset(x_test, y_test)
    console.print(f"\nwriting targets for {len(x)} training samples, then post-training {seeds} seeds x 3 arms each:")
    store = write_targets(rev, data, LAYERS, out / "targets")
    comparisons = {
        at: compare(
            rev, data, at, val=val, targets=store, seeds=range(seeds), epochs=post_epochs,
            log_dir=out / "logs" / at,
        )
        for at in LAYERS
    }  # fmt: skip
    for at, comparison in comparisons.items():
        comparison.to_pandas().to_csv(out / f"comparison-{at}.csv", index=False)
    console.print(
        "\ntest accuracy after the last epoch, difference to back-propagation paired by seed, samples fixed and broken:"
    )
    console.print(_table(comparisons))
    console.print("\nA gain over back-propagation that anchor-only has as well is not owed to reconstruction.")
    fix = mend(console, rev, x, (x_test, y_test), out, seed)
    diagnosis.to_html(out / "report.html", title="SimpleCNN on digits", results=list(comparisons.values()), repair=fix)
    diagnosis.to_csv(out / "diagnosis")
    for what, path in (
        ("model", "model.safetensors"), ("targets", "targets"), ("every run", "comparison-*.csv, logs"),
        ("memory", "memory"), ("patch", "patch.safetensors"), ("diagnosis", "diagnosis"),
        ("report", "report.html (open it in a browser)"),
    ):  # fmt: skip
        console.print(f"{what:10} {out}/{path}", highlight=False)


def mend(console: Console, rev: Reverser, old: Tensor, test: tuple[Tensor, Tensor], out: Path, seed: int) -> Fix:
    """Repair 20 digits that fail under noise, beside what else could be done; other test digits say what it cost.

    The failures come from the first part of the test set, old samples that are kept from the second, and the third
    measures: as it is, and under noise.
    """
    x, y = test
    noisy = x + _NOISE * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    first, second = round(0.3 * len(x)), len(x) // 2
    with torch.no_grad():
        wrong = (rev.model(noisy[:first]).argmax(1) != y[:first]).nonzero().squeeze(1)[:_FAILURES]
    console.print(
        f"\nrepairing {len(wrong)} digits that fail under noise, with a memory of 500 training inputs; beside it "
        f"replay with {(len(x) - second) // 2} digits, EWC and fine-tuning:"
    )
    memory = remember(rev, old, seed=seed)
    memory.save(out / "memory")
    fix = repair(rev, noisy[wrong], y[wrong], memory, keep=(x[first:second], y[first:second]))
    fix.diff.save(out / "patch.safetensors")
    console.print(str(fix).split("\nparameter", 1)[0], markup=False, highlight=False)
    kind = noisy[second:], y[second:]
    table = compare_repairs(rev, noisy[wrong], y[wrong], memory, old=(x[second:], y[second:]), kind=kind)
    console.print(f"\n{table}", markup=False, highlight=False)
    console.print("kind: other digits under the same noise; old: digits without it; broken: old ones that were right.")
    return fix


def _table(comparisons: dict[str, Comparison]) -> Table:
    """All arms at all layers, in percent."""
    columns = ("layer", "arm", "accuracy, %", "difference (95 %)", "fixed", "broken")
    table = Table(*columns, box=None)
    for at, comparison in comparisons.items():
        for name, arm in comparison.arms.items():
            d = comparison.difference(name)
            interval = f" ({100 * d.low:+.2f}, {100 * d.high:+.2f})" if len(d.values) > 1 else ""
            gap = "-" if name == BACKPROP else f"{100 * d.mean:+.2f}{interval}"
            flips = (arm.flips("fixed"), arm.flips("broken"))
            table.add_row(
                at,
                name,
                f"{100 * arm.mean:.2f} ± {100 * arm.std:.2f}",
                gap,
                *("-" if f is None else f"{f:.1f}" for f in flips),
            )
    return table
