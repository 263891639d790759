"""Tables as Markdown, LaTeX and CSV, with the paper's layout and marks: bold for the best, a star for significance.

Experiments build a ``PrintedTable``, ``ExperimentReport`` shows and saves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Cell:
    """A mean with its standard deviation over seeds, or a text. bold: best of its group; star: significantly so."""

    text: str = ""
    mean: float | None = None
    std: float = 0.0
    bold: bool = False
    star: bool = False

    def markdown(self) -> str:
        text = self.text if self.mean is None else f"{self.mean:.2f} ± {self.std:.2f}"
        return (f"**{text}**" if self.bold else text) + (r"\*" if self.star else "")

    def latex(self) -> str:
        text = _tex(self.text) if self.mean is None else rf"{self.mean:.2f} $\pm$ {self.std:.2f}"
        return (rf"\textbf{{{text}}}" if self.bold else text) + ("$^{*}$" if self.star else "")


@dataclass(frozen=True)
class PrintedTable:
    """A titled table. head: column names; rows: cells, or texts; note: a line below; data: the numbers, for the CSV.

    spans: how many first columns repeat their value in the rows of a group; only a group's first row shows it.
    """

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    data: pd.DataFrame
    note: str = ""
    spans: int = 0

    def markdown(self) -> str:
        body = [[_cell(c).markdown() for c in row] for row in self._shown()]
        head = list(self.head)
        widths = [max(len(r[i]) for r in [head, *body]) for i in range(len(head))]
        lines = [_line(head, widths), "|" + "|".join("-" * (w + 2) for w in widths) + "|"]
        lines += [_line(row, widths) for row in body]
        return f"### {self.title}\n\n" + "\n".join(lines) + (f"\n\n{self.note}" if self.note else "") + "\n"

    def latex(self) -> str:
        columns = "l" * max(1, self.spans) + "c" * (len(self.head) - max(1, self.spans))
        lines = [r"\begin{table}[tp]", r"    \centering", rf"    \caption{{{_tex(self.title)}}}"]
        lines += [rf"    \label{{tab:{self.name}}}", rf"    \begin{{tabular}}{{@{{}}{columns}@{{}}}}", r"    \toprule"]
        lines += ["    " + " & ".join(_tex(h) for h in self.head) + r" \\", r"    \midrule"]
        lines += self._latex_rows()
        lines += [r"    \bottomrule", r"    \end{tabular}"]
        lines += [rf"    \par\footnotesize {_tex(self.note)}"] if self.note else []
        return "\n".join([*lines, r"\end{table}", ""])

    def _latex_rows(self) -> list[str]:
        lines: list[str] = []
        for number, row in enumerate(self.rows):
            changed = self._first_change(number)
            if number and changed < self.spans:
                lines.append(r"    \midrule" if changed == 0 else rf"    \cline{{{changed + 1}-{len(self.head)}}}")
            cells = []
            for i, cell in enumerate(row):
                if i >= self.spans:
                    cells.append(_cell(cell).latex())
                elif number == 0 or i >= changed:
                    length = self._run(number, i)
                    text = _cell(cell).latex()
                    cells.append(rf"\multirow{{{length}}}{{*}}{{{text}}}" if length > 1 else text)
                else:
                    cells.append("")
            lines.append("    " + " & ".join(cells) + r" \\")
        return lines

    def _first_change(self, number: int) -> int:
        """The first spanning column whose value differs from the row before; ``spans`` where none does."""
        if number == 0:
            return 0
        a, b = self.rows[number - 1], self.rows[number]
        return next((i for i in range(self.spans) if a[i] != b[i]), self.spans)

    def _run(self, number: int, column: int) -> int:
        """How many rows from this one on agree up to a column: what LaTeX's multirow spans."""
        length = 1
        while number + length < len(self.rows) and self._first_change(number + length) > column:
            length += 1
        return length

    def _shown(self) -> list[list[Cell | str]]:
        return [
            ["" if i < self.spans and self._first_change(n) > i and n else cell for i, cell in enumerate(row)]
            for n, row in enumerate(self.rows)
        ]

    def save(self, folder: Path) -> list[Path]:
        """``name.md``, ``name.tex`` and ``name.csv`` in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{self.name}.{end}" for end in ("md", "tex", "csv")]
        files[0].write_text(self.markdown())
        files[1].write_text(self.latex())
        self.data.to_csv(files[2], index=False, lineterminator="\n")
        return files


def plain(name: str, title: str, data: pd.DataFrame, note: str = "", digits: int = 4) -> PrintedTable:
    """A table of a frame as it is."""
    rows = [[_text(value, digits) for value in row] for row in data.itertuples(index=False)]
    return PrintedTable(name, title, [str(c) for c in data.columns], rows, data, note)


def signed(value: float) -> str:
    """Two digits with a sign; what rounds to zero is +0.00."""
    return f"{round(value, 2) + 0.0:+.2f}"


def interval(value: float, low: float, high: float) -> str:
    """A difference with its interval; without one where it has no width: nothing is known of how equal values vary."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        return f"{signed(value)} [no interval]"
    return f"{signed(value)} [{signed(low)}, {signed(high)}]"


def _text(value: object, digits: int) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.{digits}g}"
    return str(value)


def _cell(value: Cell | str) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"


_SYMBOLS = {  # texts that stand for the paper's symbols; the longest that fits is taken
    r"\*": "$^{*}$", "×": r"$\times$", "≤": r"$\le$", "^": r"\^{}", ">": "$>$",
    "l_R": "$l_R$", "c_rec*": r"$c_{\mathrm{rec}}^{\ast}$", "c_rec": r"$c_{\mathrm{rec}}$", "Δ": r"$\Delta$",
    "p_t": "$p_t$", "p_W": "$p_W$", "d_z": "$d_z$", "→": r"$\rightarrow$", "±": r"$\pm$", "κ": r"$\kappa$",
    "−": "$-$", "–": "--", "≠": r"$\ne$", "<": "$<$", "p_Holm": r"$p_{\mathrm{Holm}}$", "p_BH": r"$p_{\mathrm{BH}}$",
}  # fmt: skip


def _tex(text: str) -> str:
    """Plain text for LaTeX: the paper's symbols, and what LaTeX takes for commands escaped."""
    pieces, rest = [], text
    while rest:
        symbol = next((s for s in sorted(_SYMBOLS, key=len, reverse=True) if rest.startswith(s)), None)
        if symbol is not None:
            pieces.append(_SYMBOLS[symbol])
            rest = rest[len(symbol) :]
        else:
            pieces.append("\\" + rest[0] if rest[0] in "%_&#$" else rest[0])
            rest = rest[1:]
    return "".join(pieces)
