"""`frpt remember`, `frpt repair`, `frpt apply`: fix failing samples, and take the fix where the network is used.

A thin skin over ``frpt.remember``, ``frpt.repair`` and ``frpt.apply``; ``cli/main.py`` makes them commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import save_file
from torch import Tensor, nn

from frpt.cli.models import load_data, load_model
from frpt.cli.shared import ModelSpec, Output, Workers, console, errors, loaded, picker
from frpt.errors import OptionError

Data = Annotated[str, typer.Option(metavar="package.module:factory", help="A map-style data set, (inputs, label).")]
Weights = Annotated[Path | None, typer.Option(help="A safetensors file to load into the model first.")]


def remember(
    model: ModelSpec,
    data: Data,
    out: Annotated[Path, typer.Option(help="Directory for the memory.")],
    weights: Weights = None,
    samples: Annotated[int, typer.Option(min=1, help="At most so many inputs.")] = 500,
    regression: Annotated[bool, typer.Option(help="The outputs are numbers, and no scores of classes.")] = False,
    seed: Annotated[int, typer.Option(help="Of the choice of inputs.")] = 0,
    output: Output = None,
    workers: Workers = 0,
) -> None:
    """Remember what a network does on its old inputs; labels are not looked at. Keep it beside the weights."""
    from frpt.repairs import remember as make

    with errors():
        memory = make(
            _network(model, weights), load_data(data), task="regression" if regression else "classification",
            samples=samples, seed=seed, output=picker(output), workers=workers,
        )  # fmt: skip
        console.print(f"{memory!r} written to {memory.save(out)}", markup=False)


def repair(
    model: ModelSpec,
    data: Annotated[str, typer.Option(metavar="package.module:factory", help="A data set with the failing samples.")],
    memory: Annotated[Path, typer.Option(help="The memory that frpt remember has written.")],
    out: Annotated[Path, typer.Option(help="Directory for the patch, the weights and the memory after the repair.")],
    weights: Weights = None,
    keep: Annotated[
        str | None, typer.Option(metavar="package.module:factory", help="Old samples that choose the strength.")
    ] = None,
    modules: Annotated[str | None, typer.Option(help="Modules whose weights may move, separated by commas.")] = None,
    most: Annotated[int, typer.Option(min=1, help="Repair at most so many samples, the first that fail.")] = 200,
    loss: Annotated[str, typer.Option(help="hinge, or logistic (breaks more).")] = "hinge",
    budget: Annotated[float | None, typer.Option(help="Predicted KL on old inputs that it may cost.")] = None,
    output: Output = None,
) -> None:
    """Fix the failing samples of a data set with the nearest weights; the model's own file is not touched."""
    from frpt.repairs import Memory
    from frpt.repairs import repair as fixed

    with errors():
        network = _network(model, weights)
        x, y = _failing(network, load_data(data), most, picker(output))
        old = None if keep is None else _whole(load_data(keep))
        if loss not in ("logistic", "hinge"):
            raise OptionError(f"--loss must be logistic or hinge, got {loss!r}")
        fix = fixed(
            network, x, y, Memory.load(memory), keep=old, modules=None if modules is None else modules.split(","),
            loss=loss, budget=budget, output=picker(output),  # type: ignore[arg-type]
        )  # fmt: skip
        console.print(str(fix), markup=False, highlight=False)
        fix.diff.save(out / "patch.safetensors")
        save_file(fix.model.state_dict(), out / "model.safetensors")
        fix.memory.save(out / "memory")
        console.print(f"patch.safetensors, model.safetensors and memory written to {out}", markup=False)


def apply(
    model: ModelSpec,
    patch: Annotated[Path, typer.Option(help="The patch.")],
    out: Annotated[Path, typer.Option(help="File for the changed weights.")],
    weights: Weights = None,
    back: Annotated[bool, typer.Option(help="Take the patch back instead.")] = False,
) -> None:
    """Apply a patch to weights, or take it back; refused for other weights than it was made for."""
    from frpt.repairs import Patch
    from frpt.repairs import apply as applied

    with errors():
        change = Patch.load(patch)
        other = applied(_network(model, weights), change, back=back)
        out.parent.mkdir(parents=True, exist_ok=True)
        save_file(other.state_dict(), out)
        console.print(str(change), markup=False, highlight=False)
        console.print(f"{'taken back' if back else 'applied'}; weights written to {out}", markup=False)


def _network(model: str, weights: Path | None) -> nn.Module:
    network = load_model(model) if weights is None else loaded(load_model(model), weights)
    return network.eval()


def _whole(dataset: Any) -> tuple[Any, Tensor]:
    """All samples of a data set, as one batch."""
    from frpt.datasets.labelled import LabelledSamples

    samples = LabelledSamples(dataset)
    _, x, y = next(iter(samples.batches([range(samples.count)], samples.count)))
    return x, y


def _failing(model: nn.Module, dataset: Any, most: int, output: str | int | None) -> tuple[Any, Tensor]:
    """The first samples whose label does not win; of regression targets the first samples."""
    from frpt.datasets.labelled import LabelledSamples
    from frpt.graph.inputs import Inputs, pick

    samples, wrong = LabelledSamples(dataset), []
    for rows, x, y in samples.batches([range(samples.count)], 256):
        inputs = Inputs.of(x)
        if y.is_floating_point():
            wrong += list(rows)
        else:
            with torch.no_grad():
                out = pick(model(*inputs.args, **inputs.kwargs), output)
            wrong += [row for row, bad in zip(rows, (out.argmax(1) != y).tolist(), strict=True) if bad]
        if len(wrong) >= most:
            break
    if not wrong:
        raise OptionError("no sample of this data set fails: there is nothing to repair")
    _, x, y = next(iter(samples.batches([wrong[:most]], most)))
    console.print(f"{len(wrong[:most])} failing samples", markup=False)
    return x, y
