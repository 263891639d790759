"""`frpt reproduce`: a table or figure of the paper, at any scale, beside the paper's own numbers.

The experiments are in the package ``frpt_paper``, which is loaded when the command runs; everything else in frpt works
without it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from frpt.cli.shared import console, errors
from frpt.errors import OptionError
from frpt.files.atomic import check_folder


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which table or figure; --list shows them.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets; else FRPT_DATA, then the hub.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, targets and results.")] = Path("frpt-reproduce"),
    scale: Annotated[str, typer.Option(help="small: a look in a minute or two; paper: all of it.")] = "small",
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds, from 0.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of each post-training.")] = None,
    at: Annotated[list[str] | None, typer.Option(help="Layers l_R by the paper's names, e.g. --at out,3,1.")] = None,
    c_rec: Annotated[list[str] | None, typer.Option(help="Strengths, e.g. --c-rec 0.1,0.3.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Models, e.g. --model simple_cnn.")] = None,
    preset: Annotated[list[str] | None, typer.Option(help="Presets of the reconstruction, e.g. paper,default.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set of a figure.")] = None,
    samples: Annotated[str | None, typer.Option(help="Training and test samples to take, e.g. 2000,1000.")] = None,
    pretrain: Annotated[int | None, typer.Option(min=1, help="Epochs of pretraining.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes, one thread each.")] = 1,
    cluster: Annotated[str | None, typer.Option(help="ray: run on the Ray cluster at hand.")] = None,
    compare: Annotated[
        list[Path] | None, typer.Option(help="CSV to set beside the result instead of the paper's numbers.")
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="clean: images as they are; paper: what the paper's code does (docs/results.md).")
    ] = "clean",
    images: Annotated[
        str | None, typer.Option(help="Post-train on clean images, or on one augmented draw: drawn.")
    ] = None,
    rate: Annotated[list[str] | None, typer.Option(help="Learning rates of post-training, e.g. 1e-4,3e-4.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples of a step of post-training.")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="Rate in pretraining: cosine, or plateau on fresh augmented draws, best test epoch kept."),
    ] = None,
    smoothing: Annotated[float | None, typer.Option(help="Of labels in pretraining, e.g. 0.1.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List what there is.")] = False,
) -> None:
    """Run a table or figure of the paper, or what is missing of it, and set the result beside the paper's numbers."""
    with errors(lambda: any(any(out.rglob(f"*.{ending}")) for ending in ("safetensors", "csv"))):
        check_folder(out)
        lab = laboratory()
        if list_:
            table = Table("name", "what", "in the paper", "--scale small", box=None, pad_edge=False)
            for key, e in lab.EXPERIMENTS.items():
                table.add_row(key, e.what, e.where, e.small)
            console.print(table)
            return
        if name is None:
            raise OptionError("which table or figure? `frpt reproduce --list` shows what there is")
        options = lab.ReproduceOptions(
            out=out, data=data, scale=scale, seeds=seeds, epochs=epochs, layers=_several(at), c_rec=_strengths(c_rec),
            models=_several(model), presets=_several(preset), dataset=dataset, samples=_samples(samples),
            pretrain=pretrain, workers=workers, cluster=cluster, compare=tuple(compare or ()), protocol=protocol,
            images=images, rates=_numbers("--rate", rate), batch_size=batch_size, schedule=schedule,
            smoothing=smoothing,
        )  # fmt: skip
        report = lab.reproduce(name, options, Console(stderr=True, soft_wrap=True))
        console.print(report.markdown(details=False), markup=False, highlight=False)
        console.print(f"tables (md, tex, csv) and figures: {report.folder}", markup=False, highlight=False)


def laboratory(module: str = "frpt_paper") -> ModuleType:
    """The package ``frpt_paper`` or a module of it, or an error that says how to get it; `frpt navsim` calls it too."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "frpt_paper":
            raise  # it is there, and misses something else
        raise OptionError(
            "the paper's experiments and numbers need the package frpt_paper, which is not installed. It comes with "
            "frpt's own distribution: pip install --force-reinstall frpt, or add src/ of the repository to PYTHONPATH."
        ) from error


def _several(values: list[str] | None) -> tuple[str, ...]:
    """Repeated options and comma-separated ones alike."""
    return tuple(part.strip() for value in values or () for part in value.split(",") if part.strip())


def _samples(value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    parts = value.split(",")
    if len(parts) != 2 or not all(p.strip().isdigit() for p in parts):
        raise OptionError(f"--samples takes two numbers, e.g. 2000,1000, got {value!r}")
    return int(parts[0]), int(parts[1])


def _numbers(option: str, values: list[str] | None) -> tuple[float, ...]:
    try:
        return tuple(float(v) for v in _several(values))
    except ValueError as error:
        raise OptionError(f"{option} takes numbers, separated by commas, got {values}") from error


def _strengths(values: list[str] | None) -> tuple[float, ...]:
    strengths = _numbers("--c-rec", values)
    if any(not 0 <= c < 10 for c in strengths):
        raise OptionError(f"--c-rec takes strengths of at least 0, got {strengths}")
    return strengths
