"""Optional imports, and plugins: real distributions of third parties, and all that can be wrong."""

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import skuq
from skuq import imports
from skuq.imports import import_optional

HERE = Path(__file__).parent


def test_a_module_is_returned_or_its_package_named_with_the_extra_and_the_cause():
    assert import_optional("importlib.metadata", extra="plot") is importlib.metadata
    expected = r"absent_package .*not installed; .*pip install 'skuq\[graph\]'"
    with pytest.raises(ImportError, match=expected) as caught:
        import_optional("absent_package.inner", extra="graph")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert caught.value.name == "absent_package"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("raise OSError('libtorch_9.so not found')", OSError),
        ("raise FileNotFoundError('no C library')", FileNotFoundError),
        ("from math import nothing_there", ImportError),
        ("import absent_dependency", ModuleNotFoundError),
        ("1 / 0", ZeroDivisionError),
    ],
)
def test_a_package_that_is_present_but_broken_shows_the_cause(tmp_path, monkeypatch, line, cause):
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"broken_{cause.__name__.lower()}"
    (tmp_path / f"{name}.py").write_text(line, encoding="utf-8")
    if cause is ZeroDivisionError:  # no problem of an import
        with pytest.raises(cause):
            import_optional(name, extra="graph")
        return
    with pytest.raises(ImportError, match=rf"cannot be imported \({cause.__name__}: ") as caught:
        import_optional(name, extra="graph")
    assert type(caught.value.__cause__) is cause
    assert str(caught.value.__cause__) in str(caught.value)
    assert "skuq[graph]" in str(caught.value)
    assert "not installed" not in str(caught.value)


STATED = [
    'absent-package<2; (python_version < "3") and extra == "graph"',
    'absent-package<2; (python_version < "3") and extra == "all"',
    'other-package; (python_version >= "3") and extra == "graph"',
    'absent-package; extra == "plot"',
]


def test_a_command_is_named_unless_the_extra_cannot_bring_the_package(monkeypatch):
    def absent(_):
        raise importlib.metadata.PackageNotFoundError  # skuq is on the path, and not installed

    for stated, package, extra in (
        (lambda _: STATED, "other_package", "graph"),
        (lambda _: STATED, "absent_package", "plot"),
        (lambda _: STATED, "another_package", "graph"),
        (absent, "absent_package", "graph"),
    ):
        monkeypatch.setattr(imports, "requires", stated)
        with pytest.raises(ImportError, match=rf"pip install 'skuq\[{extra}\]'"):
            import_optional(package, extra=extra)
    monkeypatch.setattr(imports, "requires", lambda _: STATED)
    place = f"Python {platform.python_version()} on {sys.platform} ({platform.machine()})"
    with pytest.raises(ImportError, match=r"'graph' .*only where python_version < \"3\"") as caught:
        import_optional("absent_package", extra="graph")
    assert place in str(caught.value)
    assert "pip install" not in str(caught.value)


def run(code, folder, *paths):
    given = os.environ.get("PYTHONPATH")
    search = os.pathsep.join([*map(str, paths), *([given] if given else [])])
    environment = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    # Not in the checkout, which would be importable from there.
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", code], **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    for tool in ("pip", "setuptools"):
        if find_spec(tool) is None:  # found, not imported: setuptools replaces distutils
            pytest.skip(f"{tool} is needed to install a distribution")
    folder = tmp_path_factory.mktemp("thirdparty")
    # Building writes next to the sources, so copies are built.
    names = "thirdparty", "thirdparty_broken"
    sources = [shutil.copytree(HERE / name, folder / name) for name in names]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "install", "-q", *options, "--target", folder / "site"]
    subprocess.run([*pip, *sources], check=True)
    return folder / "site"


ASKED = """
import json, sys, warnings
import skuq
before = "skuq_neighbours" in sys.modules
from skuq import NeighbourUncertainty
same = sys.modules["skuq_neighbours"].NeighbourUncertainty is NeighbourUncertainty
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", skuq.PluginWarning)
    found = {name: each.__module__ for name, each in skuq.all_estimators()}
said = [str(w.message) for w in caught if w.category is skuq.PluginWarning]
try:
    from skuq import BrokenUncertainty
except ImportError as error:
    broken = str(error), type(error.__cause__).__name__
warnings.simplefilter("ignore")
from sklearn.utils.estimator_checks import check_estimator
from skuq.testing import check_uncertainty_estimator
check_uncertainty_estimator(NeighbourUncertainty())
check_estimator(NeighbourUncertainty())
print(json.dumps([before, same, "NeighbourUncertainty" in dir(skuq), found, said, broken]))
"""


def test_third_party_estimators_are_found_pass_the_checks_and_say_why_they_are_broken(
    site, tmp_path
):
    before, *now, found, (said,), (message, cause) = run(ASKED, tmp_path, site)
    assert not before  # imported when first asked for
    assert now == [True, True]
    assert found["NeighbourUncertainty"] == "skuq_neighbours"
    assert found["QUAMClassifier"].startswith("skuq.quam")
    assert "BrokenUncertainty" not in found
    for each in (said, message):
        assert "'BrokenUncertainty' of skuq-broken (skuq_broken:BrokenUncertainty)" in each
        assert "RuntimeError: libneeded.so.9 is missing" in each
    assert cause == "RuntimeError"


def test_importing_skuq_imports_none_of_the_large_packages(tmp_path):
    found = run("import json, sys, skuq; dir(skuq); print(json.dumps([*sys.modules]))", tmp_path)
    large = {"torch", "sklearn", "scipy", "numpy", "pandas", "matplotlib", "skorch", "dask"}
    assert not large.intersection(found)


@pytest.fixture
def register(tmp_path, monkeypatch):
    """A function that makes a distribution with one entry point visible to this process."""

    def add(name, target, distribution="acme", folder="site"):
        info = tmp_path / folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        entry = f"[{imports.GROUP}]\n{name} = {target}\n"
        (info / "entry_points.txt").write_text(entry, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        imports._registered.cache_clear()

    yield add
    monkeypatch.undo()
    imports._registered.cache_clear()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of an importable module with a class that is a plugin and one that is not."""
    (tmp_path / "acme_models.py").write_text(
        "class Good:\n    def predict_uncertainty(self, X): ...\n\n"
        "class WithoutMethod: ...\n\ninstance = Good()\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "acme_models"
    sys.modules.pop("acme_models", None)


NO_CLASS = r"acme-0 \(acme_models:.*\) must be a class with"
TWICE = r"acme-0 \(acme_models:Good\), acme-1 \(acme_models:WithoutMethod\)\. Uninstall"


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (["acme_models:WithoutMethod"], TypeError, NO_CLASS),
        (["acme_models:instance"], TypeError, NO_CLASS),
        (["acme_absent:Good"], ImportError, "acme-0 .* ModuleNotFoundError: .* 'acme_absent'"),
        (["acme_models:Absent"], ImportError, "acme-0 .* AttributeError: .* 'Absent'"),
        (["acme_models:Good", "acme_models:WithoutMethod"], LookupError, TWICE),
    ],
)
def test_what_cannot_be_used_is_left_out_and_refused_by_name(
    register, module, targets, error, message
):
    for number, target in enumerate(targets):
        register("Bad", target, distribution=f"acme-{number}")
    with pytest.raises(error, match=f"'Bad' .*{message}"):
        imports.load("Bad")
    with pytest.warns(skuq.PluginWarning, match=f"'Bad' .*{message}"):
        found = dict(skuq.all_estimators())
    assert "QUAMClassifier" in found
    assert "Bad" not in found


@pytest.mark.parametrize("distribution", ["acme", "acme-renamed"])
def test_the_same_package_visible_twice_counts_once(register, module, distribution):
    register("Good", f"{module}:Good", distribution="acme")
    register("Good", f"{module}:Good", distribution=distribution, folder="second")
    good = imports.load("Good")
    assert good.__module__ == module
    assert [each.estimator for each in imports.discover() if each.name == "Good"] == [good]
    assert imports.estimator_names().count("Good") == 1
    assert ("Good", good) in skuq.all_estimators()


def test_an_unknown_name_is_refused_with_the_known_ones(register, module):
    register("Good", f"{module}:Good")
    with pytest.raises(LookupError, match=r"No estimator 'Absent' .*Good.*QUAMClassifier"):
        imports.load("Absent")
    for name in ("NoSuchEstimator", "_private"):
        with pytest.raises(AttributeError, match=f"module 'skuq' has no attribute '{name}'"):
            getattr(skuq, name)
