"""What the bare installation does: it imports little, and names the extra that is missing."""

import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

import pandas as pd
import pytest
from click.testing import CliRunner

import skuq.cli
from skuq.cli import main
from skuq.datasets import load_digits_with_ood
from skuq.plotting import ReliabilityDisplay, RiskCoverageDisplay, UncertaintyHistogramDisplay
from skuq.reporting import Report

ROOT = Path(__file__).parent.parent
# Packages that only extras bring, and dask, which scikit-learn users may or may not have.
OPTIONAL = ["matplotlib", "dask", "distributed", "dgl", "ezkl"]
OPTIONAL += ["stable_baselines3", "sb3_contrib", "gymnasium", "minatar"]
# skorch imports it where it is installed, which takes longer than all else.
WITHOUT_GEOMETRIC = "import sys; sys.modules['torch_geometric'] = None\n"


def test_no_module_imports_or_needs_what_only_an_extra_brings(tmp_path):
    modules = [f"skuq.{each.name}" for each in iter_modules(skuq.__path__)]
    # `_demo` draws; it is imported by the command `demo` alone.
    commands = [each.name for each in iter_modules(skuq.cli.__path__) if each.name != "_demo"]
    modules += [f"skuq.cli.{name}" for name in commands]
    modules.sort(key="skuq.evidential".__eq__)  # last: alone it derives from what skorch has
    code = f"{WITHOUT_GEOMETRIC}import {', '.join(modules[:-1])}\n"
    code += "assert 'skorch' not in sys.modules\n"
    code += f"import {modules[-1]}\nassert 'skuq.cli._demo' not in sys.modules\n"
    # Nor are they needed for an estimator: where they cannot be imported, this raises.
    code += f"""
assert not set(sys.modules).intersection({OPTIONAL!r})
sys.modules.update(dict.fromkeys({OPTIONAL!r}))
from sklearn.datasets import load_iris
from skuq import QUAMClassifier
from skuq.quam import PoolSearch
X, y = load_iris(return_X_y=True)
quam = QUAMClassifier(search=PoolSearch(n_steps=5), random_state=0)
assert quam.fit(X, y).predict_uncertainty(X[:2]).total.all()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


HISTOGRAM = UncertaintyHistogramDisplay({"known": [0.1, 0.2]})
CALLS = {
    "reliability": lambda: ReliabilityDisplay.from_predictions([0, 1], [[0.9, 0.1], [0.2, 0.8]]),
    "risk-coverage": lambda: RiskCoverageDisplay.from_predictions([0, 1], [0, 1], [0.1, 0.2]),
    "histogram": HISTOGRAM.plot,
    "report": lambda: Report("Title", "Summary.").figure("Heading", HISTOGRAM, "Caption."),
    "digits": load_digits_with_ood,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_needs_a_missing_package_names_its_extra(name):
    module = "PIL" if name == "digits" else "matplotlib"
    if find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(ImportError, match=rf"{module} is needed .* 'skuq\[plot\]'"):
        CALLS[name]()


@pytest.mark.parametrize("arguments", [["demo"], ["quantify", "--report", "r.html"]])
def test_a_command_that_needs_a_missing_package_names_its_extra(arguments, tmp_path, monkeypatch):
    if find_spec("matplotlib") is not None:
        pytest.skip("matplotlib is installed")
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"a": [1]}).to_csv("t.csv", index=False)
    given = ["--train", "t.csv", "--predict", "t.csv", "--target", "a", "--out", "o.csv"]
    arguments = arguments + given if arguments[0] == "quantify" else arguments
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "pip install 'skuq[plot]'" in result.stderr


def test_every_file_whose_doctests_need_an_extra_exists():
    needs = runpy.run_path(str(ROOT / "conftest.py"))["NEEDS"]
    assert [path for paths in needs.values() for path in paths if not [*ROOT.glob(path)]] == []
