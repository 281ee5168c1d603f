"""Pages of the documentation and the code agree on files and on numbers of equations."""

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.rst").read_text(encoding="utf-8")
# In prose, and in the literal blocks that list the files of a call.
FILES = sorted(set(re.findall(r"(?:``|^ +)(skuq/[\w/]+(?:\.py)?)(?:``|/?  )", PAGE, re.MULTILINE)))
ROW = r"^   \* - (Eq\.|Lines?|Lemma|Algorithm) ([\d., ]+)\n     - .*\n     - ``([\w/.]+)``$"
ROWS = re.findall(ROW, PAGE, re.MULTILINE)
PROOFS = (ROOT / "docs" / "guide" / "robust_gpc_proofs.rst").read_text(encoding="utf-8")
# Equations of the proofs in the order of their numbers, which comments in skuq/gpc cite.
EQUATIONS = [
    "gpc-moments",  # Eq. 1
    "gpc-indefinite",  # Eq. 2
    "gpc-derivatives",  # Eq. 3
    "gpc-taylor",  # Eq. 4
    "gpc-matern52",  # Eq. 5
    "gpc-matern32",  # Eq. 6
    "gpc-products",  # Eq. 7
    "gpc-sums",  # Eq. 8
    "gpc-mean-rest",  # Eq. 9
    "gpc-cauchy",  # Eq. 10
    "gpc-covariance-rest",  # Eq. 11
    "gpc-gradient-pieces",  # Eq. 12
    "gpc-gradient-rest",  # Eq. 13
    "gpc-separable",  # Eq. 14
    "gpc-convexified",  # Eq. 15
    "gpc-ball",  # Eq. 16
    "gpc-level-line",  # Eq. 17
    "gpc-missing-variance",  # Eq. 18
    "gpc-probit",  # Eq. 19
    "gpc-logit",  # Eq. 20
    "gpc-smooth-logit",  # Eq. 21
    "gpc-softmax-curvature",  # Eq. 22
    "gpc-cumulants",  # Eq. 23
    "gpc-smooth-softmax",  # Eq. 24
    "gpc-pairs",  # Eq. 25
    "gpc-monotone",  # Eq. 26
    "gpc-rounding",  # Eq. 27
    "gpc-quadrature",  # Eq. 28
    "gpc-three-classes",  # Eq. 29
    "gpc-whitened",  # Eq. 30
    "gpc-whitened-rounding",  # Eq. 31
    "gpc-many-classes",  # Eq. 32
    "gpc-independent",  # Eq. 33
    "gpc-independent-rule",  # Eq. 34
    "gpc-correlated",  # Eq. 35
    "gpc-many-reach",  # Eq. 36
    "gpc-second-order",  # Eq. 37
    "gpc-inexact-derivatives",  # Eq. 38
    "gpc-chaos",  # Eq. 39
    "gpc-chords",  # Eq. 40
]


@pytest.mark.parametrize("name", FILES)
def test_files_on_the_page_exist(name):
    assert (ROOT / name).exists()


def test_tests_that_the_guide_names_for_its_promises_exist():
    page = (ROOT / "docs" / "guide" / "audit_proofs.rst").read_text(encoding="utf-8")
    names = set(re.findall(r"``(test_\w+\.py)``", page))
    assert len(names) > 5
    assert not [name for name in names if not (ROOT / "tests" / "zk" / name).exists()]


@pytest.mark.parametrize(("kind", "numbers", "name"), ROWS)
def test_equations_are_cited_where_the_page_says(kind, numbers, name):
    source = (ROOT / name).read_text(encoding="utf-8")
    comments = [line.split("#", 1)[1] for line in source.splitlines() if "#" in line]
    cited = " ".join(line for line in comments if kind.rstrip("s.") in line)
    for number in numbers.split(", "):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", cited), (kind, number)


def test_all_rows_of_the_tables_are_read():
    assert len(ROWS) == sum(PAGE.count(f"     - ``{folder}/") for folder in ("skuq", "benchmarks"))


def test_equations_of_the_proofs_keep_the_numbers_that_the_code_cites():
    assert re.findall(r"^ +:label: (.+)$", PROOFS, re.MULTILINE) == EQUATIONS


def test_the_picture_shows_the_layers_of_the_contract():
    contract = ConfigParser()
    contract.read(ROOT / ".importlinter")
    layers = contract["importlinter:contract:layers"]["layers"]
    picture = (ROOT / "docs" / "images" / "layers.svg").read_text(encoding="utf-8")
    for package in re.findall(r"skuq\.(\w+)", layers):
        assert f">{package}</text>" in picture, "run python docs/layers_picture.py"
