"""`frpt diagnose`: where a network goes wrong, in the terminal, as a page and as tables. A thin skin over the API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frpt.cli.models import load_data, load_model
from frpt.cli.shared import (
    Classes,
    ModelSpec,
    Numbers,
    Output,
    PresetName,
    check_page,
    class_names,
    console,
    errors,
    loaded,
    numbers,
    patterns,
    picker,
)
from frpt.files.atomic import check_file, check_folder


def diagnose(
    model: ModelSpec,
    data: Annotated[str, typer.Option(metavar="package.module:factory", help="A data set of pairs (inputs, label).")],
    at: Annotated[list[str] | None, typer.Option(help="A layer; once per layer. Default: outermost modules.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A safetensors file to load into the model first.")] = None,
    html: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    csv: Annotated[Path | None, typer.Option(help="A directory for the tables.")] = None,
    classes: Classes = None,
    loss: Annotated[str | None, typer.Option(help="cross_entropy, bce or mse. Default: what fits the output.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Look at so many, evenly spaced.")] = None,
    gallery: Annotated[int, typer.Option(min=0, help="Samples shown with response maps.")] = 48,
    output: Output = None,
    preset: PresetName = "default",
    embed: Annotated[str | None, typer.Option(help="nearest, max_assign, one_hot or regression.")] = None,
    margin: Annotated[float | None, typer.Option(help="By how much the label's score shall win.")] = None,
    blocks: Annotated[str | None, typer.Option(help="finest, stages, or module patterns separated by commas.")] = None,
    mean: Numbers = None,
    std: Numbers = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples reconstructed at a time.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that load samples.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Which samples are looked at more closely.")] = 0,
    partial: Annotated[Path | None, typer.Option(help="What a stopped diagnosis goes on from; beside --html.")] = None,
) -> None:
    """Say which layer the network goes wrong in, for which classes and samples, and write a report to look at."""
    from frpt.diagnosis import diagnose as run  # pictures and pages load with this command only
    from frpt.diagnosis.tables import show

    half_done = partial or html.parent / f"{html.name}.partial"
    with errors(half_done.is_file):
        check_page(html)
        check_file(half_done)
        if csv is not None:
            check_folder(csv)
        names = class_names(classes)
        network = load_model(model)
        diagnosis = run(
            network if weights is None else loaded(network, weights), load_data(data), at,
            class_names=names, loss=loss, samples=samples, gallery=gallery, output=picker(output),
            preset=preset, embed=embed, margin=margin, blocks=patterns(blocks), mean=numbers(mean), std=numbers(std),
            batch_size=batch_size, workers=workers, seed=seed,
            partial=half_done,
        )  # fmt: skip
        written = [diagnosis.to_html(html), *([] if csv is None else [diagnosis.to_csv(csv)[0].parent])]
        show(diagnosis, console)
        console.print("\nwritten to " + ", ".join(map(str, written)), markup=False, highlight=False)
