"""Synthetic driving scenes as a map-style data set of ((image, status), trajectory): what a planner is trained on.

Users make one; so do the paper's driving experiments. Scenes are made and rendered once, at the beginning, and kept as
bytes; where a folder is named they are kept there, too, and an interrupted start goes on from what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from frpt.data.decode import cached, keep
from frpt.driving.pdm_score import score
from frpt.driving.scene import Array, Scene
from frpt.driving.synthetic.making import find_scene, scene_of
from frpt.driving.synthetic.renderer import render
from frpt.errors import InputError, OptionError
from frpt.files.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMANDS = ("left", "straight", "right", "unknown")
"""The driving command's entries, in the order of the status."""
TURN, ROUTE = np.deg2rad(20), 40.0
"""A route that turns by more than this within so many metres ahead is a left or a right."""
UNKNOWN = 0.05
"""Share of samples whose command is not told."""
PART = 64
"""Scenes of a cache file: what an interruption costs at most."""

Sample = tuple[tuple[Tensor, Tensor], Tensor]


def command(scene: Scene) -> str:
    """Where the route leads in the next 40 metres: "left", "straight" or "right".

    Args:
        scene: The scene.

    Returns:
        The command; a turn by less than 20° is straight.

    Example:
        >>> frpt.driving.command(frpt.driving.make_scene(seed=0, index=0))
        'straight'
    """
    line = scene.centre_line
    steps = np.diff(line, axis=0)
    heading = np.unwrap(np.arctan2(steps[:, 1], steps[:, 0]))
    here = int(np.argmin(np.linalg.norm(line[:-1], axis=1)))
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(steps[here:], axis=1))])[:-1]
    turned = float(np.interp(ROUTE, along, heading[here:])) - heading[here]
    return COMMANDS[1] if abs(turned) < TURN else COMMANDS[0] if turned > 0 else COMMANDS[2]


class DrivingData(Dataset[Sample]):
    """Synthetic scenes; item i: ((image (3, h, w) in [0, 1], status (8,)), trajectory (8, 3)), all float32.

    The status is velocity (2), acceleration (2) and the driving command (4: left, straight, right, unknown), the
    trajectory the driver's plan in ego's frame: x, y, heading every 0.5 s. Scene i depends on the seed and on i alone.

    Args:
        count: How many scenes.
        seed: Of the set; sets of different seeds have different scenes.
        size: Of the images: height, width.
        folder: Where the set is kept on disk; the same call finds it there. Nothing is written by default.
        progress: Show a bar while scenes are made.

    Raises:
        OptionError: count, seed or size is out of range.

    Example:
        >>> train = frpt.driving.DrivingData(4, seed=0, progress=False)
        >>> (image, status), trajectory = train[0]
        >>> image.shape, status.shape, trajectory.shape
        (torch.Size([3, 32, 128]), torch.Size([8]), torch.Size([8, 3]))
        >>> bool(train.score(train.trajectories)["PDMS"].min() >= 0.9)
        True
    """

    def __init__(
        self,
        count: int,
        seed: int = 0,
        size: tuple[int, int] = (32, 128),
        *,
        folder: str | Path | None = None,
        progress: bool = True,
    ) -> None:
        if count < 1 or seed < 0:
            raise OptionError(f"count must be positive and seed not negative, got {count} and {seed}")
        if len(size) != 2 or min(size) < 1:
            raise OptionError(f"size must be two positive numbers, height and width, got {size}")
        self.seed, self.size = seed, (int(size[0]), int(size[1]))
        parts = []
        with Progress("making scenes", count, unit="scenes", shown=progress, transient=True) as bar:
            for start in range(0, count, PART):
                part = range(start, min(start + PART, count))
                parts.append(self._part(part, None if folder is None else Path(folder)))
                bar.advance(len(part))
        self._pixels, self._status, self._plans, self._trials = (torch.cat(t) for t in zip(*parts, strict=True))

    def __repr__(self) -> str:
        return f"DrivingData({len(self)} synthetic scenes, seed {self.seed}, images {(3, *self.size)})"

    def __len__(self) -> int:
        return len(self._trials)

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        (images, status), plans = self.__getbatch__(indices)
        return [((images[i], status[i]), plans[i]) for i in range(len(plans))]

    def __getbatch__(self, indices: Sequence[int]) -> Sample:
        """Some samples as a batch: ((k, 3, h, w), (k, 8)) and (k, 8, 3)."""
        rows = torch.tensor([self._row(i) for i in indices], dtype=torch.int64)
        return (self._pixels[rows].float().div_(255), self._status[rows]), self._plans[rows]

    @property
    def trajectories(self) -> Tensor:
        """(n, 8, 3) the driver's plans."""
        return self._plans

    def scene(self, index: int) -> Scene:
        """The scene of a sample, made again."""
        row = self._row(index)
        return scene_of(self.seed, row, int(self._trials[row]))

    def score(self, plans: Tensor | Array, *, progress: bool = False) -> dict[str, npt.NDArray[np.float64]]:
        """The scores of a plan for each scene.

        Args:
            plans: (n, 8, 3), in the order of the samples.
            progress: Show a bar.

        Returns:
            NC, DAC, EP, TTC, C, DDC and PDMS, (n,) each.

        Raises:
            InputError: There is not one plan for each scene.
        """
        given = np.asarray(plans.detach().cpu() if isinstance(plans, Tensor) else plans, dtype=np.float64)
        if given.shape != tuple(self._plans.shape):
            raise InputError(f"plans must have shape {tuple(self._plans.shape)}, one for each scene; got {given.shape}")
        rows = []
        with Progress("scoring", len(self), unit="plans", shown=progress, transient=True) as bar:
            for i, plan in enumerate(given):
                rows.append(score(self.scene(i), plan[None]))
                bar.advance()
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def picture(self, index: int, plans: Mapping[str, Tensor | Array]) -> Figure:
        """A sample's scene from above with plans, by name; ``frpt.diagnose`` calls it for its gallery."""
        from frpt.driving.birds_eye import picture

        return picture(self.scene(index), plans)

    def _row(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"samples are 0 to {len(self) - 1}")
        return int(index) % len(self)

    def _part(self, part: range, folder: Path | None) -> tuple[Tensor, ...]:
        """Pixels, status, plans and trials of some scenes, from the folder if they are there.

        What is there is compared with its first scene, made anew: a file of another release is made again.
        """
        if folder is None:
            return self._made(part)
        h, w = self.size
        file = folder / f"driving-{self.seed}-{h}x{w}-{part.start}-{part.stop}.safetensors"
        kept = cached(file, "pixels", "status", "plans", "trials")
        if kept is not None and all(len(t) == len(part) for t in kept):
            first = self._made(part[:1])
            if all(torch.equal(one, many[:1]) for one, many in zip(first, kept, strict=True)):
                return kept
        pixels, status, plans, trials = self._made(part)
        keep(file, pixels=pixels, status=status, plans=plans, trials=trials)
        return pixels, status, plans, trials

    def _made(self, part: range) -> tuple[Tensor, ...]:
        rows = []
        for index in part:
            trial, scene = find_scene(self.seed, index)
            status, plan = torch.from_numpy(self._told(scene, index)), torch.from_numpy(scene.reference.copy())
            rows.append((torch.from_numpy(render(scene, self.size)), status.float(), plan.float(), torch.tensor(trial)))
        return tuple(torch.stack(t) for t in zip(*rows, strict=True))

    def _told(self, scene: Scene, index: int) -> Array:
        """The status: velocity, acceleration, command."""
        unknown = np.random.default_rng((self.seed, index)).random() < UNKNOWN
        said = COMMANDS[3] if unknown else command(scene)
        return np.array([scene.speed, 0.0, scene.acceleration, 0.0, *(float(said == c) for c in COMMANDS)])
