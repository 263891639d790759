"""Labelled images: in memory as uint8, or decoded when they are asked for. Every look gives the same values.

What ``frpt.data.load`` returns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from frpt.data.decode import decode_all
from frpt.data.records import Records
from frpt.data.sets import Info
from frpt.errors import OptionError


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Item i: (image (c, size, size) float32, class id). Images are normalised per channel, or else in [0, 1].

    Args:
        info: What is known of the data set.
        split: "train" or "test".
        size: Of the images in pixels.
        labels: Class ids of the whole split.
        source: Pixels of the whole split, (N, c, size, size) uint8; or records, which are decoded at every look.
        normalize: Subtract the channels' mean, divide by their deviation.
        rows: (n,) places in the whole split of the samples that are here; all by default.

    Example:
        >>> train = frpt.data.load("digits")
        >>> rest, tune = train.hold_out(0.1, seed=0)
        >>> len(rest), len(tune)
        (3601, 399)
        >>> rest.select([5, 2]).labels.equal(rest.labels[[5, 2]])
        True
    """

    def __init__(
        self,
        info: Info,
        split: str,
        size: int,
        labels: Tensor,
        source: Tensor | Records,
        normalize: bool = True,
        rows: Tensor | None = None,
    ) -> None:
        self.info, self.split, self.size, self.normalize = info, split, size, normalize
        self._source, self._labels = source, labels
        self._rows = torch.arange(len(labels)) if rows is None else rows

    def __repr__(self) -> str:
        shape = (self.info.channels, self.size, self.size)
        return f"Images({self.info.name!r}, {self.split!r}: {len(self)} images {shape}, {self.info.classes} classes)"

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(*self.__getbatch__(indices), strict=True))

    def __getbatch__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Some samples as a batch, in one step: (k, c, size, size) float32 and (k,)."""
        n = len(self)
        if any(not -n <= i < n for i in indices):
            raise IndexError(f"samples are 0 to {n - 1}")
        return self._fetch(self._rows[torch.as_tensor(list(indices), dtype=torch.int64)])

    @property
    def labels(self) -> Tensor:
        """(n,) class ids."""
        return self._labels[self._rows]

    @property
    def rows(self) -> Tensor:
        """(n,) places of the samples in the whole split."""
        return self._rows

    @property
    def complete(self) -> bool:
        """Whether there are as many samples as the data set's split has, and not a part of them."""
        return len(self) == self.info.counts[0 if self.split == "train" else 1]

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """All images and labels at once: (n, c, size, size) float32 and (n,)."""
        return self._fetch(self._rows)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Some samples as a batch: (k, c, size, size) float32 and (k,). indices: (k,), from 0."""
        return self._fetch(self._rows[indices])

    def select(self, indices: Sequence[int] | Tensor) -> Images:
        """Some of the samples, in this order."""
        rows = self._rows[torch.as_tensor(indices, dtype=torch.int64)]
        return Images(self.info, self.split, self.size, self._labels, self._source, self.normalize, rows)

    def hold_out(self, share: float = 0.1, seed: int = 0) -> tuple[Images, Images]:
        """(the rest, a share drawn by the seed), e.g. to choose c_rec on; each class keeps its proportion."""
        if not 0 < share < 1:
            raise OptionError(f"share must be within (0, 1), got {share}")
        generator, drawn = torch.Generator().manual_seed(seed), torch.zeros(len(self), dtype=torch.bool)
        for label in self.labels.unique():
            own = (self.labels == label).nonzero()[:, 0]
            drawn[own[torch.randperm(len(own), generator=generator)[: round(share * len(own))]]] = True
        places = torch.arange(len(self))
        return self.select(places[~drawn]), self.select(places[drawn])

    def _fetch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self._source, Tensor):
            pixels = self._source[rows]
        else:
            pixels = decode_all(self._source, rows.tolist(), self.info, self.size)
        x = pixels.float().div_(255)
        if self.normalize:
            mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (self.info.mean, self.info.std))
            x.sub_(mean).div_(std)
        return x, self._labels[rows]
