"""The directive ``pythons-table``: Python versions on which extras install and tests pass."""

import json
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

RECORD = Path(__file__).parent / "pythons.json"


class PythonsTable(Directive):
    """Table of the results in ``pythons.json``, recorded by ``.ci/pythons``: a row per extra."""

    def run(self) -> list[nodes.Node]:
        """Parse a list-table of what was recorded."""
        self.state.document.settings.env.note_dependency(str(RECORD))
        node = nodes.container(classes=["measured"])
        lines = [*table(json.loads(RECORD.read_text(encoding="utf-8")))]
        self.state.nested_parse(StringList(lines, str(RECORD)), self.content_offset, node)
        return [node]


def table(runs: list[dict]) -> Iterator[str]:
    """List-table with a column per Python version, and the tests in its last row."""
    yield from (".. list-table::", "   :header-rows: 1", "")
    heads = [f"Python {each['python']}, torch {each['torch'].partition('+')[0]}" for each in runs]
    yield from _line(["extra", *heads])
    for extra in runs[0]["extras"]:
        yield from _line([f"``{extra}``", *(_cell(each["extras"].get(extra)) for each in runs)])
    yield from _line(["daily tests", *(_counts(each["tests"]) for each in runs)])
    yield ""
    origins = (
        f"{each['python']} on {each['date']} ({each['platform']}, code {each['code']})"
        for each in runs
    )
    yield f"Run by ``.ci/pythons``: {', '.join(origins)}."


def _cell(found: dict | None) -> str:
    """Whether an extra installs, and which packages it lacks on this Python version."""
    if found is None:
        return "\N{EN DASH}"
    if "error" in found:
        return "cannot be installed"
    without = f"without {', '.join(found['no_build'])}" if found["no_build"] else ""
    if without and not found["installed"]:
        return "\N{EN DASH}"
    return f"installs {without}".strip()


def _counts(tests: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in tests.items())


def _line(cells: list[str]) -> Iterator[str]:
    for index, cell in enumerate(cells):
        yield f"   {'*' if index == 0 else ' '} - {cell}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("pythons-table", PythonsTable)
    return {"parallel_read_safe": True}
