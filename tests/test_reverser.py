"""Reverser on small awkward networks: names, plans, side inputs, dtypes, and the model untouched."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

import frpt
from frpt.common.batch_axis import BatchAxis
from frpt.errors import (
    CaptureError,
    EvalModeWarning,
    InputError,
    IrreversibleError,
    LabelError,
    NonFiniteError,
    OptionError,
    OutputError,
    UnknownLayerError,
    UnreachableLayerError,
)
from frpt.graph.capture import Captured as Graph
from frpt.graph.inputs import Inputs
from frpt.reverse.forward import usual_size
from tests.conftest import Captured
from tests.models import (
    VGG,
    FixedBatch,
    Outputs,
    Planner,
    ResNet,
    Segmenter,
    SequenceFirst,
    ViT,
    mlp,
)


def images(n: int = 4, size: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def other_labels(output: Tensor) -> Tensor:
    return (output.argmax(1) + 1) % output.shape[1]


def gap(output: Tensor, y: Tensor) -> Tensor:
    """How far the label's score is below the best other."""
    own = output.gather(1, y[:, None]).squeeze(1)
    return output.scatter(1, y[:, None], -torch.inf).amax(1) - own


def snapshot(model: nn.Module) -> dict[str, object]:
    """Everything a user could notice: attributes, hooks, modes, weights and their versions."""
    state: dict[str, object] = {}
    for name, module in model.named_modules():
        state[f"{name}:attributes"] = sorted(vars(module))
        state[f"{name}:training"] = module.training
        state[f"{name}:hooks"] = {k: list(v) for k, v in vars(module).items() if k.endswith("hooks") and v}
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        state[name] = (id(p), p.data_ptr(), p._version, p.requires_grad, p.grad is None, p.detach().clone().tolist())
    return state


NETWORKS = [
    (ResNet, ["layer2", "layer1", "stem", "layer2.0.conv1", "layer1.1.bn2"]),
    (VGG, ["classifier.1", "features", "features.3", "features.0"]),
    (ViT, ["layers.2", "layers.1", "layers.0", "layers.1.mlp.1", "patch"]),
]


@pytest.mark.parametrize(("network", "layer"), [(n, at) for n, layers in NETWORKS for at in layers])
def test_own_prediction_keeps_the_anchor_and_another_label_closes_the_gap(
    captured: Captured, network: type[nn.Module], layer: str
) -> None:
    rev, x = captured(network), images()
    with torch.no_grad():
        output = rev.model(x)
    kept = rev.reconstruct(x, output.argmax(1), at=layer)
    assert torch.equal(kept.target, kept.anchor)
    assert not kept.corrected.any()

    y = other_labels(output)
    rec = rev.reconstruct(x, y, at=layer)
    assert rec.corrected.all()
    assert rec.target.dtype == rec.anchor.dtype == torch.float32
    after = rev.run(x, layer, rec.target)
    closed = 1 - gap(after, y) / gap(output, y)
    assert closed.min() > 0.75, closed
    assert rec.closed.min() > 0.6
    assert torch.isfinite(rec.deviation).all()


def test_run_agrees_with_a_hook_on_the_users_model() -> None:
    torch.manual_seed(0)
    model, x = ResNet().eval(), images()
    rev = frpt.Reverser(model, x)
    with torch.no_grad():
        y = other_labels(model(x))
    rec = rev.reconstruct(x, y, at="layer1")
    handle = model.layer1.register_forward_hook(lambda *_: rec.target)
    with torch.no_grad():
        hooked = model(x)
    handle.remove()
    torch.testing.assert_close(rev.run(x, "layer1", rec.target), hooked)
    with pytest.raises(InputError, match="layer1"):
        rev.run(x, "layer1", rec.target[:, :1])


@pytest.mark.parametrize("layer", ["stem", "layer1", "out"])
def test_nothing_before_a_layer_is_run_where_its_value_is_given(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    rev, x = captured(ResNet), images()
    graph, node = rev.node(layer, Inputs.of(x))
    value = rev.values(x, [layer])[0][layer]
    before, run = graph.behind(node), list[Node]()
    evaluate = Graph.evaluate
    monkeypatch.setattr(Graph, "evaluate", lambda self, n, *rest: run.append(n) or evaluate(self, n, *rest))
    out = rev.run(x, layer, value)
    on = rev.run_on(x, layer, value)[1]
    assert not before & set(run)
    assert torch.equal(out, rev.model(x))
    assert torch.equal(out, on)


def test_anchor_is_what_the_module_returned() -> None:
    torch.manual_seed(0)
    model, x = ResNet().eval(), images()
    seen: dict[str, Tensor] = {}
    for name in ("stem", "layer1", "layer2.0.conv1", "pool", "fc"):
        module = model.get_submodule(name)
        module.register_forward_hook(lambda _m, _i, out, name=name: seen.__setitem__(name, out.detach()))
    with torch.no_grad():
        model(x)
    expected = dict(seen)
    rev = frpt.Reverser(model, x)
    found = rev.reconstruct(x, torch.zeros(4, dtype=torch.long), at=list(expected))
    for name, value in expected.items():
        torch.testing.assert_close(found[name].anchor, value, msg=name)


def test_modules_called_twice_have_a_name_for_every_call(captured: Captured) -> None:
    rev = captured(ResNet)
    assert {"layer1.0.relu@0", "layer1.0.relu@1", "layer1.0.relu"} <= set(rev.layers)
    names = rev._example.names
    assert names["layer1.0.relu"] is names["layer1.0.relu@1"] is names["layer1.0"]
    assert names["layer1.0.relu@0"] is not names["layer1.0.relu@1"]


def test_layers_are_listed_output_first_and_all_of_them_can_be_planned(captured: Captured) -> None:
    for network in (ResNet, VGG, ViT):
        rev = captured(network)
        assert rev.layers[0] == "out"
        assert len(set(rev.layers)) == len(rev.layers)
        for name in rev.layers:
            plan = rev.plan(name)
            assert plan.layer == name
            assert str(plan)


def test_plan_of_a_residual_network(captured: Captured) -> None:
    plan = captured(ResNet).plan("layer1")
    rules = [u.match.rule for u in plan.units]
    assert rules == ["linear", "reshape", "adaptive_avg_pool", "relu", "composite", "relu", "composite"]
    assert plan.units[0].match.case == "I"
    table = str(plan)
    assert "(b, 16, 8, 8)" not in table.splitlines()[0]
    assert "layer2.1/add" in table
    assert "(b, 5) -> (b, 16)" in table


def test_case_two_is_shown() -> None:
    plan = frpt.Reverser(mlp((4, 3, 9, 2)).eval(), torch.randn(2, 4)).plan("1")
    assert [u.match.case for u in plan.units] == ["I", "", "II"]


def test_stages_keep_blocks_whole_and_patterns_do_what_they_say() -> None:
    model, x = ResNet().eval(), images()
    stages = frpt.Reverser(model, x, blocks="stages").plan("stem")
    assert [u.path for u in stages.units if u.composite] == ["layer2.1", "layer2.0", "layer1.1", "layer1.0"]
    assert not any(u.match.rule == "relu" for u in stages.units)
    whole = frpt.Reverser(model, x, blocks=["layer?"]).plan("stem")
    assert [u.name for u in whole.units if u.composite] == ["layer2", "layer1"]
    with pytest.raises(OptionError, match="finest"):
        frpt.Reverser(model, x, blocks="coarse").plan("stem")


def test_whole_blocks_reach_the_target_too() -> None:
    torch.manual_seed(0)
    model, x = ViT().eval(), images()
    with torch.no_grad():
        output = model(x)
    y = other_labels(output)
    rev = frpt.Reverser(model, x, blocks=["layers.*"])
    rec = rev.reconstruct(x, y, at="layers.0")
    assert (1 - gap(rev.run(x, "layers.0", rec.target), y) / gap(output, y)).min() > 0.9


def test_paper_preset_walks_and_reports() -> None:
    torch.manual_seed(0)
    model, x = VGG().eval(), images()
    with torch.no_grad():
        y = other_labels(model(x))
    rev = frpt.Reverser(model, x, preset="paper")
    assert "paper_leaky_relu" in str(rev.plan("features.3"))
    rec = rev.reconstruct(x, y, at="classifier.0")
    assert rec.units[-1].name != "closing"
    assert rec.closed.mean() < 1
    with pytest.raises(OptionError, match="paper"):
        frpt.Reverser(model, x, preset="papers")


def test_several_layers_in_one_sweep_equal_one_by_one() -> None:
    torch.manual_seed(0)
    model, x = ResNet().eval(), images()
    with torch.no_grad():
        y = other_labels(model(x))
    rev = frpt.Reverser(model, x)
    names = ["fc", "layer2", "layer1", "layer2.0.conv1"]
    together = rev.reconstruct(x, y, at=names)
    assert list(together) == names
    for name in names:
        assert torch.equal(together[name].target, rev.reconstruct(x, y, at=name).target)


def test_only_wrong_samples_are_corrected_and_the_batch_does_not_matter() -> None:
    torch.manual_seed(0)
    model, x = VGG().eval(), images(6)
    with torch.no_grad():
        y = model(x).argmax(1)
    y[1], y[4] = (y[1] + 1) % 5, (y[4] + 2) % 5
    rev = frpt.Reverser(model, x)
    rec = rev.reconstruct(x, y, at="features.3")
    assert rec.corrected.tolist() == [False, True, False, False, True, False]
    right = ~rec.corrected
    assert torch.equal(rec.target[right], rec.anchor[right])
    assert (rec.deviation[right] == 0).all()
    for unit in rec.units:
        assert unit.ccp.shape == (6,)
        assert (unit.iterations[right] == 0).all()
    alone = rev.reconstruct(x[1:2], y[1:2], at="features.3")
    torch.testing.assert_close(alone.target[0], rec.target[1], rtol=1e-3, atol=1e-4)


def test_two_inputs_keyword_inputs_and_regression() -> None:
    torch.manual_seed(0)
    model = Planner().eval()
    image, status = images(3), torch.randn(3, 4)
    rev = frpt.Reverser(model, image, kwargs={"status": status})
    with torch.no_grad():
        output = model(image, status=status)
        wanted = rev.run(image, "backbone", model.backbone(image) * 1.2 + 0.05, kwargs={"status": status})
    rec = rev.reconstruct(image, wanted, at="backbone", kwargs={"status": status})
    after = rev.run(image, "backbone", rec.target, kwargs={"status": status})
    assert (after - wanted).norm() < 0.1 * (output - wanted).norm()
    as_dict = frpt.Reverser(model, {"image": image, "status": status})
    again = as_dict.reconstruct({"image": image, "status": status}, wanted, at="backbone")
    torch.testing.assert_close(again.target, rec.target)
    with pytest.raises(LabelError, match="shape"):
        rev.reconstruct(image, wanted[:, :2], at="backbone", kwargs={"status": status})


def test_side_branch_is_held_at_its_forward_value() -> None:
    """A layer on one of two paths: the other keeps its value, whatever happens to this one."""
    torch.manual_seed(0)
    model = Planner().eval()
    image, status = images(3), torch.randn(3, 4)
    rev = frpt.Reverser(model, image, kwargs={"status": status})
    with torch.no_grad():
        output = model(image, status=status)
        wanted = output + 0.05
    rec = rev.reconstruct(image, wanted, at="status", kwargs={"status": status})
    assert not torch.equal(rec.target, rec.anchor)
    handle = model.status.register_forward_hook(lambda *_: rec.target)
    with torch.no_grad():
        hooked = model(image, status=status)
    handle.remove()
    assert (hooked - wanted).norm() < 0.7 * (output - wanted).norm()


@pytest.mark.parametrize("kind", ["dict", "tuple", "dataclass", "scores"])
def test_output_selectors(kind: str) -> None:
    torch.manual_seed(0)
    model, x = Outputs(kind).eval(), torch.randn(4, 6)
    choices: dict[str, list[str | int | None]] = {
        "dict": [None, "logits", 0],
        "tuple": [0],
        "dataclass": [None, "logits", 0],
        "scores": ["scores", 0],
    }
    targets = []
    for selector in choices[kind]:
        rev = frpt.Reverser(model, x, output=selector)
        targets.append(rev.reconstruct(x, torch.tensor([0, 1, 2, 3]), at="body").target)
    assert all(torch.equal(t, targets[0]) for t in targets)
    if kind in ("tuple", "scores"):
        with pytest.raises(OutputError, match="output="):
            frpt.Reverser(model, x)
    with pytest.raises(OutputError, match="nothing"):
        frpt.Reverser(model, x, output="nothing")


def test_per_pixel_labels() -> None:
    torch.manual_seed(0)
    model, x = Segmenter().eval(), images(2, 8)
    with torch.no_grad():
        output = model(x)
    y = output.argmax(1)
    y[0, 2:4, 2:4] = (y[0, 2:4, 2:4] + 1) % 3
    rev = frpt.Reverser(model, x, class_dim=1)
    rec = rev.reconstruct(x, y, at="down")
    assert rec.corrected.tolist() == [True, False]
    assert rec.closed[0] > 0.5


def test_batch_size_is_free_and_fixed_batches_are_captured_again() -> None:
    torch.manual_seed(0)
    dynamic = frpt.Reverser(ResNet().eval(), images(1))
    for n in (1, 2, 5):
        assert dynamic.reconstruct(images(n), torch.arange(n) % 5, at="layer2").target.shape[0] == n
    assert len(dynamic._captures) == 1
    model = FixedBatch().eval()
    for n in (3, 5):
        x = torch.randn(n, 6)
        rev = frpt.Reverser(model, x)
        with torch.no_grad():
            output = model(x)
        y = output.argmax(1)
        y[0] = (y[0] + 1) % 3
        rec = rev.reconstruct(x, y, at="a")
        assert rec.corrected.tolist() == [True] + [False] * (n - 1)
        assert (1 - gap(rev.run(x, "a", rec.target), y)[0] / gap(output, y)[0]) > 0.9


def test_sequence_first_inside() -> None:
    torch.manual_seed(0)
    model, x = SequenceFirst().eval(), torch.randn(3, 5, 4)
    rev = frpt.Reverser(model, x)
    with torch.no_grad():
        output = model(x)
    y = output.argmax(1)
    y[1] = (y[1] + 1) % 3
    rec = rev.reconstruct(x, y, at="encoder")
    assert rec.corrected.tolist() == [False, True, False]
    assert torch.equal(rec.target[:, [0, 2]], rec.anchor[:, [0, 2]])
    after = rev.run(x, "encoder", rec.target)
    assert (1 - gap(after, y)[1] / gap(output, y)[1]) > 0.9


def test_views_of_values_with_other_strides() -> None:
    """The model's own view may rely on channels-last strides that a reconstructed feature does not have."""

    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.head = nn.Conv2d(3, 4, 1), nn.LayerNorm(4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(self.a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # (b, c, h, w), strided
            h = h + torch.tanh(h)
            return self.head(h.permute(0, 2, 3, 1).view(len(x), -1, 4).mean(1))

    torch.manual_seed(0)
    model, x = Strided().eval(), images(3, 4)
    rev = frpt.Reverser(model, x)
    with torch.no_grad():
        output = model(x)
    y = other_labels(output)
    for layer in ("norm", "a"):
        rec = rev.reconstruct(x, y, at=layer)
        assert (1 - gap(rev.run(x, layer, rec.target), y) / gap(output, y)).min() > 0.75


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes_are_kept(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = VGG().eval().to(dtype), images().to(dtype)
    with torch.no_grad():
        output = model(x)
    y = other_labels(output)
    rev = frpt.Reverser(model, x)
    rec = rev.reconstruct(x, y, at="classifier.0")
    assert rec.target.dtype == dtype
    closed = 1 - gap(rev.run(x, "classifier.0", rec.target).float(), y) / gap(output.float(), y)
    assert closed.min() > (0.99 if dtype == torch.float64 else 0.75)
    kept = rev.reconstruct(x, output.argmax(1), at="classifier.0")
    assert torch.equal(kept.target, kept.anchor)


def test_updates_of_the_model_are_seen() -> None:
    torch.manual_seed(0)
    model, x = VGG().eval(), images()
    y = torch.zeros(4, dtype=torch.long)
    rev = frpt.Reverser(model, x)
    rev.reconstruct(x, y, at="features.0")
    with torch.no_grad():
        model.features[0].weight.mul_(1.5)
        model.classifier[3].weight.data.add_(0.1)
    after = rev.reconstruct(x, y, at="features.0")
    fresh = frpt.Reverser(model, x).reconstruct(x, y, at="features.0")
    assert torch.equal(after.anchor, fresh.anchor)
    assert torch.equal(after.target, fresh.target)


def test_second_batch_prepares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = VGG().eval(), images()
    rev = frpt.Reverser(model, x)
    rev.reconstruct(x, torch.zeros(4, dtype=torch.long), at="features.0")

    def refuse(*_: object) -> None:
        raise AssertionError("factorised again")

    monkeypatch.setattr(torch.linalg, "cholesky_ex", refuse)
    rev.reconstruct(images(4, seed=1), torch.ones(4, dtype=torch.long), at="features.0")


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    torch.manual_seed(0)
    model, x = VGG(), images()
    model.train(training)
    model.features.eval()  # modes may differ from module to module
    model.features[0].register_forward_hook(lambda *_: None)
    before = snapshot(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvalModeWarning)
        rev = frpt.Reverser(model, x)
        assert snapshot(model) == before
        rev.reconstruct(x, torch.zeros(4, dtype=torch.long), at="features.3")
        assert snapshot(model) == before
        for call in (
            lambda: rev.reconstruct(x, torch.full((4,), 99), at="features.3"),
            lambda: rev.reconstruct(x, torch.zeros(4, dtype=torch.long), at="nowhere"),
            lambda: rev.reconstruct(x * float("nan"), torch.zeros(4, dtype=torch.long), at="features.3"),
            lambda: frpt.Reverser(model, torch.randn(2, 7)),
        ):
            with pytest.raises(frpt.errors.FrptError):
                call()
            assert snapshot(model) == before


def test_train_mode_is_said() -> None:
    with pytest.warns(EvalModeWarning, match="eval behaviour"):
        frpt.Reverser(VGG().train(), images())


def test_unknown_layers_suggest_near_ones() -> None:
    rev = frpt.Reverser(ResNet().eval(), images())
    with pytest.raises(UnknownLayerError, match=r"layer1"):
        rev.plan("layer11")
    with pytest.raises(UnknownLayerError, match="layers"):
        rev.plan("zzz")


def test_layers_the_output_does_not_depend_on() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.same = nn.Linear(3, 4), nn.Linear(3, 4), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            self.b(x)
            return self.same(self.a(x))

    rev = frpt.Reverser(Unused().eval(), torch.randn(2, 3))
    for name in ("b", "same"):
        with pytest.raises(UnreachableLayerError, match=name):
            rev.plan(name)


def test_irreversible_ops_are_listed_all_at_once() -> None:
    class Stepped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.round(self.a(x))
            h = self.b(h)
            return self.c(torch.sign(h))

    rev = frpt.Reverser(Stepped().eval(), torch.randn(2, 3))
    with pytest.raises(IrreversibleError) as caught:
        rev.plan("a")
    assert len(caught.value.sites) == 2
    message = str(caught.value)
    assert "round" in message
    assert "sign" in message
    assert "test_reverser.py:" in message
    assert len(rev.plan("c").units) == 0
    with pytest.raises(IrreversibleError, match="sign"):
        rev.plan("b")


def test_data_dependent_control_flow_is_explained() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if x.sum() > 0 else self.a(-x)

    with pytest.raises(CaptureError, match="control flow"):
        frpt.Reverser(Branching().eval(), torch.randn(2, 3))


def test_bad_labels() -> None:
    model, x = VGG().eval(), images()
    rev = frpt.Reverser(model, x)
    for y, words in [
        (torch.tensor([0, 1, 2, 5]), "out of range"),
        (torch.tensor([0, 1, -1, 2]), "out of range"),
        (torch.tensor([0, 1]), "shape"),
        (torch.full((4, 5), float("nan")), "NaN"),
    ]:
        with pytest.raises(LabelError, match=words):
            rev.reconstruct(x, y, at="features")


def test_bad_inputs_and_weights() -> None:
    model, x = VGG().eval(), images()
    rev = frpt.Reverser(model, x)
    y = torch.zeros(4, dtype=torch.long)
    with pytest.raises(NonFiniteError, match="input tensor 0"):
        rev.reconstruct(torch.where(x > 2, float("inf"), x), y, at="features")
    with pytest.raises(InputError, match="fails on the example inputs"):
        rev.reconstruct(torch.randn(4, 2, 16, 16), y, at="features")
    with pytest.raises(InputError, match="empty batch"):
        rev.reconstruct(x[:0], y[:0], at="features")
    with pytest.raises(InputError, match="tensor"):
        rev.reconstruct("x", y, at="features")  # type: ignore[call-overload]
    with torch.no_grad():
        model.classifier[0].weight[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"classifier\.0\.weight"):
        rev.reconstruct(x, y, at="features")
    with pytest.raises(NonFiniteError, match=r"classifier\.0\.weight"):
        frpt.Reverser(model, x)


@pytest.mark.parametrize("spoil", ["zero", "deficient", "tiny", "huge"])
def test_bad_weights_give_finite_results_and_report_it(spoil: str) -> None:
    torch.manual_seed(0)
    model, x = VGG().eval(), images()
    weight = model.classifier[3].weight.data
    if spoil == "zero":
        weight.zero_()
    elif spoil == "deficient":
        weight[1:] = weight[0]
    else:
        weight.mul_(1e-12 if spoil == "tiny" else 1e12)
    rev = frpt.Reverser(model, x)
    wanted = torch.randn(4, 5) * (1e12 if spoil == "huge" else 1)
    rec = rev.reconstruct(x, wanted, at="classifier.0")
    assert torch.isfinite(rec.target).all()
    if spoil != "huge":
        assert rec.units[0].fallback.all()


def test_blocks_run_at_few_batch_sizes() -> None:
    """Few sizes, and such that kernels give a sample the same bits at each: 8 or more and multiples of 4."""
    sizes = {count: usual_size(count, 2048) for count in range(1, 2049)}
    assert all(count <= size <= max(1.25 * count + 3, 8) and size % 4 == 0 for count, size in sizes.items())
    assert len(set(sizes.values())) <= 40
    assert [usual_size(count, 3) for count in (1, 2, 3)] == [3, 3, 3]  # as many as there are


@pytest.mark.parametrize(
    ("samples", "shape"), [(BatchAxis(), (4, 5)), (BatchAxis(dim=1), (5, 4)), (BatchAxis(outer=2, inner=3), (24, 5))]
)
def test_samples_are_repeated_and_dropped_again(samples: BatchAxis, shape: tuple[int, ...]) -> None:
    t = torch.randn(shape)
    longer = samples.extended(t, 6)
    assert torch.equal(samples.first(longer, 4), t)
    assert torch.equal(samples.take(longer, torch.tensor([4, 5])), samples.take(t, torch.tensor([3, 3])))


def test_a_layer_may_be_given_as_a_module() -> None:
    model, x, y = small_net(), torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    rev = frpt.Reverser(model, x)
    by_name, by_module = rev.reconstruct(x, y, at="1"), rev.reconstruct(x, y, at=model[1])
    assert by_module.layer == "1"
    assert torch.equal(by_name.target, by_module.target)
    assert list(rev.reconstruct(x, y, at=[model[1], model[0]])) == ["1", "0"]
    assert str(rev.plan(model[0])) == str(rev.plan("0"))
    assert torch.equal(rev.run(x, model[1], by_name.target), rev.run(x, "1", by_name.target))
    with pytest.raises(OptionError, match="this ReLU is no module of the model"):
        rev.plan(nn.ReLU())


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def test_results_read_well_in_a_notebook() -> None:
    model, x, y = small_net(), torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    rev = frpt.Reverser(model, x)
    assert repr(rev) == "Reverser(Sequential, preset 'default', 4 layers)"
    plan, rec, walk = rev.plan("0"), rev.reconstruct(x, y, at="0"), rev.explain(x, y, at="0")
    assert repr(plan) == str(plan)
    assert repr(rec) == str(rec)
    assert "tensor(" not in repr(rec)
    for shown in (plan, walk):
        assert shown._repr_html_().count("<tr>") == 3  # the head, linear and relu
    assert "samples corrected" in rec._repr_html_()


def test_a_reconstruction_can_be_pickled() -> None:
    model, x, y = small_net(), torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    rev = frpt.Reverser(model, x)
    rec, walk = rev.reconstruct(x, y, at="0"), rev.explain(x, y, at="0")
    again = pickle.loads(pickle.dumps(rec))
    assert torch.equal(again.target, rec.target)
    assert again.units == ()  # the network stays behind, and with it a walk nobody asked for
    assert [u.name for u in pickle.loads(pickle.dumps(walk)).units] == [u.name for u in walk.units]
