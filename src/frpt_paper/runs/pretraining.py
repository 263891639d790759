"""Pretraining of the zoo's networks, by recipe: AdamW, the learning rate on half a cosine down to zero.

``starting_models`` calls it, once per checkpoint. The rate ends at zero so that post-training starts from a plateau,
where the paper expects FR-PT to help (IV-D1). ``Recipe`` is ours; ``PlateauRecipe`` pretrains as the paper's code does,
of which its text says nothing: fresh augmented draws, smoothed labels, the rate divided where accuracy stalls, and the
best epoch on the test set. Its numbers are ours: the code has defaults for few of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frpt import zoo
from frpt.data import SETS, Images
from frpt.errors import OptionError
from frpt_paper.runs.augmentation import Draw
from frpt_paper.runs.jobs import seed_of


@dataclass(frozen=True)
class Recipe:
    """How long, in batches of what size, from what rate. warmup: share of the steps in which the rate rises.

    augment: mirror images at random and shift them by up to an eighth of their size. smoothing: of the labels.
    """

    epochs: int = 30
    batch_size: int = 128
    lr: float = 3e-3
    weight_decay: float = 1e-3
    warmup: float = 0.05
    augment: bool = False
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or self.lr <= 0 or not 0 <= self.warmup < 1:
            raise OptionError(f"epochs, batch_size and lr must be positive, warmup within [0, 1): {self}")

    def rate(self, step: int, steps: int) -> float:
        """The factor of the learning rate: a rise, then half a cosine to zero."""
        rise = max(1, round(self.warmup * steps))
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


@dataclass(frozen=True)
class PlateauRecipe(Recipe):
    """The paper's protocol: every epoch a fresh draw of ``augmentation.Augmentation``, labels smoothed.

    The rate is multiplied by ``factor`` after ``patience`` epochs in which the accuracy on the test split has not
    risen. marks: epochs after which a checkpoint is kept on the way; the last one kept is the best on the test split.
    """

    patience: int = 3
    factor: float = 0.5
    marks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience < 1 or not 0 < self.factor < 1:
            raise OptionError(f"patience must be at least 1, factor within (0, 1): {self}")


@dataclass(frozen=True)
class Pretrained:
    """The trained model, in eval mode; its accuracy on the test split after each epoch, in [0, 1]."""

    model: nn.Module
    history: list[float] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        return self.history[-1]


RECIPES = {
    ("digits", "simple_cnn"): Recipe(30, 64, 5e-3, 1e-3),
    ("mnist", "simple_cnn"): Recipe(20, 64, 5e-3, 1e-3),
    ("cifar10", "simple_cnn"): Recipe(40, 64, 4e-3, 0.1),
    ("cifar100", "simple_cnn"): Recipe(40, 64, 4e-3, 0.1),
}
"""(data set, family of models) → recipe. Without augmentation, so that targets written for the images as they are
belong to what pretraining saw. For CIFAR-10 two were tried; docs/results.md says more."""
PLATEAU = {
    ("cifar10", "simple_cnn"): PlateauRecipe(
        40, 256, 4e-3, 1e-2, warmup=0.0, augment=True, smoothing=0.1, patience=1, marks=(1, 2, 4, 8, 16)
    ),
}
"""(data set, family of models) → recipe of the paper's protocol; others: the plain recipe's length and rate."""
_OTHERS = {"simple_cnn": Recipe(40, 64, 2e-3, 0.1), "resnet": Recipe(60, 128, 1e-3, 5e-2, augment=True),
           "simple_vit": Recipe(100, 128, 1e-3, 5e-2, augment=True)}  # fmt: skip
"""Of data sets without a recipe of their own, by family."""


def recipe_of(dataset: str, model: str) -> Recipe:
    """The recipe of a pair; other channel profiles of a SimpleCNN are trained like the SimpleCNN of their data set."""
    family = model.split("-")[0]
    recipe = RECIPES.get((dataset, family))
    if recipe is None:
        recipe = next((r for name, r in _OTHERS.items() if family.startswith(name)), None)
    if recipe is None:
        raise OptionError(f"there is no recipe for {model!r} on {dataset!r}; pass one")
    return recipe


def plateau_recipe_of(dataset: str, model: str) -> PlateauRecipe:
    """The recipe of a pair in the paper's protocol: batches of 256, labels smoothed by 0.1."""
    recipe = PLATEAU.get((dataset, model.split("-")[0]))
    if recipe is not None:
        return recipe
    plain = recipe_of(dataset, model)
    return PlateauRecipe(plain.epochs, 256, plain.lr, plain.weight_decay, warmup=0.0, augment=True, smoothing=0.1)


MODELS: dict[str, Callable[[str], nn.Module]] = {
    "simple_cnn": lambda dataset: zoo.simple_cnn("mnist" if dataset == "digits" else dataset),
    "simple_cnn-5-10-15": lambda dataset: zoo.simple_cnn(f"{dataset}-5-10-15"),
    "simple_cnn-15-10-5": lambda dataset: zoo.simple_cnn(f"{dataset}-15-10-5"),
    "simple_cnn-2-6": lambda dataset: zoo.simple_cnn("mnist", channels=(2, 6)),
    "simple_cnn-6-2": lambda dataset: zoo.simple_cnn("mnist", channels=(6, 2)),
    "resnet18": lambda dataset: zoo.resnet("18", stem=_stem(dataset), num_classes=_classes(dataset)),
    "resnet34": lambda dataset: zoo.resnet("34", stem=_stem(dataset), num_classes=_classes(dataset)),
    "simple_vit": lambda dataset: zoo.simple_vit(_vit(dataset), num_classes=_classes(dataset)),
    "simple_vit-pre": lambda dataset: zoo.simple_vit(_vit(dataset), norm="pre", num_classes=_classes(dataset)),
}
"""Names of models in experiments → the zoo's model for a data set (architectures: paper B.2; profiles 5-10-15 and
15-10-5: IV-D2; 2-6 and 6-2 are the same question on the embedded digits)."""


def make_model(name: str, dataset: str, seed: int = 0) -> nn.Module:
    """A fresh model whose weights the seed decides."""
    if name not in MODELS:
        raise OptionError(f"unknown model {name!r}: there are {', '.join(MODELS)}")
    with _own_random():
        torch.manual_seed(seed_of(seed))
        return MODELS[name](dataset)


def pretrain(
    model: nn.Module,
    train: Images,
    test: Images,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    device: str = "cpu",
    each: Callable[[int, nn.Module, float], None] | None = None,
) -> Pretrained:
    """Train the model in place on images held in memory. each: called with (epoch, model, accuracy) after an epoch."""
    recipe = recipe or Recipe()
    model.to(device)
    if isinstance(recipe, PlateauRecipe):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # quicker; rounds differently
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    steps = recipe.epochs * -(-len(train) // recipe.batch_size)
    schedule = _Schedule(recipe, optimizer, steps)
    history: list[float] = []
    with _own_random():
        for epoch in range(1, recipe.epochs + 1):
            torch.manual_seed(seed_of(seed, epoch))
            fresh = isinstance(recipe, PlateauRecipe)
            samples = Draw(train, seed_of(seed, epoch, 1)) if fresh else train
            model.train()
            for rows in torch.randperm(len(train)).split(recipe.batch_size):
                x, y = samples.take(rows)
                optimizer.zero_grad(set_to_none=True)
                out = model((augmented(x) if recipe.augment and not fresh else x).to(device))
                F.cross_entropy(out, y.to(device), label_smoothing=recipe.smoothing).backward()
                optimizer.step()
                schedule.after_step()
            history.append(accuracy(model, test, device))
            schedule.after_epoch(history[-1])
            if each is not None:
                each(epoch, model, history[-1])
    return Pretrained(model.eval(), history)


class _Schedule:
    """Of the learning rate: by steps on a cosine, or by epochs where the accuracy has stalled."""

    def __init__(self, recipe: Recipe, optimizer: torch.optim.Optimizer, steps: int) -> None:
        schedulers = torch.optim.lr_scheduler
        self.by_step = self.by_epoch = None
        if isinstance(recipe, PlateauRecipe):
            self.by_epoch = schedulers.ReduceLROnPlateau(
                optimizer, "max", factor=recipe.factor, patience=recipe.patience, threshold=0.0
            )
        else:
            self.by_step = schedulers.LambdaLR(optimizer, lambda step: recipe.rate(step, steps))

    def after_step(self) -> None:
        if self.by_step is not None:
            self.by_step.step()

    def after_epoch(self, accuracy: float) -> None:
        if self.by_epoch is not None:
            self.by_epoch.step(accuracy)


@torch.no_grad()
def accuracy(model: nn.Module, images: Images, device: str = "cpu", batch: int = 512) -> float:
    """The share of samples whose highest output is their label."""
    model.eval()
    right = 0
    for rows in torch.arange(len(images)).split(batch):
        x, y = images.take(rows)
        right += int((model(x.to(device)).argmax(1) == y.to(device)).sum())
    return right / len(images)


def augmented(x: Tensor) -> Tensor:
    """Each image mirrored or not, and shifted, zeros coming in. x: (b, c, h, w)."""
    b, _, h, w = x.shape
    reach = h // 8
    x = torch.where(torch.rand(b, 1, 1, 1) < 0.5, x.flip(-1), x)
    padded = F.pad(x, (reach, reach, reach, reach))
    top, left = torch.randint(0, 2 * reach + 1, (2, b, 1))
    rows, columns = top + torch.arange(h), left + torch.arange(w)
    return padded[torch.arange(b)[:, None, None], :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def _own_random() -> AbstractContextManager[None]:
    """Leaves torch's random state as it was; nothing here draws from numpy's or Python's."""
    return torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else [])


def _stem(dataset: str) -> str:
    return "cifar" if dataset.startswith("cifar") else "imagenet"


def _vit(dataset: str) -> str:
    return "cifar100" if dataset.startswith("cifar") else "tiny-imagenet"


def _classes(dataset: str) -> int:
    return SETS[dataset].classes
