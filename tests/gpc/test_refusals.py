"""What is refused, by whom, and a word that says why."""

import numpy as np
import pytest
from sklearn.gaussian_process import kernels
from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel

from skuq import RobustGPC, RobustGPRegressor
from skuq.gpc import _estimator

X = np.random.default_rng(0).normal(size=(12, 3))
TWO, REAL = np.arange(12) % 2, X[:, 0]
ZERO = np.zeros((2, 3))


class Derived(RBF):
    """Might compute anything."""


HUGE = kernels.ConstantKernel(1e300, "fixed") * kernels.ConstantKernel(1e300, "fixed") * RBF()
FITS = [
    (RobustGPC(device="quantum"), TWO, "device"),
    (RobustGPC(device="mps"), TWO, "float64"),
    (RobustGPC(likelihood="softmax", inference="ep"), TWO, "laplace"),
    (RobustGPC(inference="ep"), np.arange(12) % 3, "laplace"),
    (RobustGPC(likelihood="probit"), np.arange(12) % 3, "softmax"),
    (RobustGPC(likelihood="logit"), np.arange(12) % 3, "softmax"),
    (RobustGPC(), np.zeros(12), "one class"),
    (RobustGPC(HUGE), TWO, "magnitude"),
    (RobustGPC(HUGE, optimizer=None), TWO, "magnitude"),
    (RobustGPC(kernels.DotProduct()), TWO, "DotProduct"),
    (RobustGPC(Matern(nu=0.5)), TWO, "nu=0.5"),
    (RobustGPC(2.0 * Matern(nu=np.inf)), TWO, "nu=inf"),
    (RobustGPC(RBF([1.0, 2.0])), TWO, "length scales"),
    (RobustGPC(2.0 * kernels.ExpSineSquared()), TWO, "ExpSineSquared"),
    (RobustGPC(RBF() ** 2), TWO, "Replace"),
    (RobustGPC(Derived()), TWO, "Derived"),
    (RobustGPC(WhiteKernel() + RBF()), TWO, "WhiteKernel"),
    (RobustGPRegressor(alpha=[0.1, 0.2]), REAL, "alpha"),
    (RobustGPRegressor(alpha=[-1.0] * 12), REAL, "alpha"),
    (RobustGPRegressor(RBF(), alpha=0.0), REAL, "noise"),
    (RobustGPRegressor(2.0 * WhiteKernel()), REAL, "multiplied"),
    (RobustGPRegressor(WhiteKernel() + WhiteKernel()), REAL, "alone"),
    (RobustGPRegressor(RBF([1.0, 1.0]) + WhiteKernel()), REAL, "length scales"),
    (RobustGPRegressor(device="mps"), REAL, "float64"),
    (RobustGPRegressor(), np.where(np.arange(12) == 3, 1e101, 0.0), "overflow"),
]


@pytest.mark.parametrize(("estimator", "y", "word"), FITS)
def test_parameters_that_cannot_be_used_are_refused_in_fit(estimator, y, word):
    with pytest.raises(ValueError, match=word):
        estimator.fit(X, y)


WRONG_FEATURES = ([], [3], [-4], [0.5], "ab", 1, [False] * 3, ["age"])
NAN, INF = np.nan, np.inf
# Method, a word, and arguments of which each is refused with this word.
QUERIES = [
    ("certify", "exactly one", {}, {"radius": 1, "region": (-1, 1)}),
    ("certify", "norm", {"radius": 1, "norm": "l3"}, {"radius": 1, "norm": ["l2"]}),
    ("certify", "negative", {"radius": -0.1}),
    ("certify", "finite", {"radius": NAN}, {"radius": INF}),
    ("certify", "one per point", {"radius": [0.1]}, {"radius": [[0.1, 0.1]]}),
    ("certify", "no effect", {"region": (-1, 1), "norm": "l2"}),
    ("certify", "pair", {"region": 3.0}, {"region": (-1, 1, 2)}),
    ("certify", "pair", {"radius": 1, "domain": (object(), 1)}),
    ("certify", "broadcast", {"region": ([0, 0], 1)}),
    ("certify", "outside", {"region": (1, 0)}),
    ("certify", "NaN", {"region": (NAN, 1)}, {"radius": 1, "domain": (-1, [1, NAN, 1])}),
    ("certify", "finite", *({"region": r} for r in ((None, 1), (-1, [1, None, 1]), (-INF, 1)))),
    ("certify", "Point 0 .* feature 0", {"region": (0.2, 1)}),
    ("certify", "Point 0 .* feature 1", {"radius": 1, "domain": (-1, [1, -0.3, 1])}),
    ("certify", "Point 1 .* feature 2", {"radius": 1, "domain": ([[-1] * 3, [0, 0, 0.1]], 1)}),
    ("certify", "two arrays", {"radius": 1, "domain": [(0, 0, 0), (1, -0.1, 1)]}),
    ("certify", "features", *({"radius": 1, "features": each} for each in WRONG_FEATURES)),
    ("certify", "classes", {"radius": 1, "y": [0, 9]}),
    ("certify", None, {"radius": 1, "y": [0]}),
    ("certify", "omit", {"radius": 1, "y": [0, 1], "delta": 0.1}),
    ("certify", "delta", {"radius": 1, "delta": -0.1}, {"radius": 1, "delta": NAN}),
    ("predict_proba_bounds", "exactly one", {}),
    ("predict_proba_bounds", "class_", {"radius": 1, "class_": 7}),
    ("predict_proba_bounds", "tol", {"radius": 1, "tol": 0.0}),
    ("predict_proba_bounds", "max_time", *({"radius": 1, "max_time": t} for t in (-1.0, NAN))),
    ("predict_proba_bounds", "max_regions", {"radius": 1, "max_regions": 0}),
    ("certified_radius", "classes", {"y": [0, 9]}),
    ("certified_radius", "max_radius", {"max_radius": 0.0}, {"max_radius": INF}),
    ("certified_radius", "precision", {"precision": 0.0}, {"precision": NAN}),
    ("certified_radius", "outside", {"domain": (5.0, 6.0)}),
    ("attack", "exactly one", {}),
    ("attack", "pgd", {"radius": 1, "method": "cw"}),
    ("attack", "n_restarts=0", {"radius": 1, "method": "fgsm", "n_restarts": 2}),
    ("attack", "n_restarts", {"radius": 1, "n_restarts": -1}),
    ("attack", "classes", {"radius": 1, "y": [0, 17]}),
    ("explain", "gamma", *({"gamma": each} for each in (0.0, NAN, INF))),
    ("explain", "class_", {"gamma": 0.1, "class_": "other"}),
    ("explain", "outside", {"gamma": 0.1, "domain": (1.0, 2.0)}),
]
WRONG_KEYWORDS = [
    ("certified_radius", "effect|keyword", {"region": (-9.0, 9.0)}),
    ("attack", "effect|keyword", {"radius": 0.1, "max_time": 1.0}),
    ("explain", "effect|keyword", {"gamma": 0.1, "norm": "l2"}),
    ("certify", "effect|keyword", {"radius": 0.1, "radii": 0.2}),
]
OF_FOUR_CLASSES = [
    ("certify", "at most 3", {"radius": 0.1, "delta": 0.1}),
    ("explain", "at most 3", {"gamma": 0.1}),
]
OF_REGRESSION = [
    ("certify", "above 0", {"radius": 0.1, "tolerance": 0.0}),
    ("certify", "one per point", {"radius": 0.1, "tolerance": [1.0, 2.0, 3.0]}),
    ("certify", "finite", {"radius": 0.1, "tolerance": INF}),
    ("predict_bounds", "exactly one", {}),
]


def test_queries_that_mean_nothing_are_refused(monkeypatch):
    gpc, four = (RobustGPC(RBF(), optimizer=None).fit(X, np.arange(12) % k) for k in (2, 4))
    gpr = RobustGPRegressor(RBF(), alpha=0.1, optimizer=None).fit(X, REAL)
    for model, queries, error in (
        (gpc, QUERIES, ValueError),
        (gpc, WRONG_KEYWORDS, TypeError),
        (four, OF_FOUR_CLASSES, ValueError),
        (gpr, OF_REGRESSION, ValueError),
    ):
        for method, word, *refused in queries:
            for arguments in refused:
                with pytest.raises(error, match=word):
                    getattr(model, method)(ZERO, **arguments)
    monkeypatch.setattr(_estimator, "available_memory", lambda: 1000)
    with pytest.raises(MemoryError, match="n_inducing"):
        gpr.fit(X, REAL)
