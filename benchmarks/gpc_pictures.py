"""Pictures of the benchmarks of `RobustGPC`."""

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

BLUE, PINK, GREY = "#2458a6", "#d03c8c", "#808080"


def curves(path: Path, radii: tuple[float, ...], lines: list[dict[str, list[float]]]) -> None:
    """Plot Figures 2 and 3: the proven minimum probability of the class by radius, and attacks."""
    figure, axes = plt.subplots(1, len(lines), figsize=(8, 3.2), layout="constrained", sharey=True)
    for axis, line in zip(axes, lines, strict=True):
        axis.fill_between(radii, line["lower"], line["upper"], color=BLUE, alpha=0.15)
        axis.plot(radii, line["upper"], color=BLUE, label="smallest probability, attained")
        axis.plot(radii, line["lower"], "--", color=BLUE, label="smallest probability, proven")
        axis.plot(radii, line["fgsm"], color=PINK, label="GPFGS")
        axis.plot(radii, line["pgd"], ":", color=GREY, label="iterated attack")
        axis.axhline(0.5, color="black", lw=0.6)
        axis.set(xlabel="radius", ylim=(-0.02, 1.02))
    axes[0].set_ylabel("probability of the predicted class")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def boxes(path: Path, values: dict[tuple[int, str], np.ndarray]) -> None:
    """Plot Figure 4: delta by evaluations of the marginal likelihood, for both approximations."""
    figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    grid = sorted({evaluations for evaluations, _ in values})
    for shift, (inference, colour) in zip(
        (-0.18, 0.18), (("laplace", BLUE), ("ep", PINK)), strict=True
    ):
        found = axis.boxplot(
            [values[evaluations, inference] for evaluations in grid],
            positions=np.arange(len(grid)) + shift,
            widths=0.3,
            patch_artist=True,
            boxprops={"facecolor": colour, "alpha": 0.4},
            medianprops={"color": "black"},
            flierprops={"markersize": 3},
        )
        found["boxes"][0].set_label(inference)
    axis.set_xticks(range(len(grid)), [str(evaluations) for evaluations in grid])
    axis.set(xlabel="evaluations of the evidence", ylabel="largest - smallest probability")
    axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def effects(path: Path, images: np.ndarray, maps: dict[str, np.ndarray], titles: list[str]) -> None:
    """Plot Figure 5: digits, and the effects of pixels by several methods, positive in red."""
    rows = 1 + len(maps)
    figure, axes = plt.subplots(
        rows, len(images), figsize=(2.2 * len(images), 2.3 * rows), layout="constrained"
    )
    side = round(np.sqrt(images.shape[1]))
    for column, (image, title) in enumerate(zip(images, titles, strict=True)):
        axes[0, column].imshow(image.reshape(side, side), cmap="gray", vmin=0, vmax=1)
        axes[0, column].set_title(title, fontsize=9)
        for row, (name, values) in enumerate(maps.items(), start=1):
            most = np.abs(values[column]).max()
            axes[row, column].imshow(
                values[column].reshape(side, side), cmap="RdBu_r", vmin=-most, vmax=most
            )
            axes[row, 0].set_ylabel(name, fontsize=9)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=120)
    plt.close(figure)
