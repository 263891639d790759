"""What it costs to score plans in a driving scene: milliseconds of one core a plan, beside NAVSIM's devkit.

Scenes are those that the tests come with, or a file in the same form. With the devkit v1.1 installed (by hand, from
clones) it scores the same plans in the same run, and the largest difference of the two is printed too.
Run it with ``python benchmarks/driving.py``.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from frpt.driving import Scene, pdm_score, score
from frpt.driving.areas import Ego, Whereabouts
from frpt.driving.collisions import Contact, no_collision, time_to_collision
from frpt.driving.comfort import comfortable
from frpt.driving.dynamics import drive

sys.path.append(str(Path(__file__).parent.parent))

from tests.driving.devkit import SAMPLE, devkit_cache, devkit_score, read, why_not

Plans = Any
Case = tuple[Scene, Plans]


def cases(scenes: list[dict[str, Any]], count: int) -> list[Case]:
    """Every scene with so many plans: its own again and again, each time slightly slower, so that no two are alike."""
    made = []
    for scene in scenes:
        own = np.array([plan["poses"] for plan in scene["plans"]])
        plans = np.concatenate([own * (1 - 1e-3 * i) for i in range(-(-count // len(own)))])[:count]
        made.append((Scene.from_dict(scene), plans))
    return made


def milliseconds(work: Callable[[Scene, Plans], object], made: list[Case]) -> float:
    """The median over scenes of the better of two runs, a plan."""
    found = []
    for scene, plans in made:
        runs = []
        for _ in range(2):
            start = time.process_time()
            work(scene, plans)
            runs.append(time.process_time() - start)
        found.append(min(runs) / len(plans) * 1e3)
    return float(np.median(found))


def parts(made: list[Case]) -> None:
    """Where the time goes when 100 plans are scored at once."""
    spent: dict[str, float] = {}
    for scene, plans in made:
        results: dict[str, Any] = {}
        for name, work in (
            ("drive", lambda s, p, r: drive(s, p, "devkit")),
            ("box", lambda s, p, r: Ego.of(r["drive"])),
            ("areas", lambda s, p, r: Whereabouts.of(s, r["box"])),
            ("contacts", lambda s, p, r: Contact.of(s, r["box"])),
            ("NC", lambda s, p, r: no_collision(s, r["box"], r["areas"], r["contacts"])),
            ("TTC", lambda s, p, r: time_to_collision(r["box"], r["areas"], r["contacts"])),
            ("C", lambda s, p, r: comfortable(r["drive"])),
        ):
            start = time.process_time()
            results[name] = work(scene, plans, results)
            spent[name] = spent.get(name, 0.0) + time.process_time() - start
    whole = sum(spent.values())
    print("parts, 100 plans: " + ", ".join(f"{name} {value / whole:.0%}" for name, value in spent.items()))


def chunks(scenes: list[dict[str, Any]]) -> None:
    """How many plans to take at once (pdm_score.CHUNK)."""
    made, usual = cases(scenes[:8], 1024), pdm_score.CHUNK
    for chunk in (16, 32, 64, 128, 256, 1024):
        pdm_score.CHUNK = chunk
        print(f"1024 plans, {chunk:4d} at once: {milliseconds(score, made):6.3f} ms a plan")
    pdm_score.CHUNK = usual


def beside_the_devkit(scenes: list[dict[str, Any]], ours: float) -> None:
    """The devkit on the scenes' own plans, and how far the scores are apart."""
    if reason := why_not():
        print(f"{reason}: no comparison")
        return
    spent, apart = [], 0.0
    for scene, plans in ((s, np.array([p["poses"] for p in s["plans"]])) for s in scenes):
        cache = devkit_cache(scene)
        start = time.process_time()
        expected, _ = devkit_score(cache, plans)
        spent.append((time.process_time() - start) / len(plans) * 1e3)
        found = score(Scene.from_dict(scene), plans)
        apart = max(apart, *(float(np.abs(found[name] - expected[name]).max()) for name in found))
    devkit = float(np.median(spent))
    print(f"devkit: {devkit:.1f} ms a plan, {devkit / ours:.0f} times ours for 100 plans; scores apart by {apart:.0e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=Path, default=SAMPLE, help="scenes as JSON, packed by gzip")
    scenes = read(parser.parse_args().scenes)
    warnings.simplefilter("ignore")  # the devkit's own
    ours = {count: milliseconds(score, cases(scenes, count)) for count in (1, 10, 100)}
    for count, value in ours.items():
        print(f"{count:4d} plans of a scene: {value:6.3f} ms a plan")
    parts(cases(scenes, 100))
    chunks(scenes)
    beside_the_devkit(scenes, ours[100])


if __name__ == "__main__":
    main()
