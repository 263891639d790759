"""Another distribution, made by a seed: blur, fog, noise and contrast at strengths 1 to 5, in plain torch; and JPEG.

``adaptation``, ``feature_loss`` and benchmarks call it. ImageNet-C (Hendrycks and Dietterich, 2019) has the same kinds;
what each strength means in numbers is our choice. JPEG is kept apart (``UNSEEN``): nothing is ever chosen by it.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from frpt.data import Images
from frpt.errors import InputError, OptionError
from frpt_paper.runs.jobs import seed_of

STRENGTHS = (1, 2, 3, 4, 5)
_BLUR = (0.6, 0.9, 1.2, 1.6, 2.2)  # σ of the Gaussian, in pixels of a 32 × 32 image
_FOG = (0.25, 0.4, 0.5, 0.6, 0.7)  # share of the cloud
_NOISE = (0.06, 0.12, 0.2, 0.3, 0.42)  # σ, of pixels in [0, 1]
_CONTRAST = (0.7, 0.5, 0.35, 0.22, 0.12)  # what is left of it
_JPEG = (25, 18, 12, 8, 5)  # Pillow's quality


def corrupt(x: Tensor, kind: str, strength: int, seed: int = 0, numbers: Tensor | None = None) -> Tensor:
    """The images as the new distribution has them. x: (n, c, h, w) in [0, 1], and so is the result.

    kind: blur (Gaussian, σ up to 2.2 pixels of 32), fog (a cloud of several scales), noise (Gaussian), contrast
    (towards the image's mean), jpeg (written by Pillow and read again). numbers: (n,), which sample each image is, 0 to
    n − 1 by default: a sample's corruption is decided by seed, kind and its number alone, whatever else is in the
    batch.
    """
    known = {**KINDS, **UNSEEN}
    if kind not in known:
        raise OptionError(f"unknown corruption {kind!r}: there are {', '.join(known)}")
    if strength not in STRENGTHS:
        raise OptionError(f"strength must be 1 to {STRENGTHS[-1]}, got {strength}")
    if x.dim() != 4 or not x.is_floating_point():
        raise InputError(f"images must be (n, c, h, w) in [0, 1], got {tuple(x.shape)} of {x.dtype}")
    which = torch.arange(len(x)) if numbers is None else numbers
    code = list(known).index(kind)
    seeds = [seed_of(seed, code, int(i)) for i in which]
    return known[kind](x, strength - 1, seeds).clamp(0, 1)


def corrupted(images: Images, kind: str, strength: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The images of a data set, corrupted, then normalised as it normalises: (n, c, h, w) and labels (n,)."""
    x, y = images.tensors
    shape = (-1, 1, 1)
    mean, std = (torch.tensor(v).reshape(shape) for v in (images.info.mean, images.info.std))
    if not images.normalize:
        return corrupt(x, kind, strength, seed, images.rows), y
    changed = corrupt((x * std + mean).clamp(0, 1), kind, strength, seed, images.rows)
    return (changed - mean) / std, y


def jpeg(images: Tensor, quality: int) -> Tensor:
    """Written by Pillow and read again. images: (n, 1 or 3, h, w) in [0, 1]."""

    def again(pixels: npt.NDArray[np.uint8]) -> Tensor:
        file = io.BytesIO()
        Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(file, "jpeg", quality=quality)
        return torch.from_numpy(np.array(Image.open(file)).reshape(pixels.shape))

    pixels = (images * 255).round().byte().movedim(1, -1).numpy()
    return torch.stack([again(one) for one in pixels]).movedim(-1, 1).to(images) / 255


def _blur(x: Tensor, level: int, seeds: list[int]) -> Tensor:
    """A Gaussian whose width grows with the image."""
    sigma = _BLUR[level] * x.shape[-1] / 32
    reach = max(1, round(3 * sigma))
    offset = torch.arange(-reach, reach + 1, dtype=x.dtype)
    weights = torch.exp(-0.5 * (offset / sigma) ** 2)
    weights = (weights / weights.sum()).expand(x.shape[1], 1, -1)
    padded = F.pad(x, (reach, reach, reach, reach), mode="replicate")
    across = F.conv2d(padded, weights.unsqueeze(2), groups=x.shape[1])
    return F.conv2d(across, weights.unsqueeze(3), groups=x.shape[1])


def _fog(x: Tensor, level: int, seeds: list[int]) -> Tensor:
    """x (1 − s) + s · cloud: clouds are noise of 2, 4 and 8 cells a side, smooth in between, in [0.5, 1]."""
    size = x.shape[-2:]
    cloud = torch.zeros(len(x), 1, *size)
    for cells, weight in ((2, 1.0), (4, 0.5), (8, 0.25)):
        coarse = torch.stack([_drawn(s, cells, (1, cells, cells), torch.rand) for s in seeds])
        cloud += weight * F.interpolate(coarse, size, mode="bilinear", align_corners=True)
    share = _FOG[level]
    return x * (1 - share) + share * (0.5 + 0.5 * cloud.to(x) / 1.75)


def _noise(x: Tensor, level: int, seeds: list[int]) -> Tensor:
    return x + _NOISE[level] * torch.stack([_drawn(s, 0, tuple(x.shape[1:]), torch.randn) for s in seeds]).to(x)


def _contrast(x: Tensor, level: int, seeds: list[int]) -> Tensor:
    mean = x.mean((1, 2, 3), keepdim=True)
    return mean + _CONTRAST[level] * (x - mean)


def _jpeg(x: Tensor, level: int, seeds: list[int]) -> Tensor:
    return jpeg(x, _JPEG[level])


def _drawn(seed: int, part: int, shape: tuple[int, ...], draw: Callable[..., Tensor]) -> Tensor:
    return draw(shape, generator=torch.Generator().manual_seed(seed_of(seed, part)))


KINDS: dict[str, Callable[[Tensor, int, list[int]], Tensor]] = {
    "blur": _blur,
    "fog": _fog,
    "noise": _noise,
    "contrast": _contrast,
}
UNSEEN: dict[str, Callable[[Tensor, int, list[int]], Tensor]] = {"jpeg": _jpeg}
"""For the end of an experiment."""
