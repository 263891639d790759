"""Reference: how a trained network's features vary, from one pass over some samples that it knows.

The nearest feature in which a label wins is an adversarial one: it moves where the rest of the network is sensitive,
not where features vary. With a reference, reconstructions are measured in each layer's own variation, and know what the
features of each class look like. Made by users with ``Reference.fit``, and by ``frpt.diagnose`` from its own data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from frpt.common.checks import check_seed
from frpt.datasets.labelled import LabelledSamples, fitting_batch
from frpt.datasets.pairs import CollateFn
from frpt.errors import NonFiniteError, OptionError, ReferenceMismatchError
from frpt.files.atomic import make_folder, write_atomic
from frpt.files.digest import other_weights, weights_of
from frpt.files.progress import Progress
from frpt.files.untrusted import parse_json, parse_tensors, read_regular
from frpt.graph.inputs import Inputs
from frpt.reverser import Layer, Reverser, UnmeasuredOptions, layer_names, make_reverser, network_of
from frpt.solvers.variation import Gatherer, Variation

_FORMAT, _VERSION = "frpt reference", 1
_FACTS, _TENSORS = "reference.json", "reference.safetensors"
_EXAMPLE, _BATCH = 8, 256
_STILL = 1e-10
"""A feature varies where its variance is more than this share of its mean square: rounding is less."""


class Reference:
    """How the features of some layers vary; made by ``fit``, kept with ``save`` and ``load``.

    Attributes:
        layers: layer → its mean, covariance and class means (``frpt.solvers.variation.Variation``).
        weights: the fingerprint of the weights it was made with; another network refuses it.
        samples: how many it was made from.
    """

    def __init__(self, layers: Mapping[str, Variation], weights: Mapping[str, str], samples: int) -> None:
        self.layers, self.weights, self.samples = dict(layers), dict(weights), samples

    @staticmethod
    def fit(
        model: nn.Module | Reverser,
        dataset: Any,
        at: Layer | Sequence[Layer],
        *,
        samples: int = 512,
        seed: int = 0,
        workers: int = 0,
        progress: bool = True,
        collate_fn: CollateFn | None = None,
        **options: Unpack[UnmeasuredOptions],
    ) -> Reference:
        """One forward pass over some samples of a data set.

        Args:
            model: the trained network, or a Reverser on it; it is not changed.
            dataset: pairs (inputs, label) or dicts with a label, of the kind the network was trained on: a map-style
                data set, a ``DataLoader``, or a stream, of which the first ``samples`` are read.
            at: the layers.
            samples: how many are looked at, chosen at random.
            seed: of that choice.
            workers: processes that load data.
            progress: show a bar.
            collate_fn: makes a batch (inputs, labels), or a dict, of a list of items.
            **options: those of ``Reverser``, where the network was given; ``output``, ``class_dim`` and
                ``ignore_index`` are the ones that matter here.

        Returns:
            The reference, to be passed to ``Reverser``, ``write_targets``, ``post_train`` or ``diagnose``.

        Raises:
            OptionError: for no layer, fewer than two samples, or a layer whose features do not vary.
            NonFiniteError: for NaN or infinity in the inputs or the features.

        Example:
            >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
            >>> data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
            >>> frpt.Reference.fit(model, data, at=["1"], progress=False)
            Reference(1; 64 samples)
        """
        check_seed(seed)
        network = network_of(model, options)
        device = next((p.device for p in network.parameters()), None)
        source = LabelledSamples(
            dataset, workers, device, collate_fn=collate_fn, model=network, once=True, most=samples
        )  # fmt: skip
        example = next(iter(source.batches([range(min(_EXAMPLE, source.count))], _EXAMPLE)))[1]
        rev = make_reverser(model, example, options)
        return Reference.of_reverser(rev, source, layer_names(network, at), samples, seed, progress)

    @staticmethod
    def of_reverser(
        rev: Reverser,
        source: LabelledSamples,
        layers: Sequence[str],
        samples: int,
        seed: int,
        progress: bool,
        lenient: bool = False,
    ) -> Reference:
        """The same with a Reverser that is there already. lenient: leave layers out whose features do not vary."""
        if not layers or not isinstance(samples, int) or min(samples, source.count) < 2:
            raise OptionError(
                f"a reference needs a layer and at least two samples, got {list(layers)} and {samples!r} of "
                f"{source.count} samples"
            )
        chosen = np.random.default_rng(seed).permutation(source.count)[:samples].tolist()
        size = min(fitting_batch(source, map(rev.sample_shape, layers)), _BATCH)
        gathered = {name: Gatherer(torch.Size(rev.sample_shape(name))) for name in layers}
        leads: list[Tensor] = []
        with Progress("reference", len(chosen), shown=progress) as bar:
            for part, x, y in source.batches([sorted(chosen)], size):
                Inputs.of(x).check_finite()
                values, output = rev.values(x, layers, quick=True)
                lead = rev.embedder.single_leads(output, y)
                leads += [] if lead is None else [lead.cpu()]
                for name, gatherer in gathered.items():
                    if not bool(torch.isfinite(values[name]).all()):
                        raise NonFiniteError(f"{name!r} is NaN or infinite for samples {part[0]} to {part[-1]}")
                    labels = None if lead is None else y.reshape(len(y)).long().cpu()
                    gatherer.add(rev.batch_axis(name).front(values[name]), labels)
                bar.advance(len(part))
        right = torch.cat(leads) if leads else torch.zeros(0)
        right = right[(right > 0) & torch.isfinite(right)]
        typical = float(right.median()) if len(right) else 0.0
        names = [n for name in layers for n in (*rev.upstream(name), *rev.frozen(name))]
        variations = {name: gatherer.variation(typical) for name, gatherer in gathered.items()}
        still = [name for name, v in variations.items() if v.variance <= _STILL * float(v.mean.square().mean())]
        if still and not lenient:
            raise OptionError(
                f"the features of {still[0]!r} do not vary over these samples; pass others, or another layer"
            )
        variations = {name: v for name, v in variations.items() if name not in still}
        return Reference(variations, weights_of(rev.model, names), len(chosen))

    def of(self, layer: str) -> Variation | None:
        """What is known of a layer; None if nothing."""
        return self.layers.get(layer)

    @cached_property
    def digest(self) -> str:
        """sha256 of the statistics and of the weights they belong to."""
        return hashlib.sha256(self._tensors() + self._facts("")).hexdigest()

    def check(self, rev: Reverser) -> None:
        """Refuse another network, or the same with other weights."""
        if reason := other_weights(rev.model, self.weights):
            raise ReferenceMismatchError(reason)

    def save(self, path: str | Path) -> Path:
        """Write ``reference.safetensors`` and ``reference.json`` into a directory.

        Args:
            path: the directory; it is made if it is not there.

        Returns:
            The directory.

        Raises:
            StoreError: if the disk refuses.
        """
        place = make_folder(path)
        write_atomic(place / _TENSORS, self._tensors())
        write_atomic(place / _FACTS, self._facts(self.digest))
        return place

    @staticmethod
    def load(path: str | Path) -> Reference:
        """Read what ``save`` wrote.

        Args:
            path: the directory.

        Returns:
            The reference; which network it belongs to is checked when it is used.

        Raises:
            ReferenceMismatchError: for files that are missing, damaged, or something else.
        """
        place = Path(path)
        try:
            facts = parse_json(read_regular(place / _FACTS))
            if (facts["format"], facts["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"it is {facts['format']} {facts['version']}, not {_FORMAT} {_VERSION}")
            held = parse_tensors(read_regular(place / _TENSORS))
            layers = {
                name: Variation(
                    held[f"{i}/mean"], tuple(held[f"{i}/factor{k}"] for k in range(fact["axes"])), fact["variance"],
                    held[f"{i}/classes"], held[f"{i}/means"], fact["lead"], fact["between"],
                )
                for i, (name, fact) in enumerate(facts["layers"].items())
            }  # fmt: skip
            reference = Reference(layers, facts["weights"], facts["samples"])
            if reference.digest != facts["sha256"]:
                raise ValueError("its checksum does not fit")
            return reference
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReferenceMismatchError(f"{str(place)!r} is no reference, or it is damaged: {error}") from error

    def _tensors(self) -> bytes:
        held: dict[str, Tensor] = {}
        for i, v in enumerate(self.layers.values()):
            held |= {f"{i}/mean": v.mean, f"{i}/classes": v.classes, f"{i}/means": v.means}
            held |= {f"{i}/factor{k}": f for k, f in enumerate(v.factors)}
        return save({name: t.contiguous() for name, t in held.items()})

    def _facts(self, sha256: str) -> bytes:
        layers = {
            n: {"axes": len(v.factors), "variance": v.variance, "lead": v.lead, "between": v.between}
            for n, v in self.layers.items()
        }
        facts = {"format": _FORMAT, "version": _VERSION, "sha256": sha256, "samples": self.samples}
        return json.dumps({**facts, "layers": layers, "weights": self.weights}, indent=1).encode()

    def __repr__(self) -> str:
        return f"Reference({', '.join(self.layers)}; {self.samples} samples)"
