"""A block problem solved by a named solver with the options of a preset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from frpt.options import PRESETS
from frpt.solvers.base import Solution
from frpt.solvers.blocks.problem import Problem


def solve(problem: Problem, method: str, preset: str = "default", **options: Any) -> Solution:
    return replace(PRESETS[preset].composite, method=method, **options).solve(problem)  # type: ignore[arg-type]
