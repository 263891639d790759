"""Plain text tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Plain text columns."""
    widths = [max(len(r[i]) for r in [columns, *rows]) for i in range(len(columns))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in [columns, *rows]]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])
