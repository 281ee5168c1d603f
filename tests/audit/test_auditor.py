"""CalibrationAuditor as a user meets it."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binomtest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_moons
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

from skuq import CalibrationAuditor, predict_uncertainty
from skuq.audit import detectable_gap, intervals, required_samples
from skuq.nets import MLP

NUMBERS = (
    "passed_",
    "within_alpha_",
    "bins_",
    "group_bins_",
    "sums_",
    "group_sums_",
    "ece_",
    "mce_",
    "ece_interval_",
    "ece_chance_",
    "n_tests_",
    "n_samples_",
    "accuracy_",
    "confidence_",
)


class CountedLogisticRegression(LogisticRegression):
    """Counts trainings of any of its copies."""

    trained = 0

    def fit(self, X, y):
        CountedLogisticRegression.trained += 1
        return super().fit(X, y)


class Reporter(ClassifierMixin, BaseEstimator):
    """Predicts class 0, with the confidence that column 0 of `X` says."""

    def fit(self, X, y):
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X):
        return np.column_stack([X[:, 0], 1 - X[:, 0]])


def reports(*blocks):
    """Inputs and labels: blocks of (number, confidence, number correct), correct ones first."""
    X = np.concatenate([np.full((n, 1), confidence) for n, confidence, _ in blocks])
    y = np.concatenate([np.arange(n) >= correct for n, _, correct in blocks]).astype(int)
    return X, y


def audit_of(*blocks, **params):
    return CalibrationAuditor(Reporter().fit(None, None), random_state=0, **params).fit(
        *reports(*blocks)
    )


def assert_same_numbers(ours, expected, names=NUMBERS):
    for name in names:
        np.testing.assert_equal(getattr(ours, name), getattr(expected, name), err_msg=name)


def slow_ece(confidence, correct, n_bins=10):
    bins = [min(int(p * n_bins), n_bins - 1) for p in confidence]
    total = 0.0
    for b in range(n_bins):
        total += abs(
            sum(c - p for p, c, k in zip(confidence, correct, bins, strict=True) if k == b)
        )
    return total / len(confidence)


@pytest.fixture(scope="module")
def moons():
    X, y = make_moons(600, noise=0.35, random_state=0)
    return X, y


@pytest.fixture(scope="module")
def model(moons):
    return LogisticRegression().fit(moons[0][:200], moons[1][:200])


@pytest.fixture(scope="module")
def reference(moons):
    return moons[0][200:], moons[1][200:]


# What is audited


@pytest.mark.parametrize(
    "wrap", [lambda m: m, FrozenEstimator, lambda m: FrozenEstimator(FrozenEstimator(m))]
)
def test_a_fitted_model_is_audited_as_it_is_and_not_altered(moons, reference, wrap):
    mine = CountedLogisticRegression().fit(*moons)
    before, trained = pickle.dumps(mine), CountedLogisticRegression.trained
    wrapped = wrap(mine)
    audit = CalibrationAuditor(wrapped, random_state=0).fit(*reference)
    audit.predict_uncertainty(reference[0])
    assert audit.estimator_ is wrapped
    assert audit.estimator is wrapped
    assert CountedLogisticRegression.trained == trained
    assert pickle.dumps(mine) == before


@pytest.mark.parametrize("names", [[0, 1], ["z", "a"], [True, False]])
def test_an_unfitted_model_is_audited_by_folds_and_then_trained_on_everything(reference, names):
    X, y = reference[0], np.array(names)[reference[1]]
    mine = CountedLogisticRegression(C=0.3)
    trained = CountedLogisticRegression.trained
    audit = CalibrationAuditor(mine, random_state=3).fit(X, y)
    assert CountedLogisticRegression.trained == trained + 6
    assert not hasattr(mine, "coef_")
    proba = np.empty((len(y), 2))
    for train, test in StratifiedKFold(5, shuffle=True, random_state=3).split(X, y):
        proba[test] = LogisticRegression(C=0.3).fit(X[train], y[train]).predict_proba(X[test])
    by_hand = CalibrationAuditor.from_predictions(y, proba, random_state=3)
    assert_same_numbers(audit, by_hand)
    whole = LogisticRegression(C=0.3).fit(X, y)
    np.testing.assert_array_equal(audit.estimator_.coef_, whole.coef_)
    np.testing.assert_array_equal(audit.predict_proba(X), whole.predict_proba(X))
    np.testing.assert_array_equal(audit.predict(X), whole.predict(X))
    assert audit.classes_.tolist() == sorted(names)


def test_an_unfitted_model_is_not_judged_on_what_it_has_seen():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), rng.integers(2, size=200)
    audit = CalibrationAuditor(KNeighborsClassifier(1), random_state=0).fit(X, y)
    assert audit.confidence_ == 1.0
    assert audit.accuracy_ < 0.7
    assert audit.bins_.direction[-1] == "overconfident"


@pytest.mark.parametrize("binning", ["uniform", "quantile"])
@pytest.mark.parametrize("groups", [None, 0])
def test_recorded_predictions_give_the_numbers_of_the_model(model, reference, binning, groups):
    X, y = reference
    X = np.column_stack([X[:, 0].round(), X[:, 1]])
    params = {"n_bins": 7, "alpha": 0.02, "binning": binning, "random_state": 0}
    fitted = CalibrationAuditor(model, groups=groups, **params).fit(X, y)
    recorded = CalibrationAuditor.from_predictions(
        y,
        model.predict_proba(X),
        groups=None if groups is None else pd.DataFrame({"0": X[:, 0]}),
        **params,
    )
    assert_same_numbers(recorded, fitted)
    assert recorded.classes_.tolist() == [0, 1]
    assert (groups is None) == (recorded.group_bins_ == {})


def test_classes_give_the_column_order_of_recorded_predictions(model, reference):
    X, y = reference
    proba = model.predict_proba(X)
    names = np.array(["b", "a"])
    ours = CalibrationAuditor.from_predictions(names[y], proba, classes=names, random_state=0)
    assert_same_numbers(ours, CalibrationAuditor.from_predictions(y, proba, random_state=0))
    assert ours.classes_.tolist() == ["b", "a"]


def test_figures_are_those_of_the_predictions(model, reference):
    X, y = reference
    audit = CalibrationAuditor(model, random_state=0).fit(X, y)
    confidence, correct = model.predict_proba(X).max(axis=1), model.predict(X) == y
    assert audit.n_samples_ == len(y)
    assert audit.accuracy_ == correct.mean()
    assert audit.confidence_ == pytest.approx(confidence.mean(), abs=1e-9)
    assert audit.ece_ == pytest.approx(slow_ece(confidence, correct), abs=1e-8)
    assert audit.mce_ == pytest.approx(np.nanmax(np.abs(audit.bins_.gap)))
    low, high = audit.ece_interval_
    assert low < audit.ece_ < high


def test_the_noise_floor_is_what_a_calibrated_model_shows():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.5, 1, size=(300, 1))
    y = (rng.random(300) > X[:, 0]).astype(int)
    model = Reporter().fit(X, y)
    floor = CalibrationAuditor(model, random_state=0).fit(X, y).ece_chance_
    correct = rng.random((400, 300)) < X[:, 0]
    simulated = [slow_ece(X[:, 0].tolist(), row.tolist()) for row in correct]
    assert floor == pytest.approx(np.quantile(simulated, 0.95), rel=0.12)


# Kinds of input


@pytest.mark.parametrize("fitted", [True, False])
def test_a_pipeline_takes_text_columns_and_labels_and_groups_it_does_not_use(fitted):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=120),
            "colour": rng.choice(["red", "blue"], size=120),
            "sex": rng.choice(["f", "m", None], size=120),
        },
        index=rng.permutation(120),
    )
    y = pd.Series(np.where(frame["size"] > 0, "yes", "no"), index=frame.index)
    table = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    pipeline = make_pipeline(table, LogisticRegression())
    if fitted:
        pipeline.fit(frame, y)
    audit = CalibrationAuditor(pipeline, groups="sex", random_state=0).fit(frame, y)
    assert audit.feature_names_in_.tolist() == ["size", "colour", "sex"]
    assert audit.n_features_in_ == 3
    assert set(audit.group_bins_) == {"sex=f", "sex=m", "sex=missing"}
    assert set(audit.predict(frame)) == {"yes", "no"}
    assert audit.predict_uncertainty(frame[:3]).total.shape == (3,)
    with pytest.raises(ValueError, match="feature names"):
        audit.predict(frame.rename(columns={"size": "weight"}))


@pytest.mark.parametrize("convert", [np.float32, pd.DataFrame, lambda X: X.tolist()])
def test_the_container_of_the_inputs_does_not_matter(reference, convert):
    X, y = reference[0].astype(np.float32).astype(float), reference[1]
    model = KNeighborsClassifier(25).fit(X[:100], y[:100])
    if convert is pd.DataFrame:
        model.fit(convert(X[:100]), y[:100])
    ours = CalibrationAuditor(model, random_state=0).fit(convert(X), y.tolist())
    plain = CalibrationAuditor(KNeighborsClassifier(25).fit(X[:100], y[:100]), random_state=0)
    assert_same_numbers(ours, plain.fit(X, y))
    np.testing.assert_array_equal(ours.predict(convert(X)), plain.predict(X))


def net(**params):
    return NeuralNetClassifier(
        MLP,
        module__n_features=2,
        module__n_outputs=2,
        criterion=nn.CrossEntropyLoss,
        max_epochs=2,
        train_split=None,
        verbose=0,
        **params,
    )


@pytest.mark.parametrize("wrap", [lambda m: m, FrozenEstimator])
def test_a_fitted_skorch_net_is_audited_as_it_is(reference, wrap):
    X, y = reference[0].astype(np.float32), reference[1]
    torch.manual_seed(0)
    mine = net().fit(X[:100], y[:100])
    before = {name: value.clone() for name, value in mine.module_.state_dict().items()}
    audit = CalibrationAuditor(wrap(mine), random_state=0).fit(X, y)
    recorded = CalibrationAuditor.from_predictions(y, mine.predict_proba(X), random_state=0)
    assert_same_numbers(audit, recorded)
    assert all(torch.equal(before[k], v) for k, v in mine.module_.state_dict().items())
    assert len(mine.history) == 2


def test_an_unfitted_skorch_net_is_trained_in_copies(reference):
    X, y = reference[0].astype(np.float32), reference[1]
    mine = net()
    audit = CalibrationAuditor(mine, random_state=0).fit(X, y)
    assert not mine.initialized_
    assert audit.classes_.tolist() == [0, 1]
    expected = audit.estimator_.predict_proba(X).max(axis=1)
    np.testing.assert_allclose(audit.predict_uncertainty(X).total, 1 - expected, atol=1e-7)


def test_a_reference_set_of_one_class_is_enough_for_a_fitted_model(model, reference):
    X, y = reference
    audit = CalibrationAuditor(model, random_state=0).fit(X[y == 1], y[y == 1])
    assert audit.accuracy_ == (model.predict(X[y == 1]) == 1).mean()
    assert audit.classes_.tolist() == [0, 1]


# Verdicts


def test_only_a_gap_that_chance_does_not_explain_fails():
    audit = audit_of((200, 0.75, 150), (3, 0.95, 2))
    assert not audit.within_alpha_
    assert audit.passed_
    assert audit.suspicious_bins().tolist() == []
    assert audit.suspicious_samples().tolist() == []
    assert audit.suspicious_samples().dtype == np.int64
    many = audit_of((200, 0.75, 150), (300, 0.95, 200))
    assert not many.within_alpha_
    assert not many.passed_


def test_a_calibrated_model_is_within_alpha_and_passes():
    audit = audit_of((200, 0.75, 150), (100, 0.9, 90))
    assert audit.within_alpha_
    assert audit.passed_
    assert audit.ece_ == 0.0


def test_lowered_confidence_is_found_in_its_bin():
    audit = audit_of((100, 0.55, 98), (300, 0.95, 285))
    assert not audit.passed_
    assert audit.bins_.direction.tolist() == [""] * 5 + ["underconfident"] + [""] * 4


UNFAIR = (150, 0.7, 145), (450, 0.7, 280)  # together 0.708 correct
WHO = np.repeat(["a", "b"], [150, 450])


def test_a_model_underconfident_for_one_group_passes_unless_groups_are_audited():
    X, y = reports(*UNFAIR)
    proba = Reporter().predict_proba(X)
    plain = CalibrationAuditor.from_predictions(y, proba, alpha=0.1, random_state=0)
    assert plain.passed_
    assert plain.within_alpha_
    by_group = CalibrationAuditor.from_predictions(
        y, proba, groups={"who": WHO}, alpha=0.1, random_state=0
    )
    assert not by_group.passed_
    assert by_group.within_alpha_  # step 3 of Algorithm 1 knows no groups
    assert by_group.group_bins_["who=a"].direction[7] == "underconfident"
    assert not by_group.group_bins_["who=b"].significant.any()
    assert by_group.suspicious_bins().tolist() == []


def test_limits_are_corrected_for_all_bins_of_all_groups(model, reference):
    X, y = reference
    X = np.column_stack([X[:, 0].round(), X[:, 1]])
    audit = CalibrationAuditor(model, groups=0, random_state=0).fit(X, y)
    confidence = model.predict_proba(X).max(axis=1)
    bins = [min(int(p * 10), 9) for p in confidence]
    n_tests = len(set(bins)) + len(set(zip(bins, X[:, 0], strict=True)))
    assert audit.n_tests_ == n_tests
    assert set(audit.group_sums_) == {f"0={value}" for value in set(X[:, 0])}
    correct = model.predict(X) == y
    for value in set(X[:, 0]):
        part = audit.group_bins_[f"0={value}"]
        for b in range(10):
            inside = (np.array(bins) == b) & (X[:, 0] == value)
            assert part.count[b] == inside.sum()
            if inside.any() and part.gap[b] > 0:
                edge = min(confidence[inside].mean() + 0.05, 1.0)
                k = int(correct[inside].sum())
                slow = binomtest(k, int(inside.sum()), edge, alternative="greater").pvalue
                assert part.p_value[b] == pytest.approx(min(1, 2 * n_tests * slow), rel=1e-4)


def test_the_tolerance_and_the_level_decide():
    blocks = [(100, 0.7, 83)]
    assert not audit_of(*blocks, alpha=0.0).passed_
    assert audit_of(*blocks, alpha=0.0, confidence_level=0.999).passed_
    assert audit_of(*blocks, alpha=0.1).passed_
    assert not audit_of(*blocks, alpha=0.1).within_alpha_
    assert audit_of(*blocks, alpha=0.13).within_alpha_


def test_suspicious_samples_are_ordered_by_bin_and_by_what_was_not_expected():
    blocks = (100, 0.65, 90), (200, 0.85, 100), (50, 0.95, 47)
    X, y = reports(*blocks)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    audit = CalibrationAuditor(Reporter().fit(X, y), random_state=0).fit(X, y)
    under = binomtest(90, 100, 0.7, alternative="greater").pvalue
    over = binomtest(100, 200, 0.8, alternative="less").pvalue
    assert over < under
    assert audit.suspicious_bins().tolist() == [8, 6]
    expected = [
        row
        for confidence, first in ((0.85, 1), (0.65, 0))
        for label in (first, 1 - first)
        for row in range(len(y))
        if X[row, 0] == confidence and y[row] == label
    ]
    assert audit.suspicious_samples().tolist() == expected


# Uncertainty


def test_uncertainty_is_split_by_what_the_reference_set_supports():
    audit = audit_of((50, 0.55, 48), (100, 0.7, 70), (100, 0.95, 60))
    asked = np.array([0.51, 0.55, 0.7, 0.8, 0.9, 1.0])  # nothing is known of bin 8
    u = audit.predict_uncertainty(asked[:, None])
    np.testing.assert_allclose(u.total, 1 - asked, atol=1e-12)
    np.testing.assert_allclose(u.aleatoric, [0.04, 0.04, 0.3, 0.2, 0.4, 0.4], atol=1e-12)
    np.testing.assert_allclose(u.epistemic, [0.45, 0.41, 0, 0, -0.3, -0.4], atol=1e-12)
    assert u.epistemic[3] == 0.0
    np.testing.assert_array_equal(u.total, u.aleatoric + u.epistemic)
    np.testing.assert_array_equal(predict_uncertainty(audit, asked[:, None]).total, u.total)


@pytest.mark.parametrize("binning", ["uniform", "quantile"])
def test_uncertainty_of_the_reference_set_averages_to_its_error(model, reference, binning):
    X, y = reference
    audit = CalibrationAuditor(model, binning=binning, random_state=0).fit(X, y)
    u = audit.predict_uncertainty(X)
    assert u.aleatoric.mean() == pytest.approx(1 - audit.accuracy_)
    assert u.total.mean() == pytest.approx(1 - audit.confidence_, abs=1e-8)


def test_predictions_are_those_of_the_audited_model(model, reference):
    audit = CalibrationAuditor(model, random_state=0).fit(*reference)
    X = reference[0][:9]
    np.testing.assert_array_equal(audit.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(audit.predict(X), model.predict(X))


# Searches


def test_score_is_minus_the_calibration_error_on_new_data(model, moons, reference):
    audit = CalibrationAuditor(model, n_bins=7, random_state=0).fit(*reference)
    X, y = moons[0][:150], moons[1][:150]
    confidence, correct = model.predict_proba(X).max(axis=1), model.predict(X) == y
    assert audit.score(X, y) == pytest.approx(-slow_ece(confidence, correct, 7), abs=1e-8)


def test_cross_validation_of_a_frozen_model_scores_each_part_of_the_data(model, reference):
    X, y = reference
    audit = CalibrationAuditor(FrozenEstimator(model), random_state=0)
    folds = StratifiedKFold(3)
    scores = cross_val_score(audit, X, y, cv=folds)
    slow = [
        -slow_ece(model.predict_proba(X[test]).max(axis=1), model.predict(X[test]) == y[test])
        for _, test in folds.split(X, y)
    ]
    np.testing.assert_allclose(scores, slow, atol=1e-8)


def test_grid_search_runs_over_bins_and_over_parameters_of_the_model(reference):
    X, y = reference
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    grid = {"n_bins": [5, 10], "estimator__logisticregression__C": [0.01, 1.0]}
    search = GridSearchCV(CalibrationAuditor(pipeline, random_state=0), grid, cv=3)
    search.fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    # Shrunk weights make a model underconfident.
    assert search.best_params_["estimator__logisticregression__C"] == 1.0
    best = search.best_estimator_
    assert len(best.bins_.count) == search.best_params_["n_bins"]
    assert best.estimator_[-1].C == 1.0
    assert predict_uncertainty(search, X[:4]).total.shape == (4,)


def test_a_clone_keeps_a_frozen_model_and_forgets_the_fit_of_a_plain_one(model, reference):
    frozen = FrozenEstimator(model)
    again = clone(CalibrationAuditor(frozen, random_state=0).fit(*reference))
    assert not hasattr(again, "bins_")
    assert again.fit(*reference).estimator_.estimator is model
    plain = clone(CalibrationAuditor(model, random_state=0)).fit(*reference)
    assert plain.estimator_ is not model


# Power and coverage


@pytest.mark.parametrize("power", [0.8, 0.95])
def test_power_is_that_of_the_bins_and_tests_of_the_audit(power):
    X, y = reports(*UNFAIR, (20, 0.85, 16))
    audit = CalibrationAuditor.from_predictions(
        y, Reporter().predict_proba(X), groups={"who": [*WHO, *"b" * 20]}, random_state=0
    )
    assert audit.n_tests_ == 2 + 1 + 2
    settings = {"alpha": 0.05, "n_tests": 5, "power": power}
    count, confidence = [0] * 7 + [600, 20, 0], [np.nan] * 7 + [0.7, 0.85, np.nan]
    gaps = audit.detectable_gaps(power=power)
    np.testing.assert_allclose(gaps, detectable_gap(count, confidence, **settings))
    assert np.isfinite(gaps).tolist() == [False] * 7 + [True, False, False]
    needed = audit.required_samples(0.12, power=power)
    expected = required_samples(0.12, [0.7, 0.85], **settings)
    np.testing.assert_array_equal(needed, [np.nan] * 7 + expected.tolist() + [np.nan])


REGION = (60, 0.65, 58), (40, 0.85, 20)
REST = (300, 0.75, 225), (50, 0.95, 47)


def region_audit(**params):
    audit = audit_of(*REGION, *REST, **params)
    return audit, np.arange(450) < 100


@pytest.mark.parametrize("binning", ["uniform", "quantile"])
@pytest.mark.parametrize("groups", [None, lambda X: np.arange(len(X)) // 130])
@pytest.mark.parametrize("rho", [0, 1])
def test_a_region_is_kept_or_removed_as_a_whole(rho, groups, binning):
    audit, mask = region_audit(binning=binning, groups=groups, n_bins=5)
    before = {name: getattr(audit, name) for name in NUMBERS}
    less = audit.undersample(rho, mask)
    X, y = reports(*REGION, *REST)
    kept = ~mask | (rho == 0)
    expected = CalibrationAuditor.from_predictions(
        y[kept],
        Reporter().predict_proba(X[kept]),
        groups=None if groups is None else {"group": groups(X)[kept]},
        binning=binning,
        n_bins=5,
        random_state=0,
    )
    assert_same_numbers(less, expected)
    assert less.estimator_ is audit.estimator_
    assert less.predict(X).tolist() == [0] * len(y)
    np.testing.assert_equal({name: getattr(audit, name) for name in NUMBERS}, before)


@pytest.mark.parametrize("rho", [0.1, 0.25, 0.5, 0.777, 0.99])
@pytest.mark.parametrize("seed", range(3))
def test_the_given_share_of_the_region_is_removed_and_nothing_else(rho, seed):
    audit, mask = region_audit()
    less = audit.undersample(rho, mask, random_state=seed)
    assert less.n_samples_ == 450 - round(100 * rho)
    for name in ("count", "correct", "confidence"):
        rest = getattr(less.sums_, name)[[7, 9]]
        np.testing.assert_array_equal(rest, getattr(audit.sums_, name)[[7, 9]])
    again = audit.undersample(rho, mask, random_state=seed)
    assert_same_numbers(again, less)


def test_a_part_of_the_region_has_the_share_of_equation_20_on_average(monkeypatch):
    monkeypatch.setattr(intervals, "N_SIMULATIONS", 1)
    audit, mask = region_audit()
    p, rho = audit.sums_.count / 450, 0.3
    drawn = np.array([audit.undersample(rho, mask, random_state=s).sums_.count for s in range(400)])
    share = drawn / drawn.sum(axis=1, keepdims=True)
    for b, inside in ((6, True), (8, True), (7, False), (9, False)):
        expected = (p[b] * (1 - rho) if inside else p[b]) / (
            p[7] + p[9] + (1 - rho) * (p[6] + p[8])
        )
        error = share[:, b].std() / np.sqrt(400)
        assert share[:, b].mean() == pytest.approx(expected, abs=4 * error + 1e-12)
    assert len(set(drawn[:, 6])) > 1


def test_removing_the_region_hides_what_was_found():
    audit, mask = region_audit()
    assert not audit.passed_
    assert audit.undersample(1, mask).passed_


def test_a_group_that_was_removed_altogether_is_empty_and_not_tested():
    audit, mask = region_audit(groups=lambda X: np.arange(len(X)) < 100)
    less = audit.undersample(1, mask)
    assert less.group_sums_["group=True"].count.sum() == 0
    assert not less.group_bins_["group=True"].significant.any()
    assert audit.n_tests_ == 4 + 4
    assert less.n_tests_ == 2 + 2


def test_recorded_predictions_can_be_undersampled_too():
    X, y = reports(*REGION, *REST)
    audit = CalibrationAuditor.from_predictions(y, Reporter().predict_proba(X), random_state=0)
    less = audit.undersample(1.0, np.arange(450) < 100)
    assert less.n_samples_ == 350
    assert less.classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rho", "mask", "match"),
    [
        (-0.1, np.ones(450, bool), r"`rho` must be in \[0, 1\], got -0.1"),
        (1.5, np.ones(450, bool), r"`rho` must be in \[0, 1\], got 1.5"),
        (np.nan, np.ones(450, bool), r"`rho` must be in \[0, 1\], got nan"),
        (0.5, np.ones(449, bool), r"shape \(450,\).*got bool of shape \(449,\)"),
        (0.5, np.ones((450, 1), bool), r"got bool of shape \(450, 1\)"),
        (0.5, np.ones(450, int), "got int64"),
        (0.5, [3, 5], r"got int64 of shape \(2,\)"),
        (1.0, np.ones(450, bool), "n_samples=0"),
    ],
)
def test_what_cannot_be_undersampled_is_refused(rho, mask, match):
    with pytest.raises(ValueError, match=match):
        region_audit()[0].undersample(rho, mask)


# Randomness and persistence


@pytest.mark.parametrize("seed", [0, np.random.RandomState(0)])
@pytest.mark.parametrize("fitted", [True, False])
def test_the_seed_makes_an_audit_reproducible(model, reference, seed, fitted):
    estimator = FrozenEstimator(model) if fitted else LogisticRegression()
    audits = [CalibrationAuditor(estimator, random_state=clone(seed, safe=False)) for _ in "ab"]
    assert_same_numbers(*(audit.fit(*reference) for audit in audits))


def test_the_seed_draws_the_folds_and_the_simulations(reference):
    one, two = (
        CalibrationAuditor(LogisticRegression(), random_state=s).fit(*reference) for s in (0, 1)
    )
    assert one.confidence_ != two.confidence_
    frozen = FrozenEstimator(one.estimator_)
    one, two = (CalibrationAuditor(frozen, random_state=s).fit(*reference) for s in (0, 1))
    assert one.ece_ == two.ece_
    assert one.ece_interval_ != two.ece_interval_


def test_the_global_random_state_is_left_alone(model, reference):
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    CalibrationAuditor(model, random_state=0).fit(*reference).undersample(
        0.5, np.ones(400, bool), random_state=0
    )
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def dumped(audit, folder):
    joblib.dump(audit, folder / "audit.joblib")
    return joblib.load(folder / "audit.joblib")


@pytest.mark.parametrize("save", [lambda a, _: pickle.loads(pickle.dumps(a)), dumped])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_stored_audit_is_the_same(model, reference, tmp_path, save, recorded):
    X, y = reference
    audit = (
        CalibrationAuditor.from_predictions(y, model.predict_proba(X), random_state=0)
        if recorded
        else CalibrationAuditor(model, groups=0, random_state=0).fit(X.round(), y)
    )
    again = save(audit, tmp_path)
    assert_same_numbers(again, audit)
    assert again.suspicious_samples().tolist() == audit.suspicious_samples().tolist()
    mask = np.arange(len(y)) % 2 == 0
    assert_same_numbers(again.undersample(1, mask), audit.undersample(1, mask))
    if not recorded:
        np.testing.assert_equal(again.predict_uncertainty(X), audit.predict_uncertainty(X))


# Refusals


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_uncertainty", "score"])
def test_an_audit_of_recorded_predictions_cannot_predict(method):
    audit = CalibrationAuditor.from_predictions([0, 1] * 10, [[0.6, 0.4]] * 20)
    with pytest.raises(ValueError, match="holds no model to predict with"):
        getattr(audit, method)([[1.0]], *([[0]] if method == "score" else []))


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("predict", ([[1.0]],)),
        ("predict_proba", ([[1.0]],)),
        ("predict_uncertainty", ([[1.0]],)),
        ("score", ([[1.0]], [0])),
        ("suspicious_bins", ()),
        ("suspicious_samples", ()),
        ("detectable_gaps", ()),
        ("required_samples", (0.2,)),
        ("undersample", (0.5, [True])),
    ],
)
def test_nothing_is_known_before_the_audit(method, arguments):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(CalibrationAuditor(LogisticRegression()), method)(*arguments)


@pytest.mark.parametrize("estimator", [RidgeClassifier(), nn.Linear(2, 2), None, "logistic"])
def test_what_does_not_predict_probabilities_is_no_estimator(reference, estimator):
    with pytest.raises(TypeError, match="must be a classifier with `predict_proba`"):
        CalibrationAuditor(estimator).fit(*reference)


class Logits(Reporter):
    def predict_proba(self, X):
        return np.column_stack([X[:, 0], X[:, 0]]) * 3


def replaced(X, value):
    X = X.copy()
    X[3, 0] = value
    return X


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda X, y: (X[:9], y[:9]), "n_samples=9, but at least 10 are needed for n_bins=10"),
        (lambda X, y: (replaced(X, np.nan), y), "NaN"),
        (lambda X, y: (replaced(X, np.inf), y), "infinity"),
        (lambda X, y: (X, np.where(X[:, 0] > 1, 2, y)), r"not in `classes`: \[2\]"),
        (lambda X, y: (X, np.array(["a", "b"])[y]), "not in `classes`"),
        (lambda X, y: (X[1:], y), "inconsistent numbers of samples"),
        (lambda X, y: (X[:, :1], y), "1 features"),
        (lambda X, y: (X, X[:, 0]), "Unknown label type"),
        (lambda X, y: (X, np.where(X[:, 0] > 1, np.nan, y)), "Input y contains NaN"),
        (lambda X, y: (X, np.where(X[:, 0] > 1, None, y)), "Unknown label type"),
        (lambda X, y: (X, np.column_stack([y, y])), "1d array"),
    ],
)
def test_what_is_no_reference_set_of_the_model_is_refused(model, reference, change, match):
    with pytest.raises(ValueError, match=match):
        CalibrationAuditor(model, random_state=0).fit(*change(*reference))


def test_a_model_that_reports_no_probabilities_is_refused(reference):
    with pytest.raises(ValueError, match="must"):
        CalibrationAuditor(Logits().fit(None, None)).fit(*reference)


@pytest.mark.parametrize("groups", ["sex", 2, ["0"], lambda X: X, lambda X: X[:9, 0].round()])
def test_groups_that_the_inputs_lack_are_refused(model, reference, groups):
    with pytest.raises(ValueError, match=r"[Cc]olumn|one-dimensional|inconsistent numbers"):
        CalibrationAuditor(model, groups=groups).fit(*reference)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"proba": np.full((20, 2), np.nan)}, "must be finite"),
        ({"proba": np.full((20, 2), 0.4)}, "must sum to 1"),
        ({"proba": np.full((20, 3), 1 / 3)}, "3 columns"),
        ({"proba": np.full((19, 2), 0.5)}, "20, 19 rows"),
        ({"y": [0, 7] * 10, "classes": [0, 1]}, r"not in `classes`: \[7\]"),
        ({"groups": {"g": [0] * 19}}, "inconsistent numbers"),
        ({"groups": {"g": np.zeros((20, 2))}}, "one-dimensional"),
        ({"groups": {"id": [f"{k}" for k in range(300)]}}, "300 different values"),
        ({"n_bins": 21}, "n_samples=20, but at least 21"),
    ],
)
def test_what_are_no_recorded_predictions_is_refused(changes, match):
    given = {"y": [0, 1] * 10, "proba": [[0.6, 0.4]] * 20, **changes}
    with pytest.raises(ValueError, match=match):
        CalibrationAuditor.from_predictions(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_bins", 0),
        ("n_bins", 2.5),
        ("alpha", -0.1),
        ("alpha", 1.1),
        ("alpha", np.nan),
        ("binning", "width"),
        ("confidence_level", 0),
        ("confidence_level", 1.0),
        ("random_state", "x"),
        ("groups", 1.5),
    ],
)
def test_bad_parameters_are_refused_when_they_are_used(model, reference, name, value):
    audit = CalibrationAuditor(model).fit(*reference).set_params(**{name: value})
    match = f"The '{name}' parameter of CalibrationAuditor must be"
    with pytest.raises(ValueError, match=match):
        audit.fit(*reference)
    if name != "groups":
        with pytest.raises(ValueError, match=match):
            CalibrationAuditor.from_predictions([0, 1] * 9, [[0.6, 0.4]] * 18, **{name: value})


def test_the_width_of_new_inputs_must_be_that_of_the_reference_set(model, reference):
    audit = CalibrationAuditor(model, random_state=0).fit(*reference)
    for method in (audit.predict, audit.predict_proba, audit.predict_uncertainty):
        with pytest.raises(ValueError, match="1 features, but CalibrationAuditor is expecting 2"):
            method(reference[0][:, :1])
