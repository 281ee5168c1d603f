"""The one rule for models that exist already."""

import sys
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

from skuq._networks import MLP
from skuq.models import fit_model, is_prefit, look_at
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
    """A model that is served elsewhere."""

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
