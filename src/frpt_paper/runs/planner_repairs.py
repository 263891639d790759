"""A repair of a planner on synthetic scenes in which it scores nothing, measured on other scenes.

``experiments.driving_planners`` makes the jobs; ``sweep`` calls ``run_repair`` for each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import frpt
from frpt.driving import Scene, score
from frpt_paper.runs.jobs import Job, seed_of
from frpt_paper.runs.lab import EXAMPLES
from frpt_paper.runs.planners import FRESH, TEST, TRAIN, PlannerLab, Values, as_text, means
from frpt_paper.runs.runs_table import Row


@dataclass(frozen=True)
class RepairJob(Job):
    """A repair of ``failing`` scenes, drawn by the seed from those of ``fresh`` new ones that score 0."""

    model: str
    checkpoint: str
    method: str
    failing: int
    seed: int
    fresh: int
    memory: int
    test: int
    height: int
    width: int


class Head(nn.Module):
    """What a planner does after the image's embedding, with its own modules: what is repaired.

    A step of all weights would take a row of gradients for each of a scene's 24 numbers over a backbone of millions of
    weights: minutes a step on one core.
    """

    def __init__(self, planner: nn.Module) -> None:
        super().__init__()
        self.status, self.fusion = planner.get_submodule("status"), planner.get_submodule("fusion")
        self.planning1, self.planning2 = planner.get_submodule("planning1"), planner.get_submodule("planning2")
        self.trajectory = planner.get_submodule("trajectory")

    def forward(self, embedding: Tensor, status: Tensor) -> Tensor:
        fused = self.fusion(embedding, self.status(status))
        out: Tensor = self.trajectory(self.planning2(self.planning1(fused)))
        return out.reshape(-1, 8, 3)


def run_repair(lab: PlannerLab, job: RepairJob) -> list[Row]:
    """Repair once; one row: the given scenes before and after, and the scores on the test scenes."""
    begun = time.perf_counter()
    planner, rev = lab.planner(job.checkpoint), _head(lab, job.checkpoint)
    fresh = lab.data(FRESH, job.fresh)
    failing = failures(lab.before(job.checkpoint, FRESH, job.fresh))
    order = torch.randperm(len(failing), generator=torch.Generator().manual_seed(seed_of(job.seed, job.failing)))
    chosen = [int(failing[i]) for i in order[: job.failing]]
    x, y = fresh.__getbatch__(chosen)
    memory = _memory(lab, job.checkpoint, job.memory)
    scenes = [fresh.scene(i) for i in chosen]
    fix = frpt.repair(
        rev,
        embedded(planner, x),
        y,
        memory,
        method=job.method,  # type: ignore[arg-type]
        right=partial(drives, scenes),
        seed=job.seed,
    )
    planner.load_state_dict(fix.model.state_dict(), strict=False)
    given = lab.scored(planner, FRESH, job.fresh)
    before = lab.before(job.checkpoint, FRESH, job.fresh)
    values = lab.scored(planner, TEST, job.test)
    return [
        {
            **means(values), "given": len(chosen), "given_driven": int((given["PDMS"][chosen] > 0).sum()),
            "given_PDMS": float(given["PDMS"][chosen].mean()), "given_ADE": float(given["ADE"][chosen].mean()),
            "given_ADE_before": float(before["ADE"][chosen].mean()), "reached": int(fix.fixed.sum()),
            "strength": fix.strength, "predicted_kl": fix.predicted_kl,
            "wall": round(time.perf_counter() - begun, 3), "scenes": as_text(values),
        }
    ]  # fmt: skip


def failures(values: Values) -> npt.NDArray[np.int64]:
    """Scenes in which the plan scores nothing: it leaves the road or collides."""
    return np.flatnonzero(values["PDMS"] == 0)


def drives(scenes: Sequence[Scene], plans: Tensor, labels: Tensor) -> Tensor:
    """Which plans score more than nothing in their scenes: what a repair of a planner is for."""
    rows = zip(scenes, plans.double().numpy(), strict=True)
    return torch.tensor([bool(score(scene, plan[None])["PDMS"][0] > 0) for scene, plan in rows])


@lru_cache(maxsize=1)
def _head(lab: PlannerLab, checkpoint: str) -> frpt.Reverser:
    planner = lab.planner(checkpoint)
    x = lab.data(TRAIN, lab.part).__getbatch__(range(min(EXAMPLES, lab.part)))[0]
    return frpt.Reverser(Head(planner).eval(), embedded(planner, x))


def embedded(planner: nn.Module, x: Any) -> tuple[Tensor, Tensor]:
    """Images and status as the head takes them: the image's embedding (b, 512), and the status."""
    with torch.no_grad(), frpt.FeatureTap(planner, "project") as tap:
        planner(*x)
        return tap.value, x[1]


@lru_cache(maxsize=1)
def _memory(lab: PlannerLab, checkpoint: str, samples: int) -> frpt.Memory:
    x = lab.data(TRAIN, lab.train).__getbatch__(range(samples))[0]
    old = embedded(lab.planner(checkpoint), x)
    return frpt.remember(_head(lab, checkpoint), old, task="regression", samples=samples, seed=0, progress=False)
