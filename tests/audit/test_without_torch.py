"""Reports and audits of anything but a network need no torch: one process, step by step."""

import subprocess
import sys
from importlib.util import find_spec

SETUP = """
import sys
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
rng = np.random.default_rng(0)
X = pd.DataFrame({"a": rng.normal(size=100), "b": rng.normal(size=100)})
y = (X["a"] + rng.normal(size=100) > 0).astype(int)
model = LogisticRegression().fit(X, y)
"""
STEPS = {
    "report": "from skuq.reporting import Report; Report('t', 's').html()",
    "recorded": """
from skuq import CalibrationAuditor
assert "matplotlib" not in sys.modules
audit = CalibrationAuditor.from_predictions(y, model.predict_proba(X), X=X, search_regions=True)
""",
    "fitted": """
fitted = CalibrationAuditor(model, groups=lambda X: X["b"] > 0).fit(X, y)
fitted.predict_uncertainty(X)
""",
    "not fitted": "CalibrationAuditor(LogisticRegression()).fit(X, y)",
    "command": """
from click.testing import CliRunner
from skuq.cli import main
X.assign(y=y, p=0.5).to_csv("p.csv", index=False)
given = ["--predictions", "p.csv", "--label", "y", "--proba", "p", "--features", "a,b"]
assert CliRunner().invoke(main, ["audit", *given]).exit_code in (0, 10)
""",
    "audit report": "from skuq.reporting import audit_report; audit_report(audit).html()",
}


def test_neither_torch_nor_skorch_is_imported(tmp_path):
    if find_spec("matplotlib") is None:
        STEPS.pop("audit report")
    check = "assert not {{'torch', 'skorch'}} & sys.modules.keys(), {!r}\n"
    code = SETUP + "".join(f"{step}\n{check.format(name)}" for name, step in STEPS.items())
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
