"""Check the built documentation for readers who do not see it, or use a keyboard only.

python docs/check_pages.py docs/_build/html

Pages name their language, headings come in order, pictures have an alternative text (which is empty
for decoration) and headings of tables a scope.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

HEADINGS = {f"h{level}": level for level in range(1, 7)}


class Page(HTMLParser):
    """Tags of a page with their attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def faults(text: str) -> Iterator[str]:
    """Yield the faults of a page that a reader would notice."""
    level = 0
    for tag, given in Page(text).tags:
        if tag == "html" and not given.get("lang"):
            yield "no language"
        elif tag == "img" and given.get("alt") is None:
            yield f"{given.get('src')} has no alternative text"
        elif tag == "th" and not given.get("scope"):
            yield "a heading of a table has no scope"
        elif tag in HEADINGS:
            if HEADINGS[tag] > level + 1:
                yield f"heading {tag} after level {level}"
            level = HEADINGS[tag]


def main() -> None:
    root = Path(sys.argv[1]).resolve()
    found = [path for path in sorted(root.rglob("*.html")) if "_static" not in path.parts]
    lines = [
        f"{path.relative_to(root)}: {what}"
        for path in found
        for what in dict.fromkeys(faults(path.read_text(encoding="utf-8")))
    ]
    print(f"{len(found)} pages, {len(lines)} faults")
    sys.exit("\n".join(lines) or None)


if __name__ == "__main__":
    main()
