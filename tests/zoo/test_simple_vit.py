"""SimpleViT: the sizes of Supplement B.2, its pre-norm variant, a reverse path to every l_R."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from frpt import Reverser
from frpt.errors import OptionError
from frpt.zoo import simple_vit

BLOCK = 3 * 192 * 193 + 192 * 193 + 384 * 193 + 192 * 385
"""Query, key and value, projection, Linear(192, 384), Linear(384, 192), all with bias."""


@pytest.mark.parametrize(
    ("name", "size", "patch", "classes"), [("cifar100", 32, 4, 100), ("tiny-imagenet", 64, 8, 200)]
)
def test_sizes_and_counts(name: str, size: int, patch: int, classes: int) -> None:
    model, shapes = simple_vit(name), {}
    for part, module in model.named_modules():
        module.register_forward_hook(lambda m, a, out, part=part: shapes.update({part: tuple(out.shape[1:])}))
    model(torch.randn(1, 3, size, size))
    assert shapes["patch_embed"] == (192, 8, 8)
    assert [shapes[model.layers[str(i)]] for i in range(1, 10)] == [(65, 192)] * 9
    assert shapes[model.layers["10"]] == (192,)
    assert shapes[""] == (classes,)
    assert list(model.layers) == [str(i) for i in range(1, 11)] + ["out"]
    embedding = 192 * (3 * patch**2 + 1) + 192 + 65 * 192
    assert sum(p.numel() for p in model.parameters()) == embedding + 9 * BLOCK + 193 * classes
    assert not any(isinstance(m, nn.LayerNorm) for m in model.modules())


def test_a_block_is_what_the_paper_says() -> None:
    """Against torch's own multi-head attention with 12 heads, and the MLP written out."""
    model = simple_vit("cifar100", depth=1).double()
    block = model.blocks[0]
    reference = nn.MultiheadAttention(192, 12, batch_first=True).double()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    reference.in_proj_weight.data, reference.in_proj_bias.data = block.attn.qkv.weight.data, block.attn.qkv.bias.data
    x = torch.randn(2, 65, 192, dtype=torch.float64)
    reference.out_proj.load_state_dict(block.attn.proj.state_dict())
    z = x + reference(x, x, x)[0]
    z = z + nn.functional.gelu(z @ block.mlp.fc1.weight.T + block.mlp.fc1.bias) @ block.mlp.fc2.weight.T
    torch.testing.assert_close(block(x), z + block.mlp.fc2.bias)


def test_the_class_token_alone_reaches_the_output() -> None:
    model = simple_vit("cifar100", depth=1)
    tokens = torch.randn(2, 65, 192)
    changed = torch.cat([tokens[:, :1], torch.randn(2, 64, 192)], 1)
    assert torch.equal(model.token(tokens), model.token(changed))


def test_pre_norm_variant() -> None:
    model = simple_vit("cifar100", norm="pre", num_classes=10, depth=2).eval()
    assert sum(isinstance(m, nn.LayerNorm) for m in model.modules()) == 5
    plain = simple_vit("cifar100", num_classes=10, depth=2)
    extra = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in plain.parameters())
    assert extra == 5 * 2 * 192
    block, x = model.blocks[0], 100 * torch.randn(1, 65, 192)
    torch.testing.assert_close(block(x) - x, block(2 * x) - 2 * x, atol=2e-2, rtol=1e-3)  # the norm takes the scale
    rev = Reverser(model, torch.randn(2, 3, 32, 32))
    lengths = [len(rev.plan(at).units) for at in model.layers.values()]
    assert lengths == sorted(set(lengths), reverse=True)


def test_every_l_r_has_a_reverse_path() -> None:
    model = simple_vit("tiny-imagenet", num_classes=10, depth=2).eval()
    x = torch.randn(3, 3, 64, 64)
    rev = Reverser(model, x[:2])
    assert list(model.layers) == ["1", "2", "3", "out"]
    lengths = [len(rev.plan(at).units) for at in model.layers.values()]
    assert lengths == sorted(set(lengths), reverse=True)
    assert rev.shape(model.layers["1"]) == "(b, 65, 192)"  # any batch size
    y = torch.tensor([3, 4, 5])
    rec = rev.reconstruct(x, y, at=model.layers["3"])
    out = rev.run(x, model.layers["3"], rec.target)
    assert (out.gather(1, y[:, None]) >= out.max(1, keepdim=True).values - 1e-4).all()


def test_bad_arguments_name_the_choices() -> None:
    with pytest.raises(OptionError, match="cifar100, tiny-imagenet"):
        simple_vit("mnist")
    with pytest.raises(OptionError, match="none, pre"):
        simple_vit("cifar100", norm="post")
    with pytest.raises(OptionError, match="depth"):
        simple_vit("cifar100", depth=0)
