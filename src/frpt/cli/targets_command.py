"""`frpt targets`: write, verify, info; a thin skin over ``frpt.targets``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from frpt.cli.models import load_data
from frpt.cli.shared import (
    SHARDS,
    Blocks,
    EmbedName,
    InputShape,
    Margin,
    ModelSpec,
    Output,
    PresetName,
    Workers,
    console,
    errors,
    reverser,
)
from frpt.errors import OptionError
from frpt.files.atomic import check_folder

if TYPE_CHECKING:  # torch takes seconds to load: not for --help
    from frpt.targets import TargetStore

app = typer.Typer(help="Targets on disk: write, verify, info.", no_args_is_help=True)

StorePath = Annotated[Path, typer.Argument(metavar="store", help="The directory of the target store.")]
DataSpec = Annotated[
    str, typer.Option(metavar="package.module:factory", help="A map-style data set of pairs (inputs, label).")
]


@app.command()
def write(
    model: ModelSpec,
    store: StorePath,
    data: DataSpec,
    at: Annotated[list[str], typer.Option(help="The layer to reconstruct; once per layer.")],
    input: InputShape = None,
    output: Output = None,
    preset: PresetName = "default",
    embed: EmbedName = None,
    margin: Margin = None,
    blocks: Blocks = None,
    mode: Annotated[str, typer.Option(help="auto, dense (every sample) or delta (corrected samples only).")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    batch_size: Annotated[int | None, typer.Option(help="Samples reconstructed at a time.")] = None,
    shard_size: Annotated[int | None, typer.Option(help="Samples in a file.")] = None,
    workers: Workers = 0,
    rank: Annotated[int, typer.Option(envvar="RANK", help="Which of several writers this is.")] = 0,
    world: Annotated[int, typer.Option(envvar="WORLD_SIZE", help="How many writers there are.")] = 1,
) -> None:
    """Reconstruct the targets of a data set; run again after an interruption, it goes on where it was stopped."""
    from frpt.targets import write_targets

    with errors(lambda: any(store.glob(SHARDS))):
        check_folder(store)
        dataset = load_data(data)
        rev = reverser(model, input, output, preset, blocks, embed, margin, dataset)
        options: dict[str, Any] = {"mode": mode, "dtype": dtype, "batch_size": batch_size, "shard_size": shard_size}
        written = write_targets(rev, dataset, at, store, **options, workers=workers, rank=rank, world=world)
        if written.complete:
            _describe(written)
        else:
            console.print(f"writer {rank} of {world} is done; others are not", highlight=False)


@app.command()
def verify(
    store: StorePath,
    rewrite: Annotated[
        str | None,
        typer.Option(metavar="package.module:factory", help="Write bad shards again with this model."),
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="package.module:factory", help="The store's data set.")] = None,
    input: InputShape = None,
    output: Output = None,
    preset: PresetName = "default",
    embed: EmbedName = None,
    margin: Margin = None,
    blocks: Blocks = None,
    workers: Workers = 0,
) -> None:
    """Read every byte and name the shards that are not what was written (exit code 1); --rewrite writes them again."""
    from frpt.targets import TargetStore, rewrite_damaged

    with errors(lambda: rewrite is not None):
        opened = TargetStore(store)
        if rewrite is not None:
            if data is None:
                raise OptionError("--rewrite needs the data set as well: --data package.module:factory")
            dataset = load_data(data)
            rev = reverser(rewrite, input, output, preset, blocks, embed, margin, dataset)
            damaged = rewrite_damaged(rev, dataset, opened, workers=workers)
            console.print(f"{len(damaged)} of {len(opened.manifest.shards)} shards written again", *damaged, sep="\n")
            return
        damaged = opened.verify()
        if damaged:
            console.print(f"{len(damaged)} of {len(opened.manifest.shards)} shards are damaged:", *damaged, sep="\n")
            raise typer.Exit(1)
        console.print(f"all {len(opened.manifest.shards)} shards are sound")


@app.command()
def info(store: StorePath) -> None:
    """Show what a store holds: layers, samples, size, how it was made."""
    from frpt.targets import TargetStore

    with errors():
        _describe(TargetStore(store))


def _describe(store: TargetStore) -> None:
    shown = store.overview()
    for line in shown.lines:
        console.print(line, highlight=False)
    table = Table(*shown.columns, box=None)
    for row in shown.rows:
        table.add_row(*row)
    console.print(table)
