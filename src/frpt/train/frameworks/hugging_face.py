"""TargetTrainer: a Hugging Face Trainer that adds the distance to targets to its loss.

``frpt.train.TargetTrainer`` loads it, and transformers with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from frpt.datasets.pairs import inputs_taken
from frpt.errors import OptionError
from frpt.train.frameworks.feature_targets import PRESENT, TARGET, FeatureTargets

try:
    import transformers
except ModuleNotFoundError as missing:
    if missing.name != "transformers":
        raise
    raise OptionError("TargetTrainer needs transformers: pip install transformers accelerate") from missing


class TrainerTargets:
    """What makes a Trainer a ``TargetTrainer``; for a Trainer of your own: ``class Mine(TrainerTargets, Own): ...``."""

    data_collator: Any

    def __init__(self, *args: Any, features: FeatureTargets, **options: Any) -> None:
        self.features = features
        super().__init__(*args, **options)
        trained = self.model  # type: ignore[attr-defined]
        if not any(part is features.rev.model for part in trained.modules()):
            raise OptionError(
                f"the Reverser was made on a {type(features.rev.model).__name__} that is no part of the model that is "
                "trained: make it on that model, before it is trained"
            )
        own: Callable[[list[Any]], Any] = self.data_collator
        self.data_collator = WithTargets(own, inputs_taken(trained) or frozenset())
        self._losses: dict[str, list[float]] = {}
        self.add_callback(_Kept(features))  # type: ignore[attr-defined]

    def train(self, *args: Any, **options: Any) -> Any:
        """As the Trainer's own, with everything after the layer frozen."""
        with self.features.attached():
            return super().train(*args, **options)  # type: ignore[misc]

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        """The Trainer's own loss; in training, λ times the distance to the targets beside it."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, **more)  # type: ignore[misc]
        plain, target = self.features.split(inputs)
        task, outputs = super().compute_loss(model, dict(plain), True, **more)  # type: ignore[misc]
        total = self.features.loss(task, plain, target, share=self._share(more), mean=self._mean)
        for name, value in self.features.measured.items():
            self._losses.setdefault(name, []).append(value)
        return (total, outputs) if return_outputs else total

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """With the means of both losses and of λ since the last time, as frpt/task_loss, frpt/rec_loss, frpt/lambda."""
        means = {f"frpt/{name}": sum(values) / len(values) for name, values in self._losses.items() if "loss" in logs}
        self._losses = {} if means else self._losses
        super().log({**logs, **means}, *args, **options)  # type: ignore[misc]

    def _share(self, more: Mapping[str, Any]) -> float:
        """What a batch's loss is of a step's mean already, where gradients are accumulated: the Trainer's own rule."""
        scaled = getattr(self, "loss_is_scaled_for_ga", None)
        if scaled is None:
            counted = more.get("num_items_in_batch") is not None
            scaled = (self.model_accepts_loss_kwargs and counted) or self.compute_loss_func is not None  # type: ignore[attr-defined]
        return 1 / self.current_gradient_accumulation_steps if scaled else 1.0  # type: ignore[attr-defined]

    def _mean(self, losses: Tensor) -> Tensor:
        """Over processes."""
        gathered: Tensor = self.accelerator.gather(losses[None])  # type: ignore[attr-defined]
        return gathered.mean(0)


class _Kept(transformers.TrainerCallback):  # type: ignore[misc]
    """Keeps the state of feature targets in ``trainer_state.json``, and goes on from it after a resume.

    Among ``stateful_callbacks``, which the Trainer writes and reads, but by hand: what it restores by itself it makes
    anew by its arguments, and not for everybody.
    """

    NAME = "frpt.train.FeatureTargets"

    def __init__(self, features: FeatureTargets) -> None:
        self.features = features

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if (kept := state.stateful_callbacks.get(self.NAME)) is not None:
            self.features.load_state_dict(kept["attributes"])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.stateful_callbacks[self.NAME] = {"args": {}, "attributes": self.features.state_dict()}


class TargetTrainer(TrainerTargets, transformers.Trainer):  # type: ignore[misc]
    """A ``transformers.Trainer`` whose loss has the distance to feature targets beside the task loss.

    All else is the Trainer's: arguments, callbacks, loggers (``report_to``: TensorBoard, W&B, MLflow; the losses and λ
    are among the logs as ``frpt/...``). Its training set may be a ``frpt.TargetDataset``, whose items are brought into
    the form that the collator takes. λ's moving averages are in the checkpoints' ``trainer_state.json``, so that
    ``train(resume_from_checkpoint=...)`` goes on with them.

    Args:
        *args: the Trainer's.
        features: what is supervised, and where targets come from: a ``FeatureTargets`` on the model.
        **options: the Trainer's.

    Raises:
        OptionError: if the Reverser of ``features`` is of another network.

    For a Trainer of your own, put ``frpt.train.frameworks.hugging_face.TrainerTargets`` before it:
    ``class Mine(TrainerTargets, Own)``.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> features = frpt.train.FeatureTargets(frpt.Reverser(model, torch.randn(2, 4)), at="1")
        >>> trainer = frpt.train.TargetTrainer(model, features=features)  # and the Trainer's own options
        >>> trainer.features.at
        '1'
    """


class WithTargets:
    """A collator for items of a ``TargetDataset`` too: the rest goes to the Trainer's own, targets are put beside."""

    def __init__(self, collator: Callable[[list[Any]], Any], takes: frozenset[str]) -> None:
        self.collator, self.takes = collator, takes

    def __call__(self, items: list[Any]) -> Any:
        if not (isinstance(items[0], tuple) and len(items[0]) == 4):
            return self.collator(items)
        batch = dict(self.collator([{**self._named(x), "labels": y} for x, y, _, _ in items]))
        targets, present = default_collate([item[2:] for item in items])
        return {**batch, TARGET: targets, PRESENT: present}

    def _named(self, inputs: Any) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            return inputs
        if len(self.takes) != 1:
            raise OptionError(
                f"inputs of the data set have no names, and the model takes {', '.join(sorted(self.takes))}: let its "
                "items be dicts"
            )
        return {next(iter(self.takes)): inputs}
