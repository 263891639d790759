"""`frpt remember`, `frpt repair`, `frpt apply`: fix failing samples, and take the fix where the network is used.

A thin skin over ``frpt.remember``, ``frpt.repair`` and ``frpt.apply``; ``cli/main.py`` makes them commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from frpt.cli.models import load_data, load_model
from frpt.cli.shared import (
    Classes,
    ModelSpec,
    Numbers,
    Output,
    Workers,
    check_page,
    class_names,
    console,
    errors,
    loaded,
    numbers,
    picker,
)
from frpt.common.checks import check_normalisation
from frpt.errors import OptionError
from frpt.files.atomic import check_file, check_folder, make_folder, write_atomic

if TYPE_CHECKING:
    from torch import Tensor, nn

    from frpt.common.asked import Task
    from frpt.datasets.labelled import LabelledSamples
    from frpt.repairs.controls import Method
    from frpt.repairs.nearest_weights import Loss
    from frpt.reverser import Reverser

Data = Annotated[str, typer.Option(metavar="package.module:factory", help="A map-style data set, (inputs, label).")]
Weights = Annotated[Path | None, typer.Option(help="A safetensors file to load into the model first.")]
_DIAGNOSED = 1000  # samples of the data set that the report's diagnosis looks at, evenly spaced


def remember(
    model: ModelSpec,
    data: Data,
    out: Annotated[Path, typer.Option(help="Directory for the memory.")],
    weights: Weights = None,
    samples: Annotated[int, typer.Option(min=1, help="At most so many inputs.")] = 500,
    regression: Annotated[bool, typer.Option(help="The outputs are numbers, and no scores of classes.")] = False,
    binary: Annotated[bool, typer.Option(help="Each output says yes or no (several labels a sample).")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of inputs.")] = 0,
    output: Output = None,
    workers: Workers = 0,
) -> None:
    """Remember what a network does on its old inputs; labels are not looked at. Keep it beside the weights."""
    from frpt.repairs import remember as make

    with errors():
        check_folder(out)
        old = load_data(data)
        if isinstance(old, tuple) and len(old) == 2:  # (inputs, labels), as every command takes a data set
            old = old[0]
        memory = make(
            _network(model, weights), old, task=_task(regression, binary),
            samples=samples, seed=seed, output=picker(output), workers=workers,
        )  # fmt: skip
        console.print(f"{memory!r} written to {memory.save(out)}", markup=False)


def _task(regression: bool, binary: bool) -> Task | None:
    if regression and binary:
        raise OptionError("--regression and --binary exclude each other")
    return "regression" if regression else "binary" if binary else None


def repair(
    model: ModelSpec,
    data: Annotated[str, typer.Option(metavar="package.module:factory", help="A data set with the failing samples.")],
    memory: Annotated[Path, typer.Option(help="The memory that frpt remember has written.")],
    out: Annotated[Path, typer.Option(help="Directory for the patch, the weights and the memory after the repair.")],
    weights: Weights = None,
    keep: Annotated[
        str | None, typer.Option(metavar="package.module:factory", help="Old samples that choose the strength.")
    ] = None,
    modules: Annotated[
        str | None, typer.Option(help="Modules whose weights may move, separated by commas; auto: the faulty layer's.")
    ] = None,
    method: Annotated[str, typer.Option(help="nearest, or a control: replay, ewc, finetune.")] = "nearest",
    most: Annotated[int, typer.Option(min=1, help="Repair at most so many samples, the first that fail.")] = 200,
    loss: Annotated[str | None, typer.Option(help="hinge (default), or logistic, which breaks more.")] = None,
    margin: Annotated[float | None, typer.Option(help="The lead that the hinge asks for.")] = None,
    budget: Annotated[float | None, typer.Option(help="Predicted KL on old inputs that it may cost.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="A page with the repair beside a diagnosis of the same data set.")
    ] = None,
    classes: Classes = None,
    mean: Numbers = None,
    std: Numbers = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    output: Output = None,
) -> None:
    """Fix the failing samples of a data set with the nearest weights; the model's own file is not touched."""
    from frpt.datasets.labelled import LabelledSamples
    from frpt.graph.inputs import Inputs
    from frpt.repairs import Memory
    from frpt.repairs import repair as fixed
    from frpt.repairs.repair import check_options
    from frpt.reverser import Reverser

    with errors():
        if loss not in (None, "logistic", "hinge"):
            raise OptionError(f"--loss must be logistic or hinge, got {loss!r}")
        check_folder(out)
        check_page(report)
        names, pixels = class_names(classes), (numbers(mean), numbers(std))
        check_normalisation(*pixels)
        moved = modules.split(",") if modules not in (None, "auto") else cast("Literal['auto'] | None", modules)
        how, lost = cast("Method", method), cast("Loss | None", loss)
        network, dataset = _network(model, weights), load_data(data)
        held = Memory.load(memory)
        held.check(network)
        samples = LabelledSamples(dataset, model=network, once=True)
        first = next(iter(samples.batches([range(min(2, samples.count))], 2)))[1]
        rev = Reverser(network, Inputs.of(first).first(2).given, output=picker(output))
        check_options(rev, moved, how, lost, margin, budget)
        x, y = _failing(rev, samples, most)
        fix = fixed(
            network, x, y, held, keep=None if keep is None else load_data(keep), method=how, modules=moved, loss=lost,
            margin=margin, budget=budget, seed=seed, output=picker(output),
        )  # fmt: skip
        make_folder(out)
        fix.memory.save(out / "memory")
        write_atomic(out / "model.safetensors", _bytes(fix.model))
        fix.diff.save(out / "patch.safetensors")
        console.print(str(fix), markup=False, highlight=False)
        console.print(f"patch.safetensors, model.safetensors and memory written to {out}", markup=False)
        if report is not None:
            from frpt.diagnosis import diagnose

            found = diagnose(
                network, dataset, class_names=names, samples=_DIAGNOSED, seed=seed, output=picker(output),
                mean=pixels[0], std=pixels[1],
            )  # fmt: skip
            console.print(f"report written to {found.to_html(report, repair=fix)}", markup=False)


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
        check_file(out)
        change = Patch.load(patch)
        other = applied(_network(model, weights), change, back=back)
        make_folder(out.parent)
        write_atomic(out, _bytes(other))
        console.print(str(change), markup=False, highlight=False)
        console.print(f"{'taken back' if back else 'applied'}; weights written to {out}", markup=False)


def _bytes(model: nn.Module) -> bytes:
    """Its weights as a safetensors file; shared ones, which the format refuses, as often as they are named."""
    from safetensors.torch import save

    return save({name: t.detach().clone().contiguous() for name, t in model.state_dict().items()})


def _network(model: str, weights: Path | None) -> nn.Module:
    network = load_model(model) if weights is None else loaded(load_model(model), weights)
    return network.eval()


def _failing(rev: Reverser, samples: LabelledSamples, most: int) -> tuple[Any, Tensor]:
    """The first samples whose label does not win; of regression targets the first samples."""
    import torch

    from frpt.embed import as_labels
    from frpt.files.progress import Progress
    from frpt.graph.inputs import Inputs, pick

    wrong: list[int] = []
    looked = 0
    with Progress("looking for failures", samples.count) as bar:
        for rows, x, y in samples.batches([range(samples.count)], 256):
            inputs = Inputs.of(x)
            if y.is_floating_point():
                wrong += list(rows)
            else:
                with torch.no_grad():
                    out = pick(rev.model(*inputs.args, **inputs.kwargs), rev.output)
                y = as_labels(y)
                bad = (rev.embedder.leads(out, y) <= 0).reshape(len(y), -1).any(1)
                wrong += [row for row, fails in zip(rows, bad.tolist(), strict=True) if fails]
            looked += len(rows)
            bar.advance(len(rows), f"{len(wrong)} fail")
            if len(wrong) >= most:
                break
    if not wrong:
        raise OptionError("no sample of this data set fails: there is nothing to repair")
    _, x, y = next(iter(samples.batches([wrong[:most]], most)))
    console.print(_counted(len(wrong), most, looked, samples.count), markup=False, highlight=False)
    return x, y


def _counted(wrong: int, most: int, looked: int, count: int) -> str:
    """How many failing samples are repaired, and which are left out."""
    if wrong <= most and looked == count:
        return f"{wrong} failing samples"
    unseen = "" if looked == count else f"; the other {count - looked:,} were not looked at"
    return (
        f"{most:,} failing samples, the first ones: --most {most} leaves out all others. "
        f"Of {looked:,} samples {wrong:,} fail{unseen}"
    )
