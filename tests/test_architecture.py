"""The page on architecture names files that exist, and equations that are cited there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.rst").read_text(encoding="utf-8")
FILES = sorted(set(re.findall(r"``(skuq/[\w/]+(?:\.py)?)``", PAGE)))
ROW = r"^   \* - (Eq\.|Lines?|Lemma|Algorithm) ([\d., ]+)\n     - .*\n     - ``([\w/.]+)``$"
ROWS = re.findall(ROW, PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", FILES)
def test_files_on_the_page_exist(name):
    assert (ROOT / name).exists()


@pytest.mark.parametrize(("kind", "numbers", "name"), ROWS)
def test_equations_are_cited_where_the_page_says(kind, numbers, name):
    source = (ROOT / name).read_text(encoding="utf-8")
    comments = [line.split("#", 1)[1] for line in source.splitlines() if "#" in line]
    cited = " ".join(line for line in comments if kind.rstrip("s.") in line)
    for number in numbers.split(", "):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", cited), (kind, number)


def test_all_rows_of_the_tables_are_read():
    assert len(ROWS) == PAGE.count("     - ``skuq/")
