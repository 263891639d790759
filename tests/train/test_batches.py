"""Batches and seeds: the quick ways give what the plain ones give."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from frpt.datasets.seeds import own_random, seed_all, stream
from frpt.train.batches import fetch


class Whole(Dataset[tuple[Tensor, Tensor]]):
    """Gives samples as a batch, and refuses to give one."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        raise AssertionError("a batch was asked for")

    def __getbatch__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return torch.tensor(indices).float(), torch.tensor(indices)


def test_a_tensor_data_set_is_fetched_as_its_items_are_collated() -> None:
    data = TensorDataset(torch.randn(9, 2, 3), torch.arange(9))
    inputs, labels = fetch(data, [4, 0, 4])
    plain = default_collate([data[i] for i in (4, 0, 4)])
    assert torch.equal(inputs, plain[0])
    assert torch.equal(labels, plain[1])


def test_a_data_set_may_give_whole_batches() -> None:
    inputs, labels = fetch(Whole(), range(2, 5))
    assert inputs.tolist() == labels.tolist() == [2, 3, 4]


def test_the_seed_of_a_key_is_torchs() -> None:
    with own_random():
        seed_all(3, 1)
        ours = torch.rand(4)
        torch.manual_seed(stream(3, 1))
        assert torch.equal(ours, torch.rand(4))
