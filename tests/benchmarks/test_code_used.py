"""Which code a benchmark's figures depend on."""

import pytest

from benchmarks.code_used import ROOT, code_parts

FILES = {
    "benchmarks/__init__.py": "",
    "benchmarks/x.py": "from benchmarks import parts\nfrom skuq import Model\n",
    "benchmarks/parts.py": "from benchmarks.harness import finish\n",
    "benchmarks/harness.py": "def finish(): ...\n",
    "skuq/__init__.py": "if TYPE_CHECKING:\n    from skuq.method import Model\n",
    "skuq/base.py": "from skuq.files import write\n",
    "skuq/files.py": "def write(): ...\n",
    "skuq/method/__init__.py": "from skuq.method._model import Model\n"
    "from skuq.method._other import Other\n",
    "skuq/method/_model.py": '"""Not skuq.method._other."""\n'
    "from skuq.base import Mixin\n"
    "class Model(Mixin):\n"
    "    def fit(self):\n"
    "        from skuq.shared import helper\n"
    '        import_module("_lazy")\n',
    "skuq/method/_lazy.py": "",
    "skuq/method/_other.py": "class Other: ...\n",
    "skuq/shared/__init__.py": "from skuq.shared._helpers import helper\n",
    "skuq/shared/_helpers.py": "def helper(): ...\n",
    "skuq/shared/_unused.py": "",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def changed_by(tree, name, benchmark="x"):
    """Parts whose digest differs once a file has another line."""
    before = code_parts(f"benchmarks.{benchmark}", tree)
    with (tree / name).open("a", encoding="utf-8") as file:
        file.write("more = 1\n")
    after = code_parts(f"benchmarks.{benchmark}", tree)
    return {part for part in before | after if before.get(part) != after.get(part)}


def test_what_a_benchmark_uses_makes_its_figures_stale(tree):
    used = {
        "benchmarks/x.py": {"benchmarks"},
        "benchmarks/parts.py": {"benchmarks"},
        "skuq/method/_model.py": {"method"},
        "skuq/base.py": {"base"},
        "skuq/method/_lazy.py": {"method"},  # named in a string
        "skuq/shared/_helpers.py": {"shared"},  # imported within a function
        "skuq/method/_other.py": set(),  # in a docstring, and beside the name that is used
        "skuq/shared/_unused.py": set(),
        "skuq/files.py": set(),
        "benchmarks/harness.py": set(),
    }
    assert {name: changed_by(tree, name) for name in used} == used


@pytest.mark.parametrize(
    "text",
    [
        "import skuq.shared\n",
        "from skuq import shared\n",
        "from skuq.shared import unknown\n",
        'subprocess.run(["python", "-c", "from skuq.shared import helper"])\n',
    ],
)
def test_a_package_of_which_it_is_not_known_what_is_used_counts_whole(tree, text):
    (tree / "benchmarks/y.py").write_text(text, encoding="utf-8")
    assert changed_by(tree, "skuq/shared/_unused.py", "y") == {"shared"}


def test_comments_and_docstrings_are_not_code(tree):
    before = code_parts("benchmarks.x", tree)
    model = tree / "skuq/method/_model.py"
    for old, new in (
        ('"""Not skuq.method._other."""\n', '"""A model.\n\nOf several lines.\n"""\n\n'),
        ("class Model(Mixin):\n", "class Model(Mixin):  # why\n    # it is one\n"),
        ("    def fit(self):\n", '    def fit(self):\n        """Fit."""\n'),
    ):
        text = model.read_text(encoding="utf-8")
        assert old in text
        model.write_text(text.replace(old, new), encoding="utf-8")
        assert code_parts("benchmarks.x", tree) == before


def test_a_string_that_is_used_is_code_and_a_moved_definition_another(tree):
    changes = [
        ("skuq/base.py", 'MESSAGE = "one"\n'),
        ("skuq/base.py", 'MESSAGE = "# two"\n'),
        ("skuq/shared/_tools.py", FILES["skuq/shared/_helpers.py"]),
        ("skuq/shared/__init__.py", "from skuq.shared._tools import helper\n"),
    ]
    found = [code_parts("benchmarks.x", tree)]
    for name, text in changes:
        (tree / name).write_text(text, encoding="utf-8")
        found.append(code_parts("benchmarks.x", tree))
    assert len({parts["base"] for parts in found}) == 3
    assert found[0]["shared"] == found[3]["shared"] != found[4]["shared"]


def test_every_benchmark_uses_parts_of_the_package():
    alone = {"__init__", "all", "code_used", "data_files", "gpc_pictures", "harness", "hmc"}
    alone |= {"import_time"}
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - alone - {"messy_tables"}
    shared = {"benchmarks", "extras", "files"}
    assert [name for name in names if not set(code_parts(f"benchmarks.{name}")) - shared] == []


def test_what_a_benchmark_uses():
    assert {"base", "baselines", "models", "quam"} <= set(code_parts("benchmarks.quam_two_moons"))
    assert "evidential" in code_parts("benchmarks.evidential_ood")
    assert code_parts("benchmarks.no_such_benchmark") == {}
