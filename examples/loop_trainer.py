"""Feature supervision in a Hugging Face Trainer: TargetTrainer in the place of Trainer."""

import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from loop_plain import pretrained
from torch.utils.data import TensorDataset
from transformers import TrainingArguments

import frpt
from frpt.data.digits import digits


def loss(outputs: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
    """For a model that returns no loss itself, as those of Hugging Face do."""
    return F.cross_entropy(outputs, labels)


def main(samples: int = 1000, epochs: int = 2, at: str = "stage1") -> float:
    (x, y), (x_test, y_test) = digits()
    x, y = x[:samples], y[:samples]
    model = pretrained(x, y)
    with tempfile.TemporaryDirectory() as folder:
        rev = frpt.Reverser(model, x[:2])
        store = frpt.write_targets(rev, TensorDataset(x, y), at, folder, mode="dense", progress=False)
        arguments = TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=64, learning_rate=1e-4, weight_decay=5e-2,
            lr_scheduler_type="constant", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
            logging_strategy="no", dataloader_pin_memory=False,
        )  # fmt: skip
        frpt.train.TargetTrainer(
            model, arguments, train_dataset=frpt.TargetDataset(TensorDataset(x, y), store, at),
            compute_loss_func=loss, features=frpt.train.FeatureTargets(rev, at, c_rec=0.3, targets="stored"),
        ).train()  # fmt: skip
    model.eval()
    with torch.no_grad():
        accuracy = float((model(x_test).argmax(1) == y_test).float().mean())
    print(f"test accuracy {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()
