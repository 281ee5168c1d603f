"""Pages and code agree: names, files, equations and figures; the code of pages runs."""

import functools
import json
import re
import shutil
import sys
import textwrap
from collections import defaultdict
from configparser import ConfigParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import skuq

sys.path.append(str(Path(__file__).parents[1] / "docs"))

import run_code

DOCS = Path(run_code.__file__).parent
ROOT = DOCS.parent
PAGE = (DOCS / "architecture.rst").read_text(encoding="utf-8")
# In prose, and in the literal blocks that list the files of a call.
FILES = sorted(set(re.findall(r"(?:``|^ +)(skuq/[\w/]+(?:\.py)?)(?:``|/?  )", PAGE, re.MULTILINE)))
ROW = r"^   \* - (Eq\.|Lines?|Lemma|Algorithm) ([\d., ]+)\n     - .*\n     - ``([\w/.]+)``$"
ROWS = re.findall(ROW, PAGE, re.MULTILINE)
PROOFS = (DOCS / "guide" / "robust_gpc_proofs.rst").read_text(encoding="utf-8")
# Equations of the proofs in the order of their numbers, which comments in skuq/gpc cite.
EQUATIONS = (
    "moments indefinite derivatives taylor matern52 matern32 products sums mean-rest cauchy "
    "covariance-rest gradient-pieces gradient-rest separable convexified ball level-line "
    "missing-variance probit logit smooth-logit softmax-curvature cumulants smooth-softmax pairs "
    "monotone rounding quadrature three-classes whitened whitened-rounding many-classes "
    "independent independent-rule correlated many-reach second-order inexact-derivatives "
    "chaos chords"
)


def listed():
    names, package = {}, None
    for line in (DOCS / "api.rst").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\.\. (?:module|currentmodule):: (\S+)$", line):
            package = found[1]
            names.setdefault(package, set())
        elif found := re.match(r"(?:\.\. py:data:: (\S+)|   (\w+))$", line):
            names[package].add(found[1] or found[2])
    return names


def test_the_reference_lists_all_public_packages_with_what_they_export():
    names, folder = listed(), Path(skuq.__file__).parent
    exported = {package: set(import_module(package).__all__) for package in names}
    for package in exported.keys() - {"skuq"}:
        exported[package] -= exported["skuq"]  # listed once, where users import them from
    assert names == exported
    packages = {f"skuq.{path.parent.name}" for path in folder.glob("[a-z]*/__init__.py")}
    # One is a command, and the estimators of the other are names of skuq.
    assert packages - {"skuq.cli", "skuq.baselines"} <= set(names)


def test_files_on_the_page_and_tests_that_the_guide_names_for_its_promises_exist():
    page = (DOCS / "guide" / "promises.rst").read_text(encoding="utf-8")
    named = set(re.findall(r"``(test_\w+)``", page))
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py")]
    assert len(FILES) > 50
    assert len(named) > 12
    assert not [name for name in FILES if not (ROOT / name).exists()]
    assert not [name for name in named if not any(f"def {name}(" in text for text in sources)]


def test_equations_are_cited_where_the_page_says_and_those_of_the_proofs_keep_their_numbers():
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
    labels = re.findall(r"^ +:label: gpc-(.+)$", PROOFS, re.MULTILINE)
    assert " ".join(labels) == EQUATIONS
    assert len(labels) == len(re.findall(r":label:", PROOFS))


def test_the_picture_shows_the_layers_of_the_contract():
    contract = ConfigParser()
    contract.read(ROOT / ".importlinter")
    layers = contract["importlinter:contract:layers"]["layers"]
    picture = (DOCS / "images" / "layers.svg").read_text(encoding="utf-8")
    drawn = set(re.findall(r">(\w+)</text>", picture))
    assert not set(re.findall(r"skuq\.(\w+)", layers)) - drawn, "run python docs/layers_picture.py"


RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
PAGES = [page for folder in ("", "guide", "tutorials") for page in (DOCS / folder).glob("*.rst")]
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


def test_tables_hold_no_measured_figures_that_were_typed():
    rows = "   * - a\n     - 0.954 ± 0.002\n     - 12 %\n   * - b\n     - .8\n"
    rows += "     - 3,400\n     - 5\n"
    assert len(list(typed_figures(f".. list-table::\n\n{rows}\nText.\n"))) == 5
    assert not list(typed_figures(f".. measured-table:: name\n\n{rows}"))
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


RUN = {"python": "3.13.5", "torch": "2.6.0+debian", "platform": "Linux x86_64"} | {
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


def test_rows_of_what_pythons_recorded_are_extras_and_columns_pythons():
    pytest.importorskip("sphinx", reason="the directive is part of the documentation")
    from pythons_table import table

    other = RUN | {"python": "3.14.1", "extras": {"plot": RUN["extras"]["plot"]}}
    cells = [line[7:] for line in table([RUN, other]) if re.match("   [* ] - ", line)]
    assert cells[:3] == ["extra", "Python 3.13.5, torch 2.6.0", "Python 3.14.1, torch 2.6.0"]
    assert cells[3:9] == ["``plot``", *["installs"] * 2, "``graph``", *["\N{EN DASH}"] * 2]
    assert cells[-3:] == ["daily tests", *["4,000 passed, 20 skipped, 1 failed"] * 2]
    first = [line[7:] for line in table([RUN]) if line.startswith("     - ")]
    expected = ["installs", "\N{EN DASH}", "installs without dgl", "cannot be installed"]
    assert first[1:5] == expected


TUTORIALS = DOCS / "tutorials"
EXTRAS = {  # modules that a page needs beyond the core, with the extra that brings each
    "analyst": {"matplotlib": "plot", "skops": "skops"},
    "auditor": {"matplotlib": "plot", "ezkl": "zk", "onnx": "zk", "skops": "skops"},
    "graph_researcher": {"torch_geometric": "test"},
    "ml_engineer": {},
    "rl_user": {"stable_baselines3": "rl", "sb3_contrib": "rl"},
}
WORDS = 1500  # code included: ten minutes at 150 words a minute


def test_every_tutorial_is_run_and_read_in_ten_minutes():
    pages = {path.stem: path.read_text(encoding="utf-8") for path in TUTORIALS.glob("*.rst")}
    assert set(pages) == {*EXTRAS, "index"}
    words = {name: len(pages[name].split()) for name in EXTRAS}
    assert max(words.values()) <= WORDS, words


@pytest.mark.thorough  # the documentation runs them as well
@pytest.mark.parametrize("name", EXTRAS)
def test_a_tutorial_runs_and_prints_what_it_shows(name):
    for module, extra in EXTRAS[name].items():
        if find_spec(module) is None:
            pytest.skip(f"needs {module}, of extra {extra!r}")
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    wrong = run_code.run(TUTORIALS / f"{name}.rst")
    assert not wrong, wrong


def test_the_quick_starts_of_the_readme_run(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    blocks = [f"{CODE}python\n\n{textwrap.indent(each, '   ')}\n" for each in blocks]
    (tmp_path / "readme.rst").write_text("".join(blocks), encoding="utf-8")
    wrong = run_code.run(tmp_path / "readme.rst")
    assert not wrong, wrong


CODE = ".. code-block:: "
OUTPUT = f"{CODE}text\n   :class: output\n\n  "
PARTS = [
    f"{CODE}python\n\n   value = 6",
    f"{CODE}python\n   :caption: half.py\n\n   print('half a dozen is', 3)",
    f"{CODE}sh\n\n   exit 1  # only shown",
    f"{CODE}sh\n   :class: run\n\n   python half.py && echo '{{}}' >&2",
    f"{OUTPUT} half a dozen ... 3\n   done",
    *(f"{CODE}python\n\n   print(value)", f"{OUTPUT} 6\n"),
]
BLOCKS = "\n\n".join(PARTS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BLOCKS.format("done"), ()),
        (BLOCKS.format("broken"), ("expected", "broken")),
        (f"{CODE}python\n\n   raise KeyError('stop')\n", ["KeyError: 'stop'"]),
        (f"{CODE}sh\n   :class: run\n\n   false\n   true\n", ["CalledProcessError"]),
    ],
)
def test_blocks_run_in_turn_outputs_are_compared_and_failures_are_told(tmp_path, text, words):
    page = tmp_path / "page.rst"
    page.write_text(text, encoding="utf-8")
    wrong = run_code.run(page)
    assert all(word in wrong for word in words)
    assert bool(wrong) == bool(words)
