"""`frpt targets`: write, verify, info."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from frpt.cli.models import load_data
from frpt.cli.shared import InputShape, ModelSpec, Output, PresetName, console, errors, reverser
from frpt.errors import OptionError
from frpt.targets import TargetStore, repair, write_targets

app = typer.Typer(help="Targets on disk: write, verify, info.", no_args_is_help=True)

StorePath = Annotated[Path, typer.Argument(metavar="store", help="The directory of the target store.")]
DataSpec = Annotated[
    str, typer.Option(metavar="package.module:factory", help="A map-style data set of pairs (inputs, label).")
]
EmbedName = Annotated[str | None, typer.Option(help="nearest, max_assign, one_hot or regression.")]
Margin = Annotated[float | None, typer.Option(help="By how much the label's score shall win.")]
Blocks = Annotated[str | None, typer.Option(help="finest, stages, or module patterns separated by commas.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that load samples.")]


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
    with errors():
        rev = reverser(model, input, output, preset, blocks, embed, margin)
        options: dict[str, Any] = {"mode": mode, "dtype": dtype, "batch_size": batch_size, "shard_size": shard_size}
        written = write_targets(rev, load_data(data), at, store, **options, workers=workers, rank=rank, world=world)
        if written.complete:
            _describe(written)
        else:
            console.print(f"writer {rank} of {world} is done; others are not", highlight=False)


@app.command()
def verify(
    store: StorePath,
    mend: Annotated[
        str | None,
        typer.Option("--repair", metavar="package.module:factory", help="Write bad shards again with this model."),
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="package.module:factory", help="The data set, to repair.")] = None,
    input: InputShape = None,
    output: Output = None,
    preset: PresetName = "default",
    embed: EmbedName = None,
    margin: Margin = None,
    blocks: Blocks = None,
    workers: Workers = 0,
) -> None:
    """Read every byte and name the shards that are not what was written (exit code 1); --repair writes them again."""
    with errors():
        opened = TargetStore(store)
        if mend is not None:
            if data is None:
                raise OptionError("--repair needs the data set as well: --data package.module:factory")
            rev = reverser(mend, input, output, preset, blocks, embed, margin)
            bad = repair(rev, load_data(data), opened, workers=workers)
            console.print(f"{len(bad)} of {len(opened.manifest.shards)} shards written again", *bad, sep="\n")
            return
        bad = opened.verify()
        if bad:
            console.print(f"{len(bad)} of {len(opened.manifest.shards)} shards are damaged:", *bad, sep="\n")
            raise typer.Exit(1)
        console.print(f"all {len(opened.manifest.shards)} shards are sound")


@app.command()
def info(store: StorePath) -> None:
    """Show what a store holds: layers, samples, size, how it was made."""
    with errors():
        _describe(TargetStore(store))


def _describe(store: TargetStore) -> None:
    manifest = store.manifest
    corrected = sum(s.corrected for s in manifest.shards)
    dense = store.count * sum(4 * info.nbytes // info.dtype.itemsize for info in store.layers.values())
    console.print(
        f"{store.count} samples, {corrected} corrected ({100 * corrected / store.count:.1f} %), {manifest.mode}, "
        f"{len(manifest.shards)} shards, {store.nbytes:,} bytes ({100 * store.nbytes / dense:.1f} % of dense float32)",
        highlight=False,
    )
    how = manifest.embedding
    margin = "" if how["margin"] is None else f", margin {how['margin']}"
    console.print(f"preset {manifest.preset['name']}, embedding {how['how']}{margin}", highlight=False)
    table = Table("layer", "shape", "dtype", "mean deviation", "weights after", "weights before", box=None)
    for name, layer in store.layers.items():
        moved = sum(s.corrected * s.deviation[name] for s in manifest.shards) / max(corrected, 1)
        shape = ", ".join(map(str, ("b", *layer.shape)))
        dtype = str(layer.dtype).removeprefix("torch.")
        table.add_row(name, f"({shape})", dtype, f"{moved:.4g}", str(len(layer.frozen)), str(len(layer.upstream)))
    console.print(table)
