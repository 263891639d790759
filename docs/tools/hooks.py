"""MkDocs hooks: pages and pictures of the site that stand outside docs/.

The README is the home page and CONTRIBUTING.md a page of its own, so that nothing is written twice; the figures under
results/ are shown by docs/results.md. Links between them are turned from the repository's layout into the site's.
"""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the two pages and the figures."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=linked((ROOT / source).read_text())))
    for picture in sorted((ROOT / "results").glob("*/*.png")):
        name = picture.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of pages in docs/ that leave docs/."""
    return markdown.replace("](../results/", "](results/").replace("](../../CONTRIBUTING.md", "](../contributing.md")


def linked(text: str) -> str:
    """Links of pages in the root, as they are seen from docs/."""
    text = text.replace("](docs/", "](")
    for source, page in PAGES.items():
        text = text.replace(f"]({source}", f"]({page}")
    return text
