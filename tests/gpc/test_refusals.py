"""What is refused, by whom, and a word that says why."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    WhiteKernel,
)

from skuq import RobustGPC, RobustGPRegressor
from skuq.gpc import _estimator

X = np.random.default_rng(0).normal(size=(12, 3))
Y = np.arange(12) % 2
ZERO = np.zeros((2, 3))
ALL = np.full(3, 9.0)


class Derived(RBF):
    """Might compute anything."""


HUGE = ConstantKernel(1e300, "fixed") * ConstantKernel(1e300, "fixed") * RBF()
FIXED = {"kernel": RBF(1.0, "fixed"), "max_iter": 5}
# Parameters of the estimator, which y (by the number of its classes), and a word.
PARAMETERS = [
    ({"device": "quantum"}, 2, "device"),
    ({"device": "mps"}, 2, "float64"),
    ({"likelihood": "softmax", "inference": "ep"}, 2, "laplace"),
    ({"inference": "ep"}, 3, "laplace"),
    ({"likelihood": "probit"}, 3, "softmax"),
    ({"likelihood": "logit"}, 3, "softmax"),
    ({}, 1, "one class"),
    ({"max_iter": 5, "optimizer": None}, 2, "no effect"),
    ({"n_restarts": 2, "optimizer": None}, 2, "no effect"),
    (FIXED, 2, "fixed"),
    ({"kernel": HUGE}, 2, "magnitude"),
    ({"kernel": HUGE, "optimizer": None}, 2, "magnitude"),
    ({"kernel": DotProduct()}, 2, "DotProduct"),
    ({"kernel": Matern(nu=0.5)}, 2, "nu=0.5"),
    ({"kernel": 2.0 * Matern(nu=np.inf)}, 2, "nu=inf"),
    ({"kernel": RBF([1.0, 2.0])}, 2, "length scales"),
    ({"kernel": 2.0 * ExpSineSquared()}, 2, "ExpSineSquared"),
    ({"kernel": RBF() ** 2}, 2, "Replace"),
    ({"kernel": Derived()}, 2, "Derived"),
    ({"kernel": WhiteKernel() + RBF()}, 2, "WhiteKernel"),
]


@pytest.mark.parametrize(("parameters", "n_classes", "word"), PARAMETERS)
def test_parameters_that_cannot_be_used_are_refused_in_fit(parameters, n_classes, word):
    with pytest.raises(ValueError, match=word):
        RobustGPC(**parameters).fit(X, np.arange(12) % n_classes)


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"alpha": [0.1, 0.2]}, "alpha"),
        ({"alpha": [-1.0] * 12}, "alpha"),
        ({"alpha": 0.0, "kernel": RBF()}, "noise"),
        ({"kernel": 2.0 * WhiteKernel()}, "multiplied"),
        ({"kernel": WhiteKernel() + WhiteKernel()}, "alone"),
        ({"kernel": RBF([1.0, 1.0]) + WhiteKernel()}, "length scales"),
        ({"device": "mps"}, "float64"),
        ({"optimizer": None, "max_iter": 3}, "no effect"),
    ],
)
def test_parameters_of_the_regression_are_refused_in_fit(parameters, word):
    with pytest.raises(ValueError, match=word):
        RobustGPRegressor(**parameters).fit(X, X[:, 0])


REGIONS = [
    ({}, "exactly one"),
    ({"radius": 1, "region": (-1, 1)}, "exactly one"),
    ({"radius": 1, "norm": "l3"}, "norm"),
    ({"radius": 1, "norm": ["l2"]}, "norm"),
    ({"radius": -0.1}, "negative"),
    ({"radius": np.nan}, "finite"),
    ({"radius": np.inf}, "finite"),
    ({"radius": [0.1]}, "one per point"),
    ({"radius": [[0.1, 0.1]]}, "one per point"),
    ({"region": (-1, 1), "norm": "l2"}, "no effect"),
    ({"region": 3.0}, "pair"),
    ({"region": (-1, 1, 2)}, "pair"),
    ({"region": ([0, 0], 1)}, "broadcast"),
    ({"region": (1, 0)}, "outside"),
    ({"region": (np.nan, 1)}, "NaN"),
    ({"region": (None, 1)}, "finite"),
    ({"region": (-1, [1, None, 1])}, "finite"),
    ({"region": (-np.inf, 1)}, "finite"),
    ({"region": (0.2, 1)}, "Point 0 .* feature 0"),
    ({"radius": 1, "domain": (-1, [1, np.nan, 1])}, "NaN"),
    ({"radius": 1, "domain": (object(), 1)}, "pair"),
    ({"radius": 1, "domain": (-1, [1, -0.3, 1])}, "Point 0 .* feature 1"),
    ({"radius": 1, "domain": ([[-1] * 3, [0, 0, 0.1]], 1)}, "Point 1 .* feature 2"),
    ({"radius": 1, "domain": [(0, 0, 0), (1, -0.1, 1)]}, "two arrays"),
    *(
        ({"radius": 1, "features": features}, "features")
        for features in ([], [3], [-4], [0.5], "ab", 1, [False] * 3, ["age"])
    ),
]
QUERIES = [
    *(("certify", arguments, word) for arguments, word in REGIONS),
    *((method, {}, "exactly one") for method in ("predict_proba_bounds", "attack")),
    ("predict_proba_bounds", {"radius": 1, "class_": 7}, "class_"),
    ("predict_proba_bounds", {"radius": 1, "tol": 0.0}, "tol"),
    ("predict_proba_bounds", {"radius": 1, "max_time": -1.0}, "max_time"),
    ("predict_proba_bounds", {"radius": 1, "max_time": np.nan}, "max_time"),
    ("predict_proba_bounds", {"radius": 1, "max_regions": 0}, "max_regions"),
    ("certify", {"radius": 1, "y": [0, 9]}, "classes"),
    ("certify", {"radius": 1, "y": [0]}, None),
    ("certify", {"radius": 1, "y": [0, 1], "delta": 0.1}, "omit"),
    ("certify", {"radius": 1, "delta": -0.1}, "delta"),
    ("certify", {"radius": 1, "delta": np.nan}, "delta"),
    ("certified_radius", {"y": [0, 9]}, "classes"),
    ("certified_radius", {"max_radius": 0.0}, "max_radius"),
    ("certified_radius", {"max_radius": np.inf}, "finite"),
    ("certified_radius", {"precision": 0.0}, "precision"),
    ("certified_radius", {"precision": np.nan}, "precision"),
    ("certified_radius", {"norm": "l3"}, "norm"),
    ("certified_radius", {"domain": (5.0, 6.0)}, "outside"),
    ("attack", {"radius": 1, "method": "cw"}, "pgd"),
    ("attack", {"radius": 1, "method": "fgsm", "n_restarts": 2}, "n_restarts=0"),
    ("attack", {"radius": 1, "n_restarts": -1}, "n_restarts"),
    ("attack", {"radius": 1, "y": [0, 17]}, "classes"),
    ("explain", {"gamma": 0.0}, "gamma"),
    ("explain", {"gamma": np.nan}, "finite"),
    ("explain", {"gamma": np.inf}, "finite"),
    ("explain", {"gamma": 0.1, "class_": "other"}, "class_"),
    ("explain", {"gamma": 0.1, "features": [5]}, "features"),
    ("explain", {"gamma": 0.1, "domain": (1.0, 2.0)}, "outside"),
]
KEYWORDS = [
    ("certified_radius", {"region": (-9.0, 9.0)}),
    ("attack", {"radius": 0.1, "max_time": 1.0}),
    ("explain", {"gamma": 0.1, "norm": "l2"}),
    ("certify", {"radius": 0.1, "radii": 0.2}),
]


def test_queries_that_mean_nothing_are_refused():
    gpc = RobustGPC(RBF(), optimizer=None).fit(X, Y)
    four = RobustGPC(RBF(), optimizer=None).fit(X, np.arange(12) % 4)
    queries = [(gpc, *row, ValueError) for row in QUERIES]
    queries += [(gpc, *row, "effect|keyword", TypeError) for row in KEYWORDS]
    queries += [
        (four, "certify", {"radius": 0.1, "delta": 0.1}, "at most 3", ValueError),
        (four, "explain", {"gamma": 0.1}, "at most 3", ValueError),
    ]
    for model, method, arguments, word, kind in queries:
        with pytest.raises(kind, match=word):
            getattr(model, method)(ZERO, **arguments)


def test_queries_of_the_regression_are_refused(monkeypatch):
    gpr = RobustGPRegressor(RBF(), alpha=0.1, optimizer=None).fit(X, X[:, 0])
    for tolerance, word in ((0.0, "above 0"), ([1.0, 2.0, 3.0], "one per point"), (np.inf, "fin")):
        with pytest.raises(ValueError, match=word):
            gpr.certify(ZERO, 0.1, tolerance=tolerance)
    with pytest.raises(ValueError, match="exactly one"):
        gpr.predict_bounds(ZERO)
    with pytest.raises(ValueError, match="both"):
        gpr.predict(ZERO, return_std=True, return_cov=True)
    with pytest.raises(ValueError, match="overflow"):
        gpr.fit(X, np.where(np.arange(12) == 3, 1e101, 0.0))
    monkeypatch.setattr(_estimator, "available_memory", lambda: 1000)
    with pytest.raises(MemoryError, match="n_inducing"):
        gpr.fit(X, X[:, 0])
