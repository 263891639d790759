"""How near the targets are, and whether the label wins: beside DDN, an attack of least norm, in feature space.

Trained networks (networks.py), samples that they get wrong, and for each layer two answers to "which feature near
this one gives the label?": frpt's, and foolbox's ``DDNAttack`` on the rest of the network, started from two radii, the
nearer success per sample. Behind a ReLU both are held at or above zero (foolbox's bounds); other ranges than that bind
ours alone. DDN takes two passes (forward and backward of the rest) per step, one per radius.

Columns, over the samples that DDN finds a feature for: mean deviation ‖target − anchor‖/‖anchor‖ of both; "label wins":
the share for which the network, run on from our target, predicts the label, strictly; ours / DDN's per sample, median
and 95th percentile, where the label wins in ours (a target that does not give it can be as near as one likes). "DDN
finds": their share; "else ours": of the others, for how many the label wins in our target. counted: passes of the rest
that our solver makes for a sample, a forward pass counted 0.35. passes: what a batch takes by the clock after a first
one, in passes of the same rest on the same batch, one thread. (``make bench-nearest``)
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

import networks
import torch
from reconstruct import seconds
from torch import Tensor, nn
from torch.fx import Interpreter
from torch.fx.experimental.proxy_tensor import make_fx

import frpt
from frpt.errors import FrptError, OptionError

HEAD = ("network", "layer", "deviation", "DDN", "median ratio", "95 %", "label wins %", "DDN finds %", "else ours",
        "counted", "passes")  # fmt: skip
SCALE = 20.0
"""Norm that anchors are scaled to for DDN, whose longest step is 1: that is then a deviation of 0.05, a usual one.

From 1 to 100, DDN's mean deviation differs by 2 % at most (CIFAR-10 and MNIST SimpleCNN, CREPE).
"""


def run_from(model: nn.Module, x: Tensor, at: str, value: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(the layer's value, or ``value`` put in its place; the output with it), by a hook and without frpt."""
    held: list[Tensor] = []

    def hook(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        held.append(output.clone() if value is None else value)  # the next op may work in place
        return output if value is None else value

    handle = model.get_submodule(at).register_forward_hook(hook)
    try:
        out = model(x)
    finally:
        handle.remove()
    return held[0], out


def rest_of(model: nn.Module, x: Tensor, at: str) -> tuple[Tensor, nn.Module]:
    """(the layer's value, the function from it to the output for just these samples).

    What does not depend on the value is left out (the layers before) or a constant (branches beside it), so that a pass
    is one of the rest alone. The tools of torch.fx for that leave ops in place, and attention, where they are.
    """
    model = copy.deepcopy(model)
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # the rest shall not write into the value it is given
    with torch.no_grad():
        anchor, out = run_from(model, x, at)
        rest = make_fx(lambda value: run_from(model, x, at, value)[1])(anchor)
        run = Interpreter(rest, garbage_collect_values=False)
        run.run(anchor)
    graph, used = rest.graph, set()
    for i, node in enumerate(graph.nodes):
        if node.op in ("placeholder", "output") or not used.isdisjoint(node.all_input_nodes):
            used.add(node)
        elif isinstance(run.env[node], Tensor):
            rest.register_buffer(f"constant{i}", run.env[node])
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(f"constant{i}"))
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    rest.recompile()
    torch.testing.assert_close(rest(anchor), out)
    return anchor, rest


@torch.no_grad()
def wins(model: nn.Module, x: Tensor, y: Tensor, at: str, value: Tensor) -> Tensor:
    """For which samples the network, run on from the value, predicts the label and no other class as well: (b,)."""
    out = run_from(model, x, at, value.clone())[1]
    others = out.scatter(1, y[:, None], -torch.inf)
    return out.gather(1, y[:, None])[:, 0] > others.amax(1)


def norms(value: Tensor) -> Tensor:
    return value.flatten(1).norm(dim=1)


class Scaled(nn.Module):
    """The rest as a function of features scaled per sample. scale: (b, 1, …). Samples have to stay in their places."""

    def __init__(self, rest: nn.Module, scale: Tensor) -> None:
        super().__init__()
        self.rest, self.scale = rest, scale

    def forward(self, z: Tensor) -> Tensor:
        return self.rest(z * self.scale)


def ddn(rest: nn.Module, anchor: Tensor, y: Tensor, low: float, radii: list[float], steps: int) -> list[Tensor]:
    """DDN's feature for each starting radius (a deviation); the anchor itself where it finds none. low: the range's."""
    import foolbox

    scale = (norms(anchor) / SCALE).reshape(-1, *[1] * (anchor.dim() - 1))
    wide = 100 * SCALE  # bounds that cut nothing: no entry of an anchor is larger than SCALE
    bounds = (0.0 if low == 0 else -wide, wide)
    model = foolbox.PyTorchModel(Scaled(rest, scale).eval(), bounds=bounds, device="cpu")
    label = foolbox.criteria.TargetedMisclassification(y)
    attacks = [foolbox.attacks.DDNAttack(init_epsilon=SCALE * radius, steps=steps) for radius in radii]
    return [attack.run(model, anchor / scale, label) * scale for attack in attacks]


def compare(
    network: networks.Network, rev: frpt.Reverser, x: Tensor, y: Tensor, at: str, options: argparse.Namespace
) -> tuple[str, ...]:
    """A row of the table."""
    model = network.model
    anchor, rest = rest_of(model, x, at)

    def one_pass() -> None:
        leaf = anchor.clone().requires_grad_(True)
        torch.autograd.grad(rest(leaf).square().sum(), leaf)

    nearest, found = torch.full((len(y),), torch.inf), torch.zeros(len(y), dtype=torch.bool)
    for value in ddn(rest, anchor, y, rev.interval(at)[0], options.radii, options.steps):
        won = wins(model, x, y, at, value)
        nearest = torch.where(won, torch.minimum(nearest, norms(value - anchor) / norms(anchor)), nearest)
        found |= won
    reference, finds = f"{float(nearest[found].mean()):.4f}", f"{100 * float(found.float().mean()):.0f}"
    try:
        rec = rev.reconstruct(x, y, at=at)
        passes = seconds(lambda: rev.reconstruct(x, y, at=at), options.repeats) / seconds(one_pass, 11)
    except (FrptError, torch.linalg.LinAlgError) as error:
        print(f"{network.name} {at}: {error}", file=sys.stderr)
        return (network.name, at, "failed", reference, "", "", "", finds, "", "", "")
    ours, won = norms(rec.target - anchor) / norms(anchor), wins(model, x, y, at, rec.target)
    both = found & won & ~wins(model, x, y, at, anchor)  # with --all, the label wins in some anchors
    ratio = (ours[both] / nearest[both]).quantile(torch.tensor([0.5, 0.95])).tolist() if both.any() else []
    middle, high = [f"{r:.3f}" for r in ratio] or ["–", "–"]
    return (
        network.name, at, f"{float(ours[found].mean()):.4f}", reference, middle, high,
        f"{100 * float(won[found].float().mean()):.0f}", finds, f"{int(won[~found].sum())} of {int((~found).sum())}",
        "–" if rec.passes is None else f"{float(rec.passes.mean()):.1f}", f"{passes:.1f}",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; by default FRPT_DATA, then the hub")
    parser.add_argument("--networks", nargs="+", choices=networks.KINDS, default=list(networks.KINDS), metavar="NAME")
    parser.add_argument("--layers", nargs="+", metavar="NAME", help="only these; by default one after every stage")
    parser.add_argument("--count", type=int, default=64, help="samples of each network")
    parser.add_argument("--all", action="store_true", help="the first samples, and not the first that are wrong")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--paper", action="store_const", const="paper", dest="preset", help="as --preset paper")
    parser.add_argument("--steps", type=int, default=300, help="of DDN")
    parser.add_argument("--radii", type=float, nargs="+", default=[0.02, 0.2], help="deviations that DDN starts from")
    parser.add_argument("--repeats", type=int, default=1, help="of our side, for the time")
    parser.add_argument("--markdown", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)  # DDN draws a direction where its gradient vanishes
    kind = "samples, the first" if options.all else "samples that the network gets wrong"
    title = f"{options.count} {kind}, preset {options.preset!r}, DDN {options.steps} steps from {options.radii}"
    print(f"{title}\n\n{HEAD[0]:8} {HEAD[1]:9} " + " ".join(f"{h:>12}" for h in HEAD[2:]), flush=True)
    rows = []
    try:
        for name in options.networks:
            network = networks.load(name, options.data)
            network.model.requires_grad_(False)
            x, y = network.samples(options.count, wrong=not options.all)
            rev = frpt.Reverser(network.model, x, preset=options.preset)
            layers = options.layers or network.layers
            if unknown := set(layers) - {module for module, _ in network.model.named_modules()}:
                raise OptionError(f"{name} has no {', '.join(sorted(unknown))}: try {', '.join(network.layers)}")
            for at in layers:
                rows.append(compare(network, rev, x, y, at, options))
                print(f"{rows[-1][0]:8} {rows[-1][1]:9} " + " ".join(f"{v:>12}" for v in rows[-1][2:]), flush=True)
    except ModuleNotFoundError as error:
        sys.exit(f"{error}: pip install foolbox, or the extra 'dev'")
    except FrptError as error:
        sys.exit(str(error))
    if options.markdown:
        lines = [f"| {' | '.join(row)} |" for row in (HEAD, ["---"] * len(HEAD), *rows)]
        options.markdown.write_text("\n".join([f"{title}; benchmarks/nearest.py", "", *lines, ""]))


if __name__ == "__main__":
    main()
