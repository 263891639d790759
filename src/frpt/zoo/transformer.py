"""Blocks of vision transformers, named as in timm; with or without layer norm."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention. x: (b, n, d), split into ``heads`` parts of d / heads."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(b, n, d))
        return out


class Mlp(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.drop = dropped(dropout)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.drop(self.act(self.fc1(x))))
        return out


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); the norms are identities where ``norm`` is False.

    dropout: where torch's TransformerEncoderLayer has it: attention weights, after GELU, before both additions.
    """

    def __init__(
        self, width: int, heads: int, hidden: int, norm: bool, *, eps: float = 1e-6, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = normed(width, norm, eps), normed(width, norm, eps)
        self.attn = Attention(width, heads, dropout)
        self.mlp = Mlp(width, hidden, dropout)
        self.drop = dropped(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.norm1(x)))
        out: Tensor = x + self.drop(self.mlp(self.norm2(x)))
        return out


class ClassToken(nn.Module):
    """The first token: (b, n, d) → (b, d). A module, so that the value has a name."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def normed(width: int, norm: bool, eps: float = 1e-6) -> nn.Module:
    return nn.LayerNorm(width, eps=eps) if norm else nn.Identity()


def dropped(share: float) -> nn.Module:
    return nn.Dropout(share) if share else nn.Identity()


def start(model: nn.Module) -> None:
    """Truncated normal weights of standard deviation 0.02 and zero biases for the linear maps."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
