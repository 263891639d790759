"""Targets in the devkit's cache: right, resumable, in half precision, sizes said before, bad input refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import frpt
from frpt.cli.main import app
from frpt.errors import NonFiniteError, OptionError, StoreError, StoreMismatchError
from tests.navsim.standins import dump, load, make_cache

QUIET: dict[str, Any] = {"progress": False, "say": lambda text: None}


def targets_in(cache: Path, name: str) -> dict[str, torch.Tensor]:
    return {file.parent.name: load(file)["frpt_target"] for file in cache.glob(f"*/*/{name}.gz")}


def test_targets_are_what_the_reverser_says(base: tuple[Path, Path], tmp_path: Path) -> None:
    from frpt.navsim import write_cached_targets
    from frpt.navsim.planner_weights import load_planner

    cache = make_cache(tmp_path / "cache", 5)
    written = write_cached_targets(cache, base[1], "planning z_2", batch_size=2, **QUIET)
    assert (written.written, written.there, written.shape) == (5, 0, (256,))
    assert written.closed > 0.99
    found = targets_in(cache, written.name)
    assert len(found) == 5
    model = load_planner(base[1])
    folder = cache / "log1" / "token3"
    seen, asked = load(folder / "frpt_camera.gz"), load(folder / "frpt_trajectory.gz")
    x = (seen["camera"][None].float() / 255, seen["status"][None])
    rec = frpt.Reverser(model, x).reconstruct(x, asked["trajectory"][None], at="planning2")
    torch.testing.assert_close(found["token3"], rec.target[0], rtol=1e-4, atol=1e-5)


def test_it_goes_on_where_it_was_stopped(
    base: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frpt.navsim import cached_targets, write_cached_targets

    cache = make_cache(tmp_path / "cache", 6)
    stopped, write = 0, cached_targets._write

    def stop(file: Path, value: torch.Tensor) -> None:
        nonlocal stopped
        stopped += 1
        if stopped > 3:
            raise KeyboardInterrupt
        write(file, value)

    with monkeypatch.context() as m:
        m.setattr(cached_targets, "_write", stop)
        with pytest.raises(KeyboardInterrupt):
            write_cached_targets(cache, base[1], "planning z_2", batch_size=2, **QUIET)
    assert not list(cache.glob("*/*/*.tmp"))
    said: list[str] = []
    written = write_cached_targets(cache, base[1], "planning z_2", progress=False, say=said.append)
    assert (written.written, written.there) == (3, 3)
    assert "3 of 6 targets to write" in said[0]
    assert "1.0 kB each" in said[0]
    again = write_cached_targets(cache, base[1], "planning z_2", progress=False, say=said.append)
    assert (again.written, again.there) == (0, 6)
    assert math.isnan(again.closed)
    assert "all 6 targets are there" in said[1]


def test_several_writers_share_the_samples(base: tuple[Path, Path], tmp_path: Path) -> None:
    from frpt.navsim import write_cached_targets

    cache = make_cache(tmp_path / "cache", 5)
    counts = [
        write_cached_targets(cache, base[1], "planning z_2", rank=rank, world=2, **QUIET).written for rank in (0, 1)
    ]
    assert counts == [3, 2]
    with pytest.raises(OptionError, match="world=2"):
        write_cached_targets(cache, base[1], "planning z_2", rank=2, world=2, **QUIET)


def test_half_precision_is_not_mixed(base: tuple[Path, Path], tmp_path: Path) -> None:
    from frpt.navsim import write_cached_targets

    cache = make_cache(tmp_path / "cache", 2)
    written = write_cached_targets(cache, base[1], "ResNet z_4", preset="paper", half=True, **QUIET)
    assert written.shape == (512, 1, 4)
    assert {t.dtype for t in targets_in(cache, written.name).values()} == {torch.float16}
    with pytest.raises(StoreMismatchError, match="go on with --half"):
        write_cached_targets(cache, base[1], "ResNet z_4", preset="paper", **QUIET)


def test_what_cannot_be_written(base: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from frpt.navsim import cached_targets, write_cached_targets

    with pytest.raises(StoreError, match=r"run_dataset_caching\.py"):
        write_cached_targets(tmp_path / "nothing", base[1], "fusion z", **QUIET)
    (tmp_path / "empty" / "log" / "token").mkdir(parents=True)
    dump(tmp_path / "empty" / "log" / "token" / "transfuser_feature.gz", {})
    with pytest.raises(StoreError, match=r"agent=frpt_resnet34"):
        write_cached_targets(tmp_path / "empty", base[1], "fusion z", **QUIET)
    cache = make_cache(tmp_path / "cache", 2)
    with pytest.raises(OptionError, match="'planning z_1'"):
        write_cached_targets(cache, base[1], "planning z_9", **QUIET)
    with pytest.raises(OptionError, match="'default' or 'paper'"):
        write_cached_targets(cache, base[1], "fusion z", preset="quick", **QUIET)
    with pytest.raises(NonFiniteError, match="--half"):
        cached_targets._write(tmp_path / "x.gz", torch.tensor([1e6]).half())
    usage = type("Usage", (), {"free": 10})()
    monkeypatch.setattr(cached_targets.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StoreError, match="--half"):
        write_cached_targets(cache, base[1], "fusion z", **QUIET)
    assert not list(cache.glob("*/*/frpt_target*"))


def test_in_the_shell(base: tuple[Path, Path], tmp_path: Path) -> None:
    run = CliRunner(env={"COLUMNS": "250"}).invoke
    conf = run(app, ["navsim", "conf"]).output.strip()
    assert sorted(f.name for f in (Path(conf) / "agent").iterdir()) == ["frpt_resnet34.yaml", "frpt_vit_b16.yaml"]
    cache = make_cache(tmp_path / "cache", 2)
    arguments = ["navsim", "targets", str(cache), "--start", str(base[1]), "--at", "planning z_2", "--half"]
    result = run(app, arguments)
    assert result.exit_code == 0
    assert "0.5 kB each" in result.output
    assert "2 written, 0 were there" in result.output
    result = run(app, [*arguments[:-2], "nowhere"])
    assert result.exit_code == 2
    assert "OptionError" in result.output
