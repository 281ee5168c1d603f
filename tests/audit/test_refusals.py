"""What audits refuse, with a word of the message."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from skuq import CalibrationAuditor
from skuq.audit import audit_files, recorded_predictions
from skuq.audit._prediction_audit import counted_weights, groups_of_columns, named_groups
from tests.audit.test_recorded import FRAME, mapped
from tests.reporter import Reporter, audit_of


def recorded(**params):
    return CalibrationAuditor.from_predictions([0, 1] * 10, [[0.6, 0.4]] * 20, **params)


@pytest.mark.filterwarnings("ignore:The mean of `sample_weight`")
def test_malformed_predictions_groups_and_tables_are_refused(tmp_path):
    X, ones = np.zeros((20, 2)), np.ones(450, bool)
    audit = audit_of((60, 0.65, 58), (390, 0.75, 290))
    sums, few = audit.sums_, audit.sums_._replace(count=np.bincount([3] * 5, minlength=10))
    paths, mixed = [tmp_path / "t.csv"], [tmp_path / "mixed.csv"]
    table = pd.DataFrame({"y": ["a", "b"] * 150, "p0": np.arange(300) / 300})
    table["g"] = ["missing", None, None] * 100
    table.assign(p1=1 - table["p0"]).to_csv(paths[0], index=False)
    pd.DataFrame({"y": ["01", "02"] * 9 + ["x"] * 9, "p": 0.25}).to_csv(mixed[0], index=False)
    named = pd.DataFrame({"y": ["a", "b"], "p(a)": 0.5, "p(b)": 0.5})
    cells = pd.DataFrame({"y": list("abab"), "p0": ["0.75"] * 4, "p1": ["0.25"] * 4}).astype(object)

    def cell(column, value):
        changed = cells.copy()
        changed.loc[2, column] = value
        return recorded_predictions(changed, "y", ["p0", "p1"])

    rows = [
        (lambda: recorded(sensitive_columns=0), "sensitive_columns=0.*sensitive_features"),
        (lambda: recorded(sensitive_features={"g": [0] * 19}), "numbers of samples"),
        (lambda: recorded(sensitive_features={"g": range(300)}), "300 different values"),
        (lambda: recorded(n_bins=21), "at least 21"),
        (lambda: recorded(X=X), "search_regions"),
        (lambda: recorded(search_regions=True, X=X[1:]), "numbers of samples"),
        (lambda: recorded(search_regions=True, X=np.zeros((20, 2000))), "1,000 columns"),
        (lambda: recorded().predict(X), "no model"),
        (lambda: CalibrationAuditor.from_sums(sums, sensitive_columns=0), "sensitive_features"),
        (lambda: CalibrationAuditor.from_sums(few), "n_samples=5"),
        (lambda: CalibrationAuditor.from_sums(sums, search_regions=True), "all samples"),
        (lambda: audit.undersample(1.5, ones), "rho"),
        (lambda: audit.undersample(np.nan, ones), "rho"),
        (lambda: audit.undersample(0.5, ones[1:]), r"\(449,\)"),
        (lambda: audit.undersample(0.5, np.ones(450, int)), "int64"),
        (lambda: audit.undersample(1.0, ones), "n_samples=0"),
        (lambda: groups_of_columns("zip", FRAME), "'zip'"),
        (lambda: groups_of_columns(lambda X: np.zeros((3, 2, 1)), FRAME), "one-dimensional"),
        (lambda: named_groups({"x": np.array([1, "1"], object)}), "must differ"),
        (lambda: named_groups({"x": ["y=z"], "x=y": ["z"]}), "must differ"),
        (lambda: audit_files(paths, "y", ["p0", "p1"], groups=["p0"]), "300 different"),
        (lambda: audit_files(paths, "y", ["p0", "p1"], groups=["g"]), "'g=missing' twice"),
        (lambda: audit_files(paths, "y", ["p0", "p1"], groups=["sex"]), "'sex'"),
        (lambda: audit_files(paths, "y", ["p0", "p1"], search_regions=True), "features"),
        (lambda: audit_files(paths, "y"), "proba"),
        (lambda: audit_files(mixed, "y", ["p"]), "3 labels"),
        (lambda: recorded_predictions(named, "y", classes=["a", "b"]), "no effect"),
        (lambda: mapped(["a", "b", "c"], ["x", "y1"]), r"3 labels \(a, b, c\)"),
        (lambda: mapped(["a", "a"], ["p"]), "1 label "),
        (lambda: mapped([0, 1], ["p0", "p1"], ["0"]), "1 label "),
        (lambda: mapped([0, 1], ["p0", "p1"], ["0", "0"]), "must differ"),
        (lambda: mapped([0, 1], ["p0", "p1"], ["0", "2"]), "Label '1' in row 2"),
        (lambda: mapped([0, 1], ["p0", "p0"]), "named twice"),
        (lambda: cell("p0", None), "'p0'.*nothing in row 3 "),
        (lambda: cell("p0", "-0.1"), "'p0'.*'-0.1' in row 3 "),
        (lambda: cell("p1", "1.5"), "'p1'.*'1.5' in row 3 "),
        (lambda: cell("p1", "half"), "'half' in row 3 "),
        (lambda: cell("p1", "0"), "row 3 .*0.75"),
        (lambda: cell("y", None), "'y' has no label in 1 row, first in row 3 "),
        # The sum of 2**33 confidences fits into an int64.
        (lambda: counted_weights(np.array([2.0**32, 2**32 + 1])), "8.59e"),
    ]
    for call, word in rows:
        with pytest.raises(ValueError, match=word):
            call()
    with pytest.raises(TypeError, match="n_bins"):
        CalibrationAuditor.from_sums(sums, n_bins=10)
    with pytest.raises(AttributeError, match="call `fit`"):
        _ = CalibrationAuditor(LogisticRegression()).passed_
    unfitted = CalibrationAuditor(LogisticRegression())
    for call in (unfitted.suspicious_bins, unfitted.suspicious_samples):
        with pytest.raises(NotFittedError):
            call()
    # Weights up to the limit are counted.
    assert counted_weights(np.array([2.0**32, 2**32])).dtype == np.int64
    assert counted_weights(np.array([2**32 + 0.5, 2**32 + 1])).dtype == np.float64


class Logits(Reporter):
    def predict_proba(self, X):
        return np.column_stack([X[:, 0], X[:, 0]]) * 3


def test_what_is_no_reference_set_or_model_is_refused(model, reference):
    X, y = reference
    logits, unfitted, large = Logits().fit(None, None), LogisticRegression(), X[:, 0] > 1
    for estimator, data, word in (
        (model, (X[:9], y[:9]), "at least 10"),
        (model, (X, np.where(large, 2, y)), "2"),
        (model, (X[1:], y), None),
        (model, (X, np.where(large, None, y)), "missing"),
        (model, (X, pd.Series(np.where(large, pd.NA, "a"), dtype="string")), "missing"),
        (model, (X, np.column_stack([y, y])), None),
        (logits, reference, "must"),
        (unfitted, (X[:40], np.repeat([0, 1, 2], [20, 19, 1])), "2.*only one sample"),
    ):
        with pytest.raises(ValueError, match=word):
            CalibrationAuditor(estimator).fit(*data)
    for estimator in (RidgeClassifier(), None, "logistic"):
        with pytest.raises(TypeError, match="predict_proba"):
            CalibrationAuditor(estimator).fit(*reference)
    for groups, word in (("sex", "olumn"), (lambda X: X[:9, 0].round(), "numbers of samples")):
        with pytest.raises(ValueError, match=word):
            CalibrationAuditor(model, sensitive_columns=groups).fit(*reference)
    given = {"sensitive_features": {"0": X[:, 0].round()}}
    with pytest.raises(ValueError, match="'0=-2' twice"):
        CalibrationAuditor(model, sensitive_columns=0).fit(X.round(), y, **given)


@pytest.mark.parametrize("frame", [True, False])
def test_a_model_that_refuses_a_column_of_groups_asks_for_sensitive_features(frame):
    X, sex = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    y, wider = (X[:, 0] > 0).astype(int), np.column_stack([X, sex])
    if frame:
        X, wider = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(wider, columns=[*"ab", "sex"])
    model, columns = LogisticRegression().fit(X, y), ["sex" if frame else 2]
    audit = CalibrationAuditor(model, sensitive_columns=columns)
    with pytest.raises(ValueError, match=r"2 features.*3.*sensitive_features=") as caught:
        audit.fit(wider, y)
    assert "feature" in str(caught.value.__cause__)  # what the model itself said
    with pytest.raises(ValueError, match="feature") as caught:
        CalibrationAuditor(LogisticRegression().fit(X, y)).fit(wider, y)  # no groups, no advice
    assert "sensitive_features" not in str(caught.value)


PARAMETERS = [("n_bins", 0), ("strategy", "width"), ("confidence_level", 1.0)]
PARAMETERS += [("sensitive_columns", 1.5), ("search_regions", 1)]  # True, or a tolerance of 1


@pytest.mark.parametrize(("name", "value"), PARAMETERS)
def test_bad_parameters_are_refused_when_they_are_used(model, reference, name, value):
    audit = CalibrationAuditor(model).fit(*reference).set_params(**{name: value})
    for call in (
        lambda: audit.fit(*reference),
        lambda: audit.undersample(0.5, np.ones(400, bool)),
        lambda: recorded(**{name: value}),
    ):
        with pytest.raises(ValueError, match=f"'{name}'"):
            call()
