"""Measured figures in the documentation come from recorded results, and results are complete."""

import json
import re
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
