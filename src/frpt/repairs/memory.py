"""Memory: how much each direction of the weights changes what a network does on its old inputs.

The Fisher metric,  ½‖W − W₀‖²_F ≈ mean KL(p_W₀(·|x) ‖ p_W(·|x))  over old inputs x, in its Kronecker form with
corrected eigenvalues (EKFAC). For every weight matrix with inputs k and slopes g = ∂(−log p(y|x))/∂z, the label y
drawn from the network's own output:

    A = Σ kkᵀ,  G = Σ ggᵀ,  their eigenbases U_A, U_G;   S = mean (U_Gᵀ (Σ_p g kᵀ) U_A)²,   ‖D‖²_F = Σ S ⊙ (U_GᵀDU_A)²

Of wide matrices only the leading eigenvectors U_A are kept (``_FULL``): beyond them S is one number for each output.
For regression the output is the mean of a normal distribution with variance 1; ``scale`` has the outputs' own.
Made by users with ``frpt.remember``; ``frpt.repair`` measures by it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from frpt.common.asked import TASKS, Task, divergence, drawn, scores
from frpt.common.batch_axis import BatchAxis
from frpt.common.checks import check_seed, check_whole
from frpt.datasets.labelled import LabelledSamples
from frpt.datasets.pairs import CollateFn
from frpt.errors import InputError, MemoryMismatchError, OptionError
from frpt.files.atomic import make_folder, write_atomic
from frpt.files.digest import other_weights, sha256_of_bytes, sha256_of_json, weights_of
from frpt.files.progress import Progress
from frpt.files.untrusted import parse_json, parse_tensors, read_regular
from frpt.graph.capture import Captured, eval_mode
from frpt.graph.inputs import Inputs, Picker
from frpt.graph.names import OUTPUT
from frpt.graph.refused import check_gradients
from frpt.repairs.curvature import Curvature, joined, on_eigenbases, rotated
from frpt.repairs.nearest_weights import NearestWeights, Problem
from frpt.repairs.weight_maps import Gradients, Pass, WeightMap, check_any, weight_maps
from frpt.reverser import Reverser, make_reverser

_FORMAT, _VERSION = "frpt memory", 3
_FACTS, _TENSORS = "memory.json", "memory.safetensors"
_FULL = 864
"""Inputs of a matrix up to which its whole eigenbasis is kept, and least number of directions of a wider one.

With it the memory of a ResNet-18 takes less than twice the bytes of its weights (benchmarks/repair.py).
"""
_MOCK, _MOCK_STRENGTH = 20, {"classification": 3e3, "binary": 3e3, "regression": 1.0}
"""Inputs of the mock repair, and its strength: the first that ``frpt.repair`` tries."""
_EXAMPLE, _BATCH = 8, 50
"""Inputs to capture the network with, and in a pass: more take memory, not less time (SimpleCNN, on a CPU)."""
_PASSES = 2
"""Over the inputs: one for the bases, one for the powers along them."""


@dataclass(frozen=True)
class Repaired:
    """Samples of earlier repairs, with their labels (N, ...)."""

    inputs: Inputs
    labels: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """By name, as files hold them."""
        args = {f"repaired/args/{i}": t for i, t in enumerate(self.inputs.args)}
        kwargs = {f"repaired/kwargs/{name}": t for name, t in self.inputs.kwargs.items()}
        held = {**args, **kwargs, "repaired/labels": self.labels}
        if strange := [name for name, t in held.items() if not isinstance(t, Tensor)]:
            raise OptionError(
                f"a memory with repaired samples can be saved if their inputs are tensors; {strange[0]} is none"
            )
        return held

    @staticmethod
    def of(held: Mapping[str, Tensor]) -> Repaired | None:
        """The inverse of ``tensors``; None where there are none."""
        if "repaired/labels" not in held:
            return None
        args = sorted((n for n in held if n.startswith("repaired/args/")), key=lambda n: int(n.rpartition("/")[2]))
        kwargs = {n.removeprefix("repaired/kwargs/"): t for n, t in held.items() if n.startswith("repaired/kwargs/")}
        return Repaired(Inputs(tuple(held[n] for n in args), kwargs), held["repaired/labels"])


class Memory:
    """What a network does on its old inputs, as a metric on its weights; made by ``frpt.remember``.

    Attributes:
        curvatures: weight name → its metric.
        weights: the fingerprint of the weights it was made with; another network refuses it.
        samples: how many inputs it was made from.
        task: "classification", "binary" or "regression".
        scale: KL on old inputs over what the metric says of it, for a change like a repair's. EKFAC knows nothing of
            what layers do together, so that it says too little (a sixth on CIFAR-10's SimpleCNN); ``remember`` makes
            one step of a mock repair and compares.
        repaired: samples that earlier repairs fixed, to be kept right by the next; None before the first.
    """

    def __init__(
        self,
        curvatures: Mapping[str, Curvature],
        weights: Mapping[str, str],
        samples: int,
        task: Task,
        scale: float = 1.0,
        repaired: Repaired | None = None,
    ) -> None:
        self.curvatures, self.weights, self.samples, self.task = dict(curvatures), dict(weights), samples, task
        self.scale, self.repaired = scale, repaired

    def __repr__(self) -> str:
        return f"Memory({self.samples} inputs, {len(self.curvatures)} weights, {self.nbytes / 2**20:.1f} MiB)"

    @property
    def nbytes(self) -> int:
        """Bytes it takes, in memory and on disk."""
        return sum(t.nbytes for c in self.curvatures.values() for t in vars(c).values())

    def check(self, model: nn.Module) -> None:
        """Refuse another network, or the same with other weights."""
        if reason := other_weights(model, self.weights):
            raise MemoryMismatchError(reason)

    def check_knows(self, maps: Sequence[WeightMap]) -> None:
        """Refuse a network with weights that this memory has no metric for."""
        if unknown := [m.name for m in maps if m.name not in self.curvatures]:
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            raise MemoryMismatchError(f"it knows nothing of {', '.join(unknown[:3])}{more}")

    def joined(self, other: Memory) -> Memory:
        """What both remember, each as much as it has inputs; the network is taken to be the other's.

        The bases are made anew from the sums of A and G, and S is what is left of both on the new diagonal.

        Args:
            other: of the same network, from other inputs; or of the network after a repair.

        Returns:
            The memory of both.

        Raises:
            MemoryMismatchError: for a memory of another network or task.
        """
        if self.curvatures.keys() != other.curvatures.keys() or self.task != other.task:
            raise MemoryMismatchError("the two memories are not of the same network and task")
        count = self.samples + other.samples
        shares = (self.samples / count, other.samples / count)
        both = {
            name: joined(self.curvatures[name], other.curvatures[name], *shares) for name in self.curvatures
        }  # fmt: skip
        scale = shares[0] * self.scale + shares[1] * other.scale
        return Memory(both, other.weights, count, self.task, scale, other.repaired or self.repaired)

    def save(self, path: str | Path) -> Path:
        """Write ``memory.safetensors`` and ``memory.json`` into a directory.

        Args:
            path: the directory; it is made if it is not there.

        Returns:
            The directory.

        Raises:
            StoreError: if the disk refuses.
        """
        place = make_folder(path)
        tensors = save(
            {
                f"{i}/{name}": tensor.contiguous()
                for i, c in enumerate(self.curvatures.values())
                for name, tensor in vars(c).items()
            }
            | ({} if self.repaired is None else {n: t.contiguous() for n, t in self.repaired.tensors().items()})
        )
        facts = {
            "format": _FORMAT, "version": _VERSION, "samples": self.samples, "task": self.task,
            "scale": self.scale,
            "curvatures": list(self.curvatures), "weights": self.weights, "sha256": sha256_of_bytes(tensors),
        }  # fmt: skip
        write_atomic(place / _TENSORS, tensors)
        facts["checksum"] = sha256_of_json(facts)
        write_atomic(place / _FACTS, json.dumps(facts, indent=1).encode())
        return place

    @staticmethod
    def load(path: str | Path) -> Memory:
        """Read what ``save`` wrote.

        Args:
            path: the directory.

        Returns:
            The memory; which network it belongs to is checked when it is used.

        Raises:
            MemoryMismatchError: for files that are missing, damaged, or something else.
        """
        place = Path(path)
        try:
            facts = parse_json(read_regular(place / _FACTS))
            data = read_regular(place / _TENSORS)
            if (facts["format"], facts["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"it is {facts['format']} {facts['version']}, not {_FORMAT} {_VERSION}")
            checksum = facts.pop("checksum", None)
            if checksum != sha256_of_json(facts) or sha256_of_bytes(data) != facts["sha256"]:
                raise ValueError("its checksum is another: it is damaged")
            held = parse_tensors(data)
            names = list(Curvature.__dataclass_fields__)
            curvatures = {
                name: Curvature(*(held[f"{i}/{part}"] for part in names)) for i, name in enumerate(facts["curvatures"])
            }
            known = dict(facts["weights"])
            scale = float(facts["scale"])
            return Memory(curvatures, known, int(facts["samples"]), facts["task"], scale, Repaired.of(held))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MemoryMismatchError(f"{str(place)!r} cannot be read: {error}") from error


def remember(
    model: nn.Module | Reverser,
    inputs: Any,
    *,
    task: Task | None = None,
    samples: int = 500,
    seed: int = 0,
    workers: int = 0,
    progress: bool = True,
    output: Picker = None,
    collate_fn: CollateFn | None = None,
) -> Memory:
    """Remember what a network does on its old inputs, so that a repair can leave that alone.

    Two passes over some unlabelled inputs. Some hundred are enough: 500 did as well as 2,000 on CIFAR-10.

    Args:
        model: the trained network, or a ``Reverser`` of it; it is not changed.
        inputs: a tensor, a tuple or a dict of tensors, batch first; or a data set: map-style, a ``DataLoader``, or a
            stream, of which the first ``samples`` are read. Its items are inputs, pairs (inputs, label) or dicts;
            labels are not looked at.
        task: "classification" (scores of classes on axis 1), "binary" (a logit, or after a sigmoid a probability, for
            each yes or no) or "regression". None: by the output, "binary" where it is one number a sample and
            "classification" elsewhere.
        samples: at most so many inputs, chosen at random.
        seed: of that choice, and of the labels that are drawn from the network.
        workers: processes that load data.
        progress: show a bar.
        output: which tensor of the model's output is meant, where the network was given, as ``Reverser`` takes it.
        collate_fn: makes a batch of a list of the data set's items.

    Returns:
        The memory, to be passed to ``frpt.repair``; ``save`` it beside the checkpoint.

    Raises:
        InputError: for no inputs, or inputs the model does not take.
        NonFiniteError: for NaN or infinity in the inputs or the outputs.
        OptionError: for a task that does not exist, or a network without a linear map or convolution.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> frpt.remember(model, torch.randn(100, 4), progress=False)
        Memory(100 inputs, 2 weights, 0.0 MiB)
    """
    check_gradients()
    if task is not None and task not in TASKS:
        raise OptionError(f"task must be {', '.join(TASKS[:-1])} or {TASKS[-1]}, got {task!r}")
    check_seed(seed)
    check_whole("workers", workers, 0)
    network = model.model if isinstance(model, Reverser) else model
    batches = OldInputs(inputs, samples, seed, workers, collate_fn, network)
    rev = make_reverser(model, next(iter(batches)).first(_EXAMPLE).given, {"output": output})
    captured = captured_graph(rev)
    maps, _ = weight_maps(captured)
    if task is None:
        task = "binary" if math.prod(map(int, captured.output.meta["val"].shape[1:])) == 1 else "classification"
    check_any(captured, maps)
    with eval_mode(rev.model), Progress("remembering", batches.count, unit="inputs", shown=progress) as bar:
        bases = {}
        sums = _summed(captured, maps, batches, task, seed, bar)
        for m in maps:
            bases[m.name] = on_eigenbases(*sums.pop(m.name), _kept(m))
        curvatures = _powers(captured, maps, bases, batches, task, seed, bar)
        bar.describe("a mock repair")
        scale = _scale(captured, maps, curvatures, batches, task)
    return Memory(curvatures, weights_of(rev.model), batches.count, task, scale)


def captured_graph(rev: Reverser) -> Captured:
    """The network's graph; it has to take any number of samples."""
    captured, output = rev.node(OUTPUT)
    if not captured.dynamic or captured.batch_axis(output) != BatchAxis():
        raise OptionError(
            "this network takes one batch size only, or has no batch on the first axis of its output; such networks "
            "cannot be repaired yet"
        )
    return captured


class OldInputs:
    """Some inputs in batches, always the same ones in the same order."""

    def __init__(
        self,
        inputs: Any,
        samples: int,
        seed: int,
        workers: int,
        collate_fn: CollateFn | None = None,
        model: nn.Module | None = None,
    ) -> None:
        self._source: LabelledSamples | None = None
        if isinstance(inputs, Tensor | tuple | dict):
            self._whole = Inputs.of(inputs)
            total = self._whole.batch
        else:
            self._source = LabelledSamples(
                inputs, workers, collate_fn=collate_fn, model=model, labelled=False, once=True, most=samples
            )  # fmt: skip
            total = self._source.count
        if total == 0 or samples < 1:
            raise InputError(f"remember needs inputs, got {min(total, samples)}")
        g = torch.Generator().manual_seed(seed)
        self.rows = sorted(torch.randperm(total, generator=g)[:samples].tolist())
        self.count = len(self.rows)

    def __iter__(self) -> Iterator[Inputs]:
        if self._source is None:
            parts = (self._whole.taken(torch.tensor(rows)) for rows in _split(self.rows, _BATCH))
        else:
            parts = (Inputs.of(x) for _, x, _ in self._source.batches([self.rows], _BATCH))
        for inputs in parts:
            inputs.check_finite()
            yield inputs


def _split(rows: list[int], size: int) -> Iterator[list[int]]:
    for i in range(0, len(rows), size):
        yield rows[i : i + size]


def _passes(
    captured: Captured, maps: list[WeightMap], batches: Iterable[Inputs], task: Task, seed: int, bar: Progress
) -> Iterator[tuple[WeightMap, list[tuple[Tensor, Tensor]]]]:
    """(weight, its (k, g) of each use) for every batch; the same labels are drawn in every call."""
    generator = torch.Generator().manual_seed(seed)
    for inputs in batches:
        forward = Pass(captured, maps, inputs)
        with torch.enable_grad():
            surprise = drawn(forward.output, task, captured.activation()[0], generator)
        gradients = Gradients(captured, [forward.gradients(surprise)])
        for m in maps:
            yield m, [(k.float(), g.float()) for k, g in next(gradients.pairs(m))]
        bar.advance(inputs.batch / _PASSES)


def _summed(
    captured: Captured, maps: list[WeightMap], batches: OldInputs, task: Task, seed: int, bar: Progress
) -> dict[str, tuple[Tensor, Tensor]]:
    """Weight → (A, G)."""
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    for m, pairs in _passes(captured, maps, batches, task, seed, bar):
        for k, g in pairs:
            k, g = (t.movedim(1, 0).flatten(1, 2) for t in (k, g))  # (groups, samples · positions, ·)
            A, G = k.mT @ k, g.mT @ g
            old = sums.get(m.name)
            sums[m.name] = (A, G) if old is None else (old[0] + A, old[1] + G)
    return {name: (A / batches.count, G / batches.count) for name, (A, G) in sums.items()}


def _kept(m: WeightMap) -> int:
    """Eigenvectors of A that are kept: all, or as many as take with U_G and S, two bytes each, the weights' bytes 1.6
    times."""
    room = 6.4 * m.outputs * m.inputs - 2 * m.outputs**2
    return min(m.inputs, max(_FULL, int(room / (2 * (m.inputs + m.outputs)))))


def _powers(
    captured: Captured,
    maps: list[WeightMap],
    bases: dict[str, Curvature],
    batches: OldInputs,
    task: Task,
    seed: int,
    bar: Progress,
) -> dict[str, Curvature]:
    """The bases with S, the mean squared gradient along each pair of directions."""
    kept, beyond = (
        {name: torch.zeros_like(getattr(c, part)) for name, c in bases.items()} for part in ("power", "rest")
    )
    for m, pairs in _passes(captured, maps, batches, task, seed, bar):
        c = bases[m.name]
        turned, whole = rotated(c, pairs)
        kept[m.name] += turned.square().sum(0)
        if whole is not None:
            more = whole.square().sum(-1, keepdim=True) - turned.square().sum(-1, keepdim=True)
            beyond[m.name] += more.clamp_min(0).sum(0)
    result = {}
    for m in maps:
        c, count = bases[m.name], batches.count
        directions = max(1, m.inputs - c.right.shape[2])
        power, rest = kept[m.name] / count, beyond[m.name] / (count * directions)
        result[m.name] = Curvature(c.left, c.right, power, rest, c.left_values, c.right_values).stored()
    return result


def _scale(
    captured: Captured, maps: list[WeightMap], curvatures: dict[str, Curvature], batches: OldInputs, task: Task
) -> float:
    """The KL on old inputs over ½‖W − W₀‖²_F, for one step of a mock repair of some of them.

    The mock repair asks for the runner-up class, for another answer to the least certain yes or no, or for a tenth of
    the way to another sample's output.
    """
    parts = list(batches)
    before = [captured.output_of(part) for part in parts]
    first = parts[0].first(min(_MOCK, parts[0].batch))
    output = before[0][: first.batch]
    if task == "regression":
        labels = output + (output.roll(1, 0) - output) / 10
    elif task == "binary":
        labels = _turned(scores(output, task, captured.activation()[0]))
    elif output.dim() == 2 and output.shape[1] > 1:
        labels = output.topk(2).indices[:, 1]
    else:
        return 1.0  # scores for each pixel or token: no repair of such outputs is made
    problem = Problem(captured, maps, curvatures, first, labels, NearestWeights(rounds=1))
    change = problem.solve(_MOCK_STRENGTH[task]).change
    predicted = problem.half_distance(change)
    weights = problem.weights(change)
    after = [captured.output_of(part, weights) for part in parts]
    ends = captured.activation()[0]
    real = float(divergence(torch.cat(before).double(), torch.cat(after).double(), task, ends).mean())
    return real / predicted if predicted > 0 and math.isfinite(real) else 1.0


def _turned(z: Tensor) -> Tensor:
    """The answers of logits (N, ...) with the least certain one of each sample turned: (N, m)."""
    flat = z.reshape(len(z), -1)
    yes, least = (flat > 0).long(), flat.abs().argmin(1, keepdim=True)
    return yes.scatter(1, least, 1 - yes.gather(1, least))
