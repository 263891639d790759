"""Tables as plain text, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


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
