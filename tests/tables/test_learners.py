"""The choice of a learner, the recognised task, and what both say of rows that are held out."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from skuq.tables import TableError, TableModel
from skuq.tables._target import is_regression
from skuq.tables._training import Folds, Learner


def table(kind, n=600, seed=0):
    """Numbers whose class, or quantity, a linear model knows, or only trees."""
    random = np.random.default_rng(seed)
    X = pd.DataFrame(random.uniform(-1, 1, size=(n, 3)), columns=["a", "b", "c"])
    signal = X["a"] + X["b"] if kind == "line" else np.sign(X["a"] * X["b"])
    return X, signal.to_numpy() * 3, random


def compared(X, y, *, regression, names):
    learner = Learner(numbers=list(X), regression=regression)
    return Folds(X, y, learner).compare(names)


@pytest.mark.parametrize(("kind", "best"), [("line", "logistic"), ("corners", "hgb")])
@pytest.mark.parametrize("regression", [False, True])
def test_the_learner_that_knows_the_truth_is_chosen(kind, best, regression):
    X, signal, random = table(kind)
    noisy = signal + random.normal(size=len(X))
    y = noisy if regression else noisy > 0
    names = ("hgb", "logistic")
    found = compared(X, y, regression=regression, names=names)
    assert found.best == best
    assert found.losses[best] < 0.9 * found.guessing
    assert (found.n_rows, found.n_folds) == (600, 3)


def test_guessing_is_as_good_as_any_learner_where_there_is_nothing_to_learn():
    X, _, random = table("line")
    y = random.choice(["x", "y"], size=len(X), p=[0.9, 0.1])
    found = compared(X, y, regression=False, names=("logistic",))
    share = (y == "x").mean()
    assert found.guessing == pytest.approx(-share * np.log(share) - (1 - share) * np.log1p(-share))
    assert found.losses["logistic"] == pytest.approx(found.guessing, rel=0.1)


def test_where_rows_are_too_few_nothing_is_compared():
    X = pd.DataFrame({"a": [0.0, 1.0, 2.0]})
    found = compared(X, np.array(["x", "x", "y"]), regression=False, names=("hgb", "logistic"))
    assert (found.losses, found.best) == ({}, "logistic")


def test_large_tables_are_compared_on_a_part():
    X, signal, _ = table("line", n=4000)
    found = compared(X, signal > 0, regression=False, names=("logistic",))
    assert found.n_rows == 3000


def test_the_choice_is_told_with_its_figures():
    X, signal, _ = table("line", n=200)
    steps = []
    model = TableModel(progress=steps.append).fit(X.assign(y=signal > 0), "y")
    told = model.notes_[-1]
    for name, loss in model.comparison_.losses.items():
        assert f"{loss:.3f}" in told, name
    assert [step[:6] for step in steps] == ["1 of 3", "2 of 3", "3 of 3"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["a", "b"], False),
        ([True, False], False),
        ([0, 1], False),
        (list(range(20)), False),
        (list(range(21)), True),
        ([1.0, 2.0, np.nan], False),
        ([0.5, 1.0], True),
        ([1e6, 2.25], True),
    ],
)
def test_numbers_are_quantities_but_for_whole_ones_of_few_values(target, expected):
    column = pd.Series(target)
    assert is_regression(column, "auto") is expected
    assert is_regression(column, "regression")


@pytest.mark.parametrize(
    ("target", "task", "message"),
    [
        (["x", "y"] * 20, "regression", "must be numeric"),
        ([1.5] * 40, "regression", "must be finite and vary"),
        ([np.inf, 1.5] * 20, "regression", "must be finite"),
        (np.linspace(0, 1, 40), "classification", r"continuous numbers.*task=.regression"),
    ],
)
def test_a_target_that_does_not_suit_the_task_is_refused(target, task, message):
    frame = pd.DataFrame({"a": np.arange(40.0), "y": target})
    with pytest.raises(TableError, match=message):
        TableModel("logistic", task=task).fit(frame, "y")


def test_intervals_cover_and_widen_where_there_are_no_data():
    X, signal, random = table("line", n=900)
    train = X.assign(y=signal + random.normal(size=len(X)))
    model = TableModel("logistic").fit(train[:600], "y")
    rows = model.predict(train[600:].reset_index(drop=True), coverage=0.8)
    inside = train["y"][600:].reset_index(drop=True).between(rows["lower"], rows["upper"])
    assert inside.mean() == pytest.approx(0.8, abs=0.12)
    covered, width = model.measured_coverage(0.8)
    assert covered == pytest.approx(0.8, abs=0.12)
    assert width == pytest.approx((rows["upper"] - rows["lower"]).median(), rel=0.3)
    far = model.predict(pd.DataFrame({"a": [0.0, 9.0], "b": [0.0, 9.0], "c": [0.0, 9.0]}))
    wide = (far["upper"] - far["lower"]).to_numpy()
    assert wide[1] > 1.05 * wide[0]
    assert "confidence" not in rows


def test_sets_cover_rows_that_neither_trained_nor_calibrated():
    X, signal, random = table("line", n=2000)
    label = np.where(signal + random.normal(size=len(X)) > 0, "yes", "no")
    train = X.assign(y=label)
    model = TableModel("logistic").fit(train[:1000], "y")
    rows = model.predict(train[1000:].reset_index(drop=True), coverage=0.9)
    pairs = zip(rows["prediction_set"], label[1000:], strict=True)
    assert np.mean([true in found.split("; ") for found, true in pairs]) > 0.86
    covered, size = model.measured_coverage(0.9)
    assert covered == pytest.approx(0.9, abs=0.07)
    assert 1 <= size < 1.6


@pytest.fixture(scope="module")
def priced():
    """Rows, their prices as numbers, and what a model of these says about the rows."""
    X, signal, _ = table("line", n=120)
    prices = (5000 + 1000 * signal).round(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skuq.residuals.N_TREES", 5)  # as `few_trees` does
        model = TableModel("logistic", task="regression").fit(X.assign(y=prices), "y")
    return X, prices, model.predict(X)


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize(
    ("write", "unit", "task"),
    [
        ("${:,.2f}", " with the unit '$'", "auto"),
        ("{:,.2f}", ", such as", "auto"),
        ("{:.1f} EUR", " with the unit 'EUR'", "auto"),
        ("${:,.2f}", " with the unit '$'", "regression"),
    ],
)
def test_a_quantity_may_be_written_with_a_unit_or_divided_thousands(priced, write, unit, task):
    X, prices, expected = priced
    written = X.assign(y=[write.format(price) for price in prices])
    model = TableModel("logistic", task=task).fit(written, "y")
    pd.testing.assert_frame_equal(model.predict(X), expected)
    assert any(f"Column y contains numbers{unit}" in note for note in model.notes_)
    model.fit(written[:90], "y", held_out=written[90:])
    assert model.held_out_["label"].tolist() == prices[90:].tolist()


@pytest.mark.usefixtures("few_trees")
def test_whole_amounts_are_quantities_and_few_shares_are_classes():
    X, signal, _ = table("line", n=120)
    amounts = X.assign(y=[f"${10**6 + k:,}" for k in range(120)])
    assert TableModel("logistic").fit(amounts, "y").task_ == "regression"
    shares = X.assign(y=np.where(signal > 0, "10%", "20%"))
    assert TableModel("logistic").fit(shares, "y").classes_.tolist() == ["10%", "20%"]
    with pytest.raises(TableError, match=r"values such as '5kg'; write plain numbers in one unit"):
        TableModel("logistic", task="regression").fit(X.assign(y=["5kg", "7kg"] * 60), "y")


def test_rows_of_another_table_calibrate_and_measure():
    X, signal, _ = table("line")
    train = X.assign(y=np.where(signal > 0, "yes", "no"))
    model = TableModel("logistic").fit(train[:400], "y", held_out=train[400:450])
    assert model.held_out_["label"].tolist() == train["y"][400:450].tolist()
    assert any("50 rows of the held-out table" in note for note in model.notes_)
    with pytest.raises(TableError, match="class 'maybe', which is not in the training table"):
        model.fit(train[:400], "y", held_out=train[400:450].assign(y="maybe"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (LinearRegression(), "does not support `task='classification'`"),
        (object(), "must be a classifier or a regressor, got object"),
        (LogisticRegression(), "LogisticRegression instance is not fitted"),
    ],
)
def test_a_model_that_cannot_serve_is_refused(given, message):
    X, signal, _ = table("line", n=60)
    with pytest.raises(TableError, match=message):
        TableModel(given, task="classification").fit(X.assign(y=signal > 0), "y")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"task": "ranking"}, "'task' parameter"),
        ({"estimator": "svm"}, "`estimator` must be one of"),
    ],
)
def test_unknown_names_are_refused(parameters, message):
    X, signal, _ = table("line", n=60)
    with pytest.raises(ValueError, match=message):
        TableModel(**parameters).fit(X.assign(y=signal > 0), "y")


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5])
def test_a_coverage_that_is_no_share_is_refused(coverage):
    X, signal, _ = table("line", n=60)
    model = TableModel("logistic").fit(X.assign(y=signal > 0), "y")
    with pytest.raises(ValueError, match="`coverage` must be between 0 and 1"):
        model.predict(X, coverage=coverage)
