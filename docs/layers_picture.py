"""Draw the layers of the package from their contract: ``python docs/layers_picture.py``."""

from configparser import ConfigParser
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
OUT = HERE / "images" / "layers.svg"
CONTRACT = HERE.parent / ".importlinter"
SURFACES, ESTIMATORS = 3, 2  # layers
FILL = {"surfaces": "#e8f1f8", "estimators": "#fdf1dc", "shared": "#eaf4ec"}
WIDTH, ROW, GAP, LEFT, BOX = 980, 44, 12, 110, 30


def layers() -> list[list[str]]:
    """Packages of each layer, the top one first, as the contract lists them."""
    contract = ConfigParser()
    contract.read(CONTRACT)
    lines = contract["importlinter:contract:layers"]["layers"].strip().splitlines()
    return [[part.strip().removeprefix("skuq.") for part in line.split("|")] for line in lines]


def row(packages: list[str], kind: str, top: float) -> list[str]:
    """One layer: a band with a box for each package."""
    inner = WIDTH - LEFT - GAP
    width = (inner - GAP * (len(packages) + 1)) / len(packages)
    parts = [
        f'<rect x="{LEFT}" y="{top}" width="{inner}" height="{ROW}" rx="6" fill="{FILL[kind]}"/>'
    ]
    for index, package in enumerate(packages):
        x = LEFT + GAP + index * (width + GAP)
        y = top + (ROW - BOX) / 2
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BOX}" rx="4" '
            'fill="#ffffff" stroke="#8a96a3"/>'
        )
        parts.append(
            f'<text x="{x + width / 2:.1f}" y="{y + 20}" text-anchor="middle">'
            f"{escape(package)}</text>"
        )
    return parts


def main() -> None:
    found = layers()
    n_shared = len(found) - SURFACES - ESTIMATORS
    kinds = ["surfaces"] * SURFACES + ["estimators"] * ESTIMATORS + ["shared"] * n_shared
    height = GAP + len(found) * (ROW + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="14" fill="#1c2126">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for index, (packages, kind) in enumerate(zip(found, kinds, strict=True)):
        top = GAP + index * (ROW + GAP)
        if index == 0 or kind != kinds[index - 1]:
            parts.append(f'<text x="{GAP}" y="{top + 27}" font-weight="600">{kind}</text>')
        parts += row(packages, kind, top)
    OUT.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")
    print(f"Drawn: {OUT.name}, {len(found)} layers")


if __name__ == "__main__":
    main()
