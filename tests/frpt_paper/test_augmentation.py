"""RandAugment's operations against PIL's own; a draw stays what it is; shares of mirrored, moved and erased images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from frpt import data
from frpt_paper.runs.augmentation import (
    Augmentation,
    Draw,
    augmented,
    cropped,
    erased_boxes,
    pixels_of,
    rand_augment,
)

SIZE = 32
OPERATIONS = rand_augment(9, 31, (SIZE, SIZE))


def affine(*matrix: float) -> Callable[[Image.Image], Image.Image]:
    return lambda im: im.transform(im.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


def with_pil(name: str, sign: int) -> Callable[[Image.Image], Image.Image]:
    """What torchvision's RandAugment(2, 9) does with a PIL image: bin 9 of 31, three tenths of the way."""
    shear, pixels, factor = 0.09 * sign, 4 * sign, 1 + 0.27 * sign  # 4 = int(0.3 · 150/331 · 32)
    known: dict[str, Callable[[Image.Image], Image.Image]] = {
        "Identity": lambda im: im,
        "ShearX": affine(1, shear, 0, 0, 1, 0),
        "ShearY": affine(1, 0, 0, shear, 1, 0),
        "TranslateX": affine(1, 0, -pixels, 0, 1, 0),
        "TranslateY": affine(1, 0, 0, 0, 1, -pixels),
        "Rotate": lambda im: im.rotate(9 * sign, Image.Resampling.NEAREST, fillcolor=0),
        "Posterize": lambda im: ImageOps.posterize(im, 7),
        "Solarize": lambda im: ImageOps.solarize(im, 178.5),  # type: ignore[arg-type]
        "AutoContrast": ImageOps.autocontrast,
        "Equalize": ImageOps.equalize,
    }
    if name in known:
        return known[name]
    return lambda im: getattr(ImageEnhance, name)(im).enhance(factor)


def pictures() -> Tensor:
    """Smooth colours, noise, a dark picture of few values and one of a single value: (16, 3, 32, 32)."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(13, 3, 5, 5, generator=generator) * 255
    smooth = torch.nn.functional.interpolate(coarse, (SIZE, SIZE), mode="bilinear")
    noise = torch.rand(1, 3, SIZE, SIZE, generator=generator) * 255
    dark = torch.randint(20, 24, (1, 3, SIZE, SIZE), generator=generator).float()
    return torch.cat([smooth, noise, dark, torch.full((1, 3, SIZE, SIZE), 77.0)]).to(torch.uint8)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_pil(name: str, sign: int) -> None:
    x = pictures()
    before = x.clone()
    found = OPERATIONS[name](x, sign)
    assert torch.equal(x, before)
    assert (found.dtype, found.shape) == (x.dtype, x.shape)
    wanted = [np.array(with_pil(name, sign)(Image.fromarray(image.permute(1, 2, 0).numpy()))) for image in x]
    apart = (found.int() - torch.from_numpy(np.stack(wanted)).permute(0, 3, 1, 2).int()).abs()
    assert int(apart.max()) <= (1 if name == "AutoContrast" else 0)  # a product that PIL rounds the other way
    assert float((apart > 0).float().mean()) < 0.01


def test_operations_take_images_of_one_channel() -> None:
    x = pictures()[:, :1]
    assert all(operation(x, 1).shape == x.shape for operation in OPERATIONS.values())


def test_a_crop_shifts_and_fills_with_zeros() -> None:
    x = torch.full((200, 1, 8, 8), 9, dtype=torch.uint8)
    found = cropped(x, 4, torch.Generator().manual_seed(0))
    lost = (found == 0).flatten(1).sum(1)
    assert set(found.unique().tolist()) == {0, 9}
    assert int(lost.min()) == 0
    assert int(lost.max()) == 64 - 16
    assert torch.equal(cropped(x, 0, torch.Generator()), x)


def test_erased_boxes() -> None:
    a = Augmentation()
    boxes = erased_boxes(4000, (SIZE, SIZE), a, torch.Generator().manual_seed(0))
    top, bottom, left, right = boxes.T
    own = bottom > top
    assert float(own.float().mean()) == pytest.approx(a.erasing, abs=0.02)
    assert int(top.min()) >= 0
    assert int(bottom.max()) <= SIZE
    assert int(right.max()) <= SIZE
    area = ((bottom - top) * (right - left))[own] / SIZE**2
    assert 0.01 < float(area.min()) < 0.04  # sides are rounded
    assert 0.3 < float(area.max()) < 0.36
    assert float(area.mean()) == pytest.approx(sum(a.area) / 2, abs=0.02)
    assert not boxes[~own].any()


def test_a_draw_stays_what_it_is() -> None:
    images = data.load("digits", "train").select(range(300))
    one, same, other = Draw(images, 3), Draw(images, 3), Draw(images, 4)
    assert len(one) == 300
    x, y = one.take(torch.arange(300))
    assert torch.equal(y, images.labels)
    assert torch.equal(x, one.take(torch.arange(300))[0])
    assert torch.equal(x, same.take(torch.arange(300))[0])
    assert not torch.equal(x, other.take(torch.arange(300))[0])
    assert not torch.equal(x, images.take(torch.arange(300))[0])
    assert torch.equal(one.__getbatch__([7, 2])[0], x[[7, 2]])
    assert torch.equal(one[7][0], x[7])
    top, bottom, left, right = one.boxes[one.boxes[:, 1] > 0][0].tolist()
    row = int((one.boxes[:, 1] > 0).nonzero()[0])
    assert not x[row, :, top:bottom, left:right].any()  # the mean pixel


def test_pixels_come_back_from_normalised_images() -> None:
    images = data.load("digits", "train").select(range(20))
    raw = (images.take(torch.arange(20))[0] * 0.3081 + 0.1307).mul(255).round()
    assert torch.equal(pixels_of(images, torch.arange(20)).float(), raw)


def test_every_operation_is_drawn_equally_often() -> None:
    x = torch.full((4200, 1, 8, 8), 100, dtype=torch.uint8)
    x[..., 0, 0] = 200
    only = Augmentation(padding=0, operations=1, magnitude=30)
    found = augmented(x, only, torch.Generator().manual_seed(0))
    # At full magnitude solarize turns every pixel over, and nothing else gives 155 there: 1 operation of 14.
    share = float((found[:, 0, 4, 4] == 155).float().mean())
    assert share == pytest.approx(1 / 14, abs=0.015)
