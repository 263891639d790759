"""Every exception frpt raises: what happened, where (layer path, op, source line) and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class FrptError(Exception):
    """Base of all errors raised by frpt."""


class CaptureError(FrptError):
    """The model could not be turned into a graph, or the graph does not compute what the model computes."""


class OutputError(FrptError, ValueError):
    """The tensor to be reversed could not be picked from the model's output."""


class UnknownLayerError(FrptError, KeyError):
    """No value of the network has this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        near = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
        near += [k for k in known if k.rsplit(".", 1)[-1] == name and k not in near][:3]
        hint = f"Did you mean {', '.join(map(repr, near))}?" if near else "Reverser.layers lists every name."
        super().__init__(f"no layer is called {name!r}. {hint}")

    def __str__(self) -> str:  # KeyError would show the message quoted
        return str(self.args[0])


class UnreachableLayerError(FrptError, ValueError):
    """The output does not depend on this layer, so no label says anything about it."""


class IrreversibleError(FrptError):
    """Ops between the layer and the output that have no reverse rule and no derivative; all of them at once."""

    def __init__(self, layer: str, sites: Iterable[tuple[str, str]]) -> None:
        self.sites = list(sites)
        listing = "\n".join(f"  - {where}: {reason}" for where, reason in self.sites)
        super().__init__(
            f"the path from {layer!r} to the output cannot be reversed:\n{listing}\n"
            "Choose a layer after these ops, replace them by differentiable ones, or register a rule of your own "
            "(frpt.reverses; see CONTRIBUTING.md)."
        )


class InputError(FrptError, ValueError):
    """The model's inputs are unusable: wrong shape, no batch dimension, not what the model was captured with."""


class LabelError(FrptError, ValueError):
    """Labels that no output target can be built from."""


class NonFiniteError(FrptError, ValueError):
    """NaN or infinity in an input, a weight, a feature or a reconstructed value."""


class OptionError(FrptError, ValueError):
    """An option, preset or solver name that does not exist, or a value out of its range."""


class DataError(FrptError, ValueError):
    """A data set that offline targets cannot belong to: its items change from one look to the next."""


class DatasetError(FrptError, RuntimeError):
    """A named data set that is not there, cannot be fetched or read, or needs an extra that is not installed."""


class SceneError(FrptError, ValueError):
    """A driving scene that plans cannot be scored in: something is missing, misshapen or not finite."""


class StoreError(FrptError):
    """A target store that cannot be read or written: missing, incomplete, damaged, or the disk refuses."""


class StoreBusyError(StoreError):
    """Somebody else is writing these shards."""


class StoreMismatchError(StoreError, ValueError):
    """A target store that belongs to something else; every difference at once."""

    def __init__(self, path: object, differences: Iterable[str]) -> None:
        self.differences = list(differences)
        listing = "\n".join(f"  - {text}" for text in self.differences)
        super().__init__(
            f"the target store {str(path)!r} does not fit:\n{listing}\n"
            "Use what the store was written with, or write another store."
        )


class ReferenceMismatchError(FrptError, ValueError):
    """A reference that belongs to another network or other weights, or that cannot be read."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this reference cannot be used: {reason}. Make one with frpt.Reference.fit.")


class MemoryMismatchError(FrptError, ValueError):
    """A memory that belongs to another network or other weights, or that cannot be read."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this memory cannot be used: {reason}. Make one with frpt.remember.")


class PatchError(FrptError, ValueError):
    """A patch for other weights, or one that cannot be read."""


class BudgetError(FrptError, MemoryError):
    """A memory budget that not even one sample's solve fits into."""


class FreezeError(FrptError, ValueError):
    """The network cannot be split at a layer into a part that is trained and a part that stays."""


class TapError(FrptError, ValueError):
    """The value at a layer cannot be read from a forward pass of the user's own model."""


class CheckpointError(FrptError, RuntimeError):
    """Weights of a model on disk that are not there, cannot be read, or do not fit the model."""


class DevkitError(FrptError, ImportError):
    """NAVSIM's devkit is not installed, or another project of that name is."""


class PartialError(FrptError, RuntimeError):
    """A half-done run on disk that cannot be written, read, or continued with these options."""


class ProcessError(FrptError, RuntimeError):
    """Another process of the same run has stopped, has died, or cannot be reached."""


class SweepError(FrptError, RuntimeError):
    """Runs of an experiment that failed, or a table of results that belongs to something else."""


class SlowUnitWarning(UserWarning):
    """A composite unit used up ``Limits.seconds``; its samples that were not finished are reported as fallback.

    Issued once per unit of a ``Reverser``; further batches through the unit are stopped as well.
    """


class EvalModeWarning(UserWarning):
    """The model is in train mode; reconstruction uses eval behaviour and restores the mode afterwards."""


class BatchNormWarning(UserWarning):
    """Batch norm of the trained part in train mode moves features away from those that targets were made for.

    ``post_train`` gives it with the figure; ``batch_norm="eval"`` keeps the statistics as they are.
    """


class LabelWarning(UserWarning):
    """Labels can be read in two ways, and the likelier one is not what their type says."""


class MarginWarning(UserWarning):
    """Some labels do not win by the margin that was asked for; ``Reconstruction.margin_met`` says of which samples."""
