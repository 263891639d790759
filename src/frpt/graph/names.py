"""Layer names: a module path names the value that module returns; other cut points get a stable, readable name.

Made by ``frpt.reverse.network``; these are the names that ``at`` takes.
"""

from __future__ import annotations

from collections import Counter

from torch.fx import Node

from frpt.errors import UnknownLayerError, UnreachableLayerError
from frpt.graph.capture import Captured, is_float, module_calls, module_path, op_name
from frpt.graph.cuts import cut_points

OUTPUT = "out"


class Names:
    """Every name a layer can be asked for, and the node it stands for."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self.nodes: dict[str, Node] = {}
        self._add_modules()
        self._add_cuts()
        self.nodes[OUTPUT] = captured.output

    def __getitem__(self, name: str) -> Node:
        if name in self.nodes:
            return self.nodes[name]
        modules = dict(self._captured.model.named_modules())
        if name in modules:
            raise UnreachableLayerError(
                f"the output does not depend on a value that {name!r} ({type(modules[name]).__name__}) computes: it is "
                "not called, it hands its input on unchanged, its result is not used, or it does not depend on the "
                "model's input. Choose a layer from Reverser.layers."
            )
        raise UnknownLayerError(name, list(self.nodes))

    def ordered(self) -> list[str]:
        """All names, output first; of several names of one value the shortest first."""
        order = self._captured.order
        return sorted(self.nodes, key=lambda n: (-order[self.nodes[n]], n != OUTPUT, n.count("."), n))

    def of(self, node: Node) -> str:
        """The shortest name of a node."""
        names = [n for n, other in self.nodes.items() if other is node]
        return min(names, key=lambda n: (n != OUTPUT, "@" in n, n.count("."), len(n)), default=_readable(node))

    def _eligible(self, node: Node) -> bool:
        return node in self._captured.from_input and is_float(node) and self._captured.batch_axis(node) is not None

    def _add_modules(self) -> None:
        """name → returned value. A module called several times: ``relu@0``, ``relu@1``, and ``relu`` for the last."""
        returned = self._returned()
        calls = Counter(path for path, _ in returned)
        for (path, call), exits in returned.items():
            for i, node in enumerate(exits):
                item = f"[{i}]" if len(exits) > 1 else ""
                self.nodes[f"{path}{item}"] = node
                if calls[path] > 1:
                    self.nodes[f"{path}@{call}{item}"] = node

    def _returned(self) -> dict[tuple[str, int], list[Node]]:
        """Values of each module call that something outside the call uses."""
        members: dict[tuple[str, int], list[Node]] = {}
        enclosing: dict[Node, set[tuple[str, int]]] = {}
        for node in self._captured.nodes:
            source = node.args[0] if op_name(node) == "getitem" and node.args else node
            calls = module_calls(source) if isinstance(source, Node) else []
            enclosing[node] = set(calls)
            for call in calls:
                members.setdefault(call, []).append(node)
        returned = {}
        for call, nodes in members.items():
            exits = [n for n in nodes if self._eligible(n) and self._leaves(n, call, enclosing)]
            if exits:
                returned[call] = exits
        return returned

    def _leaves(self, node: Node, call: tuple[str, int], enclosing: dict[Node, set[tuple[str, int]]]) -> bool:
        if node is self._captured.output:
            return True
        users = [u for u in node.users if u in enclosing]
        return any(call not in enclosing[u] for u in users)

    def _add_cuts(self) -> None:
        """``layer1.0/add``: the enclosing module and the op, numbered where one module has several."""
        named = set(self.nodes.values())
        seen: Counter[str] = Counter()
        for node in cut_points(self._captured, set(self._captured.inputs)):
            if node in named or node.op == "placeholder" or not self._eligible(node):
                continue
            name = _readable(node)
            number = seen[name]
            seen[name] += 1
            name = f"{name}_{number}" if number else name
            self.nodes.setdefault(name if name not in self.nodes else f"{name}'", node)


def _readable(node: Node) -> str:
    path = module_path(node)
    return f"{path}/{op_name(node)}" if path else op_name(node)
