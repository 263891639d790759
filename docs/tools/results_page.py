"""Brings tables under results/ and the page docs/results.md up to date; run it from the root of the repository.

    python docs/tools/results_page.py tables    # results/NAME/*: anew from results/NAME/runs.csv; nothing is trained
    python docs/tools/results_page.py page      # docs/results.md: its tables anew from results/

In the page, what stands between `<!-- table: results/NAME/FILE.md -->` (or `lines:`) and `<!-- end -->` is the table
(or are the lines) of that file. A test compares the two.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from frpt_paper import RunsTable
from frpt_paper.experiments.classification import fill, runs_line, runs_of
from frpt_paper.experiments.workbench import ExperimentReport
from frpt_paper.runs.jobs import ANCHOR, ARMS, BACKPROP, FRPT
from frpt_paper.runs.protocols import PROTOCOLS, Protocol
from frpt_paper.tables import figures, published
from frpt_paper.tables.classification_tables import arms_table
from frpt_paper.tables.printed import PrintedTable, interval, signed
from frpt_paper.tables.statistics import START, layer_order

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "results.md"
_BLOCK = re.compile(r"(<!-- (table|lines): (\S+) -->\n).*?(<!-- end -->)", re.S)
_DECIMAL = re.compile(r"\d+\.\d+")
_MINUS = re.compile(r"(?<=[ \[])-(?=\d)")
SUMMARY = {
    "cifar10-paper": ("CIFAR-10, the paper's protocol", "arms"),
    "cifar10-paper-clean-images": ("CIFAR-10, the paper's protocol on clean images", "arms"),
    "cifar10-clean": ("CIFAR-10, clean images, new targets", "arms"),
    "mnist": ("MNIST, clean images, older targets", "arms"),
    "cifar10": ("CIFAR-10, clean images, older targets", "arms"),
    "geometry": ("Channel profiles, clean images, older targets", "geometry"),
    "simple_vit": ("SimpleViT, part of CIFAR-10, older targets", "arms"),
    "resnet18": ("ResNet-18, part of CIFAR-10, older targets", "arms"),
}
"""Folder → what the summary calls it, and its table of differences."""

CLASSIFICATION = (
    "mnist",
    "cifar10",
    "cifar10-paper",
    "cifar10-paper-clean-images",
    "cifar10-clean",
    "simple_vit",
    "resnet18",
)
"""Folders of the grids of Tables 2–7."""


def main() -> None:
    """Do what the argument says."""
    tasks: dict[str, Callable[[], None]] = {"tables": tables, "page": page}
    if len(sys.argv) != 2 or sys.argv[1] not in tasks:
        raise SystemExit(__doc__)
    tasks[sys.argv[1]]()


def tables() -> None:
    """Tables and figures of every experiment whose runs are kept, and the summary."""
    theirs = {"paper": published.numbers(published.MEANS), "supplement": published.numbers(published.PAIRED)}
    for name in CLASSIFICATION:
        folder = RESULTS / name
        frame = RunsTable(folder / "runs.csv").frame()
        protocol = PROTOCOLS.get(name.removeprefix("cifar10-"))
        if protocol is None:
            report = _begun(folder)
        else:
            report = ExperimentReport("CIFAR-10 post-training", _lines(frame, protocol))
        presets = [p for p in ("paper", "default", "reference") if p in set(frame["preset"])]
        fill(report, frame, presets, theirs)
        report.save(folder)
    _geometry(RESULTS / "geometry")
    embedding = RESULTS / "embedding"
    frame = RunsTable(embedding / "runs.csv").frame()
    arms_table(runs_of(frame), "embedding-paired", _title(embedding / "embedding-paired.md")).save(embedding)
    summary().save(RESULTS)


def _geometry(folder: Path) -> None:
    report, frame = _begun(folder), RunsTable(folder / "runs.csv").frame()
    report.tables = [arms_table(runs_of(frame), "geometry", _title(folder / "geometry.md"))]
    report.figures = {"geometry": figures.gains(report.tables[0].data, report.tables[0].title)}
    report.save(folder)


def _lines(frame: pd.DataFrame, protocol: Protocol) -> list[str]:
    """The lines of a report on runs of one checkpoint."""
    first = frame.iloc[0]
    rates = tuple(sorted(frame["lr"].unique()))
    lines = [
        f"SimpleCNN on CIFAR-10: {100 * first['start']:.2f} % test accuracy before post-training, checkpoint "
        f"{first['checkpoint']}",
        str(replace(protocol, rates=rates)),
        runs_line(frame),
    ]
    own = frame[frame["arm"] != BACKPROP]
    for (rate, c), part in own.groupby(["lr", "c_rec"]) if len(rates) > 1 else ():
        layers = ", ".join(sorted(part["l_r"].unique(), key=layer_order))
        arms = ", ".join(sorted(part["arm"].unique(), key=ARMS.index))
        lines.append(f"rate {rate:g}, c_rec {c:g}: l_R = {layers}; {arms}; {part['seed'].nunique()} seeds")
    return lines


def summary() -> PrintedTable:
    """A row per part: FR-PT with the default preset over its layers, rates and strengths, from lowest to highest."""
    rows, kept = [], []
    for name, (shown, file) in SUMMARY.items():
        data = pd.read_csv(RESULTS / name / f"{file}.csv", dtype={"l_r": str}, keep_default_na=False)
        own = data[(data["arm"] == FRPT) & (data["preset"] == "default")]
        cells = []
        for against in (BACKPROP, ANCHOR, START):
            part = own[own["against"] == against]
            kept.append({"part": shown, "against": against, "low": part["delta"].min(), "high": part["delta"].max()})
            cells.append(_span(part["delta"]) if len(part) > 1 else _only(part))
        plain = data[(data["arm"] == BACKPROP) & (data["against"] == START)]["delta"]
        cells.append(_span(plain) if len(plain) > 1 else signed(plain.iloc[0]))
        rows.append([shown, str(data["n"].max()), *cells])
    head = [
        "part",
        "seeds",
        "FR-PT − back-propagation",
        "FR-PT − anchor-only",
        "FR-PT − start",
        "back-propagation − start",
    ]
    note = "Points of mean accuracy, lowest to highest over layers, rates and strengths; default preset."
    return PrintedTable("summary", "FR-PT beside its controls and the start", head, rows, pd.DataFrame(kept), note)


def _span(values: pd.Series) -> str:
    return f"{signed(values.min())} to {signed(values.max())}"


def _only(part: pd.DataFrame) -> str:
    if part.empty:
        return "not run"
    row = part.iloc[0]
    return interval(row["delta"], row["low"], row["high"])


def _title(path: Path) -> str:
    return path.read_text().splitlines()[0].removeprefix("### ")


def _begun(folder: Path) -> ExperimentReport:
    """A report with the title and the lines of the one that is there."""
    head = (folder / "report.md").read_text().split("\n### ")[0].splitlines()
    return ExperimentReport(head[0].removeprefix("## "), [line[2:] for line in head[1:] if line.startswith("- ")])


def page() -> None:
    """Write the page."""
    PAGE.write_text(filled(PAGE.read_text()))


def filled(text: str) -> str:
    """The page's text with its tables and lines as the files under results/ have them."""

    def block(match: re.Match[str]) -> str:
        begin, kind, path, end = match.groups()
        mark = "|" if kind == "table" else "- "
        head = (ROOT / path).read_text().split("\n### ")[0]  # of a report the lines before its first table
        lines = [_MINUS.sub("−", line) for line in head.splitlines() if line.startswith(mark)]
        return "\n".join([begin, *lines, "", end])

    return _BLOCK.sub(block, text)


def unfounded(text: str) -> list[tuple[str, str]]:
    """(section, number) of the page's sentences where no file under results/ has that number, in points or as a share.

    Numbers with decimals are looked for in the folders that the section names, the published ones everywhere.
    """
    missing = []
    for section in re.split(r"^(?=## )", text, flags=re.M):
        prose = re.sub(r"<!-- (?:table|lines): .*?<!-- end -->|```.*?```|`[^`]*`|\]\([^)]*\)", "", section, flags=re.S)
        prose = re.sub(r"^\|.*$", "", prose, flags=re.M)
        names = {"starts", *re.findall(r"results/([\w-]+)", section)} if section.startswith("## ") else {""}
        files = [p for name in names for kind in ("md", "csv") for p in (RESULTS / name).rglob(f"*.{kind}")]
        once = np.unique(np.array([n for p in files for n in _DECIMAL.findall(p.read_text())], dtype=float))
        known = np.concatenate([once, 100 * once])
        for number in _DECIMAL.findall(prose):
            half = 0.501 * 10.0 ** -len(number.partition(".")[2])
            if not (np.abs(known - float(number)) <= half).any():
                missing.append((section.splitlines()[0], number))
    return missing


if __name__ == "__main__":
    main()
