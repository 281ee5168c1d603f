"""Draw the picture of the README: ``python docs/readme_picture.py``.

Two moons twice: what the network says about its own uncertainty, and what QUAM finds with
`search="pointwise"`. The default, one search on a pool, is coarser here.
"""

from io import BytesIO
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image
from scipy.special import entr
from sklearn.datasets import make_moons
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import QUAMClassifier, predict_uncertainty

OUT = Path(__file__).parent / "images" / "two_moons.png"
RESOLUTION = 48
INK = "#1c2126"
POINTS = ((0, "o", "#D55E00"), (1, "^", "#56B4E9"))


def palette() -> Image.Image:
    """Palette of 256 colours for the map, the markers with their edges, and grey."""
    white, steps = np.ones(3), np.linspace(0, 1, 16)[:, None]
    colours = [matplotlib.colormaps["viridis"](np.linspace(0, 1, 192))[:, :3]]
    for colour in [*(colour for _, _, colour in POINTS), INK]:
        colours.append(white + steps * (np.array(to_rgb(colour)) - white))
    colours.append(np.repeat(steps, 3, axis=1))
    image = Image.new("P", (1, 1))
    image.putpalette(np.round(255 * np.concatenate(colours)).astype(np.uint8).tobytes())
    return image


def main() -> None:
    X, y = make_moons(200, noise=0.1, random_state=0)
    clf = make_pipeline(
        StandardScaler(), QUAMClassifier(search="pointwise", random_state=0, n_jobs=-1)
    ).fit(X, y)
    sides = np.linspace(-3, 4, RESOLUTION), np.linspace(-2.1, 2.6, RESOLUTION)
    xx0, xx1 = np.meshgrid(*sides)
    grid = np.column_stack([xx0.ravel(), xx1.ravel()])
    maps = {
        "The network's own entropy": entr(clf.predict_proba(grid)).sum(axis=1),
        "QUAM's epistemic uncertainty": predict_uncertainty(clf, grid).epistemic,
    }
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.6), layout="constrained", sharey=True)
    for ax, (title, values) in zip(axes, maps.items(), strict=True):
        mesh = ax.pcolormesh(
            xx0,
            xx1,
            values.reshape(xx0.shape),
            cmap="viridis",
            shading="gouraud",
            vmin=0,
            vmax=np.log(2),
        )
        for label, marker, colour in POINTS:
            points = X[y == label]
            ax.scatter(*points.T, s=20, c=colour, marker=marker, edgecolors="white", linewidths=0.7)
        ax.set_title(title, fontsize=12.5, color=INK, pad=8)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, pad=0.015, aspect=24, ticks=[0, np.log(2)])
    bar.ax.set_yticklabels(["0", "ln 2"], fontsize=10)
    bar.set_label("nats", fontsize=10, labelpad=-12)
    bar.outline.set_visible(False)
    buffer = BytesIO()
    figure.savefig(buffer, dpi=98, facecolor="white")
    small = Image.open(buffer).convert("RGB").quantize(palette=palette(), dither=Image.Dither.NONE)
    small.save(OUT, optimize=True)
    print(f"Drawn: {OUT.name}, {OUT.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
