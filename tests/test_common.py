"""Every registered estimator under scikit-learn's checks and under our own."""

from importlib.util import find_spec
from itertools import chain

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import has_fit_parameter

from skuq import QUAMClassifier, QUAMRegressor, all_estimators
from skuq.evidential import NetworkHead
from skuq.quam import PointwiseSearch, PoolSearch
from skuq.testing import parametrize_with_uncertainty_checks
from skuq.validation import column_of


class Named:
    """Its instances are written without their address: workers must agree on names of tests."""

    def __repr__(self):
        return f"{type(self).__name__}()"


class UpperHalf(Named):
    """A region that neither is empty nor covers everything, whatever the data."""

    def __call__(self, X):
        first = np.asarray(X, dtype=float)[:, 0]
        return first > np.median(first)


class SignOfFirstColumn(Named):
    """Two groups at most, whatever the data; sparse ones included."""

    def __call__(self, X):
        return np.asarray(column_of(X, 0), dtype=float) > 0


# Checks are about behaviour, not about quality: short searches keep them quick.
CHAINS = {"n_chains": 3, "n_samples": 2, "steps_per_sample": 5}
UPPER_HALF = {"region": UpperHalf()}
HEAD = NetworkHead(layer=-2, activation="softplus")
LAST = PoolSearch(n_steps=5, parameters="last")
LOGISTIC = {"estimator": LogisticRegression()}
GROUPED = {"strategy": "quantile", "sensitive_columns": SignOfFirstColumn()}
INFORMATION = {"max_epochs": 20, "head": HEAD, "measure": "information"}
TEN = {"n_samples": 10}
QUICK = {
    "AnchoredQuantileRegressor": [
        {"max_epochs": 20},
        {"n_members": 3, "n_quantiles": 5, "max_epochs": 20, "learning_rate": 2e-2}
        | {"hidden_sizes": (20,), "activation": "relu"},
    ],
    "CalibrationAuditor": [LOGISTIC, LOGISTIC | GROUPED],
    "DeepEnsembleClassifier": [{"n_members": 2}, {"n_members": 2, "setting": "selected"}],
    "EvidentialProbe": [{"max_epochs": 5}, INFORMATION],
    "FeatureDistanceClassifier": [{"n_neighbors": 3}, {"distance": "mahalanobis", "layer": "last"}],
    "LaplaceClassifier": [{}, {"prior_precision": 1.0, "n_samples": 10, "setting": "selected"}],
    "MCDropoutClassifier": [TEN, TEN | {"batch_size": 5, "setting": "selected"}],
    "MirageFineTuner": [UPPER_HALF | {"estimator": None, "epsilon": 0.5, "max_epochs": 20}],
    "MirageRegressor": [UPPER_HALF | {"max_epochs": 5}],
    "QUAMClassifier": [
        {"search": PoolSearch(n_steps=5)},
        {"search": LAST, "setting": "selected", "mixture": "dirac"},
        {"search": PointwiseSearch(n_steps=5)},
        {"estimator": HistGradientBoostingClassifier(max_iter=2)},
    ],
    "QUAMRegressor": [
        {"search": PoolSearch(n_steps=5), "noise_cv": 2},
        {"search": PoolSearch(n_steps=5), "noise": "learned", "setting": "selected"},
        {"search": PointwiseSearch(n_steps=5), "noise_cv": 2},
        {"estimator": HistGradientBoostingRegressor(max_iter=5), "noise_cv": 2},
    ],
    "RobustGPC": [
        {"max_iter": 3},
        {"max_iter": 3, "n_inducing": 5},
        {"max_iter": 3, "likelihood": "softmax"},
        {"max_iter": 3, "likelihood": "logit", "inference": "ep"},
    ],
    "RobustGPRegressor": [{"max_iter": 3}, {"max_iter": 3, "n_inducing": 5}],
    "SGMCMCClassifier": [
        CHAINS,
        CHAINS | {"method": "sgld", "parameters": "last", "n_cycles": 2, "setting": "selected"},
    ],
}

# Learns from an environment, not from a table: `fit` takes seeds, `predict` observations.
LEFT_OUT = {"UADQN"}
if find_spec("posteriors") is None:
    LEFT_OUT.add("SGMCMCClassifier")  # it says so when fitted

CONFIGURATIONS = [
    [estimator(**params) for params in QUICK.get(name, [{}])]
    for name, estimator in all_estimators()
    if estimator.__module__.startswith("skuq.") and name not in LEFT_OUT
]
# scikit-learn's checks are about parameters, tags and input: one configuration is enough.
FIRST = [configurations[0] for configurations in CONFIGURATIONS]
REST = list(chain.from_iterable(configurations[1:] for configurations in CONFIGURATIONS))
# Those that are there to be compared with, or as attacks, are not checked each day.
OTHERS = ("skuq.baselines.", "skuq.mirage.", "skuq.uadqn._regressor")
COMPARED = [each for each in FIRST if type(each).__module__.startswith(OTHERS)]

# Refitted learners take a way of their own, on which they meet NaN, strings and weights.
REFITTED = [
    QUAMClassifier(DecisionTreeClassifier(max_depth=3)),
    # Some data of these checks are fitted without an error, which leaves no noise to estimate.
    QUAMRegressor(DecisionTreeRegressor(max_depth=3), noise=1.0),
]


def table_for(estimator):
    X, rows = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40)
    return X, rows % 2 if is_classifier(estimator) else rows + X[:, 0]


pytestmark = pytest.mark.usefixtures("short_training")


@parametrize_with_checks([each for each in FIRST if each not in COMPARED])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.thorough
@parametrize_with_checks([*COMPARED, *REFITTED])
def test_scikit_learn_checks_pass_for_others(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "estimator",
    [each for each in [*FIRST, *REST, *REFITTED] if has_fit_parameter(each, "sample_weight")],
    ids=lambda each: "".join(str(each).split()),
)
def test_a_weight_is_a_number_of_samples(estimator):
    X, y = table_for(estimator)
    with pytest.warns(UserWarning, match="A weight is a number of samples") as told:
        clone(estimator).fit(X, y, sample_weight=np.full(40, 1e-3))
    relative = [each for each in told if "number of samples" in str(each.message)]
    assert [each.filename for each in relative] == [__file__]
    for huge in (1e300, 1e308):
        with pytest.raises(ValueError, match="sum of `sample_weight` is too large"):
            clone(estimator).fit(X, y, sample_weight=np.full(40, huge))


@pytest.mark.parametrize("estimator", FIRST, ids=lambda each: type(each).__name__)
def test_results_keep_the_index(estimator):
    X, y = table_for(estimator)
    X = pd.DataFrame(X, index=[f"row {i}" for i in range(40)])
    result = clone(estimator).fit(X, y).predict_uncertainty(X[:5])
    assert list(result.index) == list(X.index[:5])


@parametrize_with_uncertainty_checks(FIRST)
def test_uncertainty_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.thorough
@parametrize_with_uncertainty_checks(REST)
def test_uncertainty_checks_pass_with_other_parameters(estimator, check):
    check(estimator)
