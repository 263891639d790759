"""Small data sets and lightly trained networks for the tests of post-training."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt


def blobs(count: int = 48, seed: int = 0, noise: float = 1.2) -> TensorDataset:
    """Four overlapping classes in six dimensions."""
    centres = torch.randn(4, 6, generator=torch.Generator().manual_seed(7))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (count,), generator=g)
    return TensorDataset(centres[y] + noise * torch.randn(count, 6, generator=g), y)


@cache
def _weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = layers()
    x, y = blobs(256, seed=5).tensors
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(15):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.state_dict()


def layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)
    )


def network() -> nn.Sequential:
    """A perceptron that is right about two thirds of the time; layer "3" is in the middle."""
    model = layers()
    model.load_state_dict(_weights())
    return model.eval()


@cache
def reverser() -> frpt.Reverser:
    """A Reverser on ``network()``, made once."""
    return frpt.Reverser(network(), blobs(2).tensors[0])


class Mixed(nn.Module):
    """Batch norm and dropout on both sides of ``body``, and attention whose parameters are read from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU())
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.body = nn.Linear(8, 8)
        self.tail = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        pairs = h.unflatten(1, (2, 4))
        h = h + self.attention(pairs, pairs, pairs, need_weights=False)[0].flatten(1)
        return self.head(self.tail(self.body(h)))


def parameters(model: nn.Module) -> Tensor:
    """All parameters and buffers in a row."""
    tensors = [*model.parameters(), *model.buffers()]
    return torch.cat([t.detach().double().flatten() for t in tensors])


def small_bert() -> nn.Module:
    """A Hugging Face classifier of sequences of thirty tokens into three classes, with the weights of seed 0."""
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8, num_labels=3,
    )  # fmt: skip
    model: nn.Module = transformers.BertForSequenceClassification(config).eval()
    return model
