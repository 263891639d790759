"""LightningTargets: a Lightning callback that adds the distance to targets to the loss of any module's training_step.

``frpt.train.LightningTargets`` loads it, and Lightning with it.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from frpt.errors import OptionError
from frpt.reverser import Layer, Reverser
from frpt.train.frameworks.feature_targets import FeatureTargets, Kind


def _package() -> Any:
    """Lightning under the name that is in use, or that is installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("lightning", "lightning.pytorch", "pytorch_lightning"):
                raise
    raise OptionError("LightningTargets needs Lightning: pip install lightning")


class LightningTargets(_package().Callback):  # type: ignore[misc]
    """Feature supervision for a ``LightningModule`` as it is: ``Trainer(callbacks=[LightningTargets(rev, at)])``.

    The module's ``training_step`` returns its task loss, as a tensor or as "loss" in a dict, for a batch (inputs,
    labels) or a dict; the last forward pass of the network in that step is supervised. The losses and λ are logged as
    ``frpt/task_loss``, ``frpt/rec_loss`` and ``frpt/lambda``, to whatever logger the Trainer has (TensorBoard, W&B,
    MLflow, CSV).

    Args:
        rev: a Reverser on the network: the module itself, or a part of it.
        at: the layer; parameters before it are trained, all others frozen.
        c_rec: strength of the supervision, 0 to 1.
        targets: "online", "anchor", or "stored" for batches of a ``frpt.TargetDataset``, of which the step sees
            (inputs, labels) alone.
        every: reconstruct online at each so many steps.

    Raises:
        OptionError: when training begins, if the Reverser's network is no part of the module, or if the module
            optimises by hand (``automatic_optimization = False``): there ``FeatureTargets`` does the same.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> callback = frpt.train.LightningTargets(frpt.Reverser(model, torch.randn(2, 4)), at="1", targets="anchor")
        >>> callback.features.at  # lightning.Trainer(callbacks=[callback]).fit(module, loader)
        '1'
    """

    def __init__(self, rev: Reverser, at: Layer, c_rec: float = 0.3, targets: Kind = "online", every: int = 1) -> None:
        super().__init__()
        self.features = FeatureTargets(rev, at, c_rec, targets, every)
        self._stack: ExitStack | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Freeze the rest, before optimizers are made, and put the targets behind the module's own step."""
        if stage != "fit" or self._stack is not None:
            return
        if not any(part is self.features.rev.model for part in pl_module.modules()):
            raise OptionError(
                f"the Reverser was made on a {type(self.features.rev.model).__name__} that is no part of this "
                f"{type(pl_module).__name__}: make it on the module's own network, before it is trained"
            )
        if not pl_module.automatic_optimization:
            raise OptionError(
                f"this {type(pl_module).__name__} optimises by hand (automatic_optimization=False), so that the loss "
                "it goes down never passes here. Use frpt.train.FeatureTargets(rev, at) instead of the callback: call "
                "trainer.fit inside `with features.attached():`, and in training_step pass the task loss through "
                "`features.loss(task, batch)` before manual_backward."
            )
        own = pl_module.training_step

        def training_step(batch: Any, *more: Any, **options: Any) -> Any:
            plain, target = self.features.split(batch)
            result = own(plain, *more, **options)
            task = result["loss"] if isinstance(result, dict) else result
            if task is None:
                return None
            total = self.features.loss(task, plain, target, mean=lambda t: _mean(trainer, t))
            logged = {f"frpt/{name}": value for name, value in self.features.measured.items()}
            pl_module.log_dict(logged, batch_size=1)
            return {**result, "loss": total} if isinstance(result, dict) else total

        self._stack = ExitStack()
        self._stack.enter_context(self.features.attached())
        self._stack.callback(lambda: pl_module.__dict__.pop("training_step", None))
        pl_module.training_step = training_step

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give everything back; the frozen part is compared with what it was."""
        self._leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give everything back after a failure as well."""
        self._leave(exception)

    def _leave(self, error: BaseException | None = None) -> None:
        stack, self._stack = self._stack, None
        if stack is None:
            return
        if error is None:
            stack.close()
        else:
            stack.__exit__(type(error), error, error.__traceback__)

    def state_dict(self) -> dict[str, Any]:
        """The moving averages of both losses and the step, for Lightning's checkpoints."""
        return dict(self.features.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.features.load_state_dict(state_dict)


def _mean(trainer: Any, losses: Tensor) -> Tensor:
    """Over processes."""
    return torch.as_tensor(trainer.strategy.reduce(losses.clone(), reduce_op="mean"))
