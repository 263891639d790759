"""Draws docs/figures/driving.png, synthetic scenes for the page on them; run it from the root of the repository.

For each scene what the camera sees and, from above, the driver's plan and one that goes straight on at ego's speed.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import frpt
from frpt.diagnosis.figures.canvas import pixels

SHOWN = (6, 9, 35, 26)


def main() -> None:
    figure, axes = plt.subplots(2, len(SHOWN), figsize=(12, 5.2), height_ratios=(1, 4), layout="constrained")
    for column, index in zip(axes.T, SHOWN, strict=True):
        scene = frpt.driving.make_scene(seed=0, index=index)
        straight = np.zeros((8, 3))
        straight[:, 0] = 0.5 * scene.speed * np.arange(1, 9)
        above = frpt.driving.picture(scene, {"target": scene.reference, "straight on": straight})
        above.set_dpi(200)
        column[0].imshow(frpt.driving.render(scene, (128, 512)).transpose(1, 2, 0))
        column[1].imshow(pixels(above))
        for ax in column:
            ax.axis("off")
    figure.savefig(Path(__file__).parents[1] / "figures" / "driving.png", dpi=130)


if __name__ == "__main__":
    main()
