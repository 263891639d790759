"""Feature supervision of a Lightning module, which knows nothing of it: one callback."""

import tempfile
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from loop_plain import pretrained
from torch.utils.data import DataLoader, TensorDataset

import frpt
from frpt.data.digits import digits


class Classifier(lightning.LightningModule):
    """A module as anybody has it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        inputs, labels = batch
        return F.cross_entropy(self.model(inputs), labels)

    def validation_step(self, batch: Any, number: int) -> None:
        inputs, labels = batch
        self.log("accuracy", (self.model(inputs).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4, weight_decay=5e-2)


def main(samples: int = 1000, epochs: int = 2, at: str = "stage1") -> float:
    (x, y), test = digits()
    x, y = x[:samples], y[:samples]
    model = pretrained(x, y)
    with tempfile.TemporaryDirectory() as folder:
        rev = frpt.Reverser(model, x[:2])
        store = frpt.write_targets(rev, TensorDataset(x, y), at, folder, mode="dense", progress=False)
        data = frpt.TargetDataset(TensorDataset(x, y), store, at)
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_model_summary=False, enable_progress_bar=False,
            callbacks=[frpt.train.LightningTargets(rev, at, c_rec=0.3, targets="stored")],
        )  # fmt: skip
        trainer.fit(
            Classifier(model).train(),  # the frozen part stays in eval mode
            DataLoader(data, batch_size=64, shuffle=True),
            DataLoader(TensorDataset(*test), batch_size=256),
        )
    accuracy = float(trainer.callback_metrics["accuracy"])
    print(f"test accuracy {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()
