"""An audit of anything but a network needs no torch."""

import subprocess
import sys

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
audit.partial_fit(X, y).predict_uncertainty(X)
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


@pytest.mark.parametrize(
    "code",
    [
        IMPORT,
        RECORDED,
        FITTED,
        UNFITTED,
        pytest.param(REPORT, marks=pytest.mark.slow),
        pytest.param(COMMAND, marks=pytest.mark.slow),
    ],
    ids=["import", "recorded", "fitted", "not fitted", "report", "command"],
)
def test_neither_torch_nor_skorch_is_imported(tmp_path, code):
    if code == REPORT:
        pytest.importorskip("matplotlib")
    check = "\nassert not {'torch', 'skorch'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", DATA + code + check], check=True, cwd=tmp_path)
