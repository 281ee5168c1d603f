"""Every parameter of every estimator has an effect, or is refused where it has none."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import scale
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import nn

from skuq import (
    AnchoredQuantileRegressor,
    CalibrationAuditor,
    DeepEnsembleClassifier,
    EvidentialProbe,
    FeatureDistanceClassifier,
    LaplaceClassifier,
    MCDropoutClassifier,
    MirageFineTuner,
    MirageRegressor,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    RobustGPC,
    RobustGPRegressor,
    SGMCMCClassifier,
    Uncertainty,
    all_estimators,
)
from skuq._networks import MLP
from skuq.evidential import EvidenceLoss, NodeBatches
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch, make_pool
from skuq.tables import TableModel

#: Parameters that change no result, and why they are there.
INFRASTRUCTURE = {
    "random_state": "which of many equally good results",
    "device": "where it is computed",
    "n_jobs": "how many processes compute it",
    "batch_size": "how much memory it takes",
    "max_memory": "how much memory it takes, and how many classes: tests/quam/test_cost.py",
    "verbose": "what is printed",
    "callbacks": "the user's own code in training",
    "progress": "the user's own code in training",
}
#: Estimators without an entry below, and where their parameters are tested.
ELSEWHERE = {"UADQN": "tests/uadqn/test_estimator.py: it learns from an environment"}


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
    fit_params: dict[str, Any] = {}
    also: Callable[[Any], list[Any]] = lambda fitted: []  # what it says in attributes


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


def holed():
    X, y = flowers()
    X[0, 0] = np.nan
    return X, y


def small_pool(X):
    return make_pool(X, n_inputs=40, random_state=1)


def dropping():
    torch.manual_seed(0)
    return MLP(4, 3, dropout=0.5)


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


ESTIMATED = "unless noise is 'heteroscedastic' or 'homoscedastic'"


def of_folds(context, match):
    return Refusal("noise_cv", 3, context, f"noise_cv=3 has no .*{match}")


def in_half(X):
    return X[:, 0] > 0


def in_other_half(X):
    return X[:, 1] > 0


def two_outputs():
    torch.manual_seed(0)
    return MLP(4, 2)


def ring(distance):
    """A graph in which each node has the neighbours at this distance along a ring."""
    eye = np.eye(30)
    return np.roll(eye, distance, axis=1) + np.roll(eye, -distance, axis=1), eye + 0.1


class OfNodes(nn.Sequential):
    takes_node_graph = True

    def forward(self, graph):
        return super().forward(graph.features)


def of_nodes():
    torch.manual_seed(0)
    return OfNodes(MLP(30, 3))


def found_by_audit(audit):
    names = ("within_alpha_", "bins_", "group_bins_", "ece_interval_", "regions_")
    return [repr(getattr(audit, name)) for name in names]


CASES = {
    "QUAMClassifier, pool": Case(
        QUAMClassifier(NET, search=PoolSearch(n_steps=20, c0=1.0), random_state=0),
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
            "setting": "pairwise",
            "search__pool": small_pool,
            "search__shares": (0.4,),
            "n_targets": 1,
            "estimator": DecisionTreeClassifier(max_depth=2),
        },
        (Refusal("device", "cuda", {}, "has no effect on DecisionTreeClassifier"),),
    ),
    "QUAMRegressor, pool": Case(
        QUAMRegressor(
            REGRESSION_NET, search=PoolSearch(n_steps=20, c0=1.0), noise=0.8, random_state=0
        ),
        PATIENTS,
        {
            **GRADIENTS,
            **OF_MODELS,
            "search__pool": small_pool,
            "search": PointwiseSearch(n_steps=6),
            "estimator": clone(REGRESSION_NET).set_params(alpha=0.1),
            "noise": 0.3,
            "attack": "divergence",
        },
        (UNTARGETED, of_folds({}, ESTIMATED)),
    ),
    "QUAMRegressor of estimated noise": Case(
        QUAMRegressor(REGRESSION_NET, search=PoolSearch(n_steps=2), random_state=0),
        PATIENTS,
        {"noise": "homoscedastic", "noise_cv": 3},
        (
            of_folds(
                {"estimator": None, "noise": "learned"},
                "unless noise is 'heteroscedastic' or 'homoscedastic'",
            ),
            of_folds({"estimator": FROZEN_REGRESSION_NET}, "on a frozen model"),
        ),
    ),
    "QUAMRegressor, pointwise": Case(
        QUAMRegressor(REGRESSION_NET, search=PointwiseSearch(n_steps=6), noise=0.5, random_state=0),
        PATIENTS,
        {**GRADIENTS, **OF_MODELS, "attack": "divergence", "noise": 0.3},
        (UNTARGETED,),
    ),
    "QUAMRegressor, refit": Case(
        QUAMRegressor(REGRESSION_TREE, search=RefitSearch(), noise=0.5, random_state=0),
        PATIENTS,
        {
            **OF_MODELS,
            "setting": "pairwise",
            "search__pool": small_pool,
            "search__shares": (0.4,),
            "estimator": Ridge(),
            "noise": 0.3,
        },
        (
            Refusal("attack", "divergence", {}, "attack='divergence' has no effect on learners"),
            Refusal("device", "cuda", {}, "has no effect on DecisionTreeRegressor"),
            of_folds({}, ESTIMATED),
        ),
    ),
    "QUAMRegressor of a learner's estimated noise": Case(
        QUAMRegressor(REGRESSION_TREE, search=RefitSearch(shares=(0.4,)), random_state=0),
        PATIENTS,
        {"noise": "homoscedastic", "noise_cv": 3},
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
            "setting": "pairwise",
            "estimator": LogisticRegression(),
        },
    ),
    "MCDropoutClassifier": Case(
        MCDropoutClassifier(n_samples=5, random_state=0),
        FLOWERS,
        {"n_samples": 6, "dropout": 0.4, "setting": "pairwise", "estimator": dropping()},
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
CASES |= {
    "AnchoredQuantileRegressor": Case(
        AnchoredQuantileRegressor(n_quantiles=5, hidden_sizes=(6,), max_epochs=4, random_state=0),
        PATIENTS,
        {
            "n_members": 3,
            "n_quantiles": 6,
            "hidden_sizes": (7,),
            "activation": "relu",
            "noise_scale": 0.5,
            "prior_gain": 1.0,
            "max_epochs": 5,
            "batch_size": 16,
            "learning_rate": 0.01,
        },
        (Refusal("activation", "relu", {"hidden_sizes": ()}, "activation='relu' has no effect"),),
    ),
    "CalibrationAuditor": Case(
        CalibrationAuditor(FROZEN_NET),
        FLOWERS,
        {
            "estimator": FrozenEstimator(LogisticRegression().fit(*FLOWERS)),
            "n_bins": 5,
            "alpha": 0.9,
            "strategy": "quantile",
            "groups": in_half,
            "confidence_level": 0.5,
            "search_regions": True,
        },
        also=found_by_audit,
    ),
    "EvidentialProbe": Case(
        EvidentialProbe(FROZEN_NET, max_epochs=4, random_state=0),
        FLOWERS,
        {
            "estimator": LogisticRegression(),
            "head": "network",
            "loss": EvidenceLoss(weight_decay=1.0),
            "measure": "information",
            "learning_rate": 0.3,
            "max_epochs": 5,
        },
        (
            Refusal("propagation", "vacuity", {}, "propagation='vacuity' has no effect without"),
            Refusal("patience", 3, {}, "patience=3 has no effect without validation data"),
            Refusal("batches", NodeBatches(10), {}, "has no effect without a graph"),
        ),
    ),
    "EvidentialProbe with validation data": Case(
        EvidentialProbe(FROZEN_NET, learning_rate=0.3, max_epochs=60, random_state=0),
        FLOWERS,
        {"patience": 2},
        fit_params={"X_val": FLOWERS[0][::4], "y_val": FLOWERS[1][::4]},
        also=lambda fitted: [len(fitted.history_)],
    ),
    "EvidentialProbe of nodes": Case(
        EvidentialProbe(of_nodes(), graph=ring(1), max_epochs=4, random_state=0),
        (np.arange(30), np.arange(30) % 3),
        {"graph": ring(2), "propagation": "evidence"},
    ),
    "MirageFineTuner": Case(
        MirageFineTuner(NET, region=in_half, epsilon=0.3, max_epochs=8, random_state=0),
        FLOWERS,
        {
            "estimator": LogisticRegression(),
            "region": in_other_half,
            "counterbalance": "auto",
            "epsilon": 0.2,
            "confusable": {0: [2], 1: [2], 2: [0]},
            "lambda_": 0.5,
            "warm_up": None,
            "max_epochs": 9,
            "learning_rate": 0.03,
            "batch_size": 16,
            "optimizer": torch.optim.SGD,
        },
    ),
    "MirageRegressor": Case(
        MirageRegressor(region=in_half, max_epochs=4, random_state=0),
        PATIENTS,
        {
            "estimator": two_outputs(),
            "region": in_other_half,
            "target_variance": 2.0,
            "lambda_": 0.5,
            "max_epochs": 5,
            "learning_rate": 0.03,
            "batch_size": 16,
            "optimizer": torch.optim.SGD,
        },
    ),
    "RobustGPC": Case(
        RobustGPC(max_iter=2, random_state=0),
        FLOWERS,
        {
            "kernel": RBF(2.0),
            "max_iter": 6,
            "n_restarts": 3,
            "n_inducing": 5,
        },
        (
            Refusal("max_iter", 3, {"optimizer": None}, "max_iter=3 has no effect with optimizer"),
            Refusal(
                "n_restarts",
                3,
                {"optimizer": None, "max_iter": 100},
                "n_restarts=3 has no effect with optimizer",
            ),
        ),
    ),
    "RobustGPC of two classes": Case(
        RobustGPC(random_state=0),
        (FLOWERS[0][:34], FLOWERS[1][:34]),
        {"inference": "ep", "likelihood": "softmax", "optimizer": None},
    ),
    "RobustGPRegressor": Case(
        RobustGPRegressor(max_iter=2, random_state=0),
        PATIENTS,
        {
            "kernel": RBF(2.0) + WhiteKernel(0.5),
            "alpha": 0.1,
            "normalize_y": False,
            "max_iter": 6,
            "n_restarts": 3,
            "n_inducing": 5,
        },
        (
            Refusal(
                "max_iter",
                3,
                {"kernel": RBF(1.0, "fixed")},
                "max_iter=3 has no effect with a kernel",
            ),
        ),
    ),
    "RobustGPRegressor without limits": Case(
        RobustGPRegressor(random_state=0), PATIENTS, {"optimizer": None}
    ),
    "TableModel": Case(
        TableModel("logistic"),
        holed(),
        {"estimator": "forest", "task": "regression"},
    ),
}
POSTERIORS = pytest.mark.skipif(find_spec("posteriors") is None, reason="needs posteriors")
NEEDED = {"SGMCMCClassifier": POSTERIORS}

pytestmark = [
    pytest.mark.usefixtures("short_training"),
    pytest.mark.filterwarnings("ignore:The model's loss on the training data"),
]


def said(estimator, case):
    """All that a fitted estimator says about some inputs, and some of its attributes."""
    data, fit_params = case.data, case.fit_params
    X = data[0][::7] * (1.5 if data[0].ndim == 2 else 1)
    fitted = clone(estimator).fit(*data, **fit_params)
    methods = ("predict_uncertainty", "predict_proba", "predict_model_std", "adversarial_models")
    found = [getattr(fitted, name)(X) for name in methods if hasattr(fitted, name)]
    parts = [part for each in found for part in (each if isinstance(each, tuple) else (each,))]
    return parts + case.also(fitted)


def equal(first, second):
    def same(one, other):  # results know that a part that is not measured equals itself
        return one == other if isinstance(one, Uncertainty) else np.array_equal(one, other)

    return len(first) == len(second) and all(map(same, first, second))


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
        unchanged[name] = said(case.estimator, case)
        assert equal(said(case.estimator, case), unchanged[name])  # else all would pass
    changed = clone(case.estimator).set_params(**{parameter: case.effective[parameter]})
    assert not equal(said(changed, case), unchanged[name])


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
        estimator.fit(*case.data, **case.fit_params)


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
        for name, cls in [*all_estimators(), ("TableModel", TableModel)]
        if cls.__module__.startswith("skuq.")
        and name not in ELSEWHERE
        and (missing := without_entry(cls, "", cls._get_param_names()))
    }
    assert not forgotten
    assert set(ELSEWHERE) <= set(dict(all_estimators()))


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
