"""A headless browser that notes everything a page must not do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


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
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def opened(browser: Browser, file: Path, width: int = 1280, height: int = 900, **options: Any) -> Iterator[Opened]:
    """The page at this size; fails afterwards if it complained or asked for anything but itself."""
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce", **options)
    found = Opened(context.new_page())
    page = found.page
    page.set_default_timeout(5000)
    page.on("console", lambda m: found.complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: found.complaints.append(str(e)))
    page.on("request", lambda r: found.requests.append(r.url))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    yield found
    foreign = [url for url in found.requests if not url.startswith((file.as_uri(), "data:", "blob:"))]
    context.close()
    assert not found.complaints
    assert not foreign
