"""Check the links of the built documentation: pages and places exist, nothing comes from the net.

python docs/check_links.py docs/_build/html

Sphinx checks references between sources; this checks what a browser will be given, anchors of
equations and modules included. Pages must work without a network, their search too, so that
scripts, styles and pictures lie beside them.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ELSEWHERE = ("http:", "https:", "mailto:")
SHOWN = 50  # largest number of broken links to print; an incomplete build has thousands
LOADED = {"script": "src", "img": "src", "link": "href"}  # loaded by a browser without a click


class Page(HTMLParser):
    """Anchors and links of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []  # and whether a browser loads them
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given[key] or "" for key in ("id", "name") if key in given}
        for key in ("href", "src"):
            if link := given.get(key):
                self.links.append((link, LOADED.get(tag) == key))


def broken(path: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """Broken links of a page."""
    for link, loaded in pages[path].links:
        if link.startswith(ELSEWHERE):
            if loaded and not link.startswith("mailto:"):
                yield f"{link} needs a network"
            continue
        if link.startswith("data:"):
            continue
        place, anchor = urldefrag(link)
        target = (path.parent / unquote(place.partition("?")[0])).resolve() if place else path
        target = target / "index.html" if target.is_dir() else target
        if not target.exists():
            yield f"{link} does not exist"
        elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
            yield f"{link} has no such place"


def main() -> None:
    root = Path(sys.argv[1]).resolve()
    found = [path for path in root.rglob("*.html") if "_static" not in path.parts]
    pages = {path: Page(path) for path in found}
    lines = [f"{path.relative_to(root)}: {what}" for path in pages for what in broken(path, pages)]
    n_links = sum(len(page.links) for page in pages.values())
    print(f"{n_links} links on {len(pages)} pages, {len(lines)} of them broken")
    sys.exit("\n".join(lines[:SHOWN]) or None)


if __name__ == "__main__":
    main()
