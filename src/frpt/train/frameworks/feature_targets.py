"""FeatureTargets: what a framework's training step needs to add the distance to targets to its own loss.

    loss = task loss + λ · MSE(target, feature)

``LightningTargets`` and ``TargetTrainer`` call it; so may a loop of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from frpt.common.checks import check_whole
from frpt.datasets.pairs import as_label_tensor, inputs_taken, pair
from frpt.errors import NonFiniteError, OptionError, TapError
from frpt.graph.inputs import Inputs
from frpt.reverser import Layer, Reverser, layer_name
from frpt.train.batches import on_device
from frpt.train.frozen import Frozen, freeze
from frpt.train.objective import AnchorSupply, LossBalance, OnlineSupply, StoredSupply, TargetSupply
from frpt.train.tap import FeatureTap

Kind = Literal["online", "anchor", "stored"]
KINDS = ("online", "anchor", "stored")
TARGET, PRESENT = "target", "present"
"""Under these names a batch that is a dict has the targets of a ``TargetDataset``."""


class FeatureTargets:
    """Feature supervision for a training loop that has a loss of its own.

    Args:
        rev: a Reverser on the very network that is trained.
        at: the layer, by name or as the module itself. Parameters before it are trained, all others frozen.
        c_rec: strength of the supervision, 0 to 1.
        targets: "online", reconstructed in each step from its feature; "anchor", the features of the network as it is
            when training begins; "stored", brought along by the batches of a ``frpt.TargetDataset``.
        every: reconstruct online at each so many steps.

    Raises:
        OptionError: for an option out of its range.

    Attributes:
        measured: of the last step: "task_loss", "rec_loss" and "lambda"; empty where it was not supervised.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> x, y = torch.randn(16, 4), torch.randint(3, (16,))
        >>> features = frpt.train.FeatureTargets(frpt.Reverser(model, x), at="1")
        >>> with features.attached() as frozen:
        ...     task = torch.nn.functional.cross_entropy(model(x), y)
        ...     loss = features.loss(task, (x, y))
        >>> sorted(features.measured)
        ['lambda', 'rec_loss', 'task_loss']
    """

    def __init__(self, rev: Reverser, at: Layer, c_rec: float = 0.3, targets: Kind = "online", every: int = 1) -> None:
        if not isinstance(rev, Reverser):
            raise OptionError(f"pass a frpt.Reverser on the network that is trained, got a {type(rev).__name__}")
        if targets not in KINDS:
            raise OptionError(f"targets must be one of {', '.join(KINDS)}, got {targets!r}")
        check_whole("every", every, 1)
        self.rev, self.at, self.targets, self.every = rev, layer_name(rev.model, at), targets, every
        self.balance = LossBalance(c_rec)
        self.measured: dict[str, float] = {}
        self._takes = inputs_taken(rev.model)
        self._axis = rev.batch_axis(self.at)
        self._tap: FeatureTap | None = None
        self._supply: TargetSupply | None = None
        self._step = 0

    @contextmanager
    def attached(self) -> Iterator[Frozen]:
        """For the time of training: the rest of the network frozen, the layer's feature read.

        Yields:
            What is trained: ``frozen.trainable()`` has the parameters.

        Raises:
            FreezeError: if the network cannot be split at the layer, or if the frozen part has moved in the end.
        """
        with ExitStack() as stack:
            frozen = stack.enter_context(freeze(self.rev.model, self.rev, self.at))
            self._tap = stack.enter_context(FeatureTap(self.rev.model, self.at))
            self._supply, self._step = self._supplied(), 0
            stack.callback(self._detach)
            yield frozen
            frozen.check()

    def _supplied(self) -> TargetSupply:
        model = self.rev.model
        if self.targets == "anchor":
            return AnchorSupply(model, self.at, self._axis)
        if self.targets == "stored":
            return StoredSupply(None)
        there = next((t.device for t in self.rev.example.tensors), None)
        here = next((p.device for p in model.parameters()), None)
        return OnlineSupply(self.rev if there == here else self.rev.on(model), self.at, self._axis)

    def _detach(self) -> None:
        self._tap = self._supply = None

    def split(self, batch: Any) -> tuple[Any, Tensor | None]:
        """(the batch without targets, as the step of the framework knows it, the targets if it has some)."""
        if isinstance(batch, Mapping) and TARGET in batch:
            return {k: v for k, v in batch.items() if k not in (TARGET, PRESENT)}, batch[TARGET]
        if isinstance(batch, tuple | list) and len(batch) == 4 and self.targets == "stored":
            return (batch[0], batch[1]), batch[2]
        if self.targets == "stored" and self.balance.c_rec:
            raise TapError(
                "targets='stored', but the batch has none: load batches from a frpt.TargetDataset, whose items are "
                "(inputs, label, target, present)"
            )
        return batch, None

    def loss(
        self,
        task: Tensor,
        batch: Any,
        target: Tensor | None = None,
        *,
        share: float = 1.0,
        mean: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The loss to minimise: the task loss, and λ times the distance of the last forward pass's feature to targets.

        Args:
            task: the task loss of the batch.
            batch: (inputs, labels), or a dict of inputs with labels, as the step of the framework takes it.
            target: the targets of the batch, where they are stored; ``split`` finds them.
            share: of the mean over a step's samples that ``task`` is already, where gradients are accumulated.
            mean: over processes, of a tensor.

        Returns:
            The sum, with gradient.
        """
        self.measured = {}
        step, self._step = self._step, self._step + 1
        if self.balance.c_rec == 0 or (self.targets == "online" and step % self.every):
            return task
        feature, wanted = self._feature(batch, target)
        rec = F.mse_loss(feature, wanted.to(feature.dtype))
        losses = torch.stack([task.detach().float() / share, rec.detach().float()])
        means = losses if mean is None else mean(losses)
        weight = self.balance.update(means[0], means[1])
        self.measured = {"task_loss": float(means[0]), "rec_loss": float(means[1]), "lambda": weight}
        return task + share * weight * rec

    def state_dict(self) -> dict[str, float | int | None]:
        """What a training that is resumed goes on with: the moving averages behind λ, and the step it is at."""
        return {**self.balance.state_dict(), "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned; inside ``attached``, which begins with the first step."""
        self.balance.load_state_dict(state)
        self._step = int(state.get("step", 0))

    def _feature(self, batch: Any, target: Tensor | None) -> tuple[Tensor, Tensor]:
        """(the layer's feature in the last forward pass, its target), samples first."""
        if self._tap is None or self._supply is None:
            raise TapError("features are read inside `with features.attached():` only")
        value = self._tap.value
        feature = self._axis.front(value if value.dtype.itemsize >= 4 else value.float())
        if self.targets == "stored":
            if target is None:
                raise TapError("targets='stored': pass the targets of the batch, as split() gives them")
            everywhere = torch.ones(len(feature), dtype=torch.bool)
            return feature, self._supply.target(Inputs((), {}), feature, feature, target, everywhere)
        inputs, labels = pair(batch, 0, self._takes, "the batch is", self.targets == "online")
        call = on_device(Inputs.of(inputs), feature.device)
        labels = as_label_tensor(labels, 0).to(feature.device)
        try:
            return feature, self._supply.target(call, labels, feature, None, None)
        except NonFiniteError:
            call.check_finite()
            raise
