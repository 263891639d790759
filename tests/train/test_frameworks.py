"""Feature targets in the loops of Lightning and of the Hugging Face Trainer: the loss, the logs, what is left."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import frpt
from frpt.errors import LabelError, OptionError, TapError
from tests.train.toys import blobs, network, parameters, small_bert

X, Y = blobs().tensors


def by_hand(targets: str, steps: int = 3, lr: float = 1e-2) -> nn.Sequential:
    """The same training in a plain loop, with the pieces."""
    model, start = network(), network()
    rev = frpt.Reverser(model, X[:2])
    balance = frpt.LossBalance(0.3)
    with frpt.freeze(model, rev, "3") as frozen, frpt.FeatureTap(model, "3") as tap:
        optimizer = torch.optim.SGD(frozen.trainable(), lr)
        model.train()
        for rows in torch.arange(len(X)).split(16)[:steps]:
            task = F.cross_entropy(model(X[rows]), Y[rows])
            if targets == "anchor":
                target = start[:4](X[rows]).detach()
            else:
                target = rev.reconstruct_from(X[rows], Y[rows], "3", tap.value.detach()).target
            optimizer.zero_grad()
            balance(task, F.mse_loss(tap.value, target)).backward()
            optimizer.step()
    return model


def stored(folder: Path) -> tuple[nn.Sequential, frpt.Reverser, frpt.TargetDataset]:
    model = network()
    rev = frpt.Reverser(model, X[:2])
    store = frpt.write_targets(rev, blobs(), "3", folder, progress=False)
    return model, rev, frpt.TargetDataset(blobs(), store, "3", rev=rev)


def left_alone(model: nn.Module) -> None:
    """No hook, and every parameter as trainable as it was."""
    assert all(p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = "import frpt, sys; frpt.train.FeatureTargets; print({'lightning', 'transformers'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout == "set()\n"


def test_options_are_checked() -> None:
    rev = frpt.Reverser(network(), X[:2])
    for wrong in ({"targets": "offline"}, {"c_rec": 2}, {"every": 0}):
        with pytest.raises(OptionError):
            frpt.train.FeatureTargets(rev, "3", **wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="Reverser"):
        frpt.train.FeatureTargets(network(), "3")  # type: ignore[arg-type]
    with pytest.raises(TapError, match="attached"):
        frpt.train.FeatureTargets(rev, "3").loss(torch.tensor(1.0), (X, Y))
    with pytest.raises(TapError, match="TargetDataset"):
        frpt.train.FeatureTargets(rev, "3", targets="stored").split((X, Y))


def test_labels_that_no_target_can_be_made_of_are_named() -> None:
    model = network()
    features = frpt.train.FeatureTargets(frpt.Reverser(model, X[:2]), "3")
    with features.attached(), pytest.raises(LabelError):
        features.loss(F.cross_entropy(model(X), Y), {"input": X, "labels": ["cat"] * len(X)})
    left_alone(model)


class TestLightning:
    """With the real package."""

    @pytest.fixture
    def lightning(self) -> Any:
        return pytest.importorskip("lightning", reason="Lightning is for development only")

    def fit(
        self,
        lightning: Any,
        model: nn.Module,
        callback: Any,
        data: Any,
        fail: bool = False,
        start: Path | None = None,
        **options: Any,
    ) -> Any:
        class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.net = model

            def training_step(self, batch: Any, number: int) -> Any:
                if fail:
                    raise RuntimeError("on purpose")
                inputs, labels = batch
                return {"loss": F.cross_entropy(self.net(inputs), labels)}

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 1e-2)

        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, enable_checkpointing=False, enable_model_summary=False,
            enable_progress_bar=False, log_every_n_steps=1, callbacks=[callback],
            **{"logger": False, "max_epochs": 1, **options},
        )  # fmt: skip
        module = Module().train()
        own = module.training_step.__func__
        try:
            trainer.fit(module, DataLoader(data, batch_size=16), ckpt_path=start)
        finally:
            assert module.training_step.__func__ is own
        return trainer

    @pytest.mark.parametrize("targets", ["online", "anchor"])
    def test_the_loss_is_that_of_the_plain_loop(self, lightning: Any, targets: str) -> None:
        model = network()
        callback = frpt.train.LightningTargets(frpt.Reverser(model, X[:2]), "3", targets=targets)  # type: ignore[arg-type]
        self.fit(lightning, model, callback, blobs())
        torch.testing.assert_close(parameters(model), parameters(by_hand(targets)))
        assert torch.equal(model[4].weight, network()[4].weight)
        left_alone(model)

    def test_targets_of_a_store_and_the_loggers(self, lightning: Any, tmp_path: Path) -> None:
        from lightning.pytorch.loggers import CSVLogger

        model, rev, data = stored(tmp_path / "store")
        callback = frpt.train.LightningTargets(rev, "3", targets="stored")
        self.fit(lightning, model, callback, data, logger=CSVLogger(tmp_path, name="run", version=0))
        with open(tmp_path / "run/version_0/metrics.csv", newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert len(rows) == 3
        assert {"frpt/task_loss", "frpt/rec_loss", "frpt/lambda"} <= rows[0].keys()
        assert all(float(row["frpt/rec_loss"]) > 0 for row in rows)
        assert callback.state_dict()["task"] is not None

    def test_a_resumed_training_ends_with_the_same_numbers(self, lightning: Any, tmp_path: Path) -> None:
        ends = []
        for epochs, start in ((1, None), (2, None), (2, tmp_path / "kept.ckpt")):
            model = network()
            callback = frpt.train.LightningTargets(frpt.Reverser(model, X[:2]), "3", every=2)
            trainer = self.fit(lightning, model, callback, blobs(), start=start, max_epochs=epochs)
            if epochs == 1:
                trainer.save_checkpoint(tmp_path / "kept.ckpt")
            ends.append((parameters(model), callback.state_dict()))
        torch.testing.assert_close(ends[1][0], ends[2][0], rtol=0, atol=0)
        assert ends[0][1]["step"] == 3
        assert ends[1][1] == ends[2][1]

    def test_a_step_that_optimises_by_hand(self, lightning: Any) -> None:
        """The callback says that it cannot; what it says to do instead gives the plain loop's numbers."""
        model = network()
        rev = frpt.Reverser(model, X[:2])
        features = frpt.train.FeatureTargets(rev, "3")

        class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.net, self.automatic_optimization = model, False

            def training_step(self, batch: Any, number: int) -> None:
                optimizer = self.optimizers()
                loss = features.loss(F.cross_entropy(self.net(batch[0]), batch[1]), batch)
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 1e-2)

        def trainer(*callbacks: Any) -> Any:
            return lightning.Trainer(
                max_epochs=1, accelerator="cpu", devices=1, enable_checkpointing=False, enable_model_summary=False,
                enable_progress_bar=False, logger=False, callbacks=list(callbacks),
            )  # fmt: skip

        loader = DataLoader(blobs(), batch_size=16)
        with pytest.raises(OptionError, match=r"optimises by hand.*FeatureTargets.*attached.*features\.loss"):
            trainer(frpt.train.LightningTargets(rev, "3")).fit(Module().train(), loader)
        left_alone(model)
        with features.attached():
            trainer().fit(Module().train(), loader)
        torch.testing.assert_close(parameters(model), parameters(by_hand("online")))
        left_alone(model)

    def test_a_failure_leaves_the_model_as_it_was(self, lightning: Any) -> None:
        model = network()
        callback = frpt.train.LightningTargets(frpt.Reverser(model, X[:2]), "3")
        with pytest.raises(RuntimeError, match="on purpose"):
            self.fit(lightning, model, callback, blobs(), fail=True)
        left_alone(model)
        with pytest.raises(OptionError, match="no part of this"):
            self.fit(lightning, network(), callback, blobs())


class TestHuggingFace:
    """With the real package."""

    @pytest.fixture
    def transformers(self) -> Any:
        pytest.importorskip("accelerate", reason="accelerate is for development only")
        return pytest.importorskip("transformers", reason="transformers are for development only")

    def trained(self, transformers: Any, folder: Path, model: nn.Module, features: Any, data: Any, **more: Any) -> Any:
        arguments = transformers.TrainingArguments(
            str(folder), learning_rate=1e-2, optim="sgd",
            lr_scheduler_type="constant", report_to=[], use_cpu=True, disable_tqdm=True,
            logging_steps=1, dataloader_pin_memory=False, max_grad_norm=0.0, train_sampling_strategy="sequential",
            label_names=["labels"],
            **{
                "per_device_train_batch_size": 16, "num_train_epochs": 1, "save_strategy": "no",
                **more.pop("arguments", {}),
            },
        )  # fmt: skip
        start = more.pop("resume", None)
        trainer = frpt.train.TargetTrainer(model, arguments, train_dataset=data, features=features, **more)
        trainer.train(resume_from_checkpoint=start)
        return trainer

    @staticmethod
    def cross_entropy(outputs: Tensor, labels: Tensor, **_: Any) -> Tensor:
        return F.cross_entropy(outputs, labels)

    @staticmethod
    def sixteenth(outputs: Tensor, labels: Tensor, **_: Any) -> Tensor:
        """Of a step of sixteen samples, as the Trainer wants it where gradients are accumulated."""
        return F.cross_entropy(outputs, labels, reduction="sum") / 16

    @pytest.mark.parametrize("targets", ["online", "anchor"])
    def test_the_loss_is_that_of_the_plain_loop(self, transformers: Any, targets: str, tmp_path: Path) -> None:
        model = network()
        features = frpt.train.FeatureTargets(frpt.Reverser(model, X[:2]), "3", targets=targets)  # type: ignore[arg-type]
        items = [{"input": x, "labels": y} for x, y in zip(X, Y, strict=True)]
        trainer = self.trained(
            transformers, tmp_path, model, features, items, compute_loss_func=self.cross_entropy
        )  # fmt: skip
        torch.testing.assert_close(parameters(model), parameters(by_hand(targets)))
        logged = [row for row in trainer.state.log_history if "frpt/rec_loss" in row]
        assert len(logged) == 3
        assert all(row["loss"] >= row["frpt/task_loss"] for row in logged)
        left_alone(model)

    def test_a_model_of_its_own_with_stored_targets(self, transformers: Any, tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets", reason="Hugging Face datasets are an extra")
        model = small_bert()
        ids = torch.randint(1, 30, (32, 6))
        made = datasets.Dataset.from_dict({"input_ids": ids.tolist(), "label": (ids[:, 0] % 3).tolist()})
        at = "bert.encoder.layer.0"
        rev = frpt.Reverser(model, {"input_ids": ids[:2]})
        store = frpt.write_targets(rev, made, at, tmp_path / "store", mode="dense", progress=False)
        data = frpt.TargetDataset(made, store, at, rev=rev)
        before = model.classifier.weight.clone(), model.bert.embeddings.word_embeddings.weight.clone()
        features = frpt.train.FeatureTargets(rev, at, targets="stored")
        trainer = self.trained(transformers, tmp_path, model, features, data, eval_dataset=made)
        assert torch.equal(model.classifier.weight, before[0])
        assert not torch.equal(model.bert.embeddings.word_embeddings.weight, before[1])
        assert "eval_loss" in trainer.evaluate()
        left_alone(model)

    def test_accumulated_gradients_weigh_the_same(self, transformers: Any, tmp_path: Path) -> None:
        """Two halves of a batch give the step of the whole, up to λ's moving averages, which see two losses."""
        moved = []
        for size, steps in ((16, 1), (8, 2)):
            model = network()
            features = frpt.train.FeatureTargets(frpt.Reverser(model, X[:2]), "3", targets="anchor")
            items = [{"input": x, "labels": y} for x, y in zip(X, Y, strict=True)]
            self.trained(
                transformers, tmp_path / f"{size}", model, features, items[:16], compute_loss_func=self.sixteenth,
                arguments={"gradient_accumulation_steps": steps, "per_device_train_batch_size": size},
            )  # fmt: skip
            moved.append(parameters(model))
        torch.testing.assert_close(moved[0], moved[1], rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("restored", [False, True])
    def test_a_resumed_training_ends_with_the_same_numbers(
        self, transformers: Any, tmp_path: Path, restored: bool
    ) -> None:
        """λ's moving averages, and which steps are supervised; whether or not the Trainer restores callbacks itself."""
        items = [{"input": x, "labels": y} for x, y in zip(X, Y, strict=True)]
        arguments = {
            "save_strategy": "steps", "save_steps": 1, "num_train_epochs": 2,
            "restore_callback_states_from_checkpoint": restored,
        }  # fmt: skip
        ends = []
        for start in (None, str(tmp_path / "checkpoint-1")):
            model = network()
            features = frpt.train.FeatureTargets(frpt.Reverser(model, X[:2]), "3", every=2)
            self.trained(
                transformers, tmp_path, model, features, items, compute_loss_func=self.cross_entropy,
                arguments=arguments, resume=start,
            )  # fmt: skip
            ends.append((parameters(model), features.state_dict()))
        torch.testing.assert_close(ends[0][0], ends[1][0], rtol=0, atol=0)
        assert ends[0][1] == ends[1][1]
        assert ends[0][1]["step"] == 6

    def test_another_network_is_refused(self, transformers: Any, tmp_path: Path) -> None:
        features = frpt.train.FeatureTargets(frpt.Reverser(network(), X[:2]), "3")
        with pytest.raises(OptionError, match="no part of the model"):
            self.trained(transformers, tmp_path, network(), features, [])
