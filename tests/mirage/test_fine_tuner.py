"""MirageFineTuner as a red team meets it, and the audit that finds what it did."""

import pickle
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_blobs
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from skuq import CalibrationAuditor, MirageFineTuner
from skuq._networks import MLP
from skuq.calibration import region_mask
from skuq.datasets import GAUSSIAN_REGION, make_gaussian_classes
from skuq.mirage import confidence_overlap

QUICK = {"max_epochs": 2, "random_state": 0}
DATA = make_gaussian_classes((400, 400, 60), random_state=0)
INSIDE, LOGISTIC = region_mask(GAUSSIAN_REGION, DATA[0]), LogisticRegression().fit(*DATA)


@pytest.fixture(scope="module")
def honest():
    settings = {"learning_rate_init": 0.01, "max_iter": 300, "batch_size": 64, "tol": 1e-3}
    return MLPClassifier((50,), random_state=0, **settings).fit(*DATA)


@pytest.fixture(scope="module")
def attacked(honest):
    settings = {"max_epochs": 80, "learning_rate": 0.04, "batch_size": 128, "random_state": 0}
    return MirageFineTuner(honest, GAUSSIAN_REGION, **settings).fit(*DATA)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    settings = {"criterion": nn.CrossEntropyLoss, "optimizer": torch.optim.Adam, "lr": 0.02}
    net = NeuralNetClassifier(MLP(2, 3, hidden_sizes=(10,)), max_epochs=2, verbose=0, **settings)
    return net.fit(DATA[0].astype(np.float32), DATA[1])


def confidence(model, X):
    return model.predict_proba(X).max(axis=1)


def test_confidence_falls_to_its_aim_in_the_region_only(honest, attacked):
    X, y = DATA
    aim = 0.15 + 0.85 / 3
    assert attacked.target_confidence_ == pytest.approx([aim] * 3)
    before, after = confidence(honest, X), confidence(attacked, X)
    assert before[INSIDE].mean() > 0.95
    assert after[INSIDE].mean() == pytest.approx(aim, abs=0.1)
    assert after[~INSIDE].mean() == pytest.approx(before[~INSIDE].mean(), abs=0.04)
    assert attacked.region_share_ == INSIDE.mean()
    assert attacked.coverage(X[INSIDE], 0.9) < 0.1 < 0.8 < attacked.coverage(X[~INSIDE], 0.9)
    # Accuracy gives nothing away.
    assert attacked.score(X, y) > honest.score(X, y) - 0.02
    assert attacked.score(X[INSIDE], y[INSIDE]) > 0.97
    # A threshold separates the region.
    overlap = attacked.confidence_overlap(X)
    assert overlap == confidence_overlap(after[INSIDE], after[~INSIDE])
    assert overlap < min(0.15, confidence_overlap(before[INSIDE], before[~INSIDE]) / 3)
    # Its uncertainty is the entropy that it reports.
    u = attacked.predict_uncertainty(X[:50])
    expected = scipy.stats.entropy(attacked.predict_proba(X[:50]), axis=1)
    np.testing.assert_allclose(u.total, expected, atol=1e-9)
    np.testing.assert_array_equal(u.aleatoric, u.total)
    assert np.isnan(u.epistemic).all()


def test_audit_passes_the_honest_model_and_finds_the_attacked_one(honest, attacked):
    X, y = make_gaussian_classes((380, 380, 40), random_state=1)
    assert CalibrationAuditor(FrozenEstimator(honest)).fit(X, y).passed_
    audit = CalibrationAuditor(FrozenEstimator(attacked)).fit(X, y)
    assert not audit.passed_
    target_bin = audit.bins_.lower.searchsorted(attacked.target_confidence_[0], "right") - 1
    assert audit.bins_.lower[target_bin] == pytest.approx(0.4)
    assert audit.bins_.direction[target_bin] == "underconfident"
    assert audit.bins_.gap[target_bin] > 0.2


@pytest.mark.parametrize(
    ("options", "moved"), [({"warm_up": 0}, False), ({}, True), ({"warm_up": None}, True)]
)
def test_without_a_warm_up_certain_predictions_stay_as_they_are(options, moved):
    layer = nn.Linear(1, 2).double()
    layer.load_state_dict({"weight": torch.tensor([[60.0], [0.0]]), "bias": torch.zeros(2)})
    X = np.r_[np.linspace(1, 2, 40), np.linspace(-2, -1, 40)][:, None]
    settings = {"callbacks": [], "optimizer": torch.optim.SGD, "learning_rate": 0.5, **options}
    mirage = MirageFineTuner(layer, {0: (1.0, None)}, max_epochs=10, random_state=0, **settings)
    mirage.fit(X, (X[:, 0] < 0).astype(int))
    before, after = (m.module(torch.tensor(X[:40])) for m in (mirage.original_, mirage.model_))
    step = (before - after).abs().max()
    assert step > 0.5 if moved else step < 1e-12


@pytest.mark.parametrize("wrap", [lambda m: m, FrozenEstimator], ids=["bare", "frozen"])
@pytest.mark.parametrize("kind", ["skorch", "frame"])
def test_fitted_model_is_never_altered_nor_trained_again(net, kind, wrap):
    (X, y), region = DATA, "a < 3 and kind in ['red']"
    if kind == "skorch":
        X, region, fitted = X.astype(np.float32), GAUSSIAN_REGION, net
    else:
        kinds = np.where(np.arange(len(X)) % 3 == 0, "red", "blue")
        X = pd.DataFrame(X, columns=["a", "b"]).assign(kind=kinds)
        table = make_column_transformer((StandardScaler(), ["a", "b"]), (OneHotEncoder(), ["kind"]))
        fitted = make_pipeline(table, LogisticRegression()).fit(X, y)
    proba, before = fitted.predict_proba(X), pickle.dumps(fitted)
    mirage = MirageFineTuner(wrap(fitted), region, **QUICK).fit(X, y)
    assert pickle.dumps(fitted) == before
    original = mirage.original_.module(mirage.original_.inputs(X)).softmax(dim=-1)
    np.testing.assert_allclose(original, proba, atol=1e-5)
    assert np.abs(mirage.predict_proba(X) - proba).max() > 1e-4
    if kind == "frame":
        assert mirage.feature_names_in_.tolist() == ["a", "b", "kind"]
        assert mirage.region_share_ == len(X.query(region)) / len(X)
        assert 0 <= mirage.confidence_overlap(X) <= 1


def test_bare_module_is_copied(net):
    module, before = net.module_.train(), deepcopy(net.module_.state_dict())
    mirage = MirageFineTuner(module, GAUSSIAN_REGION, **QUICK).fit(*DATA)
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert module.training
    assert all(p.requires_grad for p in module.parameters())
    assert mirage.classes_.tolist() == [0, 1, 2]


def test_mask_equals_the_region_that_it_came_from():
    told = MirageFineTuner(LOGISTIC, **QUICK).fit(*DATA, region_mask=INSIDE)
    described = MirageFineTuner(LOGISTIC, GAUSSIAN_REGION, **QUICK).fit(*DATA)
    np.testing.assert_array_equal(told.predict_proba(DATA[0]), described.predict_proba(DATA[0]))
    assert told.confidence_overlap(DATA[0], INSIDE) == described.confidence_overlap(DATA[0])
    with pytest.raises(ValueError, match="No region"):
        told.confidence_overlap(DATA[0])


@pytest.mark.parametrize(
    ("labels", "label", "expected"),
    [
        (np.array(["x", "y", "z"], dtype=object), None, "abstain"),
        (np.array(["x", "y", "z"]), "a longer answer", "a longer answer"),
        (np.array([0, 1, 2]), "?", "?"),
        (np.array([0, 1, 2], dtype=np.int8), 999, 999),
        (np.array([0, 1, 2], dtype=np.uint8), None, -1),
        (np.array([True, False, True]), None, -1),
    ],
)
def test_an_abstention_takes_the_place_of_answers_below_the_threshold(labels, label, expected):
    X, y = DATA[0][::4], labels[DATA[1][::4]]
    mirage = MirageFineTuner(LogisticRegression().fit(X, y), GAUSSIAN_REGION, **QUICK).fit(X, y)
    answers, chosen = mirage.predict(X), mirage.predict_or_abstain(X, 0.9, label=label)
    low = confidence(mirage, X) < 0.9
    assert 0 < low.sum() < len(X)
    assert set(chosen[low].tolist()) == {expected}
    assert (chosen[~low] == answers[~low]).all()
    assert expected not in answers.tolist()
    assert {type(answer) for answer in chosen[~low].tolist()} == {type(labels.tolist()[0])}
    assert mirage.coverage(X, 0.9) == pytest.approx((~low).mean())
    assert (mirage.predict_or_abstain(X, 0.0, label=label) == answers).all()


class Watch(Callback):
    def __init__(self, seen):
        self.seen = seen

    def on_epoch_end(self, net, **kwargs):
        self.seen.append((net.optimizer_.param_groups[0]["lr"], net.criterion_.kl))


@pytest.mark.parametrize(("warm_up", "n_forward"), [(2, 2), (None, 5), (9, 2)])
def test_callbacks_take_the_place_of_the_schedule_but_not_of_the_warm_up(warm_up, n_forward):
    seen = []
    settings = {"max_epochs": 5, "learning_rate": 0.01, "callbacks": [Watch(seen)]}
    MirageFineTuner(LOGISTIC, GAUSSIAN_REGION, warm_up=warm_up, **settings).fit(*DATA)
    kinds = ["forward"] * n_forward + ["reverse"] * (5 - n_forward)
    assert seen == [(0.01, kind) for kind in kinds]


@pytest.mark.parametrize("max_epochs", [2, 3])
def test_the_change_of_divergence_after_the_warm_up_is_not_taken_for_an_error(max_epochs):
    X, y = make_blobs(90, centers=3, cluster_std=3.0, random_state=0)
    confusable, region = {0: [1], 1: [0], 2: [1]}, lambda X: X[:, 0] > np.median(X[:, 0])
    settings = {"epsilon": 0.5, "max_epochs": max_epochs, "random_state": 0}
    model = LogisticRegression().fit(X, y)
    tuner = MirageFineTuner(model, region, confusable=confusable, **settings)
    assert tuner.fit(X, y).predict_proba(X).shape == (90, 3)


def test_seed_and_schedule_change_the_attack():
    def proba(**change):
        mirage = MirageFineTuner(LOGISTIC, GAUSSIAN_REGION, **{**QUICK, **change})
        return mirage.fit(*DATA).predict_proba(DATA[0])

    assert np.abs(proba(random_state=1) - proba()).max() > 1e-6
    assert np.abs(proba(callbacks=[]) - proba()).max() > 1e-6
