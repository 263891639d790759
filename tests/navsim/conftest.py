"""A devkit of stand-ins, and a trained agent with its cache, for the tests of frpt.navsim."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.navsim.standins import fit, install, make_cache, save_checkpoint


@pytest.fixture(params=["1.1", "2"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both versions of the devkit."""
    install(monkeypatch, second=request.param == "2")
    version: str = request.param
    return version


@pytest.fixture(scope="module")
def devkit() -> Iterator[None]:
    """Version 1.1, for a module's tests."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        yield


@pytest.fixture(scope="module")
def base(devkit: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(a cache, the checkpoint of a planner that was trained on it)."""
    from frpt.navsim import PlannerAgent

    folder = tmp_path_factory.mktemp("navsim")
    cache = make_cache(folder / "cache")
    torch.manual_seed(0)
    agent = PlannerAgent()
    fit(agent, cache, 12)
    return cache, save_checkpoint(agent, folder / "base.ckpt")
