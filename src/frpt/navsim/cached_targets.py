"""Targets in the devkit's training cache: a file beside each sample's own, joined to it by the devkit.

`frpt navsim targets` calls ``write_cached_targets``; the agent calls ``check_cache``. Files are read and written by the
devkit's functions alone; they are gzip pickle, so that a cache has to come from where one trusts.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frpt.datasets.labelled import LabelledSamples, fitting_batch
from frpt.errors import NonFiniteError, OptionError, StoreError, StoreMismatchError
from frpt.files.atomic import refused, staged
from frpt.navsim.builders import CameraBuilder, TrajectoryBuilder, pixels
from frpt.navsim.devkit import dump_feature_target_to_pickle, load_feature_target_from_pickle
from frpt.navsim.planner_weights import layer_of, load_planner, target_name, targets_preset
from frpt.navsim.supervised import TARGET
from frpt.reverse.reconstruction import Reconstruction
from frpt.reverser import Reverser
from frpt.targets.write import WriteProgress

_OWN = (f"{CameraBuilder().get_unique_name()}.gz", f"{TrajectoryBuilder().get_unique_name()}.gz")
"""A sample's files: what the planner sees, and what is asked of it."""


class CachedSamples:
    """Samples of the cache as a map-style data set of ((image, status), trajectory)."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders

    def __len__(self) -> int:
        return len(self.folders)

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        seen, asked = (load_feature_target_from_pickle(self.folders[index] / name) for name in _OWN)
        return (pixels(seen["camera"]), seen["status"]), asked["trajectory"].float()


@dataclass(frozen=True)
class WrittenTargets:
    """What a call has done.

    name: of the targets in the cache. shape: of one. written: now. there: had been written before. corrected: samples
    whose trajectory was not met. deviation: ‖target − anchor‖/‖anchor‖, and closed: share of the output's residual that
    is gone, both the mean over them; NaN without any.
    """

    name: str
    shape: tuple[int, ...]
    written: int
    there: int
    corrected: int
    deviation: float
    closed: float


def sample_folders(cache: str | Path) -> list[Path]:
    """The folder of every sample that has what a planner sees and what is asked of it, in order."""
    root = Path(cache)
    if not root.is_dir():
        raise StoreError(f"there is no cache {str(root)!r}: write one with the devkit's run_dataset_caching.py")
    folders = [p for log in sorted(root.iterdir()) if log.is_dir() for p in sorted(log.iterdir()) if p.is_dir()]
    found = [folder for folder in folders if all((folder / name).is_file() for name in _OWN)]
    if not found:
        raise StoreError(
            f"the cache {str(root)!r} has no sample with {' and '.join(_OWN)} ({len(folders)} of other agents): write "
            "it with the devkit's run_dataset_caching.py and agent=frpt_resnet34 or agent=frpt_vit_b16"
        )
    return found


def check_cache(cache: str | Path, name: str) -> None:
    """Refuse a cache that lacks a target for some of its samples; the devkit would leave those samples out."""
    folders = sample_folders(cache)
    lacking = [folder for folder in folders if not (folder / f"{name}.gz").is_file()]
    if not lacking:
        return
    others = Counter(f.stem for folder in lacking for f in folder.glob("frpt_target_*.gz") if f.stem != name)
    differences = [f"{len(lacking)} of {len(folders)} samples have no {name}.gz"]
    differences += [f"{count} samples have {other}.gz, of another layer, preset or start" for other, count in
                    others.most_common(3)]  # fmt: skip
    differences.append("write them with `frpt navsim targets`, with the start, layer and preset of this agent")
    raise StoreMismatchError(cache, differences)


def write_cached_targets(
    cache: str | Path,
    start: str | Path,
    at: str,
    *,
    preset: str = "default",
    half: bool = False,
    batch_size: int | None = None,
    workers: int = 0,
    device: str = "cpu",
    rank: int = 0,
    world: int = 1,
    say: Callable[[str], Any] = print,
    progress: bool = True,
) -> WrittenTargets:
    """Reconstruct the target of every sample in the devkit's cache; called again, it goes on where it was stopped.

    Args:
        cache: the training cache, with samples of ``PlannerAgent``'s builders. It is read by pickle: trust it.
        start: the checkpoint that post-training starts from.
        at: the layer, by its name in the paper's tables or in the model.
        preset: "default", or "paper" as the paper's code for the planners has it.
        half: write float16, half the size.
        batch_size: samples reconstructed together, by default as their size allows.
        workers: processes that load samples.
        device: where to reconstruct.
        rank: which of several writers this is.
        world: how many writers there are.
        say: told in a line how much will be written, before anything is.
        progress: show a progress bar.

    Returns:
        How many were written, and how far the targets are from the anchors.

    Raises:
        CheckpointError: the start cannot be read.
        OptionError: there is no such layer or preset.
        StoreError: the cache has no samples, or the disk has no room.
        StoreMismatchError: targets that are there have another precision.
        NonFiniteError: a target does not fit into float16.
    """
    if not 0 <= rank < world:
        raise OptionError(f"rank must be at least 0 and below world={world}, got {rank}")
    model = load_planner(start)
    layer = layer_of(model, at)
    name = target_name(model, layer, preset)
    mine = sample_folders(cache)[rank::world]
    missing = [folder for folder in mine if not (folder / f"{name}.gz").is_file()]
    dtype = torch.float16 if half else torch.float32
    _check_dtype(mine, name, dtype)
    if not missing:
        say(f"all {len(mine)} targets are there: {name}")
        return WrittenTargets(name, (), 0, len(mine), 0, float("nan"), float("nan"))
    samples = LabelledSamples(CachedSamples(missing), workers, torch.device(device))
    (image, status), _ = samples.item(0)
    example = (image[None].repeat(2, 1, 1, 1).to(device), status[None].repeat(2, 1).to(device))
    rev = Reverser(model.to(device), example, preset=targets_preset(preset))
    rev.plan(layer)
    shape = rev.sample_shape(layer)
    say(_size(Path(cache), name, shape, dtype, len(missing), len(mine)))
    together = batch_size or fitting_batch(samples, [shape])
    sums = _Sums()
    with WriteProgress(len(mine), len(mine) - len(missing), shown=progress) as bar:
        for rows, x, y in samples.batches([range(len(missing))], together):
            rec = rev.reconstruct(x, y.to(device), at=layer)
            values = rev.batch_axis(layer).front(rec.target).to("cpu", dtype)
            for row, value in zip(rows, values, strict=True):
                _write(missing[row] / f"{name}.gz", value)
            sums.add(rec)
            bar.update([rec])
    return WrittenTargets(name, shape, len(missing), len(mine) - len(missing), *sums.means())


class _Sums:
    """Of corrected samples: how many, their deviations, the shares closed."""

    def __init__(self) -> None:
        self.corrected, self.deviation, self.closed = 0, 0.0, 0.0

    def add(self, rec: Reconstruction) -> None:
        self.corrected += int(rec.corrected.sum())
        self.deviation += float(rec.deviation[rec.corrected].sum())
        self.closed += float(rec.closed[rec.corrected].sum())

    def means(self) -> tuple[int, float, float]:
        count = self.corrected or float("nan")
        return self.corrected, self.deviation / count, self.closed / count


def _write(file: Path, value: Tensor) -> None:
    if not bool(torch.isfinite(value).all()):
        raise NonFiniteError(f"the target {str(file)!r} is not finite in {value.dtype}; write without --half")
    try:
        with staged(file) as part:
            dump_feature_target_to_pickle(part, {TARGET: value.clone()})
    except OSError as error:
        raise refused(file, error, value.nbytes) from error


def _check_dtype(folders: Sequence[Path], name: str, dtype: torch.dtype) -> None:
    """Refuse to mix precisions: a batch of both cannot be put together."""
    there = next((file for folder in folders if (file := folder / f"{name}.gz").is_file()), None)
    if there is None:
        return
    found = load_feature_target_from_pickle(there)[TARGET].dtype
    if found != dtype:
        option = "--half" if found == torch.float16 else "no --half"
        raise StoreMismatchError(there, [f"it is {found}, asked for is {dtype}: go on with {option}, or delete them"])


def _size(cache: Path, name: str, shape: tuple[int, ...], dtype: torch.dtype, missing: int, count: int) -> str:
    """How much will be written, in words; refused where the disk has not so much left."""
    each = int(torch.Size(shape).numel()) * dtype.itemsize
    total, free = each * missing, shutil.disk_usage(cache).free
    text = (
        f"{missing} of {count} targets to write: {name}, {tuple(shape)} {str(dtype).removeprefix('torch.')}, "
        f"{each / 1e3:,.1f} kB each, {total / 1e9:,.2f} GB in all before compression; {free / 1e9:,.0f} GB free"
    )
    if total > free:
        raise StoreError(f"{text}. Take --half, a layer further towards the output, or another disk.")
    return text
