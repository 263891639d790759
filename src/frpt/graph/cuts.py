"""Cut points between a layer and the output: the values every path goes through, by one sweep over live values.

A value is a cut point if, when it has been computed, nothing else that depends on the layer is still needed. Called by
``frpt.graph.plan`` and ``frpt.graph.names``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch.fx import Node

from frpt.graph.capture import Captured, is_float, module_calls


def cut_points(captured: Captured, sources: set[Node]) -> list[Node]:
    """Nodes after which nothing computed from the sources is alive but the node itself, in execution order.

    Values that do not depend on the sources are side inputs: they don't count. The output is always the last.
    """
    active = captured.downstream(sources)
    path = [n for n in captured.nodes if n in active]
    last_use = {n: max((captured.order[u] for u in n.users if u in active), default=-1) for n in path}
    last_use[captured.output] = len(captured.order)
    alive: set[Node] = set()
    cuts: list[Node] = []
    for node in path:
        now = captured.order[node]
        alive = {n for n in alive if last_use[n] > now}
        if last_use[node] > now:
            alive.add(node)
        if alive == {node} and is_float(node):
            cuts.append(node)
        if node is captured.output:
            break
    return cuts


def inside_blocks(cut: Node, following: Sequence[Node], patterns: Sequence[str]) -> bool:
    """Whether a cut point lies within a module that matches a pattern and also computes a later cut point."""
    mine = {call for call in module_calls(cut) if any(fnmatchcase(call[0], p) for p in patterns)}
    return any(mine & set(module_calls(later)) for later in following[:1])
