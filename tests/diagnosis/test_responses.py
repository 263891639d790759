"""Response maps against captum, against hooks and autograd, and against the formula by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captum.attr import LayerGradCam
from torch import Tensor, nn

import frpt
from frpt.diagnosis.responses import grad_cam, picture, responses
from tests.diagnosis.nets import hugging_face, line, made, simple_cnn, solid
from tests.models import Planner, ResNet, Segmenter, ViT


def near(found: Tensor, expected: Tensor, scale: Tensor | None = None) -> None:
    """Within 1e-5 of the largest value of the map (or of ``scale``, where the map may be zero)."""
    largest = float((expected if scale is None else scale).abs().max())
    assert found.shape == expected.shape
    assert largest > 0
    assert float((found - expected).abs().max()) <= 1e-5 * largest


CAPTUM = [
    *[(simple_cnn, layer, c) for layer in ("stage1", "stage2.0", "stage3") for c in (0, 7)],
    *[(ResNet, layer, c) for layer in ("stem.1", "layer1", "layer2.0.conv1", "layer2") for c in (1, 4)],
]


@pytest.mark.parametrize(("factory", "layer", "score"), CAPTUM)
def test_grad_cam_is_captums(factory: object, layer: str, score: int) -> None:
    model, x, rev = made(factory)
    captum = LayerGradCam(model, model.get_submodule(layer))
    plain = captum.attribute(x, target=score, relu_attributions=False).detach().squeeze(1)
    near(grad_cam(rev, x, layer, score, relu=False), plain)
    relu = captum.attribute(x, target=score, relu_attributions=True).detach().squeeze(1)
    near(grad_cam(rev, x, layer, score), relu, plain)


def test_a_class_per_sample() -> None:
    model, x, rev = made(simple_cnn)
    ids = torch.tensor([3, 0, 9, 3])
    expected = LayerGradCam(model, model.stage2).attribute(x, target=ids, relu_attributions=True)  # type: ignore
    near(grad_cam(rev, x, "stage2", ids), expected.detach().squeeze(1))


def hooked(model: nn.Module, x: Tensor, module: str, ids: Tensor, put: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A module's value and its gradient, by a hook on a model of the tests' own."""
    kept: list[Tensor] = []

    def hook(_: nn.Module, __: object, out: Tensor) -> Tensor:
        kept.append((out if put is None else put).detach().clone().requires_grad_())
        return kept[0]

    handle = model.get_submodule(module).register_forward_hook(hook)
    out = model(x)
    handle.remove()
    out = getattr(out, "logits", out)
    out[torch.arange(len(x)), ids].sum().backward()
    model.zero_grad()
    return kept[0].detach(), kept[0].grad  # type: ignore[return-value]


TOKENS = [
    (ViT, "layers.0", (4, 4)),
    (ViT, "layers.1.norm2", (4, 4)),
    (hugging_face, "vit.layers.0", (4, 6)),
]


@pytest.mark.parametrize(("factory", "layer", "grid"), TOKENS)
def test_tokens(factory: object, layer: str, grid: tuple[int, int]) -> None:
    model, x, rev = made(factory)
    ids = torch.tensor([0, 4, 2, 1])
    a, g = hooked(model, x, layer, ids)
    expected = torch.stack([
        (ai * gi.mean(0)).sum(1)[1:].reshape(grid).clamp_min(0) for ai, gi in zip(a, g, strict=True)
    ])  # fmt: skip
    near(grad_cam(rev, x, layer, ids), expected)


def by_hand(factory: object, layer: str, y: Tensor) -> list[tuple[Tensor, ...]]:
    """(forward, reconstructed, difference) of every sample, from hooks and loops."""
    model, x, rev = made(factory)
    rec = rev.reconstruct(x, y, at=layer)
    with torch.no_grad():
        predicted = model(x).argmax(1)
    a, g = hooked(model, x, layer, predicted)
    target, slope = hooked(model, x, layer, y, rec.target)
    result = []
    for i in range(len(x)):
        maps = []
        for feature, gradient in ((a[i], g[i]), (target[i], slope[i]), (target[i] - a[i], slope[i])):
            cam = sum(gradient[c].mean() * feature[c] for c in range(len(feature))).clamp_min(0)
            maps.append(cam / cam.max() if cam.max() > 0 else cam)
        result.append(tuple(maps))
    return result


@pytest.mark.parametrize(("factory", "layer"), [(simple_cnn, "stage2"), (ResNet, "layer2")])
def test_responses_follow_the_paper(factory: object, layer: str) -> None:
    model, x, rev = made(factory)
    with torch.no_grad():
        out = model(x)
    y = (out.argmax(1) + torch.tensor([1, 2, 0, 1])) % out.shape[1]  # the third sample is right
    found = responses(rev, x, y, rev.reconstruct(x, y, at=[layer]))
    assert len(found) == len(x)
    for sample, maps in zip(found, by_hand(factory, layer, y), strict=True):
        got = sample[layer]
        assert got.kind == "map"
        for array, expected in zip((got.forward, got.reconstructed, got.difference), maps, strict=True):
            assert array.min() >= 0
            assert array.max() <= 1
            np.testing.assert_allclose(array, expected.numpy(), atol=2e-4)
    assert not found[2][layer].difference.any()
    assert found[0][layer].difference.max() == 1


def test_vectors_attribute_channels() -> None:
    model, x, rev = made(simple_cnn)
    y = torch.tensor([1, 2, 3, 4])
    rec = rev.reconstruct(x, y, at="stage4")
    a, g = hooked(model, x, "stage4", y, rec.target)
    got = responses(rev, x, y, {"stage4": rec})
    for i, sample in enumerate(got):
        response = sample["stage4"]
        assert response.kind == "vector"
        assert response.forward.shape == (128,)
        for array, feature in ((response.reconstructed, a[i]), (response.difference, a[i] - rec.anchor[i])):
            expected = feature * g[i]
            np.testing.assert_allclose(array, (expected / expected.abs().max()).numpy(), atol=1e-5)
            assert abs(np.abs(array).max() - 1) < 1e-6


@pytest.mark.parametrize(
    ("factory", "layer", "shape"), [(line, "1", (1, 10)), (solid, "2", (4, 5)), (hugging_face, "vit.layers.0", (4, 6))]
)
def test_maps_are_flat(factory: object, layer: str, shape: tuple[int, int]) -> None:
    """A line is one row, a volume is seen through its depth, tokens lie where their patches were."""
    _, x, rev = made(factory)
    y = torch.tensor([0, 1, 2, 0])
    rec = rev.reconstruct(x, y, at=[layer])
    for i, sample in enumerate(responses(rev, x, y, rec)):
        assert sample[layer].difference.shape == shape
        cam = grad_cam(rev, x, layer, y, rec[layer].target)[i].double()
        flat = cam.reshape(-1, *shape).mean(0)
        expected = flat / flat.max() if flat.max() > 0 else flat
        np.testing.assert_allclose(sample[layer].reconstructed, expected.numpy(), atol=1e-6)


def test_half_precision_is_summed_in_single() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(80, 4)).bfloat16().eval()
    x = torch.randn(2, 3, 6, 6).bfloat16()
    found = grad_cam(frpt.Reverser(model, x), x, "1", 2, relu=False)
    a = model[1](model[0](x)).detach().float()
    g = model[3].weight[2].detach().float().reshape(5, 4, 4)  # the score is linear in the feature
    near(found, torch.einsum("c,bchw->bhw", g.mean((1, 2)), a))


def test_the_output_itself_is_a_layer() -> None:
    _, x, rev = made(simple_cnn)
    y = torch.tensor([1, 2, 3, 4])
    for i, sample in enumerate(responses(rev, x, y, rev.reconstruct(x, y, at=["out"]))):
        assert set(np.flatnonzero(sample["out"].reconstructed)) <= {int(y[i])}


def test_regression_looks_along_the_correction() -> None:
    torch.manual_seed(0)
    model = Planner().eval()
    x = {"image": torch.randn(3, 3, 8, 8), "status": torch.randn(3, 4)}
    rev = frpt.Reverser(model, x)
    with torch.no_grad():
        out = model(**x)
    y = out + torch.randn(3, 8, 3, generator=torch.Generator().manual_seed(1))
    rec = rev.reconstruct(x, y, at=["backbone.1"])
    got = responses(rev, x, y, rec)
    feature = rec["backbone.1"].anchor.clone().requires_grad_()
    tail = model.backbone[3](model.backbone[2](feature)) * torch.sigmoid(model.status(x["status"]))
    again = model.plan(tail).unflatten(1, (8, 3))
    for i in range(3):
        unit = (y[i] - out[i]) / (y[i] - out[i]).norm()
        (g,) = torch.autograd.grad((again[i] * unit).sum(), feature, retain_graph=True)
        cam = (g[i].mean((1, 2), keepdim=True) * feature[i]).sum(0).clamp_min(0).detach()
        np.testing.assert_allclose(got[i]["backbone.1"].forward, (cam / cam.max()).numpy(), atol=1e-4)


def test_labels_per_pixel() -> None:
    torch.manual_seed(0)
    model = Segmenter().eval()
    x, y = torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8))
    y[0, :2] = -100
    rev = frpt.Reverser(model, x)
    rec = rev.reconstruct(x, y, at=["down"])
    got = responses(rev, x, y, rec)
    feature = rec["down"].target.clone().requires_grad_()
    out = model.head(model.up(feature))
    kept = torch.where(y == -100, 0, y)
    total = (out.gather(1, kept[:, None])[:, 0] * (y != -100)).sum()
    (g,) = torch.autograd.grad(total, feature)
    cam = (g.mean((2, 3), keepdim=True) * feature).sum(1).clamp_min(0).detach()
    for i in range(2):
        np.testing.assert_allclose(got[i]["down"].reconstructed, (cam[i] / cam[i].max()).numpy(), atol=1e-4)


def test_the_model_is_untouched_also_after_failure() -> None:
    model, x, rev = made(ResNet)
    model.train()
    try:
        before = {n: t.clone() for n, t in model.state_dict().items()}
        grad_cam(rev, x, "layer1", 0)
        with pytest.raises(frpt.errors.LabelError, match="0 to 4"):
            grad_cam(rev, x, "layer1", 5)
        with pytest.raises(frpt.errors.InputError, match="layer1"):
            grad_cam(rev, x, "layer1", 0, torch.zeros(4, 8, 2, 2))
        assert all(m.training for m in model.modules())
        assert not any(m._forward_hooks or m._backward_hooks or m._forward_pre_hooks for m in model.modules())
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
        assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    finally:
        model.eval()


def test_run_on_agrees_with_run() -> None:
    _, x, rev = made(ResNet)
    value = torch.randn(4, 8, 8, 8)
    a, out = rev.run_on(x, "layer1", value)
    assert a.requires_grad
    assert torch.equal(a, value)
    assert torch.allclose(out, rev.run(x, "layer1", value), atol=1e-6)


def test_pictures() -> None:
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (3, 6, 8), generator=g, dtype=torch.uint8)
    expected = pixels.permute(1, 2, 0).numpy()
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
    shifted = (pixels / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert np.array_equal(picture(shifted, mean, std), expected)
    assert np.array_equal(picture(shifted.permute(1, 2, 0), mean, std), expected)
    assert np.array_equal(picture(pixels), expected)
    assert np.array_equal(picture({"status": torch.randn(4), "image": shifted}, mean, std), expected)
    stretched = picture(torch.linspace(-3, 5, 48).reshape(1, 6, 8))
    assert stretched.shape == (6, 8, 3)
    assert stretched.dtype == np.uint8
    assert (stretched.min(), stretched.max()) == (0, 255)
    assert (stretched[..., 0] == stretched[..., 2]).all()
    assert not picture(torch.full((1, 6, 8), 2.0)).any()
    for other in (torch.randn(10), torch.randn(5, 7), torch.randn(2, 6, 8), torch.zeros(3, 6, 8).long(), 3.0):
        assert picture(other) is None
    with pytest.raises(frpt.errors.InputError, match="channels"):
        picture(shifted, (0.5, 0.5), (1.0, 1.0))
