"""Runs that are still to be made, and the grid l_R × c_rec × seed with its matched controls.

Experiments build jobs, ``sweep`` works them off, and ``RunsTable`` keeps their rows under a job's key. The key is a
digest of the job's fields: a field that is renamed or added would orphan the rows of every table that exists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import numpy as np

from frpt.errors import OptionError
from frpt_paper.runs.protocols import PROTOCOLS, Protocol

BACKPROP, ANCHOR, FRPT, ONLINE = "back-propagation", "anchor-only", "FR-PT", "FR-PT online"
ARMS = (BACKPROP, ANCHOR, FRPT, ONLINE)
"""In the order of tables and figures."""
SUPERVISED = (ANCHOR, FRPT)
"""Arms of the grid that hold features to targets; back-propagation (c_rec = 0) is their control."""
RECONSTRUCTED = (FRPT, ONLINE)
"""Arms whose targets are reconstructed from labels, so that preset and embedding matter."""


@dataclass(frozen=True)
class Job:
    """Something to be run once, told from others by its fields."""

    @property
    def key(self) -> str:
        """A digest of everything that decides the run's numbers; the column ``job`` of the table of runs."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PostTrainingJob(Job):
    """One post-training run.

    l_r: the paper's name of the layer. arm: back-propagation (c_rec = 0), anchor-only (targets are the starting model's
    own features), FR-PT (targets reconstructed once), FR-PT online (reconstructed at every step). preset, embed: of the
    reconstruction, "" where there is none. checkpoint: name of the pretrained weights it starts from.
    batch_size, lr: what the runs in ``results/`` were made with; the paper does not state its own.
    """

    dataset: str
    model: str
    l_r: str
    c_rec: float
    seed: int
    arm: str = FRPT
    preset: str = "default"
    embed: str = "nearest"
    checkpoint: str = ""
    epochs: int = 10
    batch_size: int = 64
    lr: float = 1e-4

    def __post_init__(self) -> None:
        if self.arm not in ARMS:
            raise OptionError(f"unknown arm {self.arm!r}: there are {', '.join(ARMS)}")
        if (self.c_rec == 0) != (self.arm == BACKPROP) or self.c_rec < 0:
            raise OptionError(f"c_rec must be 0 for {BACKPROP} and positive otherwise, got {self.c_rec} for {self.arm}")


@dataclass(frozen=True)
class ProtocolJob(PostTrainingJob):
    """A post-training run of another protocol than ours, in a table of its own. Fields: as in ``Protocol``."""

    images: str = "drawn"
    features: str = "before"
    whole: bool = True


def grid(
    dataset: str,
    model: str,
    *,
    l_r: Iterable[str],
    c_rec: Iterable[float],
    seeds: Iterable[int],
    arms: Iterable[str] = SUPERVISED,
    presets: Iterable[str] = ("default",),
    embeds: Iterable[str] = ("nearest",),
    checkpoint: str = "",
    epochs: int = 10,
    protocol: Protocol = PROTOCOLS["clean"],
) -> list[PostTrainingJob]:
    """Every layer with every strength and rate, seed by seed, the earliest seeds first.

    Back-propagation (c_rec = 0) is run once per layer and seed. Anchor-only has neither preset nor embedding and is run
    once per layer, strength and seed. A c_rec of 0 among the strengths is back-propagation, which is always there.
    """
    layers, strengths = list(l_r), [c for c in c_rec if c != 0]
    arms, presets, embeds = list(arms), list(presets), list(embeds)
    jobs: list[PostTrainingJob] = []
    for seed in seeds:
        for layer in layers:
            settings = [(0.0, BACKPROP, "", "")]
            for c in strengths:
                for arm in arms:
                    ways = [(p, e) for p in presets for e in embeds] if arm in RECONSTRUCTED else [("", "")]
                    settings += [(c, arm, preset, embed) for preset, embed in ways]
            for rate in protocol.rates:
                for c, arm, preset, embed in settings:
                    job = PostTrainingJob(dataset, model, layer, c, seed, arm, preset, embed, checkpoint, epochs)
                    jobs.append(_by(protocol, rate, job))
    return jobs


def _by(protocol: Protocol, rate: float, job: PostTrainingJob) -> PostTrainingJob:
    """The job with a protocol's batches and one of its rates; of the kind that the protocol's runs are."""
    job = replace(job, batch_size=protocol.batch_size, lr=rate)
    if protocol.plain:
        return job
    return ProtocolJob(**asdict(job), images=protocol.images, features=protocol.features, whole=protocol.whole)


def seed_of(*key: int) -> int:
    """A seed for the random numbers of this key; those of different keys are independent."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
