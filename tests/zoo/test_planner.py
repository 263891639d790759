"""The NAVSIM planners: sizes of Supplement B.2, two inputs, a regressed trajectory, pretrained weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from frpt import Reverser
from frpt.errors import CheckpointError, OptionError
from frpt.zoo import Planner, PlannerOptions, planner
from frpt.zoo.planner import ViT, resized
from frpt.zoo.transformer import Block
from tests.zoo.test_resnet import torchvision_entries

STATUS = 8 * 64 + 64 * 3 + 64 * 128 + 128 * 3
HEADS = 2 * (128 + 1) * 512
PLANNING = 512 * 256 + 256 * 3 + 256 * 256 + 256 * 3 + 257 * 24
"""FC weights; bias, norm weight and norm bias; then the trajectory head."""
IMAGES = {
    "resnet34": 21_797_672 + 512 * 4 * 512 + 512 * 3,
    "vit_b16": 86_567_656 + (257 - 197) * 768 + 769 * 512,
}
"""The public counts of both backbones with their classification head; ViT-B/16 has 197 positions at 224 × 224."""
SIZES = {
    "resnet34": {
        "backbone.relu": (64, 128, 512), "backbone.maxpool": (64, 64, 256), "backbone.layer1": (64, 64, 256),
        "backbone.layer2": (128, 32, 128), "backbone.layer3": (256, 16, 64), "backbone.layer4": (512, 8, 32),
    },
    "vit_b16": {
        "backbone.patch_embed.proj": (768, 16, 64), "backbone.blocks.0": (257, 768), "backbone.blocks.11": (257, 768),
        "backbone.norm": (257, 768), "backbone.token": (768,),
    },
}  # fmt: skip
FUSED = {"project": (512,), "status": (128,), "fusion.gamma": (512,), "fusion.beta": (512,), "fusion": (512,),
         "planning1": (256,), "planning2": (256,), "trajectory": (24,), "": (8, 3)}  # fmt: skip
LAYERS = {
    "resnet34": ["ResNet z_3", "ResNet z_4", "fusion z", "planning z_1", "planning z_2", "out"],
    "vit_b16": [
        "ViT encoder layer 10 output", "ViT final CLS token", "image embedding", "fusion z", "planning z_1",
        "planning z_2", "out",
    ],
}  # fmt: skip


@pytest.mark.parametrize("backbone", IMAGES)
def test_sizes_counts_and_names(backbone: str) -> None:
    shapes: dict[str, tuple[int, ...]] = {}
    with torch.device("meta"):
        model = planner(backbone)
        for name, module in model.named_modules():
            module.register_forward_hook(lambda m, a, out, name=name: shapes.update({name: tuple(out.shape[1:])}))
        model(torch.empty(1, 3, 256, 1024), torch.empty(1, 8))
    for name, size in (SIZES[backbone] | FUSED).items():
        assert shapes[name] == size, name
    assert sum(p.numel() for p in model.parameters()) == IMAGES[backbone] + STATUS + HEADS + PLANNING
    assert list(model.layers) == LAYERS[backbone]


@pytest.fixture(scope="module")
def small() -> tuple[Planner, Reverser, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = planner("resnet34", PlannerOptions(pool=(1, 2))).eval()
    inputs = (torch.rand(2, 3, 32, 64), torch.randn(2, 8))
    return model, Reverser(model, inputs), inputs


def test_every_l_r_of_the_resnet_planner(small: tuple[Planner, Reverser, tuple[Tensor, Tensor]]) -> None:
    model, rev, inputs = small
    lengths = [len(rev.plan(at).units) for at in model.layers.values()]
    assert lengths == sorted(set(lengths), reverse=True)
    assert "status.0.0.weight" not in rev.upstream(model.layers["ResNet z_4"])  # the status is a side input
    wanted = model(*inputs).detach() + 0.05
    rec = rev.reconstruct(inputs, wanted, at=model.layers["planning z_2"])
    reached = rev.run(inputs, model.layers["planning z_2"], rec.target)
    torch.testing.assert_close(reached, wanted, atol=1e-3, rtol=1e-3)


def test_every_l_r_of_the_vit_planner() -> None:
    """All twelve blocks, but narrow ones."""
    with torch.device("meta"):
        layers = planner("vit_b16").layers
    model = Planner(ViT((1, 2), 48, 12), nn.Linear(48, 512), PlannerOptions(), layers).eval()
    rev = Reverser(model, (torch.rand(2, 3, 16, 32), torch.randn(2, 8)))
    lengths = [len(rev.plan(at).units) for at in model.layers.values()]
    assert lengths == sorted(set(lengths), reverse=True)
    assert model.layers["ViT encoder layer 10 output"] == "backbone.blocks.10"  # the paper's code counts from zero
    assert rev.shape("backbone.blocks.10") == "(b, 3, 48)"


def test_fusion_is_the_papers_equation(small: tuple[Planner, Reverser, tuple[Tensor, Tensor]]) -> None:
    fusion = small[0].fusion
    image, status = torch.randn(3, 512), torch.randn(3, 128)
    gamma = status @ fusion.gamma.weight.T + fusion.gamma.bias
    beta = status @ fusion.beta.weight.T + fusion.beta.bias
    torch.testing.assert_close(fusion(image, status), (1 + 0.1 * gamma.tanh()) * image + beta)
    for head in (fusion.gamma, fusion.beta):
        assert head.bias.abs().max() == 0
        assert float(head.weight.detach().std()) == pytest.approx(1e-3, rel=0.05)
    slopes = [m.negative_slope for m in small[0].modules() if isinstance(m, nn.LeakyReLU)]
    assert slopes == [0.5, 0.5]


def test_the_image_is_normalised(small: tuple[Planner, Reverser, tuple[Tensor, Tensor]]) -> None:
    model, _, (image, status) = small
    own = planner("resnet34", PlannerOptions(pool=(1, 2), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))).eval()
    own.load_state_dict(model.state_dict())
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    seen = (image - mean.reshape(3, 1, 1)) / std.reshape(3, 1, 1)
    torch.testing.assert_close(own(seen, status), model(image, status))


def timm_entries() -> dict[str, tuple[int, ...]]:
    """The names and shapes in timm's state dict of vit_base_patch16_224; compared once with timm 1.0's own."""
    found: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, 768), "pos_embed": (1, 197, 768)}
    found |= {"patch_embed.proj.weight": (768, 3, 16, 16), "patch_embed.proj.bias": (768,)}
    maps = {"attn.qkv": (2304, 768), "attn.proj": (768, 768), "mlp.fc1": (3072, 768), "mlp.fc2": (768, 3072)}
    for i in range(12):
        for norm in ("norm1", "norm2"):
            found |= {f"blocks.{i}.{norm}.weight": (768,), f"blocks.{i}.{norm}.bias": (768,)}
        for name, shape in maps.items():
            found |= {f"blocks.{i}.{name}.weight": shape, f"blocks.{i}.{name}.bias": shape[:1]}
    return found | {"norm.weight": (768,), "norm.bias": (768,), "head.weight": (1000, 768), "head.bias": (1000,)}


ENTRIES = {"resnet34": torchvision_entries("34", 1000), "vit_b16": timm_entries()}


@pytest.mark.parametrize("backbone", ENTRIES)
def test_public_weights_load_into_the_backbone(backbone: str) -> None:
    model = planner(backbone)
    weights = {name: torch.full(shape, 0.5) for name, shape in ENTRIES[backbone].items()}
    before = {name: value.clone() for name, value in model.state_dict().items() if not name.startswith("backbone.")}
    model.load_backbone(weights)
    own = model.backbone.state_dict()
    assert set(own) == set(weights)
    assert all(bool((value == 0.5).all()) for name, value in own.items() if value.is_floating_point())
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    other = next(name for name in ENTRIES if name != backbone)
    strange = {name: torch.empty(shape) for name, shape in ENTRIES[other].items()}
    with pytest.raises(CheckpointError, match=r"torchvision's ResNet-34|timm's ViT-B/16"):
        model.load_backbone(strange)


def test_the_vits_statistics_norms_and_dropout_are_the_papers() -> None:
    with torch.device("meta"):
        model = planner("vit_b16")
    small = Planner(ViT((1, 2), 48, 12, 1), nn.Linear(48, 512), PlannerOptions(), model.layers)
    assert small.mean.unique().tolist() == [0.5]
    assert small.std.unique().tolist() == [0.5]
    norms = {m.eps for m in model.backbone.modules() if isinstance(m, nn.LayerNorm)}
    assert norms == {1e-5}
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.1}
    x = (torch.rand(1, 3, 16, 32), torch.randn(1, 8))
    assert not torch.equal(small.train()(*x), small(*x))
    assert torch.equal(small.eval()(*x), small(*x))
    without = Planner(ViT((1, 2), 48, 12, 1, dropout=0.0), nn.Linear(48, 512), PlannerOptions(), model.layers).train()
    assert torch.equal(without(*x), without(*x))


def test_a_block_is_torchs_encoder_layer() -> None:
    """Pre-norm with GELU, and its dropout in the same places: as many values are dropped, of the same scale."""
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(24, 2, 96, 0.1, "gelu", batch_first=True, norm_first=True)
    ours = Block(24, 2, 96, norm=True, eps=1e-5, dropout=0.1)
    names = {"self_attn.in_proj_": "attn.qkv.", "self_attn.out_proj": "attn.proj", "linear": "mlp.fc"}
    weights = theirs.state_dict()
    for old, new in names.items():
        weights = {name.replace(old, new): value for name, value in weights.items()}
    ours.load_state_dict(weights)
    x = torch.randn(2, 5, 24)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
    many = torch.randn(1, 5, 24).expand(4000, 5, 24)
    spread = [block.train()(many).detach().std(0) for block in (ours, theirs)]
    torch.testing.assert_close(*spread, rtol=0.1, atol=0.01)


def test_pretrained_positions_are_interpolated() -> None:
    torch.manual_seed(0)
    with torch.device("meta"):
        layers = planner("vit_b16").layers
    square, wide = ViT((4, 4), 24, 2, 1), ViT((2, 8), 24, 2, 1)
    square.pos_embed.data[:, 1:] = torch.linspace(0, 1, 4).repeat_interleave(4).reshape(1, 16, 1)  # grows downwards
    Planner(wide, nn.Linear(24, 512), PlannerOptions(), layers).load_backbone(square.state_dict())
    assert torch.equal(wide.pos_embed[:, 0], square.pos_embed[:, 0])
    grid = wide.pos_embed[0, 1:, 0].reshape(2, 8)
    torch.testing.assert_close(grid, grid[:, :1].expand(2, 8))
    assert grid[1, 0] > grid[0, 0] + 0.3
    assert torch.equal(wide.blocks[0].attn.qkv.weight, square.blocks[0].attn.qkv.weight)
    assert torch.equal(resized(square.pos_embed, (4, 4)), square.pos_embed)
    with pytest.raises(OptionError, match="square"):
        resized(torch.zeros(1, 8, 4), (2, 2))


def test_bad_arguments_name_the_choices() -> None:
    with pytest.raises(OptionError, match="resnet34, vit_b16"):
        planner("resnet50")
    with pytest.raises(OptionError, match="pool"):
        PlannerOptions(pool=(0, 8))
    with pytest.raises(OptionError, match="std"):
        PlannerOptions(std=(1.0, 1.0))
    with pytest.raises(OptionError, match="std"):
        PlannerOptions(std=(1.0, 1.0, 0.0))
    with pytest.raises(OptionError, match="dropout"):
        PlannerOptions(dropout=1.0)
