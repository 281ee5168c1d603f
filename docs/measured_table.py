"""The directive ``measured-table``: figures that a benchmark recorded, as a table."""

import json
import math
from collections.abc import Iterator

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from benchmarks.harness import RESULTS, code_parts


def names(text: str) -> dict[str, str]:
    """Lines ``name = heading``, or ``name`` alone, which is its own heading."""
    pairs = (line.partition(" = ") for line in text.splitlines() if line.strip())
    return {name.strip(): heading.strip() or name.strip() for name, _, heading in pairs}


class MeasuredTable(Directive):
    """Rows and columns of ``benchmarks/results/NAME.json``, with the command that printed them.

    One line for each row and column: what it is called in the file, and its heading. Rows are
    methods and columns data sets; with several metrics, one column for each of both. With
    ``turned``, rows are data sets and columns methods. A cell that has no figure shows a dash.

    .. code-block:: rst

       .. measured-table:: quam_mnist_mixed
          :digits: 4
          :metrics: auroc_share_0.5 = half
             auroc_share_0.1 = 10 %
          :columns: fashion_mnist = FashionMNIST
          :rows: quam-pool = QUAM
             entropy = entropy of the given model
    """

    required_arguments = 1
    option_spec = {
        "metrics": names,
        "columns": names,
        "rows": names,
        "digits": directives.nonnegative_int,
        "first": directives.unchanged,
        "turned": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Parse a list-table that holds the figures."""
        path = RESULTS / f"{self.arguments[0]}.json"
        self.state.document.settings.env.note_dependency(str(path))
        result = json.loads(path.read_text())
        lines = StringList([*self._table(result["records"]), "", *_origin(result)], str(path))
        node = nodes.container(classes=["measured"])
        self.state.nested_parse(lines, self.content_offset, node)
        return [node]

    def _table(self, records: list[dict]) -> Iterator[str]:
        metrics, columns, rows = (self.options[key] for key in ("metrics", "columns", "rows"))
        names = ["dataset", "method"] if "turned" in self.options else ["method", "dataset"]
        figures = {tuple(r[key] for key in (*names, "metric")): r["value"] for r in records}
        cells = [(column, metric) for column in columns for metric in metrics]
        lacking = [name for name in rows if not any((name, *cell) in figures for cell in cells)]
        if lacking:
            raise self.error(f"{self.arguments[0]} has no such figures of {', '.join(lacking)}.")
        yield from (".. list-table::", "   :header-rows: 1", "")
        heads = (_heading(columns[column], metrics[metric]) for column, metric in cells)
        yield from _line([self.options.get("first", "method"), *heads])
        for name, heading in rows.items():
            shown = (self._shown(figures.get((name, *cell), math.nan)) for cell in cells)
            yield from _line([heading, *shown])

    def _shown(self, value: float) -> str:
        return "\N{EN DASH}" if math.isnan(value) else f"{value:.{self.options.get('digits', 3)}f}"


def _heading(column: str, metric: str) -> str:
    return ", ".join(part for part in (column, metric) if part != "-")


def _line(cells: list[str]) -> Iterator[str]:
    for index, cell in enumerate(cells):
        yield f"   {'*' if index == 0 else ' '} - {cell}"


def _origin(result: dict) -> Iterator[str]:
    machine, now = result["machine"], code_parts()
    changed = [part for part, code in result.get("parts", {}).items() if now.get(part) != code]
    yield (
        f"Printed by ``{result['command']}`` on {result['date']}, code {result['code']} "
        f"({machine['threads']} of {machine['cores']} cores, torch {machine['versions']['torch']})."
    )
    if changed and now:
        yield f"Since then these parts of skuq changed: {', '.join(changed)}."


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("measured-table", MeasuredTable)
    return {"parallel_read_safe": True}
