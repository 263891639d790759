"""The other distribution: decided by the seed and a sample's number, stronger by strength, within [0, 1]."""

from __future__ import annotations

import pytest
import torch

from frpt import data
from frpt.errors import InputError, OptionError
from frpt_paper.experiments.corruptions import KINDS, STRENGTHS, UNSEEN, corrupt, corrupted


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [*KINDS, *UNSEEN])
def test_the_seed_and_the_number_decide(kind: str, images: torch.Tensor) -> None:
    before, state = images.clone(), torch.get_rng_state()
    first = corrupt(images, kind, 3, seed=5)
    assert torch.equal(first, corrupt(images, kind, 3, seed=5))
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    some = torch.tensor([4, 1])
    assert torch.allclose(corrupt(images[some], kind, 3, seed=5, numbers=some), first[some], atol=1e-6)
    same = torch.equal(first, corrupt(images, kind, 3, seed=6))
    assert same == (kind in ("blur", "contrast", "jpeg"))  # these are no matter of chance
    assert first.min() >= 0
    assert first.max() <= 1
    assert first.dtype == images.dtype


@pytest.mark.parametrize("kind", [*KINDS, *UNSEEN])
def test_strength_is_distance(kind: str, images: torch.Tensor) -> None:
    away = [float((corrupt(images, kind, s) - images).norm()) for s in STRENGTHS]
    assert away == sorted(away)
    assert away[0] > 0


def test_noise_has_the_spread_it_says() -> None:
    grey = torch.full((4, 1, 64, 64), 0.5)
    assert corrupt(grey, "noise", 1).std() == pytest.approx(0.06, rel=0.05)
    assert torch.allclose(corrupt(grey, "blur", 5), grey, atol=1e-6)
    assert torch.allclose(corrupt(grey, "contrast", 5), grey)


def test_a_data_set_is_corrupted_before_it_is_normalised() -> None:
    test = data.load("digits", "test").select(range(5, 15))
    plain = data.load("digits", "test", normalize=False).select(range(5, 15))
    (x, y), (raw, _) = corrupted(test, "fog", 2, 7), corrupted(plain, "fog", 2, 7)
    mean, std = test.info.mean[0], test.info.std[0]
    assert torch.allclose(x * std + mean, raw, atol=1e-5)
    assert torch.equal(y, test.labels)
    assert torch.allclose(corrupted(test.select([3]), "fog", 2, 7)[0], x[3:4], atol=1e-5)


def test_mistakes() -> None:
    x = torch.rand(1, 1, 4, 4)
    with pytest.raises(OptionError, match="blur, fog, noise, contrast"):
        corrupt(x, "rain", 1)
    with pytest.raises(OptionError, match="1 to 5"):
        corrupt(x, "fog", 6)
    with pytest.raises(InputError, match="n, c, h, w"):
        corrupt(x[0], "fog", 1)
