"""Pretraining reaches what it should, is decided by its seed, and ends with the rate at zero."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from frpt import data
from frpt.data.images import Images
from frpt.errors import OptionError
from frpt_paper.runs.pretraining import MODELS, Recipe, accuracy, make_model, pretrain


@pytest.fixture(scope="module")
def digits() -> tuple[Images, Images]:
    train, test = data.load("digits", "train"), data.load("digits", "test")
    return train.select(range(1500)), test.select(range(300))


def test_digits_are_learned(digits: tuple[Images, Images]) -> None:
    seen: list[tuple[int, float]] = []
    model = make_model("simple_cnn", "digits")
    before = torch.get_rng_state()
    found = pretrain(model, *digits, Recipe(epochs=4, batch_size=50, lr=1e-2), each=lambda e, m, a: seen.append((e, a)))
    assert torch.equal(torch.get_rng_state(), before)
    assert found.accuracy > 0.8
    assert [a for _, a in seen] == found.history
    assert found.accuracy == accuracy(found.model, digits[1])
    assert not found.model.training


def test_the_seed_decides(digits: tuple[Images, Images]) -> None:
    def run(start: int, seed: int) -> dict[str, torch.Tensor]:
        few = digits[0].select(range(100))
        return pretrain(
            make_model("simple_cnn", "digits", start), few, few, Recipe(epochs=1), seed=seed
        ).model.state_dict()

    first, again, order, weights = run(0, 0), run(0, 0), run(0, 1), run(1, 0)
    name = "stage1.0.weight"
    assert torch.equal(first[name], again[name])
    assert torch.allclose(first[name], order[name])  # 100 samples are one batch: another order, the same step
    assert not torch.allclose(first[name], weights[name])


def test_the_rate_rises_and_falls_to_zero() -> None:
    recipe, steps = Recipe(warmup=0.1), 200
    rates = [recipe.rate(i, steps) for i in range(steps + 1)]
    assert rates[19] == 1.0
    assert rates[:20] == sorted(rates[:20])
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[steps] == pytest.approx(0, abs=1e-12)
    with pytest.raises(OptionError, match="lr"):
        Recipe(lr=0)


def test_names_of_models() -> None:
    with torch.device("meta"):
        heads = {name: list(MODELS[name]("cifar10").modules())[-1] for name in MODELS}
    assert all(isinstance(m, nn.Linear) and m.out_features == 10 for m in heads.values()), heads
    with pytest.raises(OptionError, match="resnet18"):
        make_model("resnet50", "cifar10")
