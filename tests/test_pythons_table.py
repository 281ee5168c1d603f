"""Table of Pythons and extras, from what ``.ci/pythons`` recorded."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the directive is part of the documentation")
sys.path.append(str(Path(__file__).parents[1] / "docs"))

from pythons_table import table

RUN = {
    "python": "3.13.5",
    "torch": "2.6.0+debian",
    "platform": "Linux x86_64",
    "extras": {
        "plot": {"installed": {"matplotlib": "3.9.2"}, "no_build": []},
        "graph": {"installed": {}, "no_build": ["dgl"]},
        "docs": {"installed": {"Sphinx": "9.0"}, "no_build": ["dgl"]},
        "zk": {"error": "ERROR: no matching distribution"},
    },
    "tests": {"passed": 4000, "skipped": 20, "failed": 1},
    "date": "2026-11-25",
    "code": "1234567",
}


def test_rows_are_extras_and_columns_pythons():
    lines = list(
        table([RUN, RUN | {"python": "3.14.1", "extras": {"plot": RUN["extras"]["plot"]}}])
    )
    cells = [line[7:] for line in lines if re.match("   [* ] - ", line)]
    assert cells[:3] == ["extra", "Python 3.13.5, torch 2.6.0", "Python 3.14.1, torch 2.6.0"]
    assert cells[3:9] == ["``plot``", *["installs"] * 2, "``graph``", *["\N{EN DASH}"] * 2]
    assert cells[-3:] == ["daily tests", *["4,000 passed, 20 skipped, 1 failed"] * 2]
    first = [line[7:] for line in table([RUN]) if line.startswith("     - ")]
    expected = ["installs", "\N{EN DASH}", "installs without dgl", "cannot be installed"]
    assert first[1:5] == expected
