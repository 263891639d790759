"""Runs the tutorials and writes them as notebooks with their output.

A tutorial is a plain script under examples/tutorials in jupytext's percent format: `# %% [markdown]` begins text and
`# %%` code. This writes it to docs/tutorials/NAME.ipynb, run from top to bottom in a folder of its own.

    python docs/tools/notebooks.py            # all of them
    python docs/tools/notebooks.py digits     # some
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
SCRIPTS, NOTEBOOKS = ROOT / "examples" / "tutorials", ROOT / "docs" / "tutorials"
PYTHON = {"name": "python3", "display_name": "Python 3", "language": "python"}


def read(script: Path) -> NotebookNode:
    """The notebook a script stands for, without output; cells are numbered, so that nothing in it is random."""
    notebook = jupytext.read(script, fmt="py:percent")
    notebook.metadata = nbformat.from_dict({"kernelspec": PYTHON})
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
    return notebook


def execute(notebook: NotebookNode) -> NotebookNode:
    """The same with its output: what cells print and draw, not what libraries say to stderr about this machine."""
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, kernel_name="python3", coalesce_streams=True).execute(cwd=folder)
    notebook.metadata = nbformat.from_dict({"kernelspec": PYTHON})
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    return notebook


def main(names: list[str]) -> None:
    for script in sorted(SCRIPTS.glob("*.py")):
        if names and script.stem not in names:
            continue
        start = time.monotonic()
        notebook = execute(read(script))
        nbformat.write(notebook, NOTEBOOKS / f"{script.stem}.ipynb")
        print(f"{script.stem}: {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
