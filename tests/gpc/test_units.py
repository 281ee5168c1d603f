"""Units of features: powers of two change no digit."""

import warnings

import numpy as np
import pytest
from mpmath import mpf, workdps
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_moons
from sklearn.gaussian_process.kernels import RBF, Matern, RationalQuadratic

from skuq import RobustGPC
from skuq.gpc.bounds._latent_model import Rational

from .bounds.oracles import tensor

X, Y = make_moons(24, noise=0.15, random_state=0)
# By the unit of each feature, shape (2,); kernels of one length-scale take the first one's.
KERNELS = {
    "default": lambda unit: None,
    "rbf": lambda unit: 4.0 * RBF(0.7 * unit[0], (1e-3 * unit[0], 1e3 * unit[0])),
    "matern32": lambda unit: 4.0 * Matern(unit[0], nu=1.5),
    "rational": lambda unit: 4.0 * RationalQuadratic(0.8 * unit[0], 0.7),
    "ard": lambda unit: 9.0 * RBF(unit * [0.7, 0.5]),
    "product": lambda unit: 4.0 * RBF(unit * 1.5) * Matern(unit * 2, nu=2.5),
}
MODELS = {
    "probit": {"likelihood": "probit"},
    "logit, ep": {"likelihood": "logit", "inference": "ep"},
    "logit, inducing": {"likelihood": "logit", "n_inducing": 8},
    "softmax": {"likelihood": "softmax"},
}
ONE = np.ones(2)


def fitted(kernel, kind, unit, **search):
    search = search or {"optimizer": None}
    estimator = RobustGPC(KERNELS[kernel](unit), device="cpu", random_state=0, **search)
    target = (X[:, 0] > 0.2).astype(int) + (X[:, 0] > 1) if kind == "softmax" else Y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return estimator.set_params(**MODELS[kind]).fit(X * unit, target)


def answers(gpc, norm, unit):
    points, request = X[:2] * unit, {"radius": np.array([0.1, 0.4]) * unit[0], "norm": norm}
    if norm == "box":
        request = {"region": ((X[:2] - 0.2) * unit, (X[:2] + [0.3, 0.1]) * unit)}
    found = gpc.predict_proba_bounds(points, max_regions=2, **request)
    decided = gpc.certify(points, max_regions=2, **request)
    yield from (gpc.predict_proba(points), gpc.log_marginal_likelihood_, gpc.n_iter_)
    yield from (*found[:4], found.argmin / unit, found.argmax / unit, *found[6:])
    yield from (*decided[:3], decided.counterexample / unit, decided.n_regions)
    attacked = gpc.attack(points, n_restarts=1, **request)
    yield from (attacked.points / unit, attacked.proba, attacked.success)
    if norm != "box" and len(gpc.classes_) == 2:
        safe = gpc.certified_radius(points, norm=norm, max_regions=2, precision=0.2)
        yield from (safe.lower / unit[0], safe.upper / unit[0], safe.counterexample / unit)
        yield from gpc.explain(points, 0.2 * unit[0], max_regions=3)


@pytest.mark.parametrize(
    ("kernel", "kind", "norm", "unit", "search"),
    [
        ("default", "probit", "linf", 2.0**-200 * ONE, {"max_iter": 5}),
        ("rbf", "logit, ep", "l2", 2.0**-60 * ONE, {"max_iter": 5}),
        ("matern32", "logit, inducing", "l1", 2.0**-17 * ONE, {}),
        ("rational", "softmax", "box", 2.0**3 * ONE, {}),
        ("ard", "logit, inducing", "box", 2.0**40 * np.array([1, 2.0**11]), {}),
        ("product", "probit", "box", 2.0**150 * np.array([1, 2.0**11]), {}),
    ],
)
def test_powers_of_two_change_no_digit(kernel, kind, norm, unit, search):
    before, after = (answers(fitted(kernel, kind, u, **search), norm, u) for u in (ONE, unit))
    for one, other in zip(before, after, strict=True):
        assert_array_equal(one, other)


def test_radii_are_tried_up_to_the_deviations_of_the_training_rows():
    gpc, (a, b) = fitted("rbf", "probit", ONE), X.std(axis=0)
    constant = np.column_stack([X[:, 0], np.full(len(X), 5.0)])
    flat = RobustGPC(4.0 * RBF(0.7), optimizer=None, device="cpu").fit(constant, Y)
    for model, rows, given, length in (
        (gpc, X, {"norm": "linf"}, max(a, b)),
        (gpc, X, {"norm": "l2"}, np.hypot(a, b)),
        (gpc, X, {"norm": "l1"}, a + b),
        (gpc, X, {"features": [1]}, b),
        (flat, constant, {"features": [1]}, a),  # moved by the deviation of the others
    ):
        options = {**given, "max_regions": 5, "precision": 0.2}
        found = model.certified_radius(rows[:4], **options)
        expected = model.certified_radius(rows[:4], max_radius=length, **options)
        assert_allclose(found.lower, expected.lower, rtol=1e-12)


@pytest.mark.parametrize("size", [0.0, 3e-7, 2e30])
def test_inputs_that_are_all_the_same_have_the_unit_of_their_size(size):
    gpc = RobustGPC(max_iter=1, device="cpu").fit(np.full((4, 1), size), [0, 1, 0, 1])
    assert gpc.kernel_.get_params()["k2__length_scale"] == pytest.approx(size or 1.0)
    gpc.certified_radius([[size]], max_regions=1)


@pytest.mark.parametrize("alpha", [0.3, 40.0, 1e6])
def test_rational_profiles_are_accurate_whatever_their_exponent(alpha):
    for s in (1e-9, 0.3, 2.0, 30.0):
        found = Rational(alpha).derivatives(tensor([s]), 0)[0].item()
        with workdps(40):
            exact = (1 + mpf(s) / (2 * mpf(alpha))) ** -mpf(alpha)
            assert abs(mpf(found) / exact - 1) <= 8 * 2.0**-53 * (1 + s)
