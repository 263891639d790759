"""Tables of the driving experiment: scores on synthetic scenes, differences paired scene by scene, repairs.

``experiments.driving_planners`` calls it with the table of runs, whose column ``scenes`` has the scores of every scene.
A scene's score is its mean over seeds first; intervals are of the mean over scenes. Scores are in percent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from frpt import stats
from frpt_paper.runs.jobs import ANCHOR, BACKPROP, FRPT
from frpt_paper.runs.planners import REFERENCE, SCORES, Values, from_text
from frpt_paper.tables.printed import Cell, PrintedTable, interval, plain, signed
from frpt_paper.tables.statistics import LEVEL

if TYPE_CHECKING:
    import pandas as pd

BEFORE = "before"
"""The planner that post-training starts from, among what runs are compared with."""
SETTING = ["l_r", "c_rec", "arm", "preset"]
SHOWN = {"C": "Comf"}
"""Our name of a score → the paper's tables'."""
RESAMPLES = 2000
"""Of each interval's bootstrap: there are hundreds of intervals, and their ends are shown to a hundredth."""
_PAIRED = "paired by scene, each scene's mean over seeds, 95 % bootstrap intervals over scenes"


def arm_name(arm: str, preset: str) -> str:
    """As tables show it."""
    return {"": arm, REFERENCE: f"{arm}, default with a reference"}.get(preset, f"{arm}, {preset}")


def by_setting(frame: pd.DataFrame) -> dict[tuple[str, float, str, str], dict[int, Values]]:
    """(l_R, c_rec, arm, preset) → seed → the scores of every scene. frame: the runs."""
    parts = frame.groupby(SETTING, sort=False)
    return {key: {int(s): from_text(t) for s, t in zip(p["seed"], p["scenes"], strict=True)} for key, p in parts}


def differences(frame: pd.DataFrame, before: Values, metrics: Sequence[str] = SCORES) -> pd.DataFrame:
    """Every setting against back-propagation, anchor-only of its strength, and the planner before, scene by scene.

    delta, low, high: percentage points (ADE: metres) with the 95 % bootstrap interval over scenes. by_seed: the mean
    difference of each seed. p_holm: of the one-sided t-test over scenes, adjusted over all rows of a metric and of what
    is compared with.
    """
    import pandas as pd

    runs, rows = by_setting(frame), []
    for key, own in runs.items():
        layer, c, arm, _ = key
        others = {BACKPROP: runs.get((layer, 0.0, BACKPROP, "")), ANCHOR: runs.get((layer, c, ANCHOR, ""))}
        for against, other in {**others, BEFORE: dict.fromkeys(own, before)}.items():
            seeds = sorted(set(own) & set(other or {}))
            for metric in metrics if seeds and arm != against else ():
                assert other is not None
                a, b = (_over_seeds([part[s][metric] for s in seeds], metric) for part in (own, other))
                by_seed = [_over_seeds([own[s][metric] - other[s][metric]], metric).mean() for s in seeds]
                row = dict(zip(SETTING, key, strict=True)) | _test(a, b, against, metric, len(seeds))
                rows.append({**row, "by_seed": " ".join(signed(d) for d in by_seed)})
    table = pd.DataFrame(rows)
    if rows:
        for _, part in table.groupby(["against", "metric"]):
            table.loc[part.index, "p_holm"] = stats.holm(part["p_t"].to_numpy())
    return table


def overall(frame: pd.DataFrame, before: Values) -> pd.DataFrame:
    """The PDMS of each arm over all layers and strengths at once, against the same three, scene by scene."""
    import pandas as pd

    runs, rows = by_setting(frame), []
    for arm, preset in dict.fromkeys((key[2], key[3]) for key in runs):
        own = {key: part for key, part in runs.items() if key[2:] == (arm, preset)}
        for against in (BACKPROP, ANCHOR, BEFORE):
            pairs = []
            for (layer, c, *_), part in own.items():
                setting = (layer, 0.0 if against == BACKPROP else c, against, "")
                other = dict.fromkeys(part, before) if against == BEFORE else runs.get(setting, {})
                pairs += [(part[s]["PDMS"], other[s]["PDMS"]) for s in sorted(set(part) & set(other))]
            if pairs and arm != against:
                a, b = (_over_seeds(values, "PDMS") for values in zip(*pairs, strict=True))
                rows.append({"arm": arm, "preset": preset, **_test(a, b, against, "PDMS", len(pairs))})
    return pd.DataFrame(rows).rename(columns={"seeds": "runs"})


def overall_table(data: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """A row per arm. data: ``overall``."""
    rows = [
        [arm_name(arm, preset), str(int(part["runs"].max())), *_cells(part)]
        for (arm, preset), part in data.groupby(["arm", "preset"], sort=False)
    ]
    note = f"Points of PDMS, mean over layers and strengths, {_PAIRED}."
    return PrintedTable(name, title, ["Arm", "Runs", *_heads()], rows, data, note)


def scores_table(frame: pd.DataFrame, before: Values, name: str, title: str) -> PrintedTable:
    """PDMS and its parts, mean over scenes and seeds; PDMS ± over seeds; the best of a layer in bold."""
    rows: list[list[Cell | str]] = [[BEFORE, "", "", f"{100 * before['PDMS'].mean():.2f}", *_parts(before)]]
    best = frame.groupby(["l_r", *SETTING[1:]], sort=False)["PDMS"].mean().groupby("l_r", sort=False).transform("max")
    for key, part in frame.groupby(SETTING, sort=False):
        layer, c, arm, preset = key
        values = 100 * part["PDMS"]
        spread = values.std() if len(values) > 1 else 0.0
        cell = Cell(mean=values.mean(), std=spread, bold=part["PDMS"].mean() == best[key])
        means = {m: part[m].to_numpy() for m in (*SCORES, "ADE")}
        rows.append([layer, f"{c:g}", arm_name(arm, preset), cell, *_parts(means)])
    head = ["l_R", "c_rec", "Arm", "PDMS", *(SHOWN.get(s, s) for s in SCORES[:-1]), "ADE, m"]
    data = frame.drop(columns=["job", "row", "rows", "scenes"])
    return PrintedTable(name, title, head, rows, data, "Percent; PDMS ± standard deviation over seeds.", spans=2)


def paired_table(data: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """PDMS of every setting against back-propagation, anchor-only and before. data: ``differences``."""
    own = data[data["metric"] == "PDMS"]
    rows = []
    for key, part in own.groupby(SETTING, sort=False):
        layer, c, arm, preset = key
        seeds = part.loc[part["against"] == BACKPROP, "by_seed"]
        rows.append([layer, f"{c:g}", arm_name(arm, preset), *_cells(part), *(seeds if len(seeds) else [""])])
    count = int(own["n"].max()) if len(own) else 0
    note = (
        f"Points of PDMS on {count} scenes, {_PAIRED}, which know nothing of how seeds differ: the last column has the "
        f"difference from {BACKPROP} of each seed. A star: better with p < {LEVEL:g} after Holm's correction over the "
        "column."
    )
    head = ["l_R", "c_rec", "Arm", *_heads(), "by seed"]
    return PrintedTable(name, title, head, rows, own, note, spans=2)


def parts_table(data: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """The parts of the score against back-propagation. data: ``differences``."""
    own = data[data["against"] == BACKPROP]
    metrics = list(dict.fromkeys(own["metric"]))
    rows = []
    for key, part in own.groupby(SETTING, sort=False):
        layer, c, arm, preset = key
        by = part.set_index("metric")
        cells = [_cell(by.loc[m]).text for m in metrics]
        rows.append([layer, f"{c:g}", arm_name(arm, preset), *cells])
    head = ["l_R", "c_rec", "Arm", *(SHOWN.get(m, m) for m in metrics)]
    return PrintedTable(name, title, head, rows, own, f"Points (ADE: metres) − {BACKPROP}, {_PAIRED}.", spans=2)


def targets_table(data: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """What the targets are worth before any training. data: l_r, preset and ``target_quality``."""
    note = (
        "closed: share of the plan's residual that is gone when the planner runs on from the target, mean and median "
        "over training scenes (negative: the plan is worse); deviation: ‖target − anchor‖/‖anchor‖, median."
    )
    shown = data.assign(preset=[arm_name(FRPT, p) for p in data["preset"]]).rename(columns={"l_r": "l_R"})
    return plain(name, title, shown, note, digits=3)


def beside_paper(data: pd.DataFrame, theirs: pd.DataFrame, name: str, title: str) -> PrintedTable:
    """The paper's gains on NAVSIM over its own c_rec = 0, beside those on synthetic scenes.

    data: ``differences``. theirs: the paper's rows, layers by the names that ``data`` has.
    """
    import pandas as pd

    own = data[(data["against"] == BACKPROP) & (data["metric"] == "PDMS") & (data["arm"] == FRPT)]
    presets = list(dict.fromkeys(own["preset"]))
    rows, numbers = [], []
    for (layer, c), part in own.groupby(["l_r", "c_rec"], sort=False):
        of_layer = theirs[theirs["l_R"] == layer].set_index("c_rec")["PDMS"]
        gain = float(of_layer[c] - of_layer[0.0]) if c in of_layer and 0.0 in of_layer else float("nan")
        by = part.set_index("preset")
        cells = [_cell(by.loc[p]).text if p in by.index else "" for p in presets]
        rows.append([layer, f"{c:g}", signed(gain) if gain == gain else "–", *cells])
        mine = {p: float(by.loc[p, "delta"]) for p in presets if p in by.index}
        numbers.append({"l_R": layer, "c_rec": c, "paper": gain, **mine})
    head = ["l_R", "c_rec", "paper, NAVSIM, one run", *(f"{arm_name(FRPT, p)}, synthetic" for p in presets)]
    note = "Points of PDMS over c_rec = 0. Other data, and here a smaller planner: only signs can be compared."
    return PrintedTable(name, title, head, rows, pd.DataFrame(numbers), note, spans=1)


def repair_table(frame: pd.DataFrame, before: Values, name: str, title: str) -> PrintedTable:
    """What repairs did to the given scenes and to others. frame: rows of ``run_repair``."""
    import pandas as pd

    rows, data = [], []
    for (method, failing), part in frame.groupby(["method", "failing"], sort=False):
        after = [from_text(text) for text in part["scenes"]]
        failed, fails = before["PDMS"] == 0, [v["PDMS"] == 0 for v in after]
        mended = np.mean([(failed & ~now).sum() for now in fails])
        broken = np.mean([(~failed & now).sum() for now in fails])
        test = _test(_over_seeds([v["PDMS"] for v in after], "PDMS"), 100 * before["PDMS"], BEFORE, "PDMS", len(part))
        change = np.mean([v["ADE"].mean() for v in after]) - before["ADE"].mean()
        given = f"{part['given_driven'].mean():.1f} of {part['given'].mean():g}"
        ade = f"{part['given_ADE_before'].mean():.2f} → {part['given_ADE'].mean():.2f}"
        costs = [f"{part['predicted_kl'].mean():.2g}", f"{part['wall'].mean():.0f}"]
        flips = [f"{mended:.1f}", f"{broken:.1f}", _cell(test), f"{change:+.2f}"]
        rows.append([method, str(failing), given, ade, *flips, *costs])
        data.append({"method": method, "failing": failing, "mended": mended, "broken": broken, **test})
    head = ["Method", "Failing scenes", "of these score now", "their ADE, m", "other scenes fixed", "broken"]
    head += ["Δ PDMS, points", "Δ ADE, m", "predicted KL", "s"]
    count, zeros = len(before["PDMS"]), int((before["PDMS"] == 0).sum())
    note = (
        "Of the weights after the image's embedding. Mean over seeds, which draw the failing scenes. Fixed and broken: "
        f"of {count} test scenes, those whose PDMS was 0 and is not, or the reverse ({zeros} were 0 before). "
        f"Δ: {_PAIRED}."
    )
    return PrintedTable(name, title, head, rows, pd.DataFrame(data), note, spans=1)


def _over_seeds(values: Sequence[np.ndarray], metric: str) -> np.ndarray:
    """Each scene's mean over runs, scores in percent."""
    mean: np.ndarray = np.mean(values, axis=0) * (1.0 if metric == "ADE" else 100.0)
    return mean


def _test(a: np.ndarray, b: np.ndarray, against: str, metric: str, seeds: int) -> dict[str, float | str]:
    p = stats.paired(a, b, resamples=RESAMPLES)
    row: dict[str, float | str] = {"against": against, "metric": metric, "n": p.n, "seeds": seeds, "delta": p.delta}
    return row | {"low": p.ci[0], "high": p.ci[1], "p_t": p.p_t}


def _heads() -> list[str]:
    return [f"− {other}" for other in (BACKPROP, ANCHOR, BEFORE)]


def _cells(part: pd.DataFrame) -> list[Cell | str]:
    by = {row["against"]: row for row in part.to_dict("records")}
    return [_cell(by[other]) if other in by else "" for other in (BACKPROP, ANCHOR, BEFORE)]


def _cell(row: Mapping[str, float | str]) -> Cell:
    text = interval(float(row["delta"]), float(row["low"]), float(row["high"]))
    return Cell(text, star=float(row.get("p_holm", 1.0)) < LEVEL)


def _parts(values: Mapping[str, np.ndarray]) -> list[str]:
    return [*(f"{100 * values[s].mean():.2f}" for s in SCORES[:-1]), f"{values['ADE'].mean():.2f}"]
