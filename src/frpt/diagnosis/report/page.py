"""The page: template, style and script in one file, written whole or not at all. ``Diagnosis.to_html`` calls it.

The page loads nothing: a content security policy allows its own script (by its hash) and images in data URLs only.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from frpt.diagnosis.findings import Findings
from frpt.diagnosis.report.content import CHOICES, CONFUSION_CLASSES, HEAT_CLASSES, PAIRS, SPECIMENS, content
from frpt.diagnosis.report.page_tables import classes_table, layers_table, samples_table, units_table
from frpt.diagnosis.report.repair_part import RepairPart, repair_part
from frpt.diagnosis.report.runs import Run, RunSection, sections
from frpt.diagnosis.report.verdict import about_targets, verdict
from frpt.diagnosis.report.words import safe_json
from frpt.errors import OptionError, StoreError
from frpt.files.atomic import write_atomic
from frpt.repairs.fix import Fix

_SCRIPTS = ("base", "tables", "plots", "grids", "gallery", "repair", "runs", "views")


def to_html(
    diagnosis: Findings,
    path: str | Path,
    *,
    title: str | None = None,
    results: Sequence[Run] = (),
    repair: Fix | None = None,
) -> Path:
    """Write a diagnosis as one page that needs no network, and return where it is.

    results: what ``frpt.compare`` and ``frpt.post_train`` return, and trajectories, to be shown on the same page.
    repair: what ``frpt.repair`` returned, to be shown there too.
    """
    file = Path(path)
    runs = sections(results)
    mended = None if repair is None else repair_part(diagnosis, repair)
    page = render(diagnosis, title or f"Diagnosis of {diagnosis.model}", runs, mended)
    _write(file, page.encode("utf-8", errors="replace"))
    return file


def render(d: Findings, title: str, runs: Sequence[RunSection] = (), repair: RepairPart | None = None) -> str:
    """The page's text. All values are escaped by the template; data for the script are one JSON block."""
    environment = Environment(
        loader=PackageLoader("frpt.diagnosis.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = lambda text: text.replace(" %", "\u00a0%")  # a number and its % on one line
    script = '"use strict";\n' + "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    tables = {"layers": layers_table(d), "units": units_table(d), "samples": samples_table(d)}
    if d.class_names:
        tables["classes"] = classes_table(d)
    return environment.get_template("page.html").render(
        title=title,
        d=d,
        verdict=verdict(d),
        targets=about_targets(d),
        tables=tables,
        runs=runs,
        repair=repair,
        data=Markup(
            safe_json({**content(d), "runs": [b.data for b in runs], "repair": None if repair is None else repair.data})
        ),
        style=Markup(_asset("style.css")),
        script=Markup(script),
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{hashed}'; "
        "base-uri 'none'; form-action 'none'",
        notes=_notes(d),
    )


def _notes(d: Findings) -> dict[str, str]:
    """What is left out of the page, if anything."""
    classes = len(d.class_names)
    choices = f"Classes to choose from: the {CHOICES} with the largest share wrong, and those in the gallery."
    matrix = f"There are {classes:,} classes; the matrix is drawn for up to {CONFUSION_CLASSES}."
    return {
        "heat": _cut(HEAT_CLASSES, classes, "classes with the largest share wrong"),
        "choices": choices if classes > CHOICES else "",
        "pairs": _cut(PAIRS, len(d.pairs), "pairs"),
        "gallery": _cut(SPECIMENS, len(d.gallery), "chosen samples"),
        "confusion": matrix if classes > CONFUSION_CLASSES else "",
    }


def _cut(limit: int, count: int, what: str) -> str:
    return "" if count <= limit else f"Shown: {limit} {what}, of {count:,}."


def _asset(name: str) -> str:
    return resources.files("frpt.diagnosis.report").joinpath("assets", name).read_text("utf-8")


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all: a reader never sees half a page."""
    try:
        write_atomic(file, data)
    except StoreError as error:  # its words are about target stores; the cause is what the disk said
        cause = error.__cause__
        said = cause.strerror or cause if isinstance(cause, OSError) else error
        raise OptionError(
            f"the report could not be written to {str(file)!r}: {said}. Pass the name of a file in a directory that "
            "exists and may be written to, such as 'report.html'."
        ) from error
