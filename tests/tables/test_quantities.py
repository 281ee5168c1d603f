"""The choice of a learner and of the task; intervals of quantities that fit each row."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.frozen import FrozenEstimator

from skuq import AnchoredQuantileRegressor
from skuq.tables import TableModel
from skuq.tables._target import TargetScale, is_regression
from skuq.tables._training import Folds, Learner
from tests.tables.toy import ToyRegressor

pytestmark = pytest.mark.usefixtures("few_trees")


def prices(n, seed=0, whole=False):
    """Prices whose spread grows with them: few are large."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"area": rng.uniform(20, 200, size=n), "old": rng.integers(0, 2, size=n)})
    frame["town"] = rng.choice(["Ulm", "Linz", "Wien"], size=n)
    level = 0.012 * frame["area"] + 0.5 * (frame["town"] == "Wien") - 0.2 * frame["old"]
    price = np.exp(level + 0.3 * rng.normal(size=n))
    return frame.assign(price=np.round(10 * price) if whole else price)


@pytest.fixture(scope="module")
def model():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skuq.residuals.N_TREES", 20)
        return TableModel("logistic", task="regression").fit(prices(1000), "price")


@pytest.fixture(scope="module")
def new():
    return prices(1000, seed=1)


def test_intervals_and_variances_follow_the_row_and_cover_small_and_large_predictions(model, new):
    rows = model.predict(new, n_explained=0)
    inside = new["price"].between(rows["lower"], rows["upper"]).to_numpy()
    assert inside.mean() == pytest.approx(0.9, abs=0.04)
    tenths = np.array_split(inside[np.argsort(rows["prediction"])], 10)
    assert min(tenth.mean() for tenth in tenths) > 0.78
    width = rows["upper"] - rows["lower"]
    assert width.std() > 0.4 * width.mean()
    assert (rows["upper"] - rows["prediction"]).sum() > (rows["prediction"] - rows["lower"]).sum()
    np.testing.assert_allclose(rows["total"], rows["aleatoric"] + rows["epistemic"])
    np.testing.assert_allclose(rows["std"], np.sqrt(rows["total"]))
    assert ((new["price"] - rows["prediction"]) / rows["std"]).std() == pytest.approx(1, abs=0.2)
    assert rows["aleatoric"].std() > 0.3 * rows["aleatoric"].mean()


@pytest.mark.parametrize("skewed", [False, True])
def test_the_unit_of_the_target_does_not_matter(new, skewed):
    train = prices(200)
    if not skewed:
        train["price"] = np.log(train["price"])
    made = TableModel("logistic", task="regression")
    units = (train, train.assign(price=1024 * train["price"]))  # which is exact
    first, second = (made.fit(t, "price").predict(new[:50], n_explained=0) for t in units)
    for name, unit in (("lower", 1024), ("upper", 1024), ("std", 1024), ("epistemic", 1024**2)):
        # On a logarithmic scale, trees see other numbers, in single precision.
        bound = 1.001 if not skewed else 2 if name == "epistemic" else 1.1
        assert (second[name] / first[name] / unit).between(1 / bound, bound).all(), name


def test_a_skewed_target_is_learnt_on_the_scale_that_suits_and_is_told(model):
    assert model.quantities_.scale.power < 1
    assert any("which gave narrower" in note for note in model.notes_)
    straight = prices(200).assign(price=lambda t: t["area"] + np.arange(200) % 7)
    plain = TableModel("logistic", task="regression").fit(straight, "price")
    assert plain.quantities_.scale.power == 1
    assert not any("which gave narrower" in note for note in plain.notes_)


@pytest.mark.usefixtures("small_learners")
@pytest.mark.parametrize("whole", [False, True])
def test_limits_are_values_that_can_be(whole):
    train, new = prices(200, whole=whole), prices(300, seed=1, whole=whole)
    rows = TableModel("hgb", task="regression").fit(train, "price").predict(new, n_explained=0)
    assert (rows["lower"] >= 0).all()
    assert (rows["lower"] <= rows["upper"]).all()
    assert not whole or (rows[["lower", "upper"]] % 1 == 0).all(axis=None)


def test_scales_are_inverted_and_know_where_values_pile_up_or_are_whole():
    possible = TargetScale.of(np.arange(30.0)).possible
    found = possible(np.array([2.3, 4.2, -5.0]), np.array([7.9, 4.4, 0.5]))
    np.testing.assert_array_equal(np.transpose(found), [[3, 7], [4, 4], [0, 0]])
    y = np.append(np.linspace(-3, 5, 400), np.full(10, 5.0))
    scale = TargetScale.of(y)
    assert (scale.low, scale.high, scale.whole) == (-np.inf, 5.0, False)
    assert TargetScale.of(y[:400]).high == np.inf
    y, step = np.linspace(0.5, 90, 50), 1e-6
    for power in (1.0, 0.5, 0.0):
        scale = TargetScale(power, 0.0, np.inf, False, 0.5, 90.0)
        np.testing.assert_allclose(scale.inverse(scale.transformed(y)), y)
        slope = (scale.inverse(scale.transformed(y) + step) - y) / step
        np.testing.assert_allclose(scale.slope(y), slope, rtol=1e-3)
        assert np.isfinite(scale.inverse(np.array([-1e9, 1e9]))).all()


def test_a_given_model_has_intervals_of_its_own(new):
    train, held_out, numbers = prices(400), prices(600, seed=2), ["area", "old"]
    forest = RandomForestRegressor(n_estimators=20, random_state=0)
    forest.fit(train[numbers], train["price"])
    given = TableModel(FrozenEstimator(forest)).fit(train, "price", held_out=held_out)
    rows = given.predict(new, n_explained=0)
    np.testing.assert_allclose(rows["prediction"], forest.predict(new[numbers]))
    width = rows["upper"] - rows["lower"]
    assert width.std() > 0.3 * width.mean()
    assert new["price"].between(rows["lower"], rows["upper"]).mean() == pytest.approx(0.9, abs=0.05)


def test_other_estimators_keep_their_parts(new):
    numbers = ["area", "old", "price"]
    for estimator in (ToyRegressor(), AnchoredQuantileRegressor(max_epochs=5, random_state=0)):
        model = TableModel(estimator).fit(prices(500)[numbers], "price")
        rows = model.predict(new, n_explained=0)
        if isinstance(estimator, ToyRegressor):
            np.testing.assert_array_equal(rows["aleatoric"], 1)
        else:
            np.testing.assert_allclose(rows["std"] ** 2, rows["total"])
        inside = new["price"].between(rows["lower"], rows["upper"])
        assert inside.mean() == pytest.approx(0.9, abs=0.08)


def test_intervals_are_those_of_the_results_and_measured_by_group(model, new):
    rows = model.predict(new[:40], coverage=0.8, n_explained=0)
    interval = model.predict_interval(new[:40], 0.8)
    np.testing.assert_array_equal(np.transpose(interval), rows[["lower", "upper"]])
    quantiles = model.predict_quantiles(new[:40], [0.1, 0.5, 0.9])
    assert (np.diff(quantiles, axis=1) >= 0).all()
    by_town = model.measured_coverage(0.9, by="town")
    mean = np.average(by_town["coverage"], weights=by_town["rows"])
    assert mean == pytest.approx(model.measured_coverage(0.9)[0])
    assert by_town.index.tolist() == ["Linz", "Ulm", "Wien"]


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
    y = noisy if regression else noisy > 0
    found = compared(X, y, ("hgb", "logistic"), regression=regression)
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
