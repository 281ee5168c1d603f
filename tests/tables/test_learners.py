"""The choice of a learner, the recognised task, and what both say of rows that are held out."""

import numpy as np
import pandas as pd
import pytest

from skuq.tables import TableModel
from skuq.tables._target import is_regression
from skuq.tables._training import Folds, Learner


def table(kind, n=600, seed=0):
    """Numbers whose class, or quantity, a linear model knows, or only trees."""
    random = np.random.default_rng(seed)
    X = pd.DataFrame(random.uniform(-1, 1, size=(n, 3)), columns=["a", "b", "c"])
    signal = X["a"] + X["b"] if kind == "line" else np.sign(X["a"] * X["b"])
    return X, signal.to_numpy() * 3, random


def compared(X, y, names, *, regression=False):
    learner = Learner(numbers=list(X), regression=regression)
    return Folds(X, y, learner).compare(names)


@pytest.mark.usefixtures("small_learners")
@pytest.mark.parametrize(("kind", "best"), [("line", "logistic"), ("corners", "hgb")])
@pytest.mark.parametrize("regression", [False, True])
def test_the_learner_that_knows_the_truth_is_chosen(kind, best, regression):
    X, signal, random = table(kind)
    noisy = signal + random.normal(size=len(X))
    found = compared(
        X, noisy if regression else noisy > 0, ("hgb", "logistic"), regression=regression
    )
    assert found.best == best
    assert found.losses[best] < 0.9 * found.guessing
    assert (found.n_rows, found.n_folds) == (600, 3)


def test_guessing_is_as_good_as_any_learner_where_there_is_nothing_to_learn():
    X, _, random = table("line")
    y = random.choice(["x", "y"], size=len(X), p=[0.9, 0.1])
    found, share = compared(X, y, ("logistic",)), (y == "x").mean()
    assert found.guessing == pytest.approx(-share * np.log(share) - (1 - share) * np.log1p(-share))
    assert found.losses["logistic"] == pytest.approx(found.guessing, rel=0.1)
    X, signal, _ = table("line", n=4000)  # a large table is compared on a part
    assert compared(X, signal > 0, ("logistic",)).n_rows == 3000
    found = compared(X[:3], np.array(["x", "x", "y"]), ("hgb", "logistic"))  # too small a one
    assert (found.losses, found.best) == ({}, "logistic")


@pytest.mark.usefixtures("small_learners", "short_training")
def test_the_choice_is_told_with_its_figures():
    X, signal, _ = table("line", n=90)
    steps = []
    model = TableModel(progress=steps.append).fit(X.assign(y=signal > 0), "y")
    losses = model.comparison_.losses
    assert set(losses) == {"hgb", "logistic", "network"}
    assert model.name_ == model.comparison_.best
    assert all(f"{loss:.3f}" in model.notes_[-1] for loss in losses.values())
    assert [step[:6] for step in steps] == ["1 of 3", "2 of 3", "3 of 3"]


def test_numbers_are_quantities_but_for_whole_ones_of_few_values():
    for classes in (["a", "b"], [True, False], [0, 1], [*range(20)], [1.0, 2.0, np.nan]):
        assert not is_regression(pd.Series(classes), "auto")
        assert is_regression(pd.Series(classes), "regression")
    for quantities in ([*range(21)], [0.5, 1.0], [1e6, 2.25]):
        assert is_regression(pd.Series(quantities), "auto")


@pytest.mark.usefixtures("few_trees")
def test_intervals_cover_and_widen_where_there_are_no_data():
    X, signal, random = table("line", n=900)
    train = X.assign(y=signal + random.normal(size=len(X)))
    model = TableModel("logistic").fit(train[:600], "y")
    rows = model.predict(train[600:], coverage=0.8, n_explained=0)
    inside = train["y"][600:].between(rows["lower"], rows["upper"])
    assert inside.mean() == pytest.approx(0.8, abs=0.12)
    covered, width = model.measured_coverage(0.8)
    assert covered == pytest.approx(0.8, abs=0.12)
    assert width == pytest.approx((rows["upper"] - rows["lower"]).median(), rel=0.3)
    far = model.predict(pd.DataFrame({name: [0.0, 9.0] for name in "abc"}))
    wide = (far["upper"] - far["lower"]).to_numpy()
    assert wide[1] > 1.05 * wide[0]
    assert "confidence" not in rows


def test_sets_cover_rows_that_neither_trained_nor_calibrated():
    X, signal, random = table("line", n=2000)
    train = X.assign(y=np.where(signal + random.normal(size=len(X)) > 0, "yes", "no"))
    model = TableModel("logistic").fit(train[:1000], "y")
    rows = model.predict(train[1000:], coverage=0.9, n_explained=0)
    pairs = zip(rows["prediction_set"], train["y"][1000:], strict=True)
    assert np.mean([true in found.split("; ") for found, true in pairs]) > 0.86
    covered, size = model.measured_coverage(0.9)
    assert covered == pytest.approx(0.9, abs=0.07)
    assert 1 <= size < 1.6


@pytest.mark.usefixtures("few_trees")
def test_a_quantity_may_be_written_with_a_unit_or_divided_thousands():
    X, signal, _ = table("line", n=60)
    prices = (5000 + 1000 * signal).round(1)
    expected = TableModel("logistic", task="regression").fit(X.assign(y=prices), "y").predict(X)
    for write, unit, task in (
        ("${:,.2f}", " with the unit '$'", "auto"),
        ("{:,.2f}", ", such as", "regression"),
        ("{:.1f} EUR", " with the unit 'EUR'", "auto"),
    ):
        written = X.assign(y=[write.format(price) for price in prices])
        model = TableModel("logistic", task=task).fit(written, "y")
        pd.testing.assert_frame_equal(model.predict(X), expected)
        assert any(f"Column y contains numbers{unit}" in note for note in model.notes_)
    model.fit(written[:45], "y", held_out=written[45:])
    assert model.held_out_["label"].tolist() == prices[45:].tolist()


@pytest.mark.usefixtures("few_trees")
def test_whole_amounts_are_quantities_and_few_shares_are_classes():
    X, signal, _ = table("line", n=120)
    amounts = X.assign(y=[f"${10**6 + k:,}" for k in range(120)])
    assert TableModel("logistic").fit(amounts, "y").task_ == "regression"
    shares = X.assign(y=np.where(signal > 0, "10%", "20%"))
    assert TableModel("logistic").fit(shares, "y").classes_.tolist() == ["10%", "20%"]
    train = X.assign(y=np.where(signal > 0, "yes", "no"))
    model = TableModel("logistic").fit(train[:70], "y", held_out=train[70:])
    assert model.held_out_["label"].tolist() == train["y"][70:].tolist()
    assert any("50 rows of the held-out table" in note for note in model.notes_)
