"""The directive ``measured-table``, which shows recorded results of a benchmark as a table."""

import json
from collections.abc import Iterator

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from benchmarks.harness import RESULTS, changed_parts


def names(text: str) -> dict[str, str]:
    """Lines ``name = heading``, or ``name`` alone, which is its own heading."""
    pairs = (line.partition(" = ") for line in text.splitlines() if line.strip())
    return {name.strip(): heading.strip() or name.strip() for name, _, heading in pairs}


def published(text: str) -> dict[str, list[str]]:
    """Lines ``name = figure, figure``: a paper's figures, one for each column, as printed."""
    return {
        name: [figure.strip() for figure in figures.split(",")]
        for name, figures in names(text).items()
    }


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

    ``of`` is the noun of what each figure is a mean of, such as "networks"; the number of them
    stands below the table. ``spread`` shows the standard deviation between them behind a figure
    that is a mean of several.
    ``paper`` gives a paper's figures of a row, one for each column, which follow ours in
    parentheses: ``quam-pool = .994, -``. ``scale`` multiplies ours, to have the paper's unit.
    ``command`` measures what is not recorded yet: as long as there is no such file, the command
    stands there, below the paper's figures if there are any.
    """

    required_arguments = 1
    option_spec = {
        "metrics": names,
        "columns": names,
        "rows": names,
        "paper": published,
        "digits": directives.nonnegative_int,
        "scale": float,
        "first": directives.unchanged,
        "command": directives.unchanged,
        "turned": directives.flag,
        "of": directives.unchanged_required,
        "spread": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Parse a list-table that holds the figures."""
        path = RESULTS / f"{self.arguments[0]}.json"
        self.state.document.settings.env.note_dependency(str(path))
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))
            records, origin = result["records"], [*_origin(result)]
        elif command := self.options.get("command"):
            records, origin = (
                [],
                [f"Ours are not recorded yet; ``{command}`` measures them."],
            )
        else:
            raise self.error(f"There is no benchmarks/results/{path.name}, and no command for it.")
        try:
            lines = [*table(records, self.options), "", *_counts(records, self.options), *origin]
        except ValueError as error:
            raise self.error(f"{self.arguments[0]} {error}") from None
        node = nodes.container(classes=["measured"])
        self.state.nested_parse(StringList(lines, str(path)), self.content_offset, node)
        return [node]


def table(records: list[dict], options: dict) -> Iterator[str]:
    """List-table of figures, the paper's beside them; an error if it knows nothing of a row."""
    if not records and "paper" not in options:
        return
    metrics, columns, rows = (options[key] for key in ("metrics", "columns", "rows"))
    keys = ["dataset", "method"] if "turned" in options else ["method", "dataset"]
    figures = {tuple(r[key] for key in (*keys, "metric")): r for r in records}
    cells = [(column, metric) for column in columns for metric in metrics]
    paper = options.get("paper", {})
    known = [name for name in rows if any((name, *cell) in figures for cell in cells)]
    lacking = [name for name in rows if name not in known and name not in paper]
    if records and lacking:
        raise ValueError(f"has no such figures of {', '.join(lacking)}.")
    if wrong := [name for name in paper if name not in rows or len(paper[name]) != len(cells)]:
        raise ValueError(f"needs {len(cells)} figures of the paper for {', '.join(wrong)}.")
    yield from (".. list-table::", "   :header-rows: 1", "")
    heads = (_heading(columns[column], metrics[metric]) for column, metric in cells)
    yield from _line([options.get("first", "ours (paper's)" if paper else "method"), *heads])
    for name, heading in rows.items():
        ours = (_shown(figures.get((name, *cell)), options) for cell in cells)
        theirs = (f" ({x})" if x.strip("-") else "" for x in paper.get(name, [""] * len(cells)))
        yield from _line([heading, *map("".join, zip(ours, theirs, strict=True))])


def _counts(records: list[dict], options: dict) -> Iterator[str]:
    """Number of values that the figures of a table are means of, or the range of these numbers."""
    if "of" not in options:
        return
    methods, datasets = options["rows"], options["columns"]
    if "turned" in options:
        methods, datasets = datasets, methods
    shown = [r for r in records if r["method"] in methods and r["dataset"] in datasets]
    counts = {r["n"] for r in shown if r["metric"] in options["metrics"]}
    if counts:
        ends = dict.fromkeys(f"{count:,}" for count in (min(counts), max(counts)))
        yield f"n = {' to '.join(ends)} {options['of']}."


def _shown(record: dict | None, options: dict) -> str:
    digits, scale = options.get("digits", 3), options.get("scale", 1)
    if record is None:
        return "\N{EN DASH}"
    has_spread = "spread" in options and record["n"] > 1
    figures = [record["value"], *([record["std"]] if has_spread else [])]
    return " ± ".join(f"{figure * scale:.{digits}f}" for figure in figures)


def _heading(column: str, metric: str) -> str:
    return ", ".join(part for part in (column, metric) if part != "-")


def _line(cells: list[str]) -> Iterator[str]:
    for index, cell in enumerate(cells):
        yield f"   {'*' if index == 0 else ' '} - {cell}"


def _origin(result: dict) -> Iterator[str]:
    machine, changed = result["machine"], changed_parts(result)
    gpu = f"{machine['gpu']}, " if "gpu" in machine else ""
    yield (
        f"Printed by ``{result['command']}`` on {result['date']}, code {result['code']} ({gpu}"
        f"{machine['threads']} of {machine['cores']} cores, torch {machine['versions']['torch']})."
    )
    if "parts" not in result:
        yield "Whether its code changed since then was not recorded."
    elif changed:
        yield f"Since then code that it uses changed in: {', '.join(changed)}."
    if result["code"].endswith("+"):
        yield "That code had changes that were not committed."


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("measured-table", MeasuredTable)
    return {"parallel_read_safe": True}
