"""The `frpt` command."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from frpt.cli.demo import run_demo
from frpt.cli.models import load
from frpt.errors import FrptError
from frpt.reverser import Reverser

app = typer.Typer(
    help="What should this layer have produced for this label?", no_args_is_help=True, pretty_exceptions_enable=False
)
console = Console(soft_wrap=True)

ModelSpec = Annotated[str, typer.Argument(metavar="package.module:factory", help="Where the model comes from.")]
InputShape = Annotated[
    list[str] | None, typer.Option("--input", help="Shape of an input, e.g. 2,3,224,224; once per input.")
]
Output = Annotated[str | None, typer.Option(help="Which tensor of the model's output: a name or an index.")]
PresetName = Annotated[str, typer.Option(help="default or paper.")]


@contextmanager
def _errors() -> Iterator[None]:
    """Our own errors as one red line and exit code 2."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            yield
    except FrptError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {type(error).__name__}: ", end="")
        Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(str(error))
        raise typer.Exit(2) from error


def _reverser(model: str, shapes: list[str] | None, output: str | None, preset: str, blocks: str | None) -> Reverser:
    module, inputs = load(model, shapes or [])
    pick = int(output) if output is not None and output.lstrip("-").isdigit() else output
    patterns = blocks.split(",") if blocks and blocks not in ("finest", "stages") else blocks
    return Reverser(module, inputs, output=pick, preset=preset, blocks=patterns)


@app.command()
def layers(model: ModelSpec, input: InputShape = None, output: Output = None) -> None:
    """List every layer name, output first, with the shape of its value and the module's class."""
    with _errors():
        rev = _reverser(model, input, output, "default", None)
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
    blocks: Annotated[str | None, typer.Option(help="finest, stages, or module patterns separated by commas.")] = None,
) -> None:
    """Show the reverse path from the output to a layer: unit, module, op, rule, case, shapes."""
    with _errors():
        planned = _reverser(model, input, output, preset, blocks).plan(at)
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
    seed: Annotated[int, typer.Option(help="Seed of the split, the training and the samples.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Training epochs of the small network.")] = 3,
) -> None:
    """Train a small CNN on embedded digits and reconstruct its mistakes at every layer."""
    with _errors():
        run_demo(console, seed, epochs)
