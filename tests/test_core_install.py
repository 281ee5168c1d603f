"""What the bare installation does, and what works without torch; extras are named where missing."""

import os
import runpy
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

import numpy as np
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


def run(code, folder):
    search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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
    run(code, tmp_path)


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


TREES = """
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
X = np.random.default_rng(0).normal(size=(80, 3))
y = X[:, 0] > 0
trees = HistGradientBoostingClassifier(max_iter=5)
regressor = HistGradientBoostingRegressor(max_iter=5)
"""
REPORT = "--report r.html" if find_spec("matplotlib") else ""
FREE = {
    "audit": "from skuq.cli import main; main('audit --label y --proba p --predictions p.csv"
    f" {REPORT} --json r.json'.split(), standalone_mode=False)",
    "auditor": f"{TREES}from skuq import CalibrationAuditor\n"
    "CalibrationAuditor(trees).fit(X, y).predict_uncertainty(X)",
    "estimators": "from skuq.cli import main; main(['estimators'], standalone_mode=False)",
    "metrics": f"{TREES}from skuq import metrics\nmetrics.detection_metrics(X[:, 0], X[:, 1])\n"
    "assert metrics.area_under_risk_coverage(y, ~y, X[:, 0]) == 1",
    "quam": f"{TREES}from skuq import QUAMClassifier, QUAMRegressor\n"
    "for kind, learner, y in (QUAMClassifier, trees, y), (QUAMRegressor, regressor, X[:, 1]):\n"
    "    quam = kind(learner, random_state=0).fit(X, y)\n"
    "    assert quam.predict_uncertainty(X).epistemic.max() > 0\n"
    "    quam.adversarial_models(X), quam.explain(X[:1]), quam.search_pool(X)\n"
    "quam.predict_model_std(X)",
    "quantify": "from skuq.cli import main; main('quantify --train t.csv --predict t.csv"
    " --target y --model hgb --out o.csv'.split(), standalone_mode=False)",
    "tables": f"{TREES}from skuq.tables import TableModel\nimport importlib.util\n"
    "import pandas as pd\nrows = pd.DataFrame(X, columns=list('abc'))\n"
    "model = TableModel('hgb').fit(rows.assign(y=y), 'y')\n"
    "assert len(model.predict(rows)) == 80\n"
    "if importlib.util.find_spec('skops'):\n"
    "    model.save('kept')\n"
    "    TableModel.load('kept').predict(rows)",
}
NETWORKS = {
    "default": f"{TREES}from skuq import QUAMClassifier; QUAMClassifier().fit(X, y)",
    "search": "from skuq.quam import PoolSearch",
    "adopted": "from skuq.models import adopt",
    "plugin": "from skuq import RobustGPC",
}
PACKAGES = ["baselines", "evidential", "gpc", "mirage", "_networks", "uadqn"]
NETWORKS |= {package: f"import skuq.{package}" for package in PACKAGES}
MISSING = """
import sys
asked = set()
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "skorch"):
            asked.add(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
STEPS = """
for name, code in {!r}.items():
    exec(code, {{}})
    assert not asked, (name, asked)
"""
REFUSED = """
for name, code in {!r}.items():
    try:
        exec(code, {{}})
    except ImportError as error:
        assert str(error).endswith("install it with: pip install torch"), (name, error)
    else:
        raise AssertionError(name)
"""


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    confidence = random.uniform(0.5, 1, 600)
    right = random.uniform(size=600) < confidence
    pd.DataFrame({"y": right.astype(int), "p": confidence}).to_csv(tmp_path / "p.csv", index=False)
    rows = pd.DataFrame(random.normal(size=(80, 2)), columns=["a", "b"])
    rows.assign(y=np.where(rows["a"] > 0, "up", "down")).to_csv(tmp_path / "t.csv", index=False)
    return tmp_path


def test_what_does_without_torch_asks_for_none_and_works_where_it_is_missing(folder):
    run(MISSING + STEPS.format(FREE), folder)


def test_what_needs_torch_says_so_where_it_is_missing(folder):
    run(MISSING + REFUSED.format(NETWORKS), folder)


def test_names_that_wait_are_there():
    for package in ("models", "_networks", "quam", "reporting"):
        module = import_module(f"skuq.{package}")
        assert all(hasattr(module, name) for name in getattr(module, "__all__", ["fit_net"]))
        with pytest.raises(AttributeError, match=f"'skuq.{package}' has no attribute 'absent'"):
            _ = module.absent
    assert set(skuq.__all__) <= set(dir(skuq))
