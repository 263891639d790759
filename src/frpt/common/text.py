"""Percentages, counts and kinds of things in words, everywhere the same; tables as plain text and as HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape


def percent(share: float | None) -> str:
    """A share as a percentage of at most three digits: "0.12 %", "16.2 %", "272 %", "more than 1,000 %".

    What is not quite all is never "100 %" (but 99.9), and 0 without decimals is none at all; a dash for no number.
    """
    if share is None or math.isnan(share):
        return "–"
    size = abs(100 * share)
    sign = "−" if share < 0 else ""
    if size > 1000:
        return f"{'less' if sign else 'more'} than {sign}1,000 %"
    if size == 0:
        return "0 %"
    if size >= 100:
        return f"{sign}{size:,.0f} %"
    digits = 1 if size >= 1 else 2
    shown = f"{min(size, 99.9):.{digits}f}"
    return f"{sign if float(shown) else ''}{shown} %"


def kind_of(value: object) -> str:
    """Its class with the article: a list, an iterator."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' or name == 'ndarray' else 'a'} {name}"


def counted(count: int, what: str) -> str:
    """1 name, 2 names."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Plain text columns."""
    widths = [max(len(r[i]) for r in [columns, *rows]) for i in range(len(columns))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in [columns, *rows]]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A small HTML table with a title, for notebooks."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    head = f"<thead>{line(columns, 'th')}</thead><tbody>{body}</tbody>" if rows else ""
    return f"<div><p>{escape(title)}</p><table>{head}</table></div>" if rows else f"<p>{escape(title)}</p>"
