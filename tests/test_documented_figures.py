"""Measured figures in the documentation come from recorded results, and results are complete."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
PAGES = [
    page
    for folder in ("", "guide", "tutorials")
    for page in sorted((ROOT / "docs" / folder).glob("*.rst"))
]
TABLE = re.compile(r"^( *)\.\. (?:list-table|csv-table)::.*\n((?:\1 +.*\n|\n)*)", re.MULTILINE)
NUMBER = r"[-+]?\d*[.,]?\d+"
CELL = re.compile(
    rf"- +{NUMBER}(?: (?:±|\+-|to) {NUMBER})?(?: ?(?:%|s|GiB))?(?: \(.*\))?$", re.MULTILINE
)
FEW = 4  # numbers in a table of settings or terms


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


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_tables_hold_no_measured_figures_that_were_typed(page):
    assert not [*typed_figures(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_say_how_they_were_made(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["command"].startswith(f"python -m benchmarks.{result['benchmark']}")
    assert (ROOT / "benchmarks" / f"{result['benchmark']}.py").exists()
    assert re.fullmatch(r"[0-9a-f]{7}\+?", result["code"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
    keys = [(r["method"], r["dataset"], r["metric"]) for r in result["records"]]
    assert len(keys) == len(set(keys)) > 0
