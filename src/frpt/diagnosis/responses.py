"""Response maps: Grad-CAM of the forward feature, the reconstructed one and their difference (paper IV-C2).

    map = ReLU( Σ_c  mean_p(∂score/∂a_cp) · a_c )        c: channels, p: positions

``examination.py`` calls ``responses`` and ``picture`` for the gallery; ``grad_cam`` takes any layer and score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from frpt.common.yes_no import signs
from frpt.diagnosis.findings import Array, Response
from frpt.diagnosis.layer_axes import LayerAxes, axes
from frpt.diagnosis.sample_views import waveform
from frpt.embed import class_dim
from frpt.errors import InputError, LabelError
from frpt.graph.inputs import InputLike
from frpt.reverse.reconstruction import Reconstruction
from frpt.reverser import Reverser

Score = int | Tensor
"""What is differentiated: a class, class ids like labels, or (floating-point) a direction shaped like the output."""
_SMALLEST = 4  # pixels along the shorter side: a tensor of 3 × 3 × 3 is hardly a picture


def grad_cam(
    rev: Reverser,
    x: InputLike,
    at: str,
    score: Score,
    value: Tensor | None = None,
    *,
    relu: bool = True,
    layouts: Mapping[str, str] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Tensor:
    """Σ_c mean_p(∂score/∂a_c) · a_c at the layer's own resolution, ReLU on top: (b, *grid). Not normalised.

    value: the feature a, in place of the forward one. Class and register tokens count in the mean and are left out of
    the map. A vector has no positions: (b, c), gradient times activation, without the ReLU.
    """
    a, gradient = _slope(rev, x, at, score, value, kwargs)
    return weighted(axes(rev, at, layouts), rev.batch_axis(at).front(a), rev.batch_axis(at).front(gradient), relu)


def weighted(where: LayerAxes, feature: Tensor, gradient: Tensor, relu: bool = True) -> Tensor:
    """Grad-CAM of a feature by a gradient, both (b, *where.shape): (b, *grid), or (b, c) for a vector."""
    work = torch.promote_types(feature.dtype, torch.float32)
    feature, gradient = feature.to(work), gradient.to(work)
    if where.kind == "vector":
        return where.split(gradient) * where.split(feature)
    mean = where.split(gradient).flatten(2).mean(2)
    field = where.on_grid(feature)
    cam = (mean.reshape(*mean.shape, *[1] * (field.dim() - 2)) * field).sum(1)
    return cam.relu() if relu else cam


def responses(
    rev: Reverser,
    x: InputLike,
    y: Tensor,
    recs: Mapping[str, Reconstruction],
    *,
    layouts: Mapping[str, str] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> list[dict[str, Response]]:
    """How every sample of a batch responds at every layer of ``recs`` (``rev.reconstruct(x, y, at=[…])``).

    The forward feature answers for the predicted class, the reconstructed one for the label. The difference a* − â is
    taken first, and weighted with the label's gradient at a*. Where labels are no class ids, the score is the output
    along the unit direction from the forward output to the output target. Maps are (h, w): a line is (1, l), of a
    volume the mean over its depth.
    """
    result: list[dict[str, Response]] = []
    for layer, rec in recs.items():
        where, samples = axes(rev, layer, layouts), rev.batch_axis(layer)
        a, out = rev.run_on(x, layer, rec.anchor, kwargs=kwargs)
        predicted, label = _scores(rev, out.detach(), y)
        anchor = samples.front(a.detach())
        forward = weighted(where, anchor, samples.front(_gradient(a, _total(rev, out, predicted))))
        target, slope = map(samples.front, _slope(rev, x, layer, label, rec.target, kwargs))
        reconstructed, difference = weighted(where, target, slope), weighted(where, target - anchor, slope)
        maps = [_normalised(where, m) for m in (forward, reconstructed, difference)]
        result = result or [{} for _ in maps[0]]
        for sample, (f, r, d) in zip(result, zip(*maps, strict=True), strict=True):
            sample[layer] = Response(where.kind, f, r, d)
    return result


def picture(x: Any, mean: float | Sequence[float] | None = None, std: float | Sequence[float] | None = None) -> Any:
    """One sample's input as (h, w, 3) uint8; None if it holds neither a picture nor a signal.

    The first tensor of 1 or 3 channels, first or last, is a picture; else a long line of numbers is drawn as a
    waveform (``sample_views.waveform``). mean, std: undo x = (pixel − mean)/std, with pixels in
    [0, 1]; without them the sample's smallest value is black and its largest white. uint8 stays as it is.
    """
    for leaf in pytree.tree_leaves(x):
        image = _image(leaf)
        if image is None:
            continue
        if image.dtype == torch.uint8:
            shown = image
        elif mean is None and std is None:
            shown = _byte(_stretched(image.nan_to_num().double()))
        else:
            shift = torch.as_tensor(0.0 if mean is None else mean, dtype=torch.float64)
            scale = torch.as_tensor(1.0 if std is None else std, dtype=torch.float64)
            if max(shift.numel(), scale.numel()) not in (1, image.shape[-1]):
                raise InputError(f"mean and std have other channels than the picture's {image.shape[-1]}")
            shown = _byte(image.nan_to_num().double() * scale + shift)
        return shown.expand(*shown.shape[:2], 3).contiguous().numpy()
    return next((wave for leaf in pytree.tree_leaves(x) if (wave := waveform(leaf)) is not None), None)


def _slope(
    rev: Reverser, x: InputLike, at: str, score: Score, value: Tensor | None, kwargs: Mapping[str, Any] | None
) -> tuple[Tensor, Tensor]:
    """The feature and the score's gradient there."""
    a, out = rev.run_on(x, at, value, kwargs=kwargs)
    return a.detach(), _gradient(a, _total(rev, out, score))


def _gradient(a: Tensor, total: Tensor) -> Tensor:
    """Samples do not see each other: the gradient of the sum holds every sample's own. Zero where none gets through."""
    if not total.requires_grad:
        return torch.zeros_like(a)
    (gradient,) = torch.autograd.grad(total, a, allow_unused=True, materialize_grads=True)
    return gradient


def _total(rev: Reverser, out: Tensor, score: Score) -> Tensor:
    """The scores of all samples, summed."""
    if isinstance(score, Tensor) and score.is_floating_point():
        return (out * score.to(out)).sum()
    ids = torch.as_tensor(score, device=out.device)
    if ids.dim() == 0:
        axis = rev.embedder.class_dim or (-1 if out.dim() == 3 else 1)
        ids = ids.expand(out.movedim(axis, -1).shape[:-1])
    else:
        axis = _class_axis(rev, out, ids)
    scores, counts = out.movedim(axis, -1), ids != rev.embedder.ignore_index
    if bool((counts & ((ids < 0) | (ids >= scores.shape[-1]))).any()):
        raise LabelError(
            f"there are scores of the classes 0 to {scores.shape[-1] - 1}, got {ids.unique().tolist()[:5]}"
        )
    picked = scores.gather(-1, torch.where(counts, ids, 0).unsqueeze(-1)).squeeze(-1)
    return (picked * counts).sum()


def _class_axis(rev: Reverser, out: Tensor, ids: Tensor) -> int:
    chosen = rev.embedder.class_dim
    return class_dim(out, ids) if chosen is None else chosen


def _scores(rev: Reverser, out: Tensor, y: Tensor) -> tuple[Score, Score]:
    """What the forward feature and what the reconstructed one answers for."""
    y = torch.as_tensor(y, device=out.device)
    if rev.embedder.yes_no(out, y):
        return torch.where(out > rev.embedder.threshold, 1.0, -1.0).to(out), signs(out, y, rev.embedder.ignore_index)
    if not _are_classes(rev, out, y):
        away = rev.embedder(out, y) - out
        length = rev.batch_axis("out").norm(away).clamp_min(torch.finfo(away.dtype).tiny)
        unit = (away.double() / rev.batch_axis("out").over(length, away)).to(out)
        return unit, unit
    return out.argmax(_class_axis(rev, out, y)), y


def _are_classes(rev: Reverser, out: Tensor, y: Tensor) -> bool:
    """Whether labels are class ids; a user's own embedding may take integers that are none."""
    if y.is_floating_point() or rev.embedder.how == "regression":
        return False
    if isinstance(rev.embedder.how, str):
        return True
    return y.shape in (out.shape[:-1], out.shape[:1] + out.shape[2:])


def _normalised(where: LayerAxes, maps: Tensor) -> Array:
    """Each sample by its own largest magnitude; what is zero stays zero. (b, h, w), or (b, c) for a vector."""
    maps = maps.double()
    if where.kind != "vector":
        maps = maps.unsqueeze(1) if maps.dim() == 2 else maps
        maps = maps.flatten(1, maps.dim() - 3).mean(1) if maps.dim() > 3 else maps
    largest = maps.abs().flatten(1).amax(1).reshape(-1, *[1] * (maps.dim() - 1))
    result: Array = torch.where(largest > 0, maps / largest, 0.0).float().cpu().numpy()
    return result


def _image(leaf: Any) -> Tensor | None:
    """A leaf as (h, w, 1 or 3), if it looks like a picture."""
    if not isinstance(leaf, Tensor | np.ndarray) or len(leaf.shape) != 3:
        return None
    t = torch.as_tensor(leaf).detach().cpu()
    if not t.is_floating_point() and t.dtype != torch.uint8:
        return None
    for image in (t.movedim(0, -1), t):
        if image.shape[-1] in (1, 3) and min(image.shape[:2]) >= _SMALLEST:
            return image
    return None


def _stretched(t: Tensor) -> Tensor:
    low, high = t.min(), t.max()
    return (t - low) / (high - low) if high > low else torch.zeros_like(t)


def _byte(t: Tensor) -> Tensor:
    return (t.clamp(0, 1) * 255).round().to(torch.uint8)
