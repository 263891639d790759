"""Draws docs/figures/report.png, two parts of a report (CIFAR-10, Chromium): ``python docs/tools/report.py --data DIR``

The small CIFAR-10 network with noise in the weights of its second stage, diagnosed on 3,000 test images.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright
from safetensors.torch import load_file

import frpt

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "results" / "checkpoints" / "cifar10_simple_cnn_0.6883_1f06ca13.safetensors"
IMAGES, NOISE, SEED = 3000, 1.0, 0
SHOWN = ("summary", "gallery")
WIDTH = 916
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def damaged() -> torch.nn.Module:
    """Noise as large as the weights in the convolution of stage2."""
    model = frpt.zoo.simple_cnn("cifar10").eval()
    model.load_state_dict(load_file(WEIGHTS))
    weight = dict(model.named_parameters())["stage2.0.weight"]
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(SEED))
    with torch.no_grad():
        weight += NOISE * weight.std() * noise
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the data sets; else the hub")
    options = parser.parse_args()
    images = frpt.data.load("cifar10", "test", options.data)
    x, y = (t[:IMAGES] for t in images.tensors)
    info = images.info
    found = frpt.diagnose(
        damaged(), torch.utils.data.TensorDataset(x, y), class_names=CLASSES, mean=info.mean, std=info.std
    )
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = found.to_html(
            Path(folder) / "report.html", title="SimpleCNN on CIFAR-10, weights of stage2 damaged"
        )
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(viewport={"width": WIDTH, "height": 900}, reduced_motion="reduce").new_page()
        page.goto(page_file.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        hidden = "".join(f":not(#{name})" for name in SHOWN)
        page.add_style_tag(content=f"header.top, footer, main > :not(script){hidden} {{ display: none !important; }}")
        page.locator("main").screenshot(path=str(ROOT / "docs" / "figures" / "report.png"))
        browser.close()
    print(found.suspects, {layer.name: round(layer.fault, 3) for layer in found.layers})


if __name__ == "__main__":
    main()
