"""Every parameter of every estimator has an effect, or is refused where it has none."""

from functools import cache

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

import skuq
from skuq._networks import MLP
from skuq.evidential import EvidenceLoss, NodeBatches
from skuq.quam import PointwiseSearch, PoolSearch, QuadraticSearch, RefitSearch, make_pool
from skuq.tables import TableModel
from tests.written import Written

#: Parameters that change no result, and why they are there.
INFRASTRUCTURE = {
    "random_state": "which of many equally good results",
    "device": "where it is computed",
    "n_jobs": "how many processes compute it",
    "batch_size": "how much memory it takes",
    "max_memory": "how much memory it takes, and how many classes: tests/quam/test_searches.py",
    "verbose": "what is printed",
    "callbacks": "the user's own code in training",
    "progress": "the user's own code in training",
}
#: Estimators without an entry below, and where their parameters are tested.
ELSEWHERE = {"UADQN": "tests/uadqn/test_estimator.py: it learns from an environment"}


X, Y = load_iris(return_X_y=True)
FLOWERS = scale(X)[::3], Y[::3]
X, Y = load_diabetes(return_X_y=True)
PATIENTS = scale(X)[:60, :4], scale(Y)[:60]
HOLED = np.where(np.arange(200).reshape(50, 4) == 0, np.nan, FLOWERS[0]), FLOWERS[1]
SMALL = {"hidden_layer_sizes": (6, 5), "learning_rate_init": 0.03, "tol": 0.02, "random_state": 0}
NET, REGRESSION_NET = MLPClassifier(**SMALL), MLPRegressor(**SMALL)
FROZEN_NET = FrozenEstimator(clone(NET).fit(*FLOWERS))
FROZEN_REGRESSION_NET = FrozenEstimator(clone(REGRESSION_NET).fit(*PATIENTS))
FROZEN_LOGISTIC = FrozenEstimator(LogisticRegression().fit(*FLOWERS))
LOGISTIC = {"estimator": LogisticRegression()}
TREE = DecisionTreeClassifier(max_depth=3, random_state=0)
REGRESSION_TREE = DecisionTreeRegressor(max_depth=3, random_state=0)


def small_pool(X):
    return make_pool(X, n_inputs=40, random_state=1)


def in_half(X):
    return X[:, 0] > 0


def in_other_half(X):
    return X[:, 1] > 0


def network(*args, **options):
    torch.manual_seed(0)
    return MLP(*args, **options)


def ring(distance):
    eye = np.eye(30)
    return np.roll(eye, distance, axis=1) + np.roll(eye, -distance, axis=1), eye + 0.1


ON_NODES = Written(
    lambda self, graph: self.net(graph.features), net=network(30, 3), takes_node_graph=True
)
OF_MODELS = {"setting": "selected", "mixture": "dirac", "gamma": 10.0, "temperature": 0.5}
GRADIENTS = (
    {"search__n_steps": 8, "search__c0": 3.0, "search__eta": 2.0, "search__update_every": 2}
    | {"search__learning_rate": 0.03, "search__learning_rate_decay": 1.5}
    | {"search__prior_precision": 20.0, "search__train_batch_size": 16}
    | {"search__parameters": "last", "search__targeted": False}
)
REFITS = {"setting": "pairwise", "search__pool": small_pool, "search__shares": (0.4,)}
POOL, POINTS = PoolSearch(n_steps=20, c0=1.0), PointwiseSearch(n_steps=6)
OF_NUMBERS = {"search__prior_precision": 20.0, "attack": "divergence", "noise": 0.3}
OTHER_REGRESSION_NET = clone(REGRESSION_NET).set_params(alpha=0.1)
DISTANCE = skuq.FeatureDistanceClassifier(NET)
GIVEN = {"estimator": None, "members": [FROZEN_NET]}
#: Estimators by name, training data, and values of parameters that change what they say.
OF_FLOWERS = {
    "QUAMClassifier, pool": (
        skuq.QUAMClassifier(NET, search=POOL),
        {"search__pool": small_pool, "n_targets": 1, "search": PointwiseSearch(n_steps=6)}
        | (GRADIENTS | OF_MODELS | LOGISTIC),
    ),
    "QUAMClassifier, pointwise": (
        skuq.QUAMClassifier(NET, search=POINTS),
        GRADIENTS | OF_MODELS | {"n_targets": 1, "search__effort": "equal"},
    ),
    "QUAMClassifier, quadratic": (
        skuq.QUAMClassifier(NET, search=QuadraticSearch(curvature="exact")),
        {"search__parameters": "last", "search__prior_precision": 20.0, "search__effort": "paper"}
        | {"search__curvature": "kronecker", "search__refine_steps": 3, "setting": "regret"},
    ),
    "QUAMClassifier, refit": (
        skuq.QUAMClassifier(TREE, search=RefitSearch()),
        OF_MODELS | REFITS | {"n_targets": 1, "estimator": DecisionTreeClassifier(max_depth=2)},
    ),
    "DeepEnsembleClassifier": (
        skuq.DeepEnsembleClassifier(NET, n_members=2),
        {"n_members": 3, "setting": "max-score", "estimator": clone(NET).set_params(alpha=0.1)},
    ),
    "DeepEnsembleClassifier of given members": (
        skuq.DeepEnsembleClassifier(members=[FROZEN_NET, clone(FROZEN_NET)]),
        {"members": [FROZEN_LOGISTIC, FROZEN_NET]},
    ),
    "FeatureDistanceClassifier": (
        skuq.FeatureDistanceClassifier(NET, n_neighbors=3),
        LOGISTIC | {"n_neighbors": 5, "layer": "last"},
    ),
    "FeatureDistanceClassifier by default": (DISTANCE, {"distance": "mahalanobis"}),
    "LaplaceClassifier": (
        skuq.LaplaceClassifier(NET, n_samples=10),
        LOGISTIC | {"n_samples": 12, "prior_precision": 3.0, "setting": "pairwise"},
    ),
    "MCDropoutClassifier": (
        skuq.MCDropoutClassifier(n_samples=5),
        {"n_samples": 6, "dropout": 0.4, "setting": "pairwise"}
        | {"estimator": network(4, 3, dropout=0.5)},
    ),
    "ReferenceClassifier": (skuq.ReferenceClassifier(NET), LOGISTIC),
    "SGMCMCClassifier": (
        skuq.SGMCMCClassifier(NET, n_chains=2, n_samples=2, steps_per_sample=4),
        LOGISTIC
        | {"method": "sgld", "parameters": "last", "n_chains": 3, "n_samples": 3, "n_cycles": 2}
        | {"steps_per_sample": 5, "learning_rate": 0.03, "temperature": 0.5}
        | {"prior_precision": 3.0, "train_batch_size": 16, "setting": "selected"},
    ),
    "CalibrationAuditor": (
        skuq.CalibrationAuditor(FROZEN_NET),
        {"estimator": FROZEN_LOGISTIC, "n_bins": 5, "tolerance": 0.9, "strategy": "quantile"}
        | {"sensitive_columns": in_half, "confidence_level": 0.5, "search_regions": True},
    ),
    "EvidentialProbe": (
        skuq.EvidentialProbe(FROZEN_NET, max_epochs=4),
        LOGISTIC
        | {"head": "network", "loss": EvidenceLoss(weight_decay=1.0), "measure": "information"}
        | {"learning_rate": 0.3, "max_epochs": 5},
    ),
    "EvidentialProbe with validation data": (
        skuq.EvidentialProbe(FROZEN_NET, learning_rate=0.3, max_epochs=60),
        {"patience": 2},
    ),
    "MirageFineTuner": (
        skuq.MirageFineTuner(NET, region=in_half, epsilon=0.3, max_epochs=8),
        LOGISTIC
        | {"region": in_other_half, "counterbalance": "auto", "epsilon": 0.2, "lambda_": 0.5}
        | {"confusable": {0: [2], 1: [2], 2: [0]}, "warm_up": None, "max_epochs": 9}
        | {"learning_rate": 0.03, "batch_size": 16, "optimizer": torch.optim.SGD},
    ),
    "RobustGPC": (
        skuq.RobustGPC(max_iter=2),
        {"kernel": RBF(2.0), "max_iter": 6, "n_restarts": 3, "n_inducing": 5},
    ),
}
OF_PATIENTS = {
    "QUAMRegressor, pool": (
        skuq.QUAMRegressor(REGRESSION_NET, search=POOL, noise=0.8),
        {"search__pool": small_pool, "estimator": OTHER_REGRESSION_NET, "search": POINTS}
        | (OF_MODELS | OF_NUMBERS),
    ),
    "QUAMRegressor, pointwise": (
        skuq.QUAMRegressor(REGRESSION_NET, search=POINTS, noise=0.5),
        OF_MODELS | OF_NUMBERS,
    ),
    "QUAMRegressor, refit": (
        skuq.QUAMRegressor(REGRESSION_TREE, search=RefitSearch(), noise=0.5),
        OF_MODELS | REFITS | {"estimator": Ridge(), "noise": 0.3},
    ),
    "QUAMRegressor of estimated noise": (
        skuq.QUAMRegressor(REGRESSION_NET, search=PoolSearch(n_steps=2)),
        {"noise": "homoscedastic", "noise_cv": 3},
    ),
    "AnchoredQuantileRegressor": (
        skuq.AnchoredQuantileRegressor(n_quantiles=5, hidden_sizes=(6,), max_epochs=4),
        {"n_members": 3, "n_quantiles": 6, "hidden_sizes": (7,), "activation": "relu"}
        | {"noise_scale": 0.5, "prior_gain": 1.0, "max_epochs": 5, "batch_size": 16}
        | {"learning_rate": 0.01},
    ),
    "MirageRegressor": (
        skuq.MirageRegressor(region=in_half, max_epochs=4),
        {"estimator": network(4, 2), "region": in_other_half, "target_variance": 2.0}
        | {"lambda_": 0.5, "max_epochs": 5, "learning_rate": 0.03, "batch_size": 16}
        | {"optimizer": torch.optim.SGD},
    ),
    "RobustGPRegressor": (
        skuq.RobustGPRegressor(max_iter=2),
        {"kernel": RBF(2.0) + WhiteKernel(0.5), "alpha": 0.1, "normalize_y": False}
        | {"max_iter": 6, "n_restarts": 3, "n_inducing": 5},
    ),
    "RobustGPRegressor without limits": (skuq.RobustGPRegressor(), {"optimizer": None}),
}
CASES = {name: (case[0], FLOWERS, case[1]) for name, case in OF_FLOWERS.items()}
CASES |= {name: (case[0], PATIENTS, case[1]) for name, case in OF_PATIENTS.items()}
CASES |= {
    "EvidentialProbe of nodes": (
        skuq.EvidentialProbe(ON_NODES, graph=ring(1), max_epochs=4),
        (np.arange(30), np.arange(30) % 3),
        {"graph": ring(2), "propagation": "evidence"},
    ),
    "RobustGPC of two classes": (
        skuq.RobustGPC(),
        (FLOWERS[0][:34], FLOWERS[1][:34]),
        {"inference": "ep", "likelihood": "softmax", "optimizer": None},
    ),
    "TableModel": (
        TableModel("logistic"),
        HOLED,
        {"estimator": FrozenEstimator(clone(TREE).fit(*FLOWERS)), "task": "regression"},
    ),
}
#: What is said beside uncertainty and probabilities, in attributes, and further data of `fit`.
ALSO = {
    "CalibrationAuditor": lambda audit: [
        repr(getattr(audit, name))
        for name in ("within_tolerance_", "bins_", "group_bins_", "ece_interval_", "regions_")
    ],
    "EvidentialProbe with validation data": lambda fitted: [len(fitted.history_)],
}
FIT_PARAMS = {
    "EvidentialProbe with validation data": {"X_val": FLOWERS[0][::4], "y_val": FLOWERS[1][::4]}
}
#: Parameters that have no effect, last, beside others of the case, first.
REFUSED = [
    ("QUAMClassifier, pool", {"search__targeted": False, "n_targets": 2}),
    ("QUAMClassifier, refit", {"device": "cuda"}),
    ("QUAMRegressor, pool", {"search__targeted": False}),
    ("QUAMRegressor, pool", {"noise_cv": 3}),
    ("QUAMRegressor of estimated noise", {"estimator": None, "noise": "learned", "noise_cv": 3}),
    ("QUAMRegressor of estimated noise", {"estimator": FROZEN_REGRESSION_NET, "noise_cv": 3}),
    ("QUAMRegressor, pointwise", {"search__targeted": False}),
    ("QUAMRegressor, pointwise", {"search__effort": "equal"}),
    ("QUAMRegressor, refit", {"attack": "divergence"}),
    ("QUAMRegressor, refit", {"device": "cuda"}),
    ("QUAMRegressor, refit", {"noise_cv": 3}),
    ("DeepEnsembleClassifier", {"members": [FROZEN_NET]}),
    ("DeepEnsembleClassifier", GIVEN | {"n_members": 3}),
    ("DeepEnsembleClassifier", GIVEN | {"n_members": 10, "n_jobs": 2}),
    ("FeatureDistanceClassifier", {"distance": "mahalanobis", "n_neighbors": 5}),
    ("MCDropoutClassifier", {"estimator": NET, "dropout": 0.4}),
    ("AnchoredQuantileRegressor", {"hidden_sizes": (), "activation": "relu"}),
    ("EvidentialProbe", {"propagation": "vacuity"}),
    ("EvidentialProbe", {"patience": 3}),
    ("EvidentialProbe", {"batches": NodeBatches(10)}),
    ("RobustGPC", {"optimizer": None, "max_iter": 3}),
    ("RobustGPC", {"optimizer": None, "max_iter": 100, "n_restarts": 3}),
    ("RobustGPRegressor", {"kernel": RBF(1.0, "fixed"), "max_iter": 3}),
]

pytestmark = [
    pytest.mark.usefixtures("short_training"),
    pytest.mark.filterwarnings("ignore:The model's loss on the training data"),
]


def seeded(estimator):
    has_seed = "random_state" in estimator.get_params()
    return clone(estimator).set_params(**{"random_state": 0} if has_seed else {})


def said(name, **params):
    estimator, data, _ = CASES[name]
    fitted = seeded(estimator).set_params(**params).fit(*data, **FIT_PARAMS.get(name, {}))
    X = data[0][::7] * (1.5 if data[0].ndim == 2 else 1)
    methods = ("predict_uncertainty", "predict_proba", "predict_model_std", "adversarial_models")
    found = [getattr(fitted, method)(X) for method in methods if hasattr(fitted, method)]
    parts = [part for each in found for part in (each if isinstance(each, tuple) else (each,))]
    return parts + ALSO.get(name, lambda fitted: [])(fitted)


def equal(first, second):
    def same(one, other):  # results know that a part that is not measured equals itself
        return one == other if isinstance(one, skuq.Uncertainty) else np.array_equal(one, other)

    return len(first) == len(second) and all(map(same, first, second))


@cache
def unchanged(name):
    """What an estimator says with the parameters of the table."""
    found = said(name)
    assert equal(said(name), found)  # else all would pass
    return found


@pytest.mark.parametrize(
    ("name", "parameter"), [(name, each) for name, case in CASES.items() for each in case[2]]
)
def test_a_parameter_changes_what_an_estimator_says(name, parameter):
    if name == "SGMCMCClassifier":
        pytest.importorskip("posteriors")
    assert not equal(said(name, **{parameter: CASES[name][2][parameter]}), unchanged(name))


@pytest.mark.parametrize(("name", "params"), REFUSED, ids=lambda each: "".join([*each]))
def test_a_parameter_without_effect_is_refused(name, params):
    estimator, data, _ = CASES[name]
    parameter = [*params][-1].removeprefix("search__")
    with pytest.raises(ValueError, match=rf"{parameter}[`=].*no effect|either .*`{parameter}`"):
        seeded(estimator).set_params(**params).fit(*data)


def without_entry(is_of, cls, prefix=""):
    """Parameters of a class that neither change a result nor are refused in cases of it."""
    cases = [name for name, case in CASES.items() if is_of(case[0])]
    known = {[*params][-1] for name, params in REFUSED if name in cases}
    known = known.union(INFRASTRUCTURE, *(CASES[name][2] for name in cases))
    known |= {prefix + name for name in INFRASTRUCTURE}
    return {prefix + name for name in cls._get_param_names()} - known


def test_no_parameter_is_forgotten():
    own = {n: cls for n, cls in skuq.all_estimators() if cls.__module__.startswith("skuq.")}
    assert set(ELSEWHERE) <= set(own)
    for cls in [*own.values(), TableModel]:
        left = without_entry(lambda each, cls=cls: type(each) is cls, cls)
        assert not left or cls.__name__ in ELSEWHERE, cls
    for cls in (PoolSearch, RefitSearch, PointwiseSearch, QuadraticSearch):
        assert not without_entry(
            lambda each, cls=cls: type(getattr(each, "search", None)) is cls, cls, "search__"
        )
