"""Calls that Mirage refuses, and the word of the message that names the problem."""

from functools import cache

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression

from skuq import MirageFineTuner, MirageRegressor
from skuq._networks import MLP
from skuq.mirage import constructive_mirage, target_table
from tests.mirage.test_losses import ABC, SUBSETS, WEIGHTS

X = np.random.default_rng(0).normal(size=(60, 2))
y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
INSIDE, REGION = X[:, 0] > 0.5, {0: (0.5, None)}
DIVERGING = {"optimizer": torch.optim.SGD, "learning_rate": 1e30, "max_epochs": 4}


@cache
def tuned(labels=(0, 1, 2), **params):
    y_text = np.array(labels)[y]
    fitted = LogisticRegression().fit(X, y_text)
    mirage = MirageFineTuner(fitted, REGION, max_epochs=1, random_state=0, **params)
    return mirage.fit(X, y_text)


def fine_tuner(mask=None, codes=y, **params):
    settings = {"estimator": tuned().estimator, "region": REGION, "max_epochs": 1, **params}
    return MirageFineTuner(**settings).fit(X, codes, region_mask=mask)


def regressor(mask=None, estimator=None, **params):
    torch.manual_seed(0)
    settings = {"region": REGION, "max_epochs": 1, **params}
    return MirageRegressor(estimator or MLP(2, 2), **settings).fit(X, X[:, 1], region_mask=mask)


def box(bounds, shift=(1.0, 0.0, 0.0), **options):
    return constructive_mirage(torch.nn.Linear(2, 3), bounds, shift, **options)


BOTH = [
    ({"region": None}, "No region"),
    ({"mask": INSIDE}, "Two regions"),
    ({"region": {0: (50, 60)}}, "contains 0 of 60"),
    ({"region": None, "mask": INSIDE | True}, "contains 60 of"),
    ({"region": None, "mask": INSIDE[1:]}, "booleans"),
    ({"lambda_": -0.5}, "lambda_"),
    ({"device": "quantum"}, "cannot be used here"),
]
ROWS = [
    *((fine_tuner, options, word) for options, word in BOTH),
    *((regressor, options, word) for options, word in BOTH),
    (fine_tuner, {"estimator": MLP(2, 3), **DIVERGING}, r"diverged: .*`learning_rate`"),
    (regressor, DIVERGING, r"diverged: .*`learning_rate`"),
    (fine_tuner, {"lambda_": 1.5}, "lambda_"),
    (fine_tuner, {"confusable": "all"}, "confusable"),
    (fine_tuner, {"confusable": {}}, r"missing: \[0, 1, 2\]"),
    (fine_tuner, {"warm_up": -1}, "warm_up"),
    (fine_tuner, {"codes": np.where(y == 2, 7, y)}, r"classes: \[7\]"),
    (fine_tuner, {"counterbalance": 3}, "counterbalance"),
    (fine_tuner, {"counterbalance": {1: (50, None)}}, "no effect"),
    (fine_tuner, {"counterbalance": "auto", "epsilon": 0.01}, "larger `epsilon`"),
    (fine_tuner, {"counterbalance": "auto", "epsilon": 1.0}, "smaller `epsilon`"),
    (regressor, {"lambda_": 0.0}, "lambda_"),
    (regressor, {"estimator": MLP(2, 3)}, r"shape \(n_samples, 2\)"),
    (lambda: tuned().counterbalance_mask(X), {}, "No confidence was raised"),
    (lambda: tuned((-1, 0, 1)).predict_or_abstain(X, 0.5), {}, "`label`"),
    (lambda: tuned().predict_or_abstain(X, 0.5, label=1), {}, "`label`"),
    (lambda: tuned(("abstain", "b", "c")).predict_or_abstain(X, 0.5), {}, "`label`"),
    (lambda: tuned().coverage(X, -0.1), {}, "`tau`"),
    (lambda: tuned().coverage(X, np.nan), {}, "`tau`"),
    (lambda: tuned().predict_or_abstain(X, 60), {}, "`tau`"),
    (box, {"bounds": {-1: (0.0, 1.0)}}, "coordinates"),
    (box, {"bounds": {0: (1.0, 1.0)}}, "low < high"),
    (box, {"bounds": {0: (np.nan, 1.0)}}, "low < high"),
    (box, {"bounds": {0: (-np.inf, np.inf)}}, "finite"),
    (box, {"bounds": {0: (0.0, 9.0), 1: (0.0, 1.0)}, "margin": 0.5}, "narrowest"),
    (box, {"bounds": {0: (0.0, 1.0)}, "margin": 0.0}, "at least"),
    (box, {"bounds": {0: (1e6, 1e6 + 1)}, "margin": 0.1}, "precision"),
    (box, {"bounds": {0: (0.0, 1.0)}, "shift": [np.nan, 0, 0]}, "finite"),
    (lambda: box({0: (0.0, 1.0)}, [1.0, 0.0])(torch.zeros(4, 2)), {}, "2 entries"),
    *(
        (target_table, {"classes": ABC, "epsilon": epsilon, "confusable": confusable}, word)
        for epsilon, confusable, word in [
            (0.2, {**SUBSETS, "a": {"b": 1.0}}, "all classes or none"),
            (0.2, {**SUBSETS, "d": []}, r"unknown: \['d'\], missing: \[\]"),
            (0.2, {**SUBSETS, "a": ["z"]}, r"unknown: \['z'\]"),
            (0.6, {**WEIGHTS, "a": {"z": 1.0}}, r"unknown: \['z'\]"),
            (0.6, {**WEIGHTS, "a": {"b": 0.9}}, r"\['a'\]` must .*sum to 1"),
            (0.6, {**WEIGHTS, "a": {"b": 1.5, "c": -0.5}}, "weights >= 0"),
            (0.6, {**WEIGHTS, "a": {"a": 0.5, "b": 0.5}}, "other classes"),
        ]
    ),
]


@pytest.mark.parametrize(("call", "options", "word"), ROWS)
def test_a_call_is_refused(call, options, word):
    with pytest.raises(ValueError, match=word):
        call(**options)


@pytest.mark.parametrize("estimator", [LinearRegression(), LinearRegression().fit(X, y), "mlp"])
def test_what_is_not_a_network_is_refused(estimator):
    with pytest.raises(TypeError, match=r"estimator|adopt"):
        regressor(estimator=estimator)
