"""Every parameter of every estimator has an effect, or is refused where it has none."""

from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import scale
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from skuq import (
    DeepEnsembleClassifier,
    FeatureDistanceClassifier,
    LaplaceClassifier,
    MCDropoutClassifier,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    SGMCMCClassifier,
    all_estimators,
)
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch, make_pool

#: Parameters that change no result, and why they are there.
INFRASTRUCTURE = {
    "random_state": "which of many equally good results",
    "device": "where it is computed",
    "n_jobs": "how many processes compute it",
    "batch_size": "how much memory it takes",
    "verbose": "what is printed",
    "callbacks": "the user's own code in training",
}
#: Estimators without an entry below.
PENDING = {
    "AnchoredQuantileRegressor",
    "CalibrationAuditor",
    "EvidentialProbe",
    "MirageFineTuner",
    "MirageRegressor",
    "RobustGPC",
    "UADQN",
}


class Refusal(NamedTuple):
    """A parameter that has no effect beside others, and what the error says."""

    parameter: str
    value: Any
    context: dict[str, Any]
    match: str


class Case(NamedTuple):
    """An estimator, training data, and values of its parameters that change what it says."""

    estimator: Any
    data: tuple[Any, Any]
    effective: dict[str, Any]
    refused: tuple[Refusal, ...] = ()


def flowers():
    X, y = load_iris(return_X_y=True)
    return scale(X)[::3], y[::3]


def patients():
    X, y = load_diabetes(return_X_y=True)
    return scale(X)[:60, :4], scale(y)[:60]


FLOWERS, PATIENTS = flowers(), patients()
SMALL = {"hidden_layer_sizes": (6, 5), "learning_rate_init": 0.03, "tol": 0.02, "random_state": 0}
NET, REGRESSION_NET = MLPClassifier(**SMALL), MLPRegressor(**SMALL)
FROZEN_NET = FrozenEstimator(clone(NET).fit(*FLOWERS))
FROZEN_REGRESSION_NET = FrozenEstimator(clone(REGRESSION_NET).fit(*PATIENTS))
TREE = DecisionTreeClassifier(max_depth=3, random_state=0)
REGRESSION_TREE = DecisionTreeRegressor(max_depth=3, random_state=0)


def small_pool(X):
    return make_pool(X, n_inputs=40, random_state=1)


GRADIENTS = {
    "search__n_steps": 8,
    "search__c0": 3.0,
    "search__eta": 2.0,
    "search__update_every": 2,
    "search__learning_rate": 0.03,
    "search__learning_rate_decay": 1.5,
    "search__prior_precision": 20.0,
    "search__train_batch_size": 16,
    "search__parameters": "last",
}
OF_MODELS = {"setting": "selected", "mixture": "dirac", "gamma": 10.0, "temperature": 0.5}
UNTARGETED = Refusal("search__targeted", False, {}, "targeted=False has no effect on a regressor")


def of_fraction(context, match):
    return Refusal(
        "validation_fraction", 0.3, context, rf"validation_fraction=0\.3 has no .*{match}"
    )


CASES = {
    "QUAMClassifier, pool": Case(
        QUAMClassifier(NET, search=PoolSearch(n_steps=6), random_state=0),
        FLOWERS,
        {
            **GRADIENTS,
            **OF_MODELS,
            "search__pool": small_pool,
            "search__targeted": False,
            "n_targets": 1,
            "search": PointwiseSearch(n_steps=6),
            "estimator": LogisticRegression(),
        },
        (
            Refusal(
                "n_targets",
                2,
                {"search__targeted": False},
                "n_targets=2 has no effect with targeted=False",
            ),
        ),
    ),
    "QUAMClassifier, pointwise": Case(
        QUAMClassifier(NET, search=PointwiseSearch(n_steps=6), random_state=0),
        FLOWERS,
        {**GRADIENTS, **OF_MODELS, "search__targeted": False, "n_targets": 1},
    ),
    "QUAMClassifier, refit": Case(
        QUAMClassifier(TREE, search=RefitSearch(), random_state=0),
        FLOWERS,
        {
            **OF_MODELS,
            "search__pool": small_pool,
            "search__shares": (0.4,),
            "n_targets": 1,
            "estimator": DecisionTreeClassifier(max_depth=2),
        },
        (Refusal("device", "cuda", {}, "has no effect on DecisionTreeClassifier"),),
    ),
    "QUAMRegressor, pool": Case(
        QUAMRegressor(REGRESSION_NET, search=PoolSearch(n_steps=6), random_state=0),
        PATIENTS,
        {
            **GRADIENTS,
            **OF_MODELS,
            "search__pool": small_pool,
            "search": PointwiseSearch(n_steps=6),
            "estimator": clone(REGRESSION_NET).set_params(alpha=0.1),
            "noise": 0.3,
            "validation_fraction": 0.3,
            "attack": "divergence",
        },
        (
            UNTARGETED,
            of_fraction({"noise": 0.3}, "unless noise='homoscedastic'"),
            of_fraction({"estimator": None, "noise": "learned"}, "unless noise='homoscedastic'"),
            of_fraction({"estimator": FROZEN_REGRESSION_NET}, "taken as it is"),
        ),
    ),
    "QUAMRegressor, pointwise": Case(
        QUAMRegressor(REGRESSION_NET, search=PointwiseSearch(n_steps=6), random_state=0),
        PATIENTS,
        {**GRADIENTS, **OF_MODELS, "attack": "divergence", "noise": 0.3},
        (UNTARGETED,),
    ),
    "QUAMRegressor, refit": Case(
        QUAMRegressor(REGRESSION_TREE, search=RefitSearch(), random_state=0),
        PATIENTS,
        {
            **OF_MODELS,
            "search__pool": small_pool,
            "search__shares": (0.4,),
            "estimator": Ridge(),
            "noise": 0.3,
            "validation_fraction": 0.3,
        },
        (
            Refusal("attack", "divergence", {}, "attack='divergence' has no effect on learners"),
            Refusal("device", "cuda", {}, "has no effect on DecisionTreeRegressor"),
            of_fraction({"noise": 0.3}, "unless noise='homoscedastic'"),
        ),
    ),
    "DeepEnsembleClassifier": Case(
        DeepEnsembleClassifier(NET, n_members=2, random_state=0),
        FLOWERS,
        {"n_members": 3, "setting": "max-score", "estimator": clone(NET).set_params(alpha=0.1)},
        (
            Refusal("members", [FROZEN_NET], {}, "`estimator` and `members` are both given"),
            Refusal(
                "n_members",
                3,
                {"estimator": None, "members": [FROZEN_NET]},
                "n_members=3 has no effect on `members`",
            ),
            Refusal(
                "n_jobs",
                2,
                {"estimator": None, "members": [FROZEN_NET], "n_members": 10},
                "n_jobs=2 has no effect on `members`",
            ),
        ),
    ),
    "DeepEnsembleClassifier of given members": Case(
        DeepEnsembleClassifier(members=[FROZEN_NET, clone(FROZEN_NET)]),
        FLOWERS,
        {"members": [FrozenEstimator(LogisticRegression().fit(*FLOWERS)), FROZEN_NET]},
    ),
    "FeatureDistanceClassifier": Case(
        FeatureDistanceClassifier(NET, n_neighbors=3, random_state=0),
        FLOWERS,
        {
            "n_neighbors": 5,
            "layer": "last",
            "estimator": LogisticRegression(),
        },
        (
            Refusal(
                "n_neighbors", 5, {"distance": "mahalanobis"}, "n_neighbors=5 has no effect with"
            ),
        ),
    ),
    "FeatureDistanceClassifier by default": Case(
        FeatureDistanceClassifier(NET, random_state=0), FLOWERS, {"distance": "mahalanobis"}
    ),
    "LaplaceClassifier": Case(
        LaplaceClassifier(NET, n_samples=10, random_state=0),
        FLOWERS,
        {
            "n_samples": 12,
            "prior_precision": 3.0,
            "setting": "selected",
            "estimator": LogisticRegression(),
        },
    ),
    "MCDropoutClassifier": Case(
        MCDropoutClassifier(n_samples=5, random_state=0),
        FLOWERS,
        {"n_samples": 6, "dropout": 0.4, "setting": "selected"},
        (Refusal("dropout", 0.4, {"estimator": NET}, r"dropout=0\.4 has no effect on a given"),),
    ),
    "ReferenceClassifier": Case(
        ReferenceClassifier(NET, random_state=0), FLOWERS, {"estimator": LogisticRegression()}
    ),
    "SGMCMCClassifier": Case(
        SGMCMCClassifier(NET, n_chains=2, n_samples=2, steps_per_sample=4, random_state=0),
        FLOWERS,
        {
            "method": "sgld",
            "parameters": "last",
            "n_chains": 3,
            "n_samples": 3,
            "steps_per_sample": 5,
            "n_cycles": 2,
            "learning_rate": 0.03,
            "temperature": 0.5,
            "prior_precision": 3.0,
            "train_batch_size": 16,
            "setting": "selected",
            "estimator": LogisticRegression(),
        },
    ),
}
POSTERIORS = pytest.mark.skipif(find_spec("posteriors") is None, reason="needs posteriors")
NEEDED = {"SGMCMCClassifier": POSTERIORS}

pytestmark = [
    pytest.mark.usefixtures("short_training"),
    pytest.mark.filterwarnings("ignore:The model's loss on the training data"),
]


def said(estimator, data):
    """All that a fitted estimator says about some inputs."""
    X = data[0][::7] * 1.5
    fitted = clone(estimator).fit(*data)
    methods = ("predict_uncertainty", "predict_proba", "predict_model_std", "adversarial_models")
    found = [getattr(fitted, name)(X) for name in methods if hasattr(fitted, name)]
    return [part for each in found for part in (each if isinstance(each, tuple) else (each,))]


def equal(first, second):
    return len(first) == len(second) and all(map(np.array_equal, first, second))


@pytest.fixture(scope="module")
def unchanged():
    """What estimators say with the parameters of the table, each computed once."""
    return {}


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        pytest.param(name, parameter, marks=NEEDED.get(name, ()))
        for name, case in CASES.items()
        for parameter in case.effective
    ],
)
def test_a_parameter_changes_what_an_estimator_says(name, parameter, unchanged):
    case = CASES[name]
    if name not in unchanged:
        unchanged[name] = said(case.estimator, case.data)
        assert equal(said(case.estimator, case.data), unchanged[name])  # else all would pass
    changed = clone(case.estimator).set_params(**{parameter: case.effective[parameter]})
    assert not equal(said(changed, case.data), unchanged[name])


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        pytest.param(name, refusal, id=f"{name}, {refusal.parameter}")
        for name, case in CASES.items()
        for refusal in case.refused
    ],
)
def test_a_parameter_without_effect_is_refused(name, refusal):
    case = CASES[name]
    estimator = clone(case.estimator).set_params(**refusal.context)
    estimator.set_params(**{refusal.parameter: refusal.value})
    with pytest.raises(ValueError, match=refusal.match):
        estimator.fit(*case.data)


def listed(cls):
    """Parameters that some entry of the tables is about."""
    cases = [case for case in CASES.values() if type(case.estimator) is cls]
    refused = {refusal.parameter for case in cases for refusal in case.refused}
    return refused.union(*(case.effective for case in cases))


def without_entry(cls, prefix, names):
    return {f"{prefix}{name}" for name in names if name not in INFRASTRUCTURE} - listed(cls)


def test_no_parameter_is_forgotten():
    forgotten = {
        name: missing
        for name, cls in all_estimators()
        if cls.__module__.startswith("skuq.")
        and name not in PENDING
        and (missing := without_entry(cls, "", cls._get_param_names()))
    }
    assert not forgotten
    assert set(PENDING) <= set(dict(all_estimators()))


@pytest.mark.parametrize("search", [PoolSearch, RefitSearch, PointwiseSearch])
@pytest.mark.parametrize("cls", [QUAMClassifier, QUAMRegressor])
def test_no_parameter_of_a_search_is_forgotten(cls, search):
    cases = [
        case
        for case in CASES.values()
        if type(case.estimator) is cls and type(case.estimator.search) is search
    ]
    known = {refusal.parameter for case in cases for refusal in case.refused}
    known = known.union(*(case.effective for case in cases))
    names = [name for name in search._get_param_names() if name not in INFRASTRUCTURE]
    assert {f"search__{name}" for name in names} <= known
