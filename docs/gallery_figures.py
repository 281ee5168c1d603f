"""Figures of the gallery, with descriptions of what they draw as alternative texts."""

import re

import matplotlib.pyplot as plt
from sphinx_gallery.scrapers import matplotlib_scraper

from skuq.plotting import description


def described(block, block_vars, gallery_conf, **options) -> str:
    """Save the open figures of a block of an example, and return their reStructuredText."""
    texts = iter([" ".join(description(plt.figure(n)).split()) for n in plt.get_fignums()])

    def alternative(line: re.Match) -> str:
        text = next(texts)
        return f":alt: {text}" if text else line[0]  # a title that sphinx-gallery found

    saved = matplotlib_scraper(block, block_vars, gallery_conf, **options)
    return re.sub(r":alt:.*", alternative, saved)
