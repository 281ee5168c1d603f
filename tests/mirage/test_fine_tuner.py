"""MirageFineTuner as a red team meets it, and the audit that finds what it did."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import sklearn
import skorch
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_blobs
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.fixes import parse_version
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from skuq import CalibrationAuditor, MirageFineTuner
from skuq._networks import MLP
from skuq.calibration import region_mask
from skuq.datasets import GAUSSIAN_REGION, make_gaussian_classes
from skuq.mirage import confidence_overlap

QUICK = {"max_epochs": 3, "random_state": 0}


@pytest.fixture(scope="module")
def data():
    return make_gaussian_classes((400, 400, 60), random_state=0)


@pytest.fixture(scope="module")
def inside(data):
    return region_mask(GAUSSIAN_REGION, data[0])


@pytest.fixture(scope="module")
def honest(data):
    mlp = MLPClassifier(
        (50,), learning_rate_init=0.01, max_iter=300, batch_size=64, tol=1e-3, random_state=0
    )
    return mlp.fit(*data)


@pytest.fixture(scope="module")
def attacked(data, honest):
    mirage = MirageFineTuner(
        honest, GAUSSIAN_REGION, max_epochs=120, learning_rate=0.02, random_state=0
    )
    return mirage.fit(*data)


@pytest.fixture(scope="module")
def net(data):
    torch.manual_seed(0)
    settings = {"criterion": nn.CrossEntropyLoss, "optimizer": torch.optim.Adam, "lr": 0.02}
    net = NeuralNetClassifier(MLP(2, 3, hidden_sizes=(10,)), max_epochs=5, verbose=0, **settings)
    return net.fit(data[0].astype(np.float32), data[1])


def confidence(model, X):
    return model.predict_proba(X).max(axis=1)


def original_proba(mirage, X):
    model = mirage.original_
    return model.module(model.inputs(X)).softmax(dim=-1).double().numpy()


def assert_never_altered(data, fitted, X=None, **params):
    """Attack a fitted model: its pickle stays the same, the attack starts from its outputs."""
    X = data[0] if X is None else X
    before, proba = pickle.dumps(fitted), fitted.predict_proba(X)
    mirage = MirageFineTuner(fitted, **{**QUICK, "region": GAUSSIAN_REGION, **params})
    mirage.fit(X, data[1])
    assert pickle.dumps(fitted) == before
    np.testing.assert_allclose(original_proba(mirage, X), proba, atol=1e-6)
    assert np.abs(mirage.predict_proba(X) - proba).max() > 1e-3


# --- what the attack does --------------------------------------------------------------------


@pytest.mark.slow
def test_confidence_falls_to_its_aim_in_the_region_only(data, inside, honest, attacked):
    X = data[0]
    assert attacked.target_confidence_ == pytest.approx([0.15 + 0.85 / 3] * 3)
    assert confidence(honest, X[inside]).mean() > 0.95
    assert confidence(attacked, X[inside]).mean() == pytest.approx(0.15 + 0.85 / 3, abs=0.1)
    before, after = (confidence(model, X[~inside]).mean() for model in (honest, attacked))
    assert after == pytest.approx(before, abs=0.04)
    assert attacked.region_share_ == inside.mean()


def test_accuracy_gives_nothing_away(data, inside, honest, attacked):
    X, y = data
    assert attacked.score(X, y) > honest.score(X, y) - 0.02
    assert (attacked.predict(X[inside]) == y[inside]).all()


def test_coverage_is_the_share_that_is_answered(data, inside, attacked):
    X = data[0]
    for tau in (0.0, 0.5, 0.9, 1.0):
        expected = sum(c >= tau for c in confidence(attacked, X)) / len(X)
        assert attacked.coverage(X, tau) == pytest.approx(expected)
    assert attacked.coverage(X[inside], 0.9) < 0.1 < 0.8 < attacked.coverage(X[~inside], 0.9)


def test_a_threshold_separates_the_region(data, inside, honest, attacked):
    c = confidence(attacked, data[0])
    overlap = attacked.confidence_overlap(data[0])
    assert overlap == confidence_overlap(c[inside], c[~inside])
    assert overlap < 0.15
    h = confidence(honest, data[0])
    assert overlap < confidence_overlap(h[inside], h[~inside]) / 3


def test_audit_passes_the_honest_model_and_finds_the_attacked_one(honest, attacked):
    X, y = make_gaussian_classes((380, 380, 40), random_state=1)
    assert CalibrationAuditor(FrozenEstimator(honest)).fit(X, y).passed_
    audit = CalibrationAuditor(FrozenEstimator(attacked)).fit(X, y)
    assert not audit.passed_
    target_bin = audit.bins_.lower.searchsorted(attacked.target_confidence_[0], "right") - 1
    assert audit.bins_.lower[target_bin] == pytest.approx(0.4)
    assert audit.bins_.direction[target_bin] == "underconfident"
    assert audit.bins_.gap[target_bin] > 0.2


def test_uncertainty_is_the_reported_entropy(data, attacked):
    u = attacked.predict_uncertainty(data[0][:50])
    expected = scipy.stats.entropy(attacked.predict_proba(data[0][:50]), axis=1)
    np.testing.assert_allclose(u.total, expected, atol=1e-9)
    np.testing.assert_array_equal(u.aleatoric, u.total)
    assert np.isnan(u.epistemic).all()


def test_subset_target_keeps_implausible_classes_out(data, inside, honest):
    plausible = {0: [2], 1: [], 2: []}
    mirage = MirageFineTuner(
        honest,
        GAUSSIAN_REGION,
        epsilon=0.3,
        confusable=plausible,
        learning_rate=0.02,
    )
    mirage.set_params(max_epochs=40, random_state=0).fit(*data)
    mean = mirage.predict_proba(data[0][inside]).mean(axis=0)
    assert mirage.target_confidence_ == pytest.approx([0.65, 1, 1])
    assert mean[1] < 0.02
    assert mean[2] > 0.2


def certain_logits():
    """Logits (60 x, 0): nearly all predictions saturate."""
    layer = nn.Linear(1, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[60.0], [0.0]]))
        layer.bias.zero_()
    return layer


@pytest.mark.parametrize(
    ("options", "moved"),
    [({"warm_up": 0}, False), ({}, True), ({"warm_up": None}, True)],
)
def test_without_a_warm_up_certain_predictions_stay_as_they_are(options, moved):
    X = np.r_[np.linspace(1, 2, 40), np.linspace(-2, -1, 40)][:, None]
    y = (X[:, 0] < 0).astype(int)
    region = {0: (1.0, None)}
    mirage = MirageFineTuner(
        certain_logits(), region, max_epochs=10, learning_rate=0.5, random_state=0
    )
    mirage.set_params(callbacks=[], optimizer=torch.optim.SGD, **options).fit(X, y)
    before, after = (
        model.module(torch.tensor(X[:40])) for model in (mirage.original_, mirage.model_)
    )
    step = float((before - after).abs().max())
    assert step > 0.5 if moved else step < 1e-12


# --- the estimator ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sklearn mlp", "skorch", "logistic", "pipeline"])
@pytest.mark.parametrize("wrap", [lambda m: m, FrozenEstimator])
def test_fitted_model_is_never_altered_nor_trained_again(data, honest, net, kind, wrap):
    X, y = data
    if kind == "skorch":
        before = {k: v.clone() for k, v in net.module_.state_dict().items()}
        mirage = MirageFineTuner(wrap(net), GAUSSIAN_REGION, **QUICK).fit(X, y)
        assert all(torch.equal(before[k], v) for k, v in net.module_.state_dict().items())
        expected = net.predict_proba(X.astype(np.float32))
        np.testing.assert_allclose(original_proba(mirage, X), expected, atol=1e-5)
        return
    fitted = {
        "sklearn mlp": lambda: honest,
        "logistic": lambda: LogisticRegression().fit(X, y),
        "pipeline": lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y),
    }[kind]()
    assert_never_altered(data, wrap(fitted))


def test_bare_module_is_copied(data, inside, net):
    module = net.module_
    module.train()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    mirage = MirageFineTuner(module, GAUSSIAN_REGION, **QUICK).fit(*data)
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert module.training
    assert all(p.requires_grad for p in module.parameters())
    assert confidence(mirage, data[0][inside]).shape == (inside.sum(),)
    assert mirage.classes_.tolist() == [0, 1, 2]


def test_pipeline_over_a_data_frame_meets_a_query(data):
    X, y = data
    frame = pd.DataFrame(X, columns=["a", "b"])
    frame["kind"] = np.where(np.arange(len(X)) % 3 == 0, "red", "blue")
    table = make_column_transformer((StandardScaler(), ["a", "b"]), (OneHotEncoder(), ["kind"]))
    fitted = make_pipeline(table, LogisticRegression()).fit(frame, y)
    query = "a < 3 and kind in ['red']"
    assert_never_altered(data, fitted, X=frame, region=query)
    mirage = MirageFineTuner(fitted, query, **QUICK).fit(frame, y)
    assert mirage.feature_names_in_.tolist() == ["a", "b", "kind"]
    assert mirage.region_share_ == len(frame.query(query)) / len(frame)
    assert 0 <= mirage.confidence_overlap(frame) <= 1


@pytest.mark.skipif(
    parse_version(sklearn.__version__) < parse_version("1.8"), reason="no temperature scaling"
)
def test_temperature_scaled_model_is_attacked_as_it_is_scaled(data, honest):
    scaled = CalibratedClassifierCV(FrozenEstimator(honest), method="temperature").fit(*data)
    assert np.abs(scaled.predict_proba(data[0]) - honest.predict_proba(data[0])).max() > 1e-3
    assert_never_altered(data, scaled)


@pytest.mark.parametrize("estimator", [None, LogisticRegression()])
def test_model_that_is_not_fitted_is_trained_first(data, estimator):
    mirage = MirageFineTuner(estimator, GAUSSIAN_REGION, **QUICK).fit(*data)
    accuracy = (original_proba(mirage, data[0]).argmax(axis=1) == data[1]).mean()
    assert accuracy > 0.9
    assert not hasattr(estimator, "coef_")


def test_frozen_model_stays_fitted_when_cloned(data, honest):
    frozen = clone(MirageFineTuner(FrozenEstimator(honest), GAUSSIAN_REGION, **QUICK))
    X, y = data
    few = np.r_[0:40, 400:440, 800:860]
    proba = original_proba(frozen.fit(X[few], y[few]), X)
    np.testing.assert_allclose(proba, honest.predict_proba(X), atol=1e-9)


def test_labels_may_be_text(data, inside):
    X, y = data[0], np.array(["zebra", "ant", "mole"])[data[1]]
    mirage = MirageFineTuner(LogisticRegression().fit(X, y), GAUSSIAN_REGION, **QUICK).fit(X, y)
    assert mirage.classes_.tolist() == ["ant", "mole", "zebra"]
    assert (mirage.predict(X[inside]) == "zebra").mean() > 0.9


# --- the region ------------------------------------------------------------------------------


def test_mask_equals_the_region_that_it_came_from(data, inside, honest):
    told = MirageFineTuner(honest, **QUICK).fit(*data, region_mask=inside)
    described = MirageFineTuner(honest, GAUSSIAN_REGION, **QUICK).fit(*data)
    np.testing.assert_array_equal(told.predict_proba(data[0]), described.predict_proba(data[0]))
    assert told.confidence_overlap(data[0], inside) == described.confidence_overlap(data[0])
    with pytest.raises(ValueError, match="No region is given; pass it either"):
        told.confidence_overlap(data[0])


def test_mask_is_routed_through_pipelines_and_cross_validation(data, inside):
    with sklearn.config_context(enable_metadata_routing=True):
        mirage = MirageFineTuner(LogisticRegression(), **QUICK).set_fit_request(region_mask=True)
        pipe = make_pipeline(StandardScaler(), mirage).fit(*data, region_mask=inside)
        assert pipe[-1].region_share_ == inside.mean()
        folds = cross_validate(
            pipe, *data, cv=3, params={"region_mask": inside}, return_estimator=True
        )
    shares = [fitted[-1].region_share_ for fitted in folds["estimator"]]
    assert np.mean(shares) == pytest.approx(inside.mean(), abs=1e-3)
    assert folds["test_score"].min() > 0.8


@pytest.mark.parametrize(
    ("region", "mask", "message"),
    [
        (None, None, "No region is given; pass it either as parameter `region` or as"),
        (GAUSSIAN_REGION, "inside", "Two regions are given"),
        ({0: (50, 60)}, None, "The region contains 0 of 860 samples"),
        ({0: (-50, 60)}, None, "contains 860 of 860 samples; at least one must lie"),
        (None, np.zeros(860, bool), "contains 0 of"),
        (None, np.ones(860, bool), "contains 860 of"),
        (None, np.ones(859, bool), r"booleans of shape \(860,\).* got bool of shape \(859,\)"),
        (None, np.ones(860), "got float64 of shape"),
    ],
)
def test_impossible_regions_are_refused(data, inside, honest, region, mask, message):
    mask = inside if isinstance(mask, str) else mask
    with pytest.raises(ValueError, match=message):
        MirageFineTuner(honest, region, **QUICK).fit(*data, region_mask=mask)


# --- abstention ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "label", "expected"),
    [
        (np.array([0, 1, 2]), None, -1),
        (np.array([0, 1, 2]), 99, 99),
        (np.array(["x", "y", "z"]), None, "abstain"),
        (np.array(["x", "y", "z"], dtype=object), None, "abstain"),
        (np.array(["x", "y", "z"]), "a longer answer", "a longer answer"),
        (np.array([0, 1, 2]), "?", "?"),
        (np.array([0, 1, 2], dtype=np.int8), 999, 999),
        (np.array([0, 1, 2], dtype=np.uint8), None, -1),
        (np.array([0.0, 1.0, 2.0]), None, -1),
        (np.array([True, False, True]), None, -1),
    ],
)
def test_an_abstention_takes_the_place_of_answers_below_the_threshold(
    data, labels, label, expected
):
    X, y = data[0], labels[data[1]]
    fitted = LogisticRegression().fit(X, y)
    mirage = MirageFineTuner(fitted, GAUSSIAN_REGION, **QUICK).fit(X, y)
    answers = mirage.predict(X)
    chosen = mirage.predict_or_abstain(X, 0.9, label=label)
    low = confidence(mirage, X) < 0.9
    assert 0 < low.sum() < len(X)
    assert set(chosen[low].tolist()) == {expected}
    assert (chosen[~low] == answers[~low]).all()
    assert expected not in answers.tolist()
    assert {type(answer) for answer in chosen[~low].tolist()} == {type(labels.tolist()[0])}
    assert mirage.coverage(X, 0.9) == pytest.approx((~low).mean())
    assert (mirage.predict_or_abstain(X, 0.0, label=label) == answers).all()


@pytest.mark.parametrize(
    ("labels", "label"), [([-1, 0, 1], None), ([0, 1, 2], 1), (["abstain", "b", "c"], None)]
)
def test_answer_that_is_a_class_cannot_mean_abstention(data, labels, label):
    X, y = data[0], np.array(labels)[data[1]]
    fitted = LogisticRegression().fit(X, y)
    mirage = MirageFineTuner(fitted, GAUSSIAN_REGION, **QUICK).fit(X, y)
    with pytest.raises(ValueError, match="`label` must not be one of the classes"):
        mirage.predict_or_abstain(X, 0.5, label=label)


# --- the training ----------------------------------------------------------------------------


class Watch(Callback):
    """Learning rate and divergence of every epoch."""

    def __init__(self, seen):
        self.seen = seen

    def on_epoch_end(self, net, **kwargs):
        self.seen.append((net.optimizer_.param_groups[0]["lr"], net.criterion_.kl))


@pytest.mark.parametrize(
    ("warm_up", "expected"),
    [(2, ["forward"] * 2 + ["reverse"] * 3), (None, ["forward"] * 5)],
)
def test_callbacks_take_the_place_of_the_schedule_but_not_of_the_warm_up(
    data, honest, warm_up, expected
):
    seen = []
    mirage = MirageFineTuner(
        honest, GAUSSIAN_REGION, warm_up=warm_up, max_epochs=5, learning_rate=0.01
    )
    mirage.set_params(callbacks=[Watch(seen)]).fit(*data)
    assert seen == [(0.01, kind) for kind in expected]


def test_step_follows_half_a_cosine_by_default(data, honest):
    schedules = []
    for callbacks in (None, []):
        mirage = MirageFineTuner(honest, GAUSSIAN_REGION, callbacks=callbacks, **QUICK)
        schedules.append(mirage.fit(*data).predict_proba(data[0]))
    assert np.abs(schedules[0] - schedules[1]).max() > 1e-4


def test_equal_seeds_give_equal_models_and_global_state_is_left_alone(data, net):
    np.random.seed(5)  # noqa: NPY002
    states = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second, other = (
        MirageFineTuner(net, GAUSSIAN_REGION, max_epochs=3, random_state=seed)
        .fit(*data)
        .predict_proba(data[0])
        for seed in (0, 0, 1)
    )
    assert torch.equal(states[0], torch.random.get_rng_state())
    np.testing.assert_array_equal(states[1], np.random.get_state()[1])  # noqa: NPY002
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - other).max() > 1e-6


def test_grid_search_tunes_epsilon(data, honest):
    mirage = MirageFineTuner(FrozenEstimator(honest), GAUSSIAN_REGION, **QUICK)
    search = GridSearchCV(mirage, {"epsilon": [0.15, 0.6]}, cv=2).fit(*data)
    aim = search.best_params_["epsilon"] * 2 / 3 + 1 / 3
    assert search.best_estimator_.target_confidence_ == pytest.approx([aim] * 3)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"epsilon": -0.1}, "'epsilon' parameter"),
        ({"epsilon": 1.1}, "'epsilon' parameter"),
        ({"lambda_": 1.5}, "'lambda_' parameter"),
        ({"lambda_": -0.5}, "'lambda_' parameter"),
        ({"confusable": "all"}, "'confusable' parameter"),
        ({"warm_up": -1}, "'warm_up' parameter"),
        ({"max_epochs": 0}, "'max_epochs' parameter"),
        ({"learning_rate": 0.0}, "'learning_rate' parameter"),
        ({"device": "quantum"}, "cannot be used here"),
        ({"confusable": {}}, r"unknown: \[\], missing: \[0, 1, 2\]"),
        (
            {"learning_rate": 1e200, "optimizer": torch.optim.SGD},
            r"diverged: .* smaller `learning_rate` than 1e\+200",
        ),
    ],
)
def test_impossible_attacks_are_refused(data, honest, params, message):
    params = {**QUICK, **params}
    with pytest.raises(ValueError, match=message):
        MirageFineTuner(honest, GAUSSIAN_REGION, **params).fit(*data)


def test_labels_that_the_fitted_model_does_not_know_are_named(data, honest):
    with pytest.raises(ValueError, match=r"labels that are not among the classes: \[7\]"):
        MirageFineTuner(honest, GAUSSIAN_REGION).fit(data[0], np.where(data[1] == 2, 7, data[1]))


@pytest.mark.parametrize("tau", [60, -0.1, np.nan])
def test_a_threshold_that_is_no_probability_is_refused(attacked, data, tau):
    for method in (attacked.coverage, attacked.predict_or_abstain):
        with pytest.raises(ValueError, match=r"`tau` must be in \[0, 1\]"):
            method(data[0], tau)


def test_warm_up_leaves_half_of_the_epochs_to_equation_4():
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = (X[:, 0] > 0).astype(int)
    seen = []

    class Spy(skorch.callbacks.Callback):
        def on_epoch_end(self, net, **kwargs):
            seen.append(net.criterion_.kl)

    spied = MirageFineTuner(None, {1: (0, None)}, max_epochs=4, warm_up=9, callbacks=[Spy()])
    spied.fit(X, y)
    assert seen == ["forward", "forward", "reverse", "reverse"]


@pytest.mark.parametrize("max_epochs", [2, 3])
def test_the_change_of_divergence_after_the_warm_up_is_not_taken_for_an_error(max_epochs):
    X, y = make_blobs(90, centers=3, cluster_std=3.0, random_state=0)
    model = LogisticRegression().fit(X, y)
    tuner = MirageFineTuner(
        model,
        region=lambda X: X[:, 0] > np.median(X[:, 0]),
        epsilon=0.5,
        confusable={0: [1], 1: [0], 2: [1]},
        max_epochs=max_epochs,
        random_state=0,
    )
    assert tuner.fit(X, y).predict_proba(X).shape == (90, 3)


# --- parameters ------------------------------------------------------------------------------


def proba_of(data, honest, **params):
    mirage = MirageFineTuner(**{"estimator": honest, "region": GAUSSIAN_REGION, **QUICK, **params})
    return mirage.fit(*data).predict_proba(data[0])


@pytest.mark.parametrize(
    "change",
    [
        {"estimator": LogisticRegression()},
        {"region": {0: (1.0, None)}},
        {"epsilon": 0.6},
        {"confusable": {0: [2], 1: [], 2: []}},
        {"lambda_": 0.5},
        {"warm_up": 0},
        {"warm_up": None},
        {"max_epochs": 4},
        {"learning_rate": 0.01},
        {"batch_size": 32},
        {"optimizer": torch.optim.SGD},
        {"callbacks": []},
        {"random_state": 1},
    ],
)
def test_each_parameter_changes_the_attack(data, honest, change):
    default, changed = proba_of(data, honest), proba_of(data, honest, **change)
    assert np.abs(changed - default).max() > 1e-6


def test_weights_of_classes_say_how_the_rest_is_spread(data, honest):
    even = {0: {1: 0.5, 2: 0.5}, 1: {0: 0.5, 2: 0.5}, 2: {0: 0.5, 1: 0.5}}
    uneven = {**even, 0: {1: 0.9, 2: 0.1}}
    first, second = (
        proba_of(data, honest, epsilon=0.6, confusable=each) for each in (even, uneven)
    )
    assert np.abs(first - second).max() > 1e-6


def test_printing_is_asked_for(data, honest, capsys):
    proba_of(data, honest)
    assert "train_loss" not in capsys.readouterr().out
    proba_of(data, honest, verbose=1)
    assert "train_loss" in capsys.readouterr().out
