"""The directive ``measured-table``, which shows recorded results of a benchmark as a table."""

import json
from collections.abc import Iterator

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from benchmarks.harness import RESULTS, changed_parts

# Headings of names that several tables show, so that each is called the same on all pages.
HEADINGS = {
    "adult": "Adult",
    "amazon_computers": "AmazonComputers",
    "amazon_photo": "AmazonPhotos",
    "asterix": "Asterix",
    "breakout": "Breakout",
    "citeseer_full": "CiteSeer",
    "coauthor_cs": "CoauthorCS",
    "coraml": "CoraML",
    "fashion_mnist": "FashionMNIST",
    "freeway": "Freeway",
    "kmnist": "KMNIST",
    "mnist": "MNIST",
    "omniglot_latin": "Omniglot (Latin)",
    "seaquest": "Seaquest",
    "space_invaders": "Space Invaders",
    "bootstrapped": "Bootstrapped DQN",
    "confidence": "1 - largest probability",
    "dqn": "DQN",
    "dropout": "MC dropout",
    "egnn": "EGCN",
    "egnn-both": "EGCN-vacuity-evidence-prop",
    "egnn-evidence": "EGCN-evidence-prop",
    "egnn-vacuity": "EGCN-vacuity-prop",
    "energy-diffused": "energy, our diffusion",
    "energy-similar": "energy, over similar nodes",
    "ensemble": "deep ensemble",
    "entropy": "entropy of the given model",
    "epn": "EPN",
    "epn-free": "EPN-reg, learned layer (``epn-free``)",
    "epn-ice": "EPN + ICE",
    "epn-reg": "EPN-reg",
    "epn-similar": "EPN-reg, over similar nodes",
    "gkde": "SGCN-GKDE",
    "gnnsafe": "GNNSafe, own share .5",
    "gnnsafe-0.2": "GNNSafe, own share .2",
    "gpn": "GPN",
    "laplace": "last-layer Laplace",
    "max-score": "largest probability",
    "mc-dropout": "MC dropout",
    "neighbours": "``FeatureDistanceClassifier``",
    "qrdqn": "QR-DQN",
    "quam-pool": "QUAM",
    "sg-mcmc": "cSG-HMC",
    "uadqn": "UADQN",
    "ece": "ECE",
    "region_accuracy": "in the region",
    "region_share": "%unc",
    "target_bin_error": "CalE",
}


def names(text: str) -> dict[str, str]:
    """Lines ``name = heading``, or ``name`` alone, with its heading of `HEADINGS` or itself."""
    pairs = (line.partition(" = ") for line in text.splitlines() if line.strip())
    stripped = ((name.strip(), heading.strip()) for name, _, heading in pairs)
    return {name: heading or HEADINGS.get(name, name) for name, heading in stripped}


def published(text: str) -> dict[str, list[str]]:
    """Lines ``name = figure, figure``: a paper's figures, one for each column, as printed."""
    return {
        name: [figure.strip() for figure in figures.split(",")]
        for name, figures in names(text).items()
    }


class MeasuredTable(Directive):
    """Rows and columns of ``benchmarks/results/NAME.json``, with the command that printed them.

    One line for each row and column: what it is called in the file, and its heading. Rows are
    methods and columns data sets; with several metrics, one column for each of both, and a single
    metric or data set needs no heading. With ``turned``, rows are data sets and columns methods. A
    cell that has no figure shows a dash.

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
    With ``spread``, a sign compares figures that both have one (see `verdict`).
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
        "turned": directives.flag,
        "of": directives.unchanged_required,
        "spread": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Parse a list-table that holds the figures."""
        path = RESULTS / f"{self.arguments[0]}.json"
        self.state.document.settings.env.note_dependency(str(path))
        if not path.exists():
            raise self.error(f"There is no benchmarks/results/{path.name}.")
        result = json.loads(path.read_text(encoding="utf-8"))
        records = result["records"]
        try:
            shown = [*table(records, self.options), "", *_counts(records, self.options)]
        except ValueError as error:
            raise self.error(f"{self.arguments[0]} {error}") from None
        node = nodes.container(classes=["measured"])
        lines = StringList([*shown, *_origin(result)], str(path))
        self.state.nested_parse(lines, self.content_offset, node)
        return [node]


def table(records: list[dict], options: dict) -> Iterator[str]:
    """List-table of figures, the paper's beside them; an error if it knows nothing of a row."""
    rows = options["rows"]
    metrics, columns = (_alone(options[key]) for key in ("metrics", "columns"))
    keys = ["dataset", "method"] if "turned" in options else ["method", "dataset"]
    figures = {tuple(r[key] for key in (*keys, "metric")): r for r in records}
    cells = [(column, metric) for column in columns for metric in metrics]
    paper = options.get("paper", {})
    known = [name for name in rows if any((name, *cell) in figures for cell in cells)]
    lacking = [name for name in rows if name not in known and name not in paper]
    if lacking:
        raise ValueError(f"has no such figures of {', '.join(lacking)}.")
    if wrong := [name for name in paper if name not in rows or len(paper[name]) != len(cells)]:
        raise ValueError(f"needs {len(cells)} figures of the paper for {', '.join(wrong)}.")
    yield from (".. list-table::", "   :header-rows: 1", "")
    heads = (_heading(columns[column], metrics[metric]) for column, metric in cells)
    yield from _line([options.get("first", "ours (paper's)" if paper else "method"), *heads])
    for name, heading in rows.items():
        theirs = paper.get(name, ["-"] * len(cells))
        ours = (figures.get((name, *cell)) for cell in cells)
        shown = (_cell(*each, options) for each in zip(ours, theirs, strict=True))
        yield from _line([heading, *shown])


def _alone(headings: dict[str, str]) -> dict[str, str]:
    """Headings of metrics or columns; the only one needs none, so its bare name is not shown."""
    first = next(iter(headings))
    return {first: "-"} if headings == {first: first} else headings


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


def _cell(record: dict | None, theirs: str, options: dict) -> str:
    digits, scale = options.get("digits", 3), options.get("scale", 1)
    paper = f" ({theirs})" if theirs.strip("-") else ""
    if record is None:
        return f"\N{EN DASH}{paper}"
    has_spread = "spread" in options and record["n"] > 1
    figures = [record["value"] * scale, *([record["std"] * scale] if has_spread else [])]
    ours = " ± ".join(f"{figure:.{digits}f}" for figure in figures)
    return f"{ours}{paper}{verdict(figures, theirs) if has_spread else ''}"


def verdict(ours: list[float], theirs: str) -> str:
    """Whether our interval, value ± spread, overlaps a paper's (=), is above (>) or below it (<).

    The spread of a figure quoted without one is half of its last digit; "about 5" gets no sign.
    """
    figure, _, printed = theirs.partition(" ± ")
    try:
        value, spread = float(figure), float(printed or 0.5 / 10 ** len(figure.partition(".")[2]))
    except ValueError:
        return ""
    if abs(ours[0] - value) <= ours[1] + spread:
        return " ="
    return " >" if ours[0] > value else " <"


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
