"""The augmentation of the paper's code, on whole sets of images at once: crop, mirror, RandAugment(2, 9), erasing.

``Draw`` is one augmented draw of a set: fixed for a whole post-training (the paper's protocol, ``Lab.training_set``),
or drawn afresh for each epoch of a pretraining (``pretraining.pretrain``). RandAugment (Cubuk et al., 2020) and random
erasing (Zhong et al., 2020) follow torchvision's definitions for PIL images: 14 operations of one magnitude, bin 9 of
31, each with a random sign where it has one. Since all images share the magnitude, an operation is the same function
for all of them: a geometric one is a single table of source pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from frpt.data import Images

Operation = Callable[[Tensor, int], Tensor]
"""(images (k, c, h, w) of uint8, a sign of 1 or −1) → images like them."""
_CHUNK = 2048
"""Images that are worked on at a time, so that what lies between two operations stays small (chosen, not measured)."""


@dataclass(frozen=True)
class Augmentation:
    """What is drawn at random for each image; the defaults are the paper's code's.

    padding: zeros around an image before a crop of its size. operations, magnitude, bins: of RandAugment. erasing: the
    share of images in which a rectangle is set to the mean pixel; area, aspect: smallest and largest share of the image
    and ratio of its sides (torchvision's defaults).
    """

    padding: int = 4
    operations: int = 2
    magnitude: int = 9
    bins: int = 31
    erasing: float = 0.25
    area: tuple[float, float] = (0.02, 0.33)
    aspect: tuple[float, float] = (0.3, 3.3)


class Draw:
    """One augmented draw of a set of images: a data set like ``Images``, and always the same for the same seed.

    pixels: (n, c, h, w) of uint8; boxes: (n, 4), first row, last row + 1, first column, last column + 1 of what is
    erased; the box is empty where nothing is.
    """

    def __init__(self, images: Images, seed: int, augmentation: Augmentation | None = None) -> None:
        a = augmentation or Augmentation()
        self.info, self._labels, self.split = images.info, images.labels, images.split
        generator = torch.Generator().manual_seed(seed)
        parts = [augmented(pixels_of(images, rows), a, generator) for rows in torch.arange(len(images)).split(_CHUNK)]
        self.pixels = torch.cat(parts)
        self.boxes = erased_boxes(len(images), self.pixels.shape[-2:], a, generator)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.__getbatch__([index])
        return x[0], y[0]

    def __getbatch__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Some samples as a batch: (k, c, h, w) float32, normalised, and (k,)."""
        return self.take(torch.as_tensor(list(indices), dtype=torch.int64))

    @property
    def labels(self) -> Tensor:
        return self._labels

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Some samples as a batch. Erased pixels are 0 after normalising: the mean pixel."""
        mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (self.info.mean, self.info.std))
        x = self.pixels[indices].float().div_(255).sub_(mean).div_(std)
        top, bottom, left, right = self.boxes[indices].T[..., None]
        rows, columns = torch.arange(x.shape[-2]), torch.arange(x.shape[-1])
        inside = ((rows >= top) & (rows < bottom))[:, :, None] & ((columns >= left) & (columns < right))[:, None, :]
        return x.masked_fill_(inside[:, None], 0.0), self._labels[indices]


def pixels_of(images: Images, rows: Tensor) -> Tensor:
    """(k, c, h, w) of uint8, from images that are normalised or not."""
    x, _ = images.take(rows)
    if images.normalize:
        mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (images.info.mean, images.info.std))
        x = x * std + mean
    return (x * 255).round_().to(torch.uint8)


def augmented(pixels: Tensor, a: Augmentation, generator: torch.Generator) -> Tensor:
    """Crop and mirror, then RandAugment: each of its rounds applies to every image one operation drawn for it."""
    pixels = cropped(pixels, a.padding, generator)
    mirrored = torch.rand(len(pixels), 1, 1, 1, generator=generator) < 0.5
    pixels = torch.where(mirrored, pixels.flip(-1), pixels)
    operations = list(rand_augment(a.magnitude, a.bins, pixels.shape[-2:]).values())
    for _ in range(a.operations):
        which = torch.randint(len(operations), (len(pixels),), generator=generator)
        signs = 2 * torch.randint(2, (len(pixels),), generator=generator) - 1
        for number, operation in enumerate(operations):
            for sign in (1, -1):
                rows = ((which == number) & (signs == sign)).nonzero()[:, 0]
                if len(rows):
                    pixels[rows] = operation(pixels[rows], sign)
    return pixels


def cropped(pixels: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Each image shifted by up to ``padding`` pixels in each direction, zeros coming in."""
    n, _, h, w = pixels.shape
    padded = F.pad(pixels, (padding,) * 4)
    top, left = torch.randint(0, 2 * padding + 1, (2, n, 1), generator=generator)
    rows, columns = top + torch.arange(h), left + torch.arange(w)
    return padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1).contiguous()


def erased_boxes(count: int, size: Sequence[int], a: Augmentation, generator: torch.Generator) -> Tensor:
    """(n, 4): a box in a share of the images. Of ten proposals the first that fits is taken, as torchvision does."""
    h, w = size
    tries = 10
    area = h * w * (a.area[0] + (a.area[1] - a.area[0]) * torch.rand(count, tries, generator=generator))
    low, high = (math.log(v) for v in a.aspect)
    aspect = torch.exp(low + (high - low) * torch.rand(count, tries, generator=generator))
    tall, wide = (area * aspect).sqrt().round().long(), (area / aspect).sqrt().round().long()
    fits = (tall < h) & (wide < w)
    first = fits.int().argmax(1, keepdim=True)
    tall, wide = tall.gather(1, first)[:, 0], wide.gather(1, first)[:, 0]
    erased = (torch.rand(count, generator=generator) < a.erasing) & fits.any(1)
    top = (torch.rand(count, generator=generator) * (h - tall + 1)).long()
    left = (torch.rand(count, generator=generator) * (w - wide + 1)).long()
    return torch.stack([top, top + tall, left, left + wide], 1) * erased[:, None]


def rand_augment(magnitude: int, bins: int, size: Sequence[int]) -> dict[str, Operation]:
    """Name → operation of RandAugment at a magnitude. size: height and width of the images."""
    share = magnitude / (bins - 1)
    h, w = size
    shear, turn, enhance = 0.3 * share, math.radians(30.0 * share), 0.9 * share
    right, down = int(150 / 331 * w * share), int(150 / 331 * h * share)
    bits, threshold = 8 - round(4 * share), 255.0 * (1 - share)
    return {
        "Identity": lambda x, sign: x,
        "ShearX": lambda x, sign: _moved(x, (1, sign * shear, 0, 0, 1, 0)),
        "ShearY": lambda x, sign: _moved(x, (1, 0, 0, sign * shear, 1, 0)),
        "TranslateX": lambda x, sign: _moved(x, (1, 0, -sign * right, 0, 1, 0)),
        "TranslateY": lambda x, sign: _moved(x, (1, 0, 0, 0, 1, -sign * down)),
        "Rotate": lambda x, sign: rotated(x, sign * turn),
        "Brightness": lambda x, sign: _blended(torch.zeros_like(x), x, 1 + sign * enhance),
        "Color": lambda x, sign: _blended(grey(x).expand_as(x), x, 1 + sign * enhance),
        "Contrast": lambda x, sign: _blended(mean_grey(x), x, 1 + sign * enhance),
        "Sharpness": lambda x, sign: _blended(smooth(x), x, 1 + sign * enhance),
        "Posterize": lambda x, sign: x & (256 - 2 ** (8 - bits)),
        "Solarize": lambda x, sign: torch.where(x < threshold, x, 255 - x),
        "AutoContrast": lambda x, sign: autocontrast(x),
        "Equalize": lambda x, sign: equalize(x),
    }


def _moved(x: Tensor, matrix: Sequence[float]) -> Tensor:
    """Each pixel is the one at (a·x + b·y + c, d·x + e·y + f) of its centre, black where that is outside."""
    h, w = x.shape[-2:]
    a, b, c, d, e, f = matrix
    down, across = torch.meshgrid(
        torch.arange(h, dtype=torch.float64) + 0.5, torch.arange(w, dtype=torch.float64) + 0.5, indexing="ij"
    )
    column = torch.floor(a * across + b * down + c).long()
    row = torch.floor(d * across + e * down + f).long()
    inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
    source = (row * w + column)[inside]
    moved = torch.zeros_like(x).flatten(-2)
    moved[..., inside.flatten()] = x.flatten(-2)[..., source]
    return moved.view_as(x)


def rotated(x: Tensor, angle: float) -> Tensor:
    """Counter-clockwise about the centre by an angle in radians, nearest pixels, black corners."""
    h, w = x.shape[-2:]
    cos, sin = math.cos(angle), math.sin(angle)
    return _moved(x, (cos, -sin, w / 2 - cos * w / 2 + sin * h / 2, sin, cos, h / 2 - sin * w / 2 - cos * h / 2))


def _blended(other: Tensor, x: Tensor, factor: float) -> Tensor:
    """other + factor · (x − other), cut off at 0 and 255, fractions dropped."""
    base = other.float()
    return (base + factor * (x.float() - base)).clamp_(0, 255).to(torch.uint8)


def grey(x: Tensor) -> Tensor:
    """(k, 1, h, w): ITU-R 601-2 luma in fixed point, as PIL computes it; images of one channel are grey already."""
    if x.shape[1] == 1:
        return x
    r, g, b = x.int().unbind(1)
    return ((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16).to(torch.uint8)[:, None]


def mean_grey(x: Tensor) -> Tensor:
    """Each image as large as it is, all of its mean grey, rounded."""
    mean = grey(x).double().mean((1, 2, 3), keepdim=True).add_(0.5).floor_()
    return mean.to(torch.uint8).expand_as(x)


def smooth(x: Tensor) -> Tensor:
    """Each pixel averaged with its neighbours (5 parts of 13 its own); the outermost pixels stay."""
    c = x.shape[1]
    kernel = torch.ones(3, 3)
    kernel[1, 1] = 5
    inner = F.conv2d(x.float(), (kernel / 13).expand(c, 1, 3, 3), groups=c)
    out = x.clone()
    out[..., 1:-1, 1:-1] = (inner + 0.5).clamp_(0, 255).to(torch.uint8)
    return out


def autocontrast(x: Tensor) -> Tensor:
    """Each channel of each image stretched so that its darkest pixel is 0 and its brightest 255."""
    flat = x.flatten(2).double()
    low, high = flat.amin(-1, keepdim=True), flat.amax(-1, keepdim=True)
    scale = 255.0 / (high - low).clamp_min(1)
    stretched = (flat * scale - low * scale).clamp_(0, 255).to(torch.uint8)
    return torch.where(high > low, stretched, x.flatten(2)).view_as(x)


def equalize(x: Tensor) -> Tensor:
    """Each channel of each image mapped so that its values are as evenly spread as whole values can be."""
    flat = x.flatten(2).flatten(0, 1).long()
    counts = torch.zeros(len(flat), 256, dtype=torch.int64).scatter_add_(1, flat, torch.ones_like(flat))
    last = counts.gather(1, flat.amax(1, keepdim=True))
    step = (flat.shape[1] - last) // 255
    before = counts.cumsum(1) - counts
    table = (step // 2 + before) // step.clamp_min(1)
    table = torch.where(step > 0, table.clamp_(0, 255), torch.arange(256))
    return table.gather(1, flat).to(torch.uint8).view_as(x)
