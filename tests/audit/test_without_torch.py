"""An audit of anything but a network needs no torch."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

DATA = """
import sys
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
rng = np.random.default_rng(0)
X = pd.DataFrame({"a": rng.normal(size=300), "b": rng.normal(size=300)})
y = (X["a"] + rng.normal(size=300) > 0).astype(int)
"""
IMPORT = "from skuq import CalibrationAuditor"
RECORDED = (
    IMPORT
    + """
proba = LogisticRegression().fit(X, y).predict_proba(X)
audit = CalibrationAuditor.from_predictions(y, proba, X=X, search_regions=True)
"""
)
FITTED = (
    IMPORT
    + """
audit = CalibrationAuditor(LogisticRegression().fit(X, y), groups=lambda X: X["b"] > 0).fit(X, y)
audit.predict_uncertainty(X)
"""
)
UNFITTED = (
    IMPORT
    + """
audit = CalibrationAuditor(LogisticRegression()).fit(X, y)
"""
)
REPORT = (
    RECORDED
    + """
from skuq.reporting import audit_report
audit_report(audit).html()
"""
)
COMMAND = """
from click.testing import CliRunner
from skuq.cli import main
X.assign(y=y, p=0.5).to_csv("p.csv", index=False)
given = ["--predictions", "p.csv", "--label", "y", "--proba", "p", "--features", "a,b"]
assert CliRunner().invoke(main, ["audit", *given]).exit_code in (0, 10)
"""


STEPS = """
for name, code in {!r}.items():
    exec(DATA + code, {{}})
    assert not {{"torch", "skorch"}} & sys.modules.keys(), name
"""


def run(steps, folder):
    code = f"import sys\nDATA = {DATA!r}{STEPS.format(steps)}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder)


def test_neither_torch_nor_skorch_is_imported(tmp_path):
    steps = {"import": IMPORT, "recorded": RECORDED, "fitted": FITTED, "not fitted": UNFITTED}
    run(steps, tmp_path)


@pytest.mark.slow
def test_neither_is_imported_by_reports_and_the_command(tmp_path):
    report = {} if find_spec("matplotlib") is None else {"report": REPORT}
    run({**report, "command": COMMAND}, tmp_path)
