"""Draws docs/figures/question.png, the README's picture; run it from the root of the repository.

One digit that the network of examples/first.py gets wrong: what its first stage produced, what it should have
produced for the label (the target), what lies between them, and the scores the rest of the network makes of both.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from safetensors.torch import load_file

import frpt

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "results" / "checkpoints" / "mnist_simple_cnn_0.9793_b1737d7e.safetensors"
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#b8bcc4"


def scores(axes: Axes, values: torch.Tensor, label: int) -> None:
    """Bars of the class scores; the label's in blue, a wrong winner's in orange."""
    winner = int(values.argmax())
    colours = [BLUE if k == label else ORANGE if k == winner else GREY for k in range(len(values))]
    axes.bar(range(len(values)), values.tolist(), color=colours)
    axes.set_xticks(range(len(values)))
    axes.tick_params(labelsize=8, length=0)
    axes.set_yticks([])
    axes.axhline(0, color="black", linewidth=0.6)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    verdict = "right" if winner == label else "wrong"
    axes.set_title(f"scores: {winner} wins, {verdict}", fontsize=11, color=BLUE if winner == label else ORANGE)


def main() -> None:
    model = frpt.zoo.simple_cnn("mnist").eval()
    model.load_state_dict(load_file(WEIGHTS))
    _, (pixels, y) = frpt.data.digits()
    x = (pixels - 0.1307) / 0.3081
    rev = frpt.Reverser(model, x[:8])
    rec = rev.reconstruct(x, y, at="stage1")
    row = int(rec.corrected.nonzero()[rec.deviation[rec.corrected].argmax()])
    before, after = (rev.run(x[row : row + 1], "stage1", v[row : row + 1])[0] for v in (rec.anchor, rec.target))
    anchor, target = rec.anchor[row], rec.target[row]

    figure = plt.figure(figsize=(9.2, 5.6), layout="constrained")
    grid = figure.add_gridspec(3, 5, width_ratios=(1.25, 1, 1, 1, 1.7))
    image = figure.add_subplot(grid[:, 0])
    image.imshow(pixels[row, 0], cmap="gray_r")
    image.set_title(f"a digit labelled {int(y[row])}", fontsize=11)
    image.axis("off")
    rows = (
        (anchor, "what stage1 produced", "viridis"),
        (target, "what it should have produced: the target", "viridis"),
        (target - anchor, f"the difference, {float(rec.deviation[row]):.1%} of the norm", "PuOr"),
    )
    for k, (feature, title, colours) in enumerate(rows):
        top = float((target - anchor if k == 2 else target).abs().max())
        for channel in range(3):
            axes = figure.add_subplot(grid[k, 1 + channel])
            axes.imshow(feature[channel], cmap=colours, vmin=-top if k == 2 else 0, vmax=top)
            axes.axis("off")
            if channel == 1:
                axes.set_title(title, fontsize=11)
    scores(figure.add_subplot(grid[0, 4]), before, int(y[row]))
    scores(figure.add_subplot(grid[1, 4]), after, int(y[row]))
    figure.savefig(ROOT / "docs" / "figures" / "question.png", dpi=110)


if __name__ == "__main__":
    main()
