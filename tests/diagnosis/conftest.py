"""The report in a browser, for the tests of its controls and of how it reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from frpt.diagnosis.report.page import to_html
from tests.diagnosis import made
from tests.diagnosis.browser import Opened, chromium, opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [made.comparison(), made.result(), made.trajectory()]
    return to_html(made.diagnosis(), tmp_path_factory.mktemp("report") / "report.html", results=runs)


@pytest.fixture(scope="module")
def shared(browser: Browser, file: Path) -> Iterator[Opened]:
    with opened(browser, file) as found:
        yield found


@pytest.fixture
def page(shared: Opened) -> Iterator[Page]:
    """The page as it is when it has just been opened."""
    yield shared.page
    shared.check()
    shared.load()
