"""What all commands share: options, the console, the Reverser they describe, and errors as one line.

Every module of ``frpt.cli`` takes its common arguments from here, so that they are called the same everywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from frpt.cli.entry import nothing, stop
from frpt.cli.models import load
from frpt.cli.own_code import OwnError, own_error
from frpt.errors import FrptError, OptionError
from frpt.files.atomic import check_file

if TYPE_CHECKING:  # torch takes seconds to load: not for --help
    from torch import nn

    from frpt.reverser import Reverser


class _Output(Console):
    """Standard output that may be full, or that nobody reads any more: the work goes on, ``errors`` ends with it."""

    refused: OSError | None = None

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError as error:
            self.refused, self.quiet = error, True

    def on_broken_pipe(self) -> None:
        """Called while the error is handled; by default it would leave at once."""
        raise

    def begin(self) -> None:
        """Nothing is refused yet."""
        self.refused, self.quiet = None, False


console = _Output(soft_wrap=True)

ModelSpec = Annotated[str, typer.Argument(metavar="package.module:factory", help="Where the model comes from.")]
InputShape = Annotated[
    list[str] | None, typer.Option("--input", help="Shape of an input, e.g. 2,3,224,224; once per input.")
]
Output = Annotated[str | None, typer.Option(help="Which tensor of the model's output: a name or an index.")]
PresetName = Annotated[str, typer.Option(help="default, paper or online.")]
EmbedName = Annotated[str | None, typer.Option(help="nearest, max_assign, one_hot or regression.")]
Margin = Annotated[float | None, typer.Option(help="By how much the label's score shall win.")]
Blocks = Annotated[str | None, typer.Option(help="finest, stages, or module patterns separated by commas.")]
Classes = Annotated[str | None, typer.Option(help="Class names separated by commas, or a file of lines.")]
Numbers = Annotated[str | None, typer.Option(help="Of the inputs' normalisation, a number or one for each channel.")]
SHARDS = "shard-*.safetensors"
"""Of a target store, as a pattern of names."""
Workers = Annotated[int, typer.Option(min=0, help="Processes that load samples.")]


@contextmanager
def errors(kept: Callable[[], bool] = nothing) -> Iterator[None]:
    """Our own errors, and files that the system refuses, as one red line and exit code 2.

    What the user's own factory or data set raised is shown from the first line of the user's code on, with exit code 1
    unless it is one of these. What standard output refused is raised when the work is done. kept: asked when the
    command is stopped, whether there is anything that the same command, called again, would go on from.
    """
    stop.kept = kept
    console.begin()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            yield
    except (FrptError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise  # whoever read the output has gone: nothing is wrong
        own = own_error(error.__cause__ if isinstance(error, FrptError) else error)
        if own is not None:
            _say_own(own)
        if own is None or isinstance(error, FrptError):
            _say(f"{type(error).__name__}: {error}")
        raise typer.Exit(2) from error
    except Exception as error:
        own = own_error(error)
        if own is None or stop.asked:  # an interruption may come out as any exception
            raise
        _say_own(own)
        raise typer.Exit(1) from error
    if console.refused is not None:
        raise console.refused


def _say(error: str) -> None:
    shown = Console(stderr=True, soft_wrap=True, highlight=False)
    shown.print("[red]error:[/red] ", end="")
    shown.print(error, markup=False)


def _say_own(own: OwnError) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(own.traceback, markup=False, end="")
    _say(f"this was raised by {own.place}")


def check_page(page: Path | None) -> None:
    """Refuse a page that could not be written, before the work and not after it."""
    if page is None:
        return
    check_file(page)
    if not page.parent.is_dir():
        raise OptionError(f"{str(page)!r} cannot be written: name a file in a directory that exists")


def picker(output: str | None) -> str | int | None:
    """``--output``: an index where it is a number, else a name."""
    return int(output) if output is not None and output.lstrip("-").isdigit() else output


def patterns(blocks: str | None) -> str | list[str] | None:
    """``--blocks``: a word, or module patterns separated by commas."""
    return blocks.split(",") if blocks and blocks not in ("finest", "stages") else blocks


def loaded(model: nn.Module, weights: Path) -> nn.Module:
    """The model with the weights of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        model.load_state_dict(load_file(weights))
    except SafetensorError as error:
        raise OptionError(
            f"{str(weights)!r} is no safetensors file ({error}); write one with safetensors.torch.save_file("
            "model.state_dict(), path): pickled checkpoints are not read"
        ) from error
    except (OSError, RuntimeError) as error:
        raise OptionError(
            f"the weights {str(weights)!r} cannot be loaded into {type(model).__name__}: {error}"
        ) from error
    return model


def reverser(
    model: str,
    shapes: list[str] | None,
    output: str | None,
    preset: str,
    blocks: str | None,
    embed: str | None = None,
    margin: float | None = None,
    data: Any = None,
) -> Reverser:
    """The Reverser that the arguments of a command describe.

    shapes: of example inputs, where the model has none; else they come from ``data``, a data set.
    """
    from frpt.reverser import Reverser

    module, inputs = load(model, shapes or [], data)
    return Reverser(
        module, inputs, output=picker(output), preset=preset, blocks=patterns(blocks), embed=embed, margin=margin
    )


def class_names(classes: str | None) -> list[str] | None:
    """``--classes``: names separated by commas, or the lines of a file."""
    if classes is None:
        return None
    file = Path(classes)
    if "," in classes or not (file.exists() or file.suffix or file.name != classes):
        return classes.split(",")
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"--classes {classes} cannot be read: {getattr(error, 'strerror', None) or error}; name a text file with a "
            "class on each line, or pass the names separated by commas"
        ) from error
    return [line.strip() for line in lines if line.strip()]


def numbers(text: str | None) -> list[float] | None:
    """``--mean`` and ``--std``: numbers separated by commas."""
    try:
        return None if text is None else [float(n) for n in text.split(",")]
    except ValueError as error:
        raise OptionError(f"--mean and --std are numbers separated by commas, got {text!r}") from error
