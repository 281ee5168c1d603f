"""The one rule for models that exist already."""

import sys
import threading
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

import skuq
from skuq._networks import MLP
from skuq.models import fit_model, from_function, is_prefit, look_at
from skuq.wrappers import is_fitted

TRAINING = {"sample_weight": None, "seed": 0}
X, Y = load_iris(return_X_y=True)
X = scale(X).astype(np.float32)
OPTIONS = {"max_epochs": 1, "train_split": None, "verbose": 0}
TRAINABLE = {
    "logistic": LogisticRegression(),
    "skorch": NeuralNetClassifier(partial(MLP, 4, 3), criterion=nn.CrossEntropyLoss, **OPTIONS),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "search": GridSearchCV(LogisticRegression(), {"C": [1.0]}, cv=2),
    "calibrated": CalibratedClassifierCV(LogisticRegression(), ensemble=False, cv=2),
    "several": CalibratedClassifierCV(LogisticRegression(), cv=2),
    "no_refit": GridSearchCV(LogisticRegression(), {"C": [1.0]}, cv=2, refit=False),
}


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


@pytest.mark.parametrize("name", TRAINABLE)
def test_what_is_fitted_is_trained_again_with_a_warning_except_after_the_fact(name):
    model = clone(TRAINABLE[name])
    assert not is_fitted(model)
    assert not is_prefit(model)
    assert not is_prefit(model, after_the_fact=True)
    model.fit(X, Y)
    assert is_fitted(model)
    assert not is_prefit(model)
    assert is_prefit(model, after_the_fact=True)
    with pytest.warns(UserWarning, match="trained again.*FrozenEstimator"):
        look_at(model).check_trainable()


class Client:
    def predict_proba(self, X):
        return X


def test_modules_and_frozen_estimators_are_taken_as_they_are():
    assert not is_prefit(None, after_the_fact=True)  # stands for a network to be trained
    for model in (MLP(4, 3), FrozenEstimator(MLP(4, 3)), FrozenEstimator(LogisticRegression())):
        assert is_prefit(model)
        assert is_prefit(model, after_the_fact=True)
    module = MLP(4, 3)
    for given in (module, FrozenEstimator(module)):
        ours = fit_model(given, X, Y, **TRAINING).module.state_dict()
        torch.testing.assert_close(ours, module.state_dict(), rtol=0, atol=0)
    assert is_fitted(FixedThresholdClassifier(LogisticRegression().fit(X, Y)))
    assert is_fitted(Client())  # what has no `fit` cannot be trained again
    assert not is_prefit(Client())
    assert not is_fitted(FixedThresholdClassifier(LogisticRegression()))
    assert not is_fitted("mlp")


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_regressors_follow_the_same_rule(n_outputs):
    module, y = MLP(4, n_outputs), Y.astype(float)
    taken = fit_model(module, X, y, regression=True, n_outputs=n_outputs, **TRAINING)
    assert torch.equal(taken.module[0].weight, module[0].weight)
    flat = nn.Sequential(taken.module, nn.Flatten(0))  # one number for each input, as (n_samples,)
    if n_outputs == 1:
        same = fit_model(flat, X, y, regression=True, **TRAINING)
        torch.testing.assert_close(same.outputs(same.inputs(X)), taken.outputs(taken.inputs(X)))
    net = NeuralNetRegressor(MLP(4, 1), **OPTIONS)
    for model in (net, MLPRegressor(hidden_layer_sizes=(3,), tol=1.0, random_state=0)):
        model.fit(X, y[:, None].astype(np.float32) if model is net else y)
        with pytest.warns(UserWarning, match="trained again.*FrozenEstimator"):
            fit_model(model, X, y, regression=True, n_outputs=1, **TRAINING)


def test_the_default_regressor_does_not_depend_on_the_unit_of_the_target(monkeypatch):
    # A few epochs: over many, the rounding of one unit grows into another path to the optimum.
    training = sys.modules["skuq._networks._training"]
    monkeypatch.setattr(training, "REGRESSOR", replace(training.REGRESSOR, max_epochs=5))
    options = {"regression": True, "n_outputs": 2, **TRAINING}
    X64, targets = X.astype(float), (Y.astype(float), 1000.0 * Y + 5)
    models = [fit_model(None, X64, y, **options) for y in targets]
    ours, theirs = (model.outputs(model.inputs(X64)) for model in models)
    torch.testing.assert_close(1000 * ours[:, 0] + 5, theirs[:, 0])
    torch.testing.assert_close(ours[:, 1] + 2 * np.log(1000), theirs[:, 1])


class Session:
    """A handle that cannot be copied, with columns in an order of its own."""

    def __init__(self, fitted):
        self.fitted, self.lock, self.sizes = fitted, threading.Lock(), []

    def run(self, rows):
        self.sizes.append(len(rows))
        return self.fitted.predict_proba(rows)[:, [2, 0, 1]]


def test_functions_are_called_in_batches_and_shared_by_copies():
    fitted = LogisticRegression().fit(X, np.array([*"abc"])[Y])
    session = Session(fitted)
    labels = np.array([*"cab"])
    model = from_function(session.run, labels, batch_size=40)
    labels.sort()  # the caller's array
    np.testing.assert_array_equal(model.classes_, fitted.classes_)
    np.testing.assert_allclose(model.predict_proba(X), fitted.predict_proba(X))
    np.testing.assert_array_equal(clone(model).predict(X), fitted.predict(X))
    detectors = (skuq.OODDetector(each) for each in (model, FrozenEstimator(fitted)))
    ours, theirs = (each.fit(X[::2], X_held_out=X[1::2]).p_values(X) for each in detectors)
    assert max(session.sizes) == 40
    np.testing.assert_allclose(ours, theirs)


class Held(LogisticRegression):
    """A model with a handle that cannot be copied, whose `fit` returns the same for all data."""

    def fit(self, *_data, sample_weight=None):
        self.lock = threading.Lock()
        return super().fit(X, Y)


def test_a_handle_is_not_copied_and_a_fit_without_effect_is_not_reported_as_certainty():
    held, plain = (FrozenEstimator(kind().fit(X, Y)) for kind in (Held, LogisticRegression))
    detectors = (skuq.OODDetector(each) for each in (held, plain))
    ours, theirs = (each.fit(X[::2], Y[::2], X_held_out=X[1::2]).p_values(X) for each in detectors)
    np.testing.assert_array_equal(ours, theirs)
    quam = skuq.QUAMClassifier(held, search="refit", random_state=0)
    with pytest.warns(UserWarning, match="of Held has no effect"):
        quam.fit(X, Y)
    u = quam.predict_uncertainty(X)
    assert np.isnan(u.epistemic).all()
    np.testing.assert_array_equal(u.total, u.aleatoric)
    with pytest.warns(UserWarning, match="None of the models found"):
        quam.predict_proba_bounds(X)


def thirds(rows):
    return np.full((len(rows), 3), 1 / 3)


@pytest.mark.parametrize(
    ("make", "estimator", "error", "message"),
    [
        (skuq.OODDetector, thirds, TypeError, "thirds. A function .*from_function"),
        (skuq.QUAMClassifier, FrozenEstimator(thirds), TypeError, "thirds. A function"),
        (skuq.LaplaceClassifier, Session(None).run, TypeError, "Session.run. A function"),
        (skuq.CalibrationAuditor, thirds, TypeError, "from_function"),
        (skuq.ReferenceClassifier, FrozenEstimator(Client()), TypeError, "Client. A function"),
        (skuq.QUAMClassifier, from_function(thirds, [0, 1, 2]), TypeError, "OODDetector"),
        (lambda f: from_function(f, [0, 0]), thirds, ValueError, "different labels"),
        (skuq.ReferenceClassifier, from_function(thirds, [0, 1]), ValueError, r"\(\d+, 2\).* 3\)"),
        (
            skuq.ReferenceClassifier,
            from_function(lambda X: thirds(X)[:, :1], [0, 1]),
            ValueError,
            "pass both columns",
        ),
    ],
)
def test_bare_functions_and_their_wrong_results_are_refused(make, estimator, error, message):
    with pytest.raises(error, match=message):
        make(estimator).fit(X, Y)
