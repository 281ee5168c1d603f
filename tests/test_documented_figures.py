"""Measured figures in the documentation come from recorded results, and results are complete."""

import functools
import json
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
FOLDERS = [ROOT / "docs" / folder for folder in ("", "guide", "tutorials")]
PAGES = [page for folder in FOLDERS for page in sorted(folder.glob("*.rst"))]
TABLE = re.compile(r"^( *)\.\. (?:list-table|csv-table)::.*\n((?:\1 +.*\n|\n)*)", re.MULTILINE)
NUMBER = r"[-+]?\d*[.,]?\d+"
CELL = re.compile(
    rf"- +{NUMBER}(?: (?:±|\+-|to) {NUMBER})?(?: ?(?:%|s|GiB))?(?: \(.*\))?$", re.MULTILINE
)
FEW = 4  # numbers in a table of settings or terms
MEASURED = re.compile(r"^( *)\.\. measured-table::.*\n((?:\1 +.*\n|\n)*)", re.MULTILINE)


def typed_figures(page):
    """Cells that are a number, of tables that are not rendered from results."""
    for _, body in TABLE.findall(page):
        cells = CELL.findall(body)
        yield from cells if len(cells) > FEW else []


def test_typed_figures_are_seen():
    rows = (
        "   * - a\n     - 0.954 ± 0.002\n     - 12 %\n   * - b\n     - .8\n     - 3,400\n     - 5\n"
    )
    assert len(list(typed_figures(f".. list-table::\n\n{rows}\nText.\n"))) == 5
    assert not list(typed_figures(f".. measured-table:: name\n\n{rows}"))


def test_tables_hold_no_measured_figures_that_were_typed():
    typed = {page.stem: [*typed_figures(page.read_text(encoding="utf-8"))] for page in PAGES}
    assert not {page: figures for page, figures in typed.items() if figures}


def test_results_say_how_they_were_made():
    wrong = []
    for path in RESULTS:
        result = json.loads(path.read_text(encoding="utf-8"))
        keys = [(r["method"], r["dataset"], r["metric"]) for r in result["records"]]
        facts = {
            "command": result["command"].startswith(f"python -m benchmarks.{result['benchmark']}"),
            "benchmark": (ROOT / "benchmarks" / f"{result['benchmark']}.py").exists(),
            "code": re.fullmatch(r"[0-9a-f]{7}\+?", result["code"]),
            "date": re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"]),
            "records": len(keys) == len(set(keys)) > 0,
        }
        wrong += [(path.stem, fact) for fact, holds in facts.items() if not holds]
    assert len(RESULTS) > 10
    assert not wrong


@functools.cache
def recorded():
    names = defaultdict(lambda: {"method": set(), "dataset": set(), "metric": set()})
    for path in RESULTS:
        result = json.loads(path.read_text(encoding="utf-8"))
        for kind, found in names[result["benchmark"]].items():
            found |= {record[kind] for record in result["records"]}
    return names


def unrecorded(page):
    """Methods that a sentence names beside a benchmark whose records lack them.

    Such are literals that the script quotes, and words that are methods of a related benchmark.
    """
    prose = re.sub(r":\w+:`[^`]*`", "", MEASURED.sub("\n", page))
    for sentence in re.split(r"(?<=[.;!?])\s|\n\s*\n|\n *[*-] ", prose):
        for name in re.findall(r"benchmarks\.(\w+)", sentence):
            script = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
            related = [each for each in recorded() if each.startswith(name.split("_")[0])]
            methods = set().union(*(recorded()[each]["method"] for each in related))
            said = set(re.findall(r"[\w.-]*\w", sentence)) & methods
            said |= {x for x in re.findall(r"``([^`\s.]+)``", sentence) if f'"{x}"' in script}
            known = set().union(*recorded().get(name, {}).values())
            yield from ((name, x) for x in sorted(said - known))


def test_sentences_name_only_methods_that_are_recorded():
    said = "It beats the entropy, as ``python -m benchmarks.quam_ood`` shows.\n"
    assert [*unrecorded(said)] == [("quam_ood", "entropy")]
    wrong = {page.stem: [*unrecorded(page.read_text(encoding="utf-8"))] for page in PAGES}
    assert not {page: names for page, names in wrong.items() if names}
