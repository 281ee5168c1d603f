"""Quantities of tables: intervals that fit each row, on the scale that suits, within limits."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.frozen import FrozenEstimator

from skuq import AnchoredQuantileRegressor
from skuq.tables import TableModel
from skuq.tables._target import TargetScale
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


def test_values_that_pile_up_are_limits_and_whole_limits_hold_the_same_whole_numbers():
    possible = TargetScale.of(np.arange(30.0)).possible
    found = possible(np.array([2.3, 4.2, -5.0]), np.array([7.9, 4.4, 0.5]))
    np.testing.assert_array_equal(np.transpose(found), [[3, 7], [4, 4], [0, 0]])
    y = np.append(np.linspace(-3, 5, 400), np.full(10, 5.0))
    scale = TargetScale.of(y)
    assert (scale.low, scale.high, scale.whole) == (-np.inf, 5.0, False)
    assert TargetScale.of(y[:400]).high == np.inf


def test_scales_are_inverted():
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


def test_intervals_are_those_of_the_results_and_measured_by_size_and_by_group(model, new):
    rows = model.predict(new[:40], coverage=0.8, n_explained=0)
    interval = model.predict_interval(new[:40], 0.8)
    np.testing.assert_array_equal(np.transpose(interval), rows[["lower", "upper"]])
    quantiles = model.predict_quantiles(new[:40], [0.1, 0.5, 0.9])
    assert (np.diff(quantiles, axis=1) >= 0).all()
    by_size = model.measured_coverage(0.9, by="prediction")
    assert len(by_size) == 10
    assert by_size["rows"].sum() == len(model.held_out_)
    assert (by_size["coverage"].between(0.6, 1)).all()
    mean = np.average(by_size["coverage"], weights=by_size["rows"])
    assert mean == pytest.approx(model.measured_coverage(0.9)[0])
    assert model.measured_coverage(0.9, by="town").index.tolist() == ["Linz", "Ulm", "Wien"]
