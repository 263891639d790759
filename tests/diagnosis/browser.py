"""A headless browser that notes everything a page must not do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = pytest.mark.skipif(FOUND is None, reason="no chromium, chromium-browser or google-chrome on the PATH")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=FOUND, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, and the complaints and requests it has made so far."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(30_000)
        self.page.on("console", lambda m: self._note(m.type, m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.load()

    def load(self) -> None:
        self.page.goto("about:blank")
        self.page.goto(self.address)
        self.page.wait_for_selector("html[data-ready]", state="attached")

    def check(self) -> None:
        """Nothing went wrong, and nothing was asked for but the page itself."""
        assert not self.complaints
        own = (self.address, "data:", "blob:", "about:")
        assert not [url for url in self.requests if not url.startswith(own)]

    def _note(self, kind: str, text: str) -> None:
        """An error or a warning of the page; reading pixels back is the tests' doing."""
        if kind in ("error", "warning") and "willReadFrequently" not in text:
            self.complaints.append(text)


@contextmanager
def opened(browser: Browser, file: Path, width: int = 1280, height: int = 900, **options: Any) -> Iterator[Opened]:
    """The page at this size, checked afterwards."""
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce", **options)
    found = Opened(context.new_page(), file.as_uri())
    yield found
    context.close()
    found.check()


def chosen(page: Page, select: str) -> str:
    text: str = page.locator(select).evaluate("s => s.selectedOptions[0].textContent")
    return text
