"""What every experiment has at hand: the options of a call, a lab of its scale, a progress bar, a report to fill.

``catalogue.reproduce`` makes a ``Workbench`` and hands it to the experiment, which returns an ``ExperimentReport``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from frpt.errors import OptionError
from frpt_paper.runs.jobs import Job, PostTrainingJob
from frpt_paper.runs.lab import Lab
from frpt_paper.runs.pretraining import PlateauRecipe, Recipe, plateau_recipe_of, recipe_of
from frpt_paper.runs.protocols import PLATEAU, Protocol, protocol_of
from frpt_paper.runs.runs_table import RunsTable
from frpt_paper.runs.starting_models import StartingModel
from frpt_paper.runs.sweep import RunJob, check_cluster, sweep
from frpt_paper.tables.printed import PrintedTable

if TYPE_CHECKING:
    import pandas as pd

SCALES = ("small", "paper")
SMALL = {"digits": (4000, 1000), "mnist": (2000, 1000), "cifar10": (2000, 1000), "cifar100": (2000, 1000)}
"""Samples of train and test at small scale, so that an experiment takes a minute or two."""
_SMALL_OTHERS = (400, 200)
"""Of data sets with larger images."""
_LINE_SECONDS = 60.0
"""Between two lines on how far a sweep is, where there is no terminal."""


@dataclass(frozen=True)
class ReproduceOptions:
    """What ``frpt reproduce`` takes. None or empty: what the scale says.

    Args:
        out: folder for checkpoints, targets, runs and results.
        data: folder with the data sets; None: FRPT_DATA, then the hub.
        scale: "paper", or "small" for a look in a minute or two.
        seeds: how many, from 0.
        epochs: of each post-training.
        layers: the paper's l_R, e.g. ("out", "3").
        c_rec: strengths.
        models: names of ``runs.pretraining.MODELS``.
        presets: of the reconstruction.
        dataset: what a figure is drawn on; a table has its own.
        samples: how many of the training and of the test split.
        pretrain: epochs of pretraining.
        workers: processes of one thread each.
        cluster: "ray" for the Ray cluster at hand.
        compare: files to compare with instead of the paper's numbers.
        protocol: "clean", or "paper" for what the paper's code does; see ``runs.protocols.Protocol``. The following
            change single parts of it.
        images: "clean" or "drawn".
        rates: learning rates of post-training.
        batch_size: of post-training.
        schedule: of pretraining: "cosine" or "plateau".
        smoothing: of labels in pretraining.

    Raises:
        OptionError: an unknown scale or protocol, or a number out of its range.
    """

    out: Path = Path("frpt-reproduce")
    data: Path | None = None
    scale: str = "small"
    seeds: int | None = None
    epochs: int | None = None
    layers: tuple[str, ...] = ()
    c_rec: tuple[float, ...] = ()
    models: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    dataset: str | None = None
    samples: tuple[int, int] | None = None
    pretrain: int | None = None
    workers: int = 1
    cluster: str | None = None
    compare: tuple[Path, ...] = ()
    protocol: str = "clean"
    images: str | None = None
    rates: tuple[float, ...] = ()
    batch_size: int | None = None
    schedule: str | None = None
    smoothing: float | None = None

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise OptionError(f"unknown scale {self.scale!r}: there are {', '.join(SCALES)}")
        for name in ("seeds", "epochs", "pretrain", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name} must be at least 1, got {value}")
        check_cluster(self.cluster)
        if self.samples is not None and (len(self.samples) != 2 or min(self.samples) < 1):
            raise OptionError(f"samples must be two numbers, of training and of test samples, got {self.samples}")
        self.how()

    def how(self) -> Protocol:
        """The protocol of post-training."""
        names = ("images", "rates", "batch_size", "schedule", "smoothing")
        return protocol_of(self.protocol, {name: getattr(self, name) for name in names})


@dataclass
class ExperimentReport:
    """What came out: lines to be read first, tables, figures by name.

    details: tables that are saved, not printed. folder: where it was saved.
    """

    title: str
    lines: list[str] = field(default_factory=list)
    tables: list[PrintedTable] = field(default_factory=list)
    details: list[PrintedTable] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    folder: Path | None = None

    def markdown(self, details: bool = True) -> str:
        """The lines and tables as Markdown."""
        tables = [*self.tables, *(self.details if details else [])]
        head = [f"## {self.title}", "", *(f"- {line}" for line in self.lines), ""]
        return "\n".join([*head, *(table.markdown() for table in tables)])

    def save(self, folder: Path) -> None:
        """``report.md``; each table as Markdown, LaTeX and CSV; each figure as PNG and SVG."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (folder / "report.md").write_text(self.markdown())
        for table in [*self.tables, *self.details]:
            table.save(folder)
        for name, figure in self.figures.items():
            for end in ("png", "svg"):
                figure.savefig(folder / f"{name}.{end}")


@dataclass(frozen=True)
class Workbench:
    """Options of a call under an experiment's name."""

    name: str
    options: ReproduceOptions
    console: Console

    @property
    def small(self) -> bool:
        return self.options.scale == "small"

    @property
    def folder(self) -> Path:
        """Of the experiment's report."""
        label = self.protocol.label
        return self.options.out / (self.name if label == "clean" else f"{self.name}-{label}")

    @property
    def protocol(self) -> Protocol:
        return self.options.how()

    @property
    def figure_dataset(self) -> str:
        """What a figure is drawn on: what was asked for, else the embedded digits, at the paper's scale CIFAR-10."""
        return self.options.dataset or ("digits" if self.small else "cifar10")

    def lab(self, dataset: str) -> Lab:
        """Of the whole data set, or of a part at small scale."""
        own = SMALL.get(dataset, _SMALL_OTHERS) if self.small else (None, None)
        train, test = self.options.samples or own
        data = self.options.data
        return Lab(self.options.out.resolve(), None if data is None else data.resolve(), train, test)

    def seeds(self, small: int, paper: int) -> range:
        """As many as were asked for, else as the scale has."""
        return range(self.options.seeds or (small if self.small else paper))

    def epochs(self, small: int, paper: int) -> int:
        """Of a post-training: as many as were asked for, else as the scale has."""
        return self.options.epochs or (small if self.small else paper)

    def recipe(self, dataset: str, model: str, small: int, paper: int | None = None) -> Recipe:
        """The pair's recipe, with as many epochs as the scale or ``--pretrain`` says."""
        how, recipe = self.protocol, recipe_of(dataset, model)
        if how.schedule == PLATEAU:
            recipe = plateau_recipe_of(dataset, model)
            paper = None
        epochs = self.options.pretrain or (small if self.small else paper or recipe.epochs)
        if isinstance(recipe, PlateauRecipe):
            recipe = replace(recipe, marks=tuple(mark for mark in recipe.marks if mark <= epochs))
        smoothing = recipe.smoothing if how.smoothing is None else how.smoothing
        return replace(recipe, epochs=epochs, smoothing=smoothing)

    def starting_models(
        self, lab: Lab, dataset: str, model: str, recipe: Recipe, keep: Sequence[int] = ()
    ) -> list[StartingModel]:
        """Checkpoints, with a bar while they are trained."""
        with self.bar(f"pretraining {model} on {dataset}", recipe.epochs, "epochs") as step:
            starts = lab.starting_models(
                dataset, model, recipe, keep, each=lambda epoch, accuracy: step(f"{100 * accuracy:.2f} %")
            )
        self.console.print(f"{model} on {dataset}: test accuracy {100 * starts[-1].accuracy:.2f} % ({starts[-1].path})")
        return starts

    def sweep(self, jobs: Sequence[PostTrainingJob], lab: Lab) -> pd.DataFrame:
        """The rows of all jobs, those of earlier calls included; missing targets are written first.

        Post-training runs of all experiments on images are in one table, so that what two of them need is run once. The
        earliest seeds come first, and of a seed the smallest strengths, which may decide larger ones
        (``runs_table.decided``).
        """
        table = lab.table_of(jobs[0])
        table.cut_unfinished_line()
        done = table.done()
        missing = sorted(
            (job for job in jobs if job.key not in done), key=lambda job: (job.seed, job.lr, job.c_rec, job.preset)
        )
        lab.write_stores(missing, progress=True)
        made = [job for job in jobs if job.key in done]
        return self.work_off([*made, *missing], lab.run, table)

    def work_off(self, jobs: Sequence[Job], run: RunJob, table: RunsTable) -> pd.DataFrame:
        """The rows of all jobs, in the order given; those that the table does not have are run."""
        table.cut_unfinished_line()
        done = table.done()
        missing = {job.key: job for job in jobs if job.key not in done}
        if len(missing) < len(jobs):
            self.console.print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are in {table.path}; the rest follows")
        with self.bar("runs", len(missing), "runs") as step:
            sweep(
                list(missing.values()), run, table, workers=self.options.workers, cluster=self.options.cluster,
                progress=lambda job, ended, of: step(""),
            )  # fmt: skip
        frame = table.frame()
        return frame[frame["job"].isin({job.key for job in jobs})].reset_index(drop=True)

    @contextmanager
    def bar(self, title: str, total: int, unit: str) -> Iterator[Callable[[str], None]]:
        """A progress bar with the rate and the time left; yields what is called after each step."""
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[state]}"),
        )  # fmt: skip
        live = self.console.is_terminal
        progress = Progress(
            *columns, console=Console(stderr=True), transient=True, speed_estimate_period=3600, disable=not live
        )  # fmt: skip
        task = progress.add_task(title, total=total, rate="", state="")
        told = begun = time.monotonic()

        def step(state: str) -> None:
            nonlocal told
            progress.advance(task)
            speed, done = progress.tasks[0].speed, int(progress.tasks[0].completed)
            rate = "" if not speed else f"{60 * speed:.1f} {unit}/min" if speed < 1 else f"{speed:.1f} {unit}/s"
            progress.update(task, rate=rate, state=state)
            now = time.monotonic()
            if not live and done < total and (done == 1 or now - told >= _LINE_SECONDS):  # a line instead of the bar
                told, left = now, (total - done) * (now - begun) / done
                self.console.print(f"{title}: {done}/{total} {unit}, about {left / 60:.0f} min left", highlight=False)

        with progress:
            yield step
