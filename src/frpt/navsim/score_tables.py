"""Scores of several runs, scene by scene: what the devkit's run_pdm_score (v1.1) wrote, compared in pairs.

Called by `frpt navsim compare`. The devkit is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frpt.common.text import table
from frpt.errors import InputError
from frpt.stats import Paired, paired

if TYPE_CHECKING:
    import pandas as pd

METRICS = {
    "NC": "no_at_fault_collisions",
    "DAC": "drivable_area_compliance",
    "EP": "ego_progress",
    "TTC": "time_to_collision_within_bound",
    "Comf": "comfort",
    "DDC": "driving_direction_compliance",
    "PDMS": "score",
}
"""The paper's name of a metric → the devkit's, in a row for each scene."""
_SECOND = ("lane_keeping", "traffic_light_compliance", "history_comfort", "two_frame_extended_comfort")
"""Metrics that version 2 of the devkit has, and 1.1 has not."""
_TIME = re.compile(r"\d{4}(\.\d\d){5}")
_AVERAGE = "average"
"""The devkit's last row."""


@dataclass(frozen=True)
class ScoreComparison:
    """Scores of several runs on the same scenes, in percent.

    Attributes:
        names: of the runs; the first is what the others are compared with.
        means: run → metric → mean over the scenes.
        differences: run (but the first) → metric → the paired difference from the first, with its 95 % interval.
        scenes: how many every run has a valid score of.
        left_out: scenes that some run has no valid score of.
    """

    names: list[str]
    means: dict[str, dict[str, float]]
    differences: dict[str, dict[str, Paired]]
    scenes: int
    left_out: int

    def __str__(self) -> str:
        left = f", {self.left_out} left out that some run failed on" if self.left_out else ""
        means = [[name, *(f"{value:.2f}" for value in self.means[name].values())] for name in self.names]
        lines = [f"{self.scenes} scenes{left}; percent", "", table(["run", *METRICS], means)]
        for name, tests in self.differences.items():
            rows = [
                [m, f"{t.delta:+.2f}", f"{t.ci[0]:+.2f} to {t.ci[1]:+.2f}" if t.std > 0 else "none: all equal"]
                for m, t in tests.items()
            ]
            lines += ["", f"{name} − {self.names[0]}, paired by scene, 95 % bootstrap interval:"]
            lines.append(table(["metric", "difference", "interval"], rows))
        return "\n".join(lines)


def read_scores(path: str | Path) -> pd.DataFrame:
    """The scores of a run in percent, a row for each scene.

    Args:
        path: the CSV file that the devkit's run_pdm_score wrote.

    Returns:
        The metrics by the paper's names, indexed by token; NaN where the agent failed.

    Raises:
        InputError: the file cannot be read, has no tokens or a token twice, lacks a metric, or is of version 2.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be read as CSV: {error}") from error
    second = [name for column in frame.columns for name in _SECOND if str(column).startswith(name)]
    if second:
        raise InputError(
            f"{str(path)!r} has {second[0]}: it is of version 2 of the devkit, whose score is the EPDMS. PDMS, which "
            "the paper's tables have, is scored by version 1.1."
        )
    if "token" not in frame.columns:
        raise InputError(
            f"{str(path)!r} has no column 'token', so that scenes cannot be paired; its columns are "
            f"{list(map(str, frame.columns))}. Pass what the devkit's run_pdm_score wrote, not an average."
        )
    if lacking := [name for name in METRICS.values() if name not in frame.columns]:
        raise InputError(f"{str(path)!r} lacks {', '.join(lacking)}: it is no table of run_pdm_score of version 1.1")
    frame = frame[frame["token"] != _AVERAGE]
    if frame.empty:
        raise InputError(f"{str(path)!r} has no scene's row")
    twice = frame["token"][frame["token"].duplicated()]
    if len(twice):
        raise InputError(f"{str(path)!r} has the scene {twice.iloc[0]} twice")
    scores = frame.set_index("token")[list(METRICS.values())].astype(float) * 100
    if "valid" in frame.columns:
        scores[~frame["valid"].astype(str).eq("True").to_numpy()] = float("nan")
    return scores.set_axis(list(METRICS), axis=1)


def compare_scores(files: Sequence[str | Path], *, seed: int = 0) -> ScoreComparison:
    """Compare runs scene by scene; the first file is what the others are compared with.

    Args:
        files: tables of run_pdm_score, at least two, of the same scenes.
        seed: of the bootstrap.

    Returns:
        Means, and paired differences with intervals.

    Raises:
        InputError: a file cannot be used (``read_scores``), or files have different scenes.
    """
    if len(files) < 2:
        raise InputError("to compare takes at least two files; the first is what the others are compared with")
    names = _names([Path(file) for file in files])
    runs = dict(zip(names, map(read_scores, files), strict=True))
    first = runs[names[0]]
    for name, run in runs.items():
        if (here := set(run.index)) != (there := set(first.index)):
            raise InputError(
                f"{name} and {names[0]} have different scenes: {len(here - there)} are in the former alone, "
                f"{len(there - here)} in the latter alone. Score both with the same train_test_split and metric cache."
            )
    valid = [token for token in first.index if all(run.loc[token].notna().all() for run in runs.values())]
    if len(valid) < 2:
        raise InputError(f"only {len(valid)} scenes have a valid score in all files: there is nothing to compare")
    runs = {name: run.loc[valid] for name, run in runs.items()}
    means = {name: {metric: float(run[metric].mean()) for metric in METRICS} for name, run in runs.items()}
    base = runs.pop(names[0])
    differences = {
        name: {m: paired(run[m].to_numpy(), base[m].to_numpy(), seed=seed) for m in METRICS}
        for name, run in runs.items()
    }
    return ScoreComparison(names, means, differences, len(valid), len(first) - len(valid))


def _names(files: list[Path]) -> list[str]:
    """What runs are called: by the file, or by its experiment where the devkit named the file after the time of day.

    By the whole path where that does not tell them apart.
    """
    short = [f.parents[1].name if _TIME.fullmatch(f.stem) and len(f.parents) > 2 else f.stem for f in files]
    return short if len(set(short)) == len(short) else [str(file) for file in files]
