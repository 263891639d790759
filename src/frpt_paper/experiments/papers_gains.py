"""The paper's own numbers, with where its networks started: what FR-PT gains is what back-propagation loses.

``catalogue`` lists it as "starts"; nothing is trained. Accuracies before post-training are in the captions of the
tables of Supplement B.3 (``published/starts.csv``); the means are those of Tables 2–7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scipy import stats

from frpt_paper.experiments.workbench import ExperimentReport, Workbench
from frpt_paper.tables import figures, published
from frpt_paper.tables.printed import PrintedTable, signed

if TYPE_CHECKING:
    import pandas as pd


def papers_gains(bench: Workbench) -> ExperimentReport:
    """FR-PT − back-propagation beside start − back-propagation, for every model and layer of Tables 2–7."""
    data = published.against_starts()
    out = data[data["l_R"] == "out"]
    lines = [
        f"{name}: correlation of (FR-PT − back-propagation) with (start − back-propagation) {_correlation(part)}; "
        f"FR-PT − start {signed(part['fr_minus_start'].mean())} points on average, from "
        f"{signed(part['fr_minus_start'].min())} to {signed(part['fr_minus_start'].max())}"
        for name, part in ((f"{len(out)} models at l_R = out", out), (f"all {len(data)} models and layers", data))
    ]
    lines.append(
        "both differences hold back-propagation's accuracy, which makes them rise together by itself; that FR-PT stays "
        "near the start while back-propagation leaves it does not follow from that"
    )
    report = ExperimentReport("Where the paper's gains come from", lines)
    title = "The paper's mean accuracies beside its starting networks"
    report.tables.append(_table(out, "starts", f"{title}, l_R = out"))
    report.details.append(_table(data, "starts-layers", f"{title}, all layers"))
    report.figures["starts"] = figures.starts(out, "The paper's gains at l_R = out")
    return report


def _correlation(part: pd.DataFrame) -> str:
    found = stats.pearsonr(part["fr_minus_bp"], part["start_minus_bp"])
    low, high = found.confidence_interval(0.95)
    return f"{found.statistic:.2f} [{low:.2f}, {high:.2f}]"


def _table(data: pd.DataFrame, name: str, title: str) -> PrintedTable:
    rows = [
        [r["dataset"], r["model"], r["l_R"], *(f"{r[k]:.2f}" for k in ("start", "bp", "fr")), f"{r['c_rec']:g}",
         *(signed(r[k]) for k in ("fr_minus_bp", "start_minus_bp", "fr_minus_start"))]
        for r in data.to_dict("records")
    ]  # fmt: skip
    head = [
        "Data",
        "Model",
        "l_R",
        "start",
        "back-propagation",
        "FR-PT",
        "c_rec",
        "FR − BP",
        "start − BP",
        "FR − start",
    ]
    note = "Mean accuracy over ten epochs, %, of the strength that is best on average, as the paper reports it."
    return PrintedTable(name, title, head, rows, data, note, spans=2)
