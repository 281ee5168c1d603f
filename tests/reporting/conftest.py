"""An audit of faked confidence, and one report of each template."""

import numpy as np
import pandas as pd
import pytest

from skuq.plotting import RiskCoverageDisplay, UncertaintyHistogramDisplay
from skuq.reporting import Report, audit_report, table_report
from skuq.tables import TableModel
from tests.reporter import drawn_audit

SCRIPT, QUOTES = "<script>alert(1)</script>", "\"quoted\" 'twice' &amp; \u202eturned\x1b"
LONG, ARABIC = "a_very_long_column_name_" + "x" * 40, "مدينة القاهرة"


@pytest.fixture(scope="session")
def plt():
    pytest.importorskip("matplotlib").use("Agg")
    return pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(scope="module")
def faked():
    return drawn_audit("third")


@pytest.fixture(scope="session")
def displays(plt):
    curve = RiskCoverageDisplay.from_predictions([0, 1, 1], [0, 1, 0], [0.1, 0.3, 0.2])
    return [UncertaintyHistogramDisplay({"known": [0.1, 0.2], "ood": [0.6, 0.9]}), curve]


@pytest.fixture(scope="session")
def table(plt):
    """A model of a table with strange names, the report on new rows, and all that it is made of."""
    rng = np.random.default_rng(0)
    size = rng.normal(size=200)
    rows = pd.DataFrame({LONG: size, ARABIC: ["القاهرة", "<b>Ulm</b>"] * 100})
    rows[QUOTES] = rng.choice([SCRIPT, "b"], 200)
    rows["<i>target"] = np.where(size + rng.normal(size=200) > 0, SCRIPT, "{{ 7 * 7 }}")
    rows["id"] = [f"<u>{k}" for k in range(200)]
    rows.loc[3, LONG] = np.nan
    model = TableModel("logistic").fit(rows, "<i>target", id_column="id")
    new = rows.head(5).assign(**{LONG: 100.0, QUOTES: "</td>unseen"})
    counts = model.count(new)
    return model, counts, table_report(model, model.predict(new), counts)


@pytest.fixture(scope="session")
def reports(displays, table):
    plain = Report("Run", "Summary.")
    for display in displays:
        plain.figure("Picture", display, "Caption.")
    plain.table("Table", pd.DataFrame({"x": [1]}, index=["first"]), "Caption.")
    return {"report": plain, "audit": audit_report(drawn_audit("third")), "table": table[2]}
