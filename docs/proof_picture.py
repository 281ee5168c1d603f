"""Picture of the messages in an audit with proofs: ``python docs/proof_picture.py``.

Three parties from left to right, time from top to bottom.
"""

from io import BytesIO
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from PIL import Image

OUT = Path(__file__).parent / "images" / "proof_protocol.png"
INK, GREY, LINE = "#1c2126", "#5b6570", "#c3cad1"
BLUE, ORANGE = "#0072B2", "#B34700"
PLAIN, SECRET = "#eef3f7", "#fbeee4"
AUDITOR, PROVIDER, CLIENT = 15.0, 50.0, 85.0
HEIGHT = 66.0
HOLDS = (
    (AUDITOR, "Auditor", "reference data\nwith true labels"),
    (PROVIDER, "Provider", "the model, and\na service that uses it"),
    (CLIENT, "Client", "an input to\nbe decided about"),
)


def box(ax: Axes, x: float, y: float, width: float, height: float, colour: str, edge: str) -> None:
    """Draw a box with round corners, positioned by its centre and upper edge."""
    ax.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=1",
            facecolor=colour,
            edgecolor=edge,
            linewidth=1,
            zorder=2,
        )
    )


def note(ax: Axes, x: float, y: float, text: str, colour: str, edge: str, height: float) -> None:
    """Draw a step of a single party."""
    box(ax, x, y, 27, height, colour, edge)
    ax.text(x, y - height / 2, text, ha="center", va="center", fontsize=9, color=INK, zorder=3)


def number(ax: Axes, x: float, y: float, step: int) -> None:
    """Draw the number of a step, in a disc on the line of the sender."""
    ax.text(
        x,
        y,
        str(step),
        ha="center",
        va="center",
        fontsize=9,
        fontweight="bold",
        color="white",
        zorder=4,
        bbox={"boxstyle": "circle,pad=0.25", "facecolor": BLUE, "edgecolor": "white"},
    )


def message(
    ax: Axes, y: float, sender: float, receiver: float, text: str, *, step: int = 0
) -> None:
    """Draw an arrow with its text above; dashed if it is not a numbered step."""
    ax.annotate(
        "",
        (receiver, y),
        (sender, y),
        arrowprops={
            "arrowstyle": "-|>,head_width=0.28,head_length=0.5",
            "color": BLUE if step else GREY,
            "linewidth": 1.4,
            "linestyle": "-" if step else "--",
            "shrinkA": 0,
            "shrinkB": 1,
        },
        zorder=1,
    )
    if step:
        number(ax, sender, y, step)
    beside = min(sender, receiver) + (PROVIDER - AUDITOR) / 2  # the first gap, on long arrows too
    ax.text(
        beside,
        y + 0.5,
        text,
        ha="center",
        va="bottom",
        fontsize=9,
        color=INK if step else GREY,
        linespacing=1.15,
    )


def main() -> None:
    figure = plt.figure(figsize=(9.2, 7.4))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 100), ylim=(0, HEIGHT))
    ax.axis("off")
    for x, name, holds in HOLDS:
        ax.plot([x, x], [1, HEIGHT - 9], color=LINE, linewidth=1.2, zorder=0)
        box(ax, x, HEIGHT - 0.7, 27, 8.3, PLAIN, LINE)
        ax.text(x, HEIGHT - 2.6, name, ha="center", va="center", fontsize=12, fontweight="bold")
        ax.text(x, HEIGHT - 6.2, f"has: {holds}", ha="center", va="center", fontsize=9, color=INK)
    note(
        ax,
        PROVIDER,
        56.1,
        "keeps secret for good:\nweights, salt, pads, proving keys",
        SECRET,
        ORANGE,
        4.4,
    )
    message(ax, 47.6, PROVIDER, AUDITOR, "commitment, architecture", step=1)
    message(ax, 47.6, PROVIDER, CLIENT, "the same, published", step=1)
    message(ax, 43, AUDITOR, PROVIDER, "reference data, alpha, bins", step=2)
    message(ax, 38.6, PROVIDER, AUDITOR, "(spot check only: all confidences)")
    message(ax, 35.2, AUDITOR, PROVIDER, "(spot check only: challenge)")
    message(ax, 31, PROVIDER, AUDITOR, "results with proofs", step=3)
    note(
        ax,
        AUDITOR,
        28.4,
        "builds the verifying keys from\nthe architecture, checks proofs",
        PLAIN,
        BLUE,
        4.4,
    )
    number(ax, AUDITOR - 13.5, 26.2, 4)
    message(ax, 19.6, AUDITOR, CLIENT, "verdict on this commitment", step=5)
    message(ax, 14.8, CLIENT, PROVIDER, "input, a text of its own (nonce)", step=6)
    message(ax, 10.2, PROVIDER, CLIENT, "label, confidence, proof", step=7)
    note(
        ax,
        CLIENT,
        7.6,
        "checks the proof against\nthe commitment that was audited",
        PLAIN,
        BLUE,
        4.4,
    )
    number(ax, CLIENT - 13.5, 5.4, 8)
    buffer = BytesIO()
    figure.savefig(buffer, dpi=98, facecolor="white")
    small = Image.open(buffer).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    small.save(OUT, optimize=True)
    print(f"Drawn: {OUT.name}, {OUT.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
