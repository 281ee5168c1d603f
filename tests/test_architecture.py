"""Pages of the documentation and the code agree on files and on numbers of equations."""

import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.rst").read_text(encoding="utf-8")
# In prose, and in the literal blocks that list the files of a call.
FILES = sorted(set(re.findall(r"(?:``|^ +)(skuq/[\w/]+(?:\.py)?)(?:``|/?  )", PAGE, re.MULTILINE)))
ROW = r"^   \* - (Eq\.|Lines?|Lemma|Algorithm) ([\d., ]+)\n     - .*\n     - ``([\w/.]+)``$"
ROWS = re.findall(ROW, PAGE, re.MULTILINE)
PROOFS = (ROOT / "docs" / "guide" / "robust_gpc_proofs.rst").read_text(encoding="utf-8")
# Equations of the proofs in the order of their numbers, which comments in skuq/gpc cite.
EQUATIONS = (
    "moments indefinite derivatives taylor matern52 matern32 products sums mean-rest cauchy "
    "covariance-rest gradient-pieces gradient-rest separable convexified ball level-line "
    "missing-variance probit logit smooth-logit softmax-curvature cumulants smooth-softmax pairs "
    "monotone rounding quadrature three-classes whitened whitened-rounding many-classes "
    "independent independent-rule correlated many-reach second-order inexact-derivatives "
    "chaos chords"
)


def test_files_on_the_page_and_tests_that_the_guide_names_for_its_promises_exist():
    page = (ROOT / "docs" / "guide" / "promises.rst").read_text(encoding="utf-8")
    named = set(re.findall(r"``(test_\w+)``", page))
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py")]
    assert len(FILES) > 50
    assert len(named) > 12
    assert not [name for name in FILES if not (ROOT / name).exists()]
    assert not [name for name in named if not any(f"def {name}(" in text for text in sources)]


def test_equations_are_cited_where_the_page_says():
    missing = []
    for kind, numbers, name in ROWS:
        source = (ROOT / name).read_text(encoding="utf-8")
        comments = [line.split("#", 1)[1] for line in source.splitlines() if "#" in line]
        cited = " ".join(line for line in comments if kind.rstrip("s.") in line)
        for number in numbers.split(", "):
            if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", cited):
                missing.append((name, kind, number))
    assert not missing
    assert len(ROWS) == sum(PAGE.count(f"     - ``{folder}/") for folder in ("skuq", "benchmarks"))


def test_equations_of_the_proofs_keep_the_numbers_that_the_code_cites():
    labels = re.findall(r"^ +:label: gpc-(.+)$", PROOFS, re.MULTILINE)
    assert " ".join(labels) == EQUATIONS
    assert len(labels) == len(re.findall(r":label:", PROOFS))


def test_the_picture_shows_the_layers_of_the_contract():
    contract = ConfigParser()
    contract.read(ROOT / ".importlinter")
    layers = contract["importlinter:contract:layers"]["layers"]
    picture = (ROOT / "docs" / "images" / "layers.svg").read_text(encoding="utf-8")
    drawn = set(re.findall(r">(\w+)</text>", picture))
    assert not set(re.findall(r"skuq\.(\w+)", layers)) - drawn, "run python docs/layers_picture.py"
