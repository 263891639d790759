"""MTCNN's RNet, a face detector that others trained: tilted faces that it misses, where that happens, and a repair.

    pip install --no-deps facenet-pytorch     # its weights are in the package; torchvision is not needed
    python examples/third_party/mtcnn.py      # writes mtcnn.html

The faces are crops of one portrait (Grace Hopper's, which matplotlib has among its samples), upright or tilted; what is
no face are crops of its background. RNet sees 24 × 24 pixels.
"""

import importlib.util
import sys
import types
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib import cbook, image
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import frpt

FACE = (265, 230, 190)
"""Of the portrait: the middle of the face, x and y, and its height, in pixels."""


def rnet() -> nn.Module:
    """The package's own class and weights; its file alone, because the package around it wants torchvision."""
    found = importlib.util.find_spec("facenet_pytorch")
    if found is None or not found.submodule_search_locations:
        sys.exit("this example wants RNet: pip install --no-deps facenet-pytorch")
    folder = Path(found.submodule_search_locations[0])
    detecting = types.ModuleType("mtcnn_files.utils.detect_face")
    detecting.detect_face = detecting.extract_face = None  # cutting faces out of a photograph is not needed here
    sys.modules["mtcnn_files.utils.detect_face"] = detecting
    spec = importlib.util.spec_from_file_location("mtcnn_files.mtcnn", folder / "models" / "mtcnn.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Scores(module.RNet):
        """Without its boxes, and without the softmax: a repair is measured in scores."""

        def forward(self, x: Tensor) -> Tensor:
            x = self.pool1(self.prelu1(self.conv1(x)))
            x = self.pool2(self.prelu2(self.conv2(x)))
            x = self.prelu3(self.conv3(x)).permute(0, 3, 2, 1).flatten(1)
            return self.dense5_1(self.prelu4(self.dense4(x)))

    model = Scores(pretrained=False)
    model.load_state_dict(torch.load(folder / "data" / "rnet.pt", weights_only=True))
    return model.eval()


def crops(count: int, tilt: float, seed: int, face: bool = True) -> Tensor:
    """(n, 3, 24, 24) in RNet's range. tilt: up to so many degrees to either side, at least half of it."""
    g = torch.Generator().manual_seed(seed)
    pixels = torch.tensor(image.imread(cbook.get_sample_data("grace_hopper.jpg")).copy()).permute(2, 0, 1)[None].float()
    height, width = pixels.shape[2:]
    u = torch.rand(5, count, generator=g)
    angle = torch.deg2rad(tilt * (0.5 + 0.5 * u[0]) * torch.where(u[1] < 0.5, -1.0, 1.0))
    side = FACE[2] * (0.9 + 0.3 * u[2]) if face else 40 + 60 * u[2]
    x, y = (FACE[0] + 12 * (u[3] - 0.5), FACE[1] + 12 * (u[4] - 0.5)) if face else (60 + 60 * u[3], 60 + 480 * u[4])
    cos, sin = torch.cos(angle) * side, torch.sin(angle) * side
    rows = torch.stack(
        [cos / width, -sin / width, 2 * x / width - 1, sin / height, cos / height, 2 * y / height - 1], 1
    )
    grid = F.affine_grid(rows.reshape(-1, 2, 3), [count, 3, 96, 96], align_corners=False)
    cut = F.grid_sample(pixels.expand(count, -1, -1, -1), grid, align_corners=False, padding_mode="border")
    light = 0.7 + 0.5 * torch.rand(count, 1, 1, 1, generator=g)
    return (F.avg_pool2d(cut, 4) * light).clamp(0, 255).sub(127.5).mul(0.0078125)


@torch.no_grad()
def found(model: nn.Module, x: Tensor) -> Tensor:
    """Which crops are taken for a face: (n,) bool."""
    return model(x).argmax(1) == 1


def main() -> None:
    torch.manual_seed(0)
    model = rnet()
    upright, tilted = crops(300, 10, 0), crops(600, 90, 1)
    ground = crops(300, 90, 2, face=False)
    for name, x in (("upright faces", upright), ("tilted faces", tilted), ("crops of the background", ground)):
        print(f"RNet takes {found(model, x).float().mean():.0%} of {len(x)} {name} for a face")

    x = torch.cat([upright[:100], tilted[:100], ground[:100]])
    y = torch.cat([torch.ones(200), torch.zeros(100)]).long()
    names = [f"{kind} {i}" for kind in ("upright", "tilted", "background") for i in range(100)]
    diagnosis = frpt.diagnose(
        model, TensorDataset(x, y), ["prelu4", "prelu3", "prelu2", "prelu1"],
        class_names=["no face", "face"], sample_names=names, mean=0.5, std=0.5, gallery=12, progress=False,
    )  # fmt: skip
    print(f"\n{str(diagnosis).split(chr(10) * 2)[0]}\n")
    diagnosis.to_html("mtcnn.html")

    missed = (~found(model, tilted[:300])).nonzero()[:20, 0]
    memory = frpt.remember(model, torch.cat([upright, ground]), progress=False)
    fix = frpt.repair(model, tilted[missed], torch.ones(len(missed)).long(), memory)
    print(f"{int(fix.fixed.sum())} of {len(missed)} missed faces are found now")
    for name, x in (
        ("other tilted faces", tilted[300:]),
        ("upright faces", upright),
        ("crops of the background", ground),
    ):
        before, after = (found(net, x).float().mean() for net in (model, fix.model))
        print(f"{name}: taken for a face {before:.0%} before, {after:.0%} now")


if __name__ == "__main__":
    main()
