"""Figures of the gallery, with titles and labels of their axes as alternative texts."""

import re

import matplotlib.pyplot as plt
from sphinx_gallery.scrapers import matplotlib_scraper


def described(block, block_vars, gallery_conf, **options) -> str:
    """Save the open figures of a block of an example, and return their reStructuredText."""
    texts = iter([described_figure(plt.figure(n)) for n in plt.get_fignums()])

    def alternative(line: re.Match) -> str:
        text = next(texts)
        return f":alt: {text}" if text else line[0]  # a title that sphinx-gallery found

    saved = matplotlib_scraper(block, block_vars, gallery_conf, **options)
    return re.sub(r":alt:.*", alternative, saved)


def described_figure(figure) -> str:
    """Title, labels and names in the legend of each axes."""
    sentences = []
    for ax in figure.axes:
        about = " by ".join(filter(None, (ax.get_ylabel(), ax.get_xlabel())))
        names = ", ".join(ax.get_legend_handles_labels()[1])
        sentences.append(": ".join(filter(None, (ax.get_title(), about, names))))
    return ". ".join(" ".join(each.replace("$", "").split()) for each in sentences if each)
