"""`frpt navsim`: targets in the devkit's cache, where the hydra files are, scores compared; over ``frpt.navsim``."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from frpt.cli.reproduce import laboratory
from frpt.cli.shared import Workers, console, errors
from frpt.errors import OptionError

app = typer.Typer(help="The paper's planners for NAVSIM's devkit: targets, conf, compare.", no_args_is_help=True)


@app.command()
def conf() -> None:
    """Print the directory of the hydra files, for the devkit's --config-dir."""
    console.print(str(files("frpt.navsim").joinpath("conf")), markup=False, highlight=False)


@app.command()
def targets(
    cache: Annotated[Path, typer.Argument(help="The devkit's training cache; it is pickle: trust it.")],
    start: Annotated[Path, typer.Option(help="The checkpoint that post-training starts from.")],
    at: Annotated[str, typer.Option(help='The layer, e.g. "fusion z".')],
    preset: Annotated[str, typer.Option(help="default, or paper as the paper's code for the planners.")] = "default",
    half: Annotated[bool, typer.Option(help="Write float16.")] = False,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples reconstructed at a time.")] = None,
    workers: Workers = 0,
    device: Annotated[str, typer.Option(help="Where to reconstruct, e.g. cuda.")] = "cpu",
    rank: Annotated[int, typer.Option(envvar="RANK", help="Which of several writers this is.")] = 0,
    world: Annotated[int, typer.Option(envvar="WORLD_SIZE", help="How many writers there are.")] = 1,
) -> None:
    """Write the targets of every sample in the cache; run again after an interruption, it goes on from there."""
    with errors(lambda: any(cache.rglob("frpt_target_*.gz"))):
        from frpt.navsim import write_cached_targets

        written = write_cached_targets(
            cache, start, at, preset=preset, half=half, batch_size=batch_size, workers=workers, device=device,
            rank=rank, world=world, say=lambda text: console.print(text, markup=False, highlight=False),
        )  # fmt: skip
        if written.written:
            console.print(
                f"{written.written} written, {written.there} were there; {written.corrected} corrected, "
                f"{100 * written.closed:.1f} % of their residual closed, mean deviation {written.deviation:.3g}",
                highlight=False,
            )


@app.command()
def compare(
    scores: Annotated[list[Path], typer.Argument(help="Tables of run_pdm_score; the first is compared with.")],
    backbone: Annotated[str | None, typer.Option(help="Show the paper's rows of resnet34 or vit_b16.")] = None,
    at: Annotated[str | None, typer.Option(help='Only those of a layer, e.g. "fusion z".')] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
) -> None:
    """Compare scores scene by scene, with bootstrap intervals, beside the paper's rows."""
    with errors():
        from frpt.navsim import METRICS, compare_scores

        if backbone is None and at is not None:
            raise OptionError("--at chooses among the paper's rows of a backbone: pass --backbone as well")
        paper = None if backbone is None else laboratory("frpt_paper.tables.navsim_tables")
        rows = None if paper is None else paper.navsim_rows(backbone, at)
        console.print(str(compare_scores(scores, seed=seed)), markup=False, highlight=False)
        if paper is None or rows is None:
            return
        table = Table("the paper's", "c_rec", *METRICS, box=None, pad_edge=False)
        for row in rows.to_dict("records"):
            strength = "" if row["c_rec"] != row["c_rec"] else f"{row['c_rec']:g}"
            table.add_row(row["l_R"], strength, *(f"{row[metric]:.2f}" for metric in METRICS))
        console.print("")
        console.print(table)
        console.print(paper.REMARK, markup=False, highlight=False)
