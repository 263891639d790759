"""Feature supervision in a plain PyTorch loop: write targets, freeze, tap, balance."""

import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import frpt
from frpt.data.digits import digits
from frpt.zoo import simple_cnn


def pretrained(x: torch.Tensor, y: torch.Tensor, steps: int = 400) -> torch.nn.Module:
    """A small CNN that is right most of the time."""
    torch.manual_seed(0)
    model = simple_cnn("mnist")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model.eval()


def main(samples: int = 1000, epochs: int = 2, at: str = "stage1") -> float:
    (x, y), (x_test, y_test) = digits()
    x, y = x[:samples], y[:samples]
    model = pretrained(x, y)

    with tempfile.TemporaryDirectory() as folder:
        rev = frpt.Reverser(model, x[:2])
        store = frpt.write_targets(rev, TensorDataset(x, y), at, folder, mode="dense", progress=False)
        data = frpt.TargetDataset(TensorDataset(x, y), store, at)
        balance = frpt.LossBalance(c_rec=0.3)
        with frpt.freeze(model, rev, at) as frozen, frpt.FeatureTap(model, at) as tap:
            optimizer = torch.optim.AdamW(frozen.trainable(), lr=1e-4, weight_decay=5e-2)
            for epoch in range(epochs):
                model.train()  # the frozen part stays in eval mode
                for inputs, labels, target, _present in DataLoader(data, batch_size=64, shuffle=True):
                    task = F.cross_entropy(model(inputs), labels)
                    loss = balance(task, F.mse_loss(tap.value, target))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                print(f"epoch {epoch + 1}: task loss {float(task.detach()):.3f}, lambda {balance.weight:.3g}")
            frozen.check()

    model.eval()
    with torch.no_grad():
        accuracy = float((model(x_test).argmax(1) == y_test).float().mean())
    print(f"test accuracy {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()
