"""Discovery: real distributions of third parties, and everything that can be wrong with one."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import skuq
from skuq import imports as plugins

HERE = Path(__file__).parent


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
        entry = f"[{plugins.GROUP}]\n{name} = {target}\n"
        (info / "entry_points.txt").write_text(entry, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        plugins._registered.cache_clear()

    yield add
    monkeypatch.undo()
    plugins._registered.cache_clear()


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


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (
            ["acme_models:WithoutMethod"],
            TypeError,
            r"acme-0 \(acme_models:.*\) must be a class with",
        ),
        (["acme_models:instance"], TypeError, r"acme-0 \(acme_models:.*\) must be a class with"),
        (["acme_absent:Good"], ImportError, "acme-0 .* ModuleNotFoundError: .* 'acme_absent'"),
        (["acme_models:Absent"], ImportError, "acme-0 .* AttributeError: .* 'Absent'"),
        (
            ["acme_models:Good", "acme_models:WithoutMethod"],
            LookupError,
            r"acme-0 \(acme_models:Good\), acme-1 \(acme_models:WithoutMethod\)\. Uninstall",
        ),
    ],
)
def test_what_cannot_be_used_is_left_out_and_refused_by_name(
    register, module, targets, error, message
):
    for number, target in enumerate(targets):
        register("Bad", target, distribution=f"acme-{number}")
    with pytest.raises(error, match=f"'Bad' .*{message}"):
        plugins.load("Bad")
    with pytest.warns(skuq.PluginWarning, match=f"'Bad' .*{message}"):
        found = dict(skuq.all_estimators())
    assert "QUAMClassifier" in found
    assert "Bad" not in found


@pytest.mark.parametrize("distribution", ["acme", "acme-renamed"])
def test_the_same_package_visible_twice_counts_once(register, module, distribution):
    register("Good", f"{module}:Good", distribution="acme")
    register("Good", f"{module}:Good", distribution=distribution, folder="second")
    good = plugins.load("Good")
    assert good.__module__ == module
    assert [each.estimator for each in plugins.discover() if each.name == "Good"] == [good]
    assert plugins.estimator_names().count("Good") == 1
    assert ("Good", good) in skuq.all_estimators()


def test_an_unknown_name_is_refused_with_the_known_ones(register, module):
    register("Good", f"{module}:Good")
    with pytest.raises(LookupError, match=r"No estimator 'Absent' .*Good.*QUAMClassifier"):
        plugins.load("Absent")
    for name in ("NoSuchEstimator", "_private"):
        with pytest.raises(AttributeError, match=f"module 'skuq' has no attribute '{name}'"):
            getattr(skuq, name)
