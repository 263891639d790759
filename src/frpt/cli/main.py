"""The `frpt` command: layers, plan, demo; the other commands have a module each, which loads what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import frpt
from frpt.cli import navsim_command, targets_command
from frpt.cli.diagnose_command import diagnose
from frpt.cli.repair_command import apply, remember, repair
from frpt.cli.reproduce import reproduce
from frpt.cli.shared import Blocks, InputShape, ModelSpec, Output, PresetName, console, errors, reverser
from frpt.cli.train_command import train
from frpt.files.atomic import check_folder

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(targets_command.app, name="targets")
app.add_typer(navsim_command.app, name="navsim")
app.command()(train)
app.command()(diagnose)
app.command()(remember)
app.command()(repair)
app.command()(apply)
app.command()(reproduce)


def _show_version(asked: bool) -> None:
    if asked:
        with errors():
            console.print(f"frpt {frpt.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """What should this layer have produced for this label?"""


@app.command()
def layers(model: ModelSpec, input: InputShape = None, output: Output = None) -> None:
    """List every layer name, output first, with the shape of its value and the module's class."""
    with errors():
        rev = reverser(model, input, output, "default", None)
        classes = {name: type(m).__name__ for name, m in rev.model.named_modules()}
        table = Table("layer", "shape", "class", box=None, pad_edge=False)
        for name in rev.layers:
            table.add_row(name, rev.shape(name), classes.get(name.split("@")[0].split("[")[0], ""))
        console.print(table)


@app.command()
def plan(
    model: ModelSpec,
    at: Annotated[str, typer.Option(help="The layer to reconstruct.")],
    input: InputShape = None,
    output: Output = None,
    preset: PresetName = "default",
    blocks: Blocks = None,
) -> None:
    """Show the reverse path from the output to a layer: unit, module, op, rule, case, shapes."""
    with errors():
        planned = reverser(model, input, output, preset, blocks).plan(at)
        if not planned.units:
            console.print(str(planned))
            return
        table = Table(*planned.columns, box=None, pad_edge=False)
        for row in planned.rows():
            table.add_row(*row)
        console.print(f"reverse path to {at!r}, {len(planned)} units", markup=False)
        console.print(table)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for what it writes.")] = Path("frpt-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and the training.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Training epochs of the network.")] = 30,
    post_epochs: Annotated[int, typer.Option(min=1, help="Post-training epochs of each run.")] = 5,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the comparison.")] = 3,
) -> None:
    """Train the paper's MNIST SimpleCNN on embedded digits, diagnose it, post-train it in three ways, repair it."""
    from frpt.cli.demo import run_demo

    with errors():
        check_folder(out)
        run_demo(console, out, seed, epochs, post_epochs, seeds)
