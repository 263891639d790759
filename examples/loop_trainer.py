"""Feature supervision inside a Hugging Face Trainer: one compute_loss."""

import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from loop_plain import pretrained
from torch.utils.data import TensorDataset, default_collate
from transformers import Trainer, TrainingArguments

import frpt
from frpt.data.digits import digits


class PostTrainer(Trainer):
    """A Trainer that adds the distance to reconstructed targets to the task loss."""

    def __init__(self, *args: Any, tap: frpt.FeatureTap, balance: frpt.LossBalance, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tap, self.balance = tap, balance

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **_: Any
    ) -> Any:
        outputs = model(inputs["inputs"])
        task = F.cross_entropy(outputs, inputs["labels"])
        loss = self.balance(task, F.mse_loss(self.tap.value, inputs["target"])) if "target" in inputs else task
        return (loss, {"logits": outputs}) if return_outputs else loss


def collate(items: list[tuple[Any, ...]]) -> dict[str, Any]:
    return dict(zip(("inputs", "labels", "target"), default_collate(items), strict=False))


def main(samples: int = 1000, epochs: int = 2, at: str = "stage1") -> float:
    (x, y), (x_test, y_test) = digits()
    x, y = x[:samples], y[:samples]
    model = pretrained(x, y)
    with tempfile.TemporaryDirectory() as folder:
        rev = frpt.Reverser(model, x[:2])
        store = frpt.write_targets(rev, TensorDataset(x, y), at, folder, mode="dense", progress=False)
        with frpt.freeze(model, rev, at) as frozen, frpt.FeatureTap(model, at) as tap:
            arguments = TrainingArguments(
                folder, num_train_epochs=epochs, per_device_train_batch_size=64, learning_rate=1e-4, weight_decay=5e-2,
                lr_scheduler_type="constant", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
                remove_unused_columns=False, logging_strategy="no", dataloader_pin_memory=False,
            )  # fmt: skip
            data = frpt.TargetDataset(TensorDataset(x, y), store, at)
            PostTrainer(
                model, arguments, train_dataset=data, data_collator=collate, tap=tap, balance=frpt.LossBalance(0.3)
            ).train()
            frozen.check()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(x_test).argmax(1) == y_test).float().mean())
    print(f"test accuracy {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()
