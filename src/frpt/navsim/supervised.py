"""Post-training of a planner inside somebody else's loop: the part before a layer, with targets for its feature.

Called by the agent, whose loop is Lightning's. Freezing, supervision and the balance of losses are those of
``frpt.post_train`` (``frpt.train``); here they are put together without its data sets and its loop.
"""

from __future__ import annotations

import torch
from torch import Tensor

from frpt.errors import OptionError, StoreError
from frpt.graph.capture import eval_mode
from frpt.graph.inputs import Inputs
from frpt.reverser import Reverser
from frpt.train.batches import TrainingBatch
from frpt.train.frozen import freeze
from frpt.train.objective import (
    AnchorSupply,
    LossBalance,
    OnlineSupply,
    StoredSupply,
    Supervision,
    TargetSupply,
)
from frpt.train.tap import FeatureTap
from frpt.zoo import Planner

CACHE, ONLINE, ANCHOR = "cache", "online", "anchor"
TARGET = "frpt_target"
"""The targets' name among the tensors of a sample."""
_LOOK = (2, 3, 64, 256)  # of the image that the planner is captured with to be split; which weights lead to a layer
# does not depend on its size, and the paper's 256 × 1024 takes seconds


class PostTraining:
    """A planner that is split at a layer, in train mode; its loss with the feature's supervision.

    frozen: what is trained and what stays. balance: of the two losses. targets: "cache", "online" or "anchor".
    """

    def __init__(self, model: Planner, at: str, c_rec: float, targets: str) -> None:
        if targets not in (CACHE, ONLINE, ANCHOR):
            raise OptionError(f"targets must be {CACHE!r}, {ONLINE!r} or {ANCHOR!r}, got {targets!r}")
        self.model, self.at, self.targets = model, at, targets
        self.balance = LossBalance(c_rec)
        rev = Reverser(model.eval(), (torch.zeros(_LOOK), torch.zeros(_LOOK[0], 8)))
        self.axis = rev.batch_axis(at)
        self.anchor = AnchorSupply(model, at, self.axis) if self.supervised and targets == ANCHOR else None
        self.frozen = freeze(model, rev, at, batch_norm="train")  # as the paper's code
        self._supervision: Supervision | None = None
        model.train()  # Lightning keeps the mode that it finds, and capturing needs eval mode

    @property
    def supervised(self) -> bool:
        """Whether there is a feature term; without one it is the matched run of back-propagation alone."""
        return self.balance.c_rec > 0

    def loss(self, task: Tensor, inputs: tuple[Tensor, Tensor], labels: Tensor, stored: Tensor | None) -> Tensor:
        """Task loss + λ · MSE(target, feature), for the batch whose forward pass was just made.

        Args:
            task: the loss at the output.
            inputs: image (b, 3, h, w) and status (b, 8).
            labels: trajectories (b, 8, 3).
            stored: targets from the cache (b, ...).
        """
        if not self.supervised:
            return task
        if self.targets == CACHE and stored is None:
            raise StoreError(f"a batch without {TARGET!r}: the loader does not use the agent's target builders")
        present = None if stored is None else torch.ones(len(stored), dtype=torch.bool)
        batch = TrainingBatch(inputs, labels, stored, present, 1.0)
        assert self._supervision is not None  # made before the forward pass
        with torch.autocast(labels.device.type, enabled=False):
            rec, _ = self._supervision.loss(Inputs.of(inputs), batch, labels)
        weight = self.balance.update(*_means(task, rec))
        return task + weight * rec

    def prepare(self, inputs: tuple[Tensor, Tensor]) -> None:
        """Before the first batch's forward pass: only now the device and the image's size are known.

        It cannot be done after that pass: a capture runs the model, and the tap would read the capture's values.
        """
        if self._supervision is not None or not self.supervised:
            return
        supply: TargetSupply = StoredSupply(None)
        if self.targets == ONLINE:
            with eval_mode(self.model):
                rev = Reverser(self.model, (inputs[0][:2], inputs[1][:2]), preset="online")
            supply = OnlineSupply(rev, self.at, self.axis)
        elif self.anchor is not None:
            self.anchor.start.to(inputs[0].device)
            supply = self.anchor
        self._supervision = Supervision(FeatureTap(self.model, self.at), self.axis, supply, self.balance, every=1)


def _means(*losses: Tensor) -> list[float]:
    """Losses averaged over all processes, so that λ is the same in each."""
    together = torch.stack([loss.detach().double() for loss in losses])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(together)
        together /= torch.distributed.get_world_size()
    means: list[float] = together.tolist()
    return means
