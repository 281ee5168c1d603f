"""Units of features: powers of two change no digit, other factors no verdict."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_moons
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from skuq import RobustGPC
from skuq.gpc.bounds._latent_model import Rational

X, Y = make_moons(24, noise=0.15, random_state=0)
THREE = (X[:, 0] > 0.2).astype(int) + (X[:, 0] > 1)
WIDE = (1e-3, 1e3)


def limits(scale):
    return np.outer(scale, WIDE)


# By the unit of each feature, shape (2,); kernels of one length-scale take the first one's.
KERNELS = {
    "default": lambda unit: None,
    "rbf": lambda unit: ConstantKernel(4.0) * RBF(0.7 * unit[0], limits(unit[:1])),
    "matern32": lambda unit: 4.0 * Matern(unit[0], limits(unit[:1]), nu=1.5),
    "rational": lambda unit: (
        ConstantKernel(4.0) * RationalQuadratic(0.8 * unit[0], 0.7, limits(unit[:1]), "fixed")
    ),
    "ard": lambda unit: 9.0 * RBF(unit * [0.7, 0.5], limits(unit)),
    "ard matern52": lambda unit: 4.0 * Matern(unit * [1.0, 1.5], limits(unit), nu=2.5),
    "product": lambda unit: (
        4.0 * RBF(unit * 1.5, limits(unit)) * Matern(unit * 2, limits(unit), nu=2.5)
    ),
}
MODELS = {
    "probit": (Y, {"likelihood": "probit"}),
    "logit, ep": (Y, {"likelihood": "logit", "inference": "ep"}),
    "logit, inducing": (Y, {"likelihood": "logit", "n_inducing": 8}),
    "softmax": (THREE, {"likelihood": "softmax"}),
}
UNITS = [np.full(2, 2.0**power) for power in (-200, -60, -17, 3, 40, 150)]


def fitted(kernel, kind, unit, *, search):
    target, parameters = MODELS[kind]
    search = {"max_iter": 5} if search else {"optimizer": None}
    estimator = RobustGPC(KERNELS[kernel](unit), device="cpu", random_state=0, **search)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return estimator.set_params(**parameters).fit(X * unit, target)


def regions(norm, unit):
    if norm == "box":
        return {"region": ((X[:2] - 0.2) * unit, (X[:2] + [0.3, 0.1]) * unit)}
    return {"radius": np.array([0.1, 0.4]) * unit[0], "norm": norm}


def answers(gpc, norm, unit):
    """All that is asked of two points, lengths in units of the features."""
    points, request = X[:2] * unit, regions(norm, unit)
    found = gpc.predict_proba_bounds(points, max_regions=2, **request)
    decided = gpc.certify(points, max_regions=2, **request)
    yield from (gpc.predict_proba(points), gpc.log_marginal_likelihood_, gpc.n_iter_)
    yield from found[:4]
    yield from (found.argmin / unit, found.argmax / unit, found.n_regions, found.converged)
    yield from (*decided[:3], decided.counterexample / unit, decided.n_regions)
    attacked = gpc.attack(points, n_restarts=1, **request)
    yield from (attacked.points / unit, attacked.proba, attacked.success)
    if norm != "box" and len(gpc.classes_) == 2:
        safe = gpc.certified_radius(points, norm=norm, max_regions=2, precision=0.2)
        yield from (safe.lower / unit[0], safe.upper / unit[0], safe.counterexample / unit)
        yield from gpc.explain(points, 0.2 * unit[0], max_regions=3)


NORMS = ["linf", "l2", "l1", "box"]


@pytest.mark.parametrize("case", range(6))
def test_powers_of_two_change_no_digit(case):
    kernel, kind, norm = [*KERNELS][case], [*MODELS][case % 4], NORMS[(case + case // 4) % 4]
    unit, search = UNITS[case], case < 2
    if case > 3:  # units of each feature, for boxes
        kernel, norm, unit = "ard" if case == 4 else "product", "box", unit * [1.0, 2.0**11]
    before = answers(fitted(kernel, kind, np.ones(2), search=search), norm, np.ones(2))
    after = answers(fitted(kernel, kind, unit, search=search), norm, unit)
    for one, other in zip(before, after, strict=True):
        assert_array_equal(one, other)


@pytest.mark.parametrize("case", range(4))
def test_no_factor_changes_a_verdict(case):
    kernel, kind, norm = [*KERNELS][case + 1], [*MODELS][case], NORMS[case - 1]
    models, n = [], 1 if kind == "softmax" else 4
    for unit in (np.ones(2), np.full(2, 10 ** (-30.0, -3.3, 4.7, 30.0)[case])):
        gpc = fitted(kernel, kind, unit, search=False)
        request = {"X": X[:n] * unit, "max_regions": 4, "radius": 0.3 * unit[0], "norm": norm}
        if norm == "box":
            del request["radius"], request["norm"]
            request["region"] = (X[:n] - 0.2) * unit, (X[:n] + [0.3, 0.1]) * unit
        decided, ranges = gpc.certify(**request), gpc.predict_proba_bounds(**request)
        models.append((decided, ranges))
        for k in range(ranges.min_upper.shape[1]):  # attained where it is said
            at = gpc.predict_proba(ranges.argmin[:, k])[:, k]
            assert_allclose(at, ranges.min_upper[:, k], atol=2e-5)  # of "softmax"
    (before, old), (after, new) = models
    near = np.minimum(abs(before.margin_lower), abs(before.margin_upper)) < 1e-6
    assert_array_equal(before.status[~near], after.status[~near])
    for one, other in zip(old[:4], new[:4], strict=True):
        assert_allclose(one, other, atol=0.01)  # the width that was asked for


def test_radii_are_tried_up_to_the_deviations_of_the_training_rows():
    gpc = fitted("rbf", "probit", np.ones(2), search=False)
    spread = X.std(axis=0)
    for norm, length in (("linf", spread.max()), ("l2", np.hypot(*spread)), ("l1", spread.sum())):
        as_given = {"norm": norm, "max_regions": 5, "precision": 0.2}
        found = gpc.certified_radius(X[:4], **as_given)
        given_length = gpc.certified_radius(X[:4], max_radius=length, **as_given)
        assert_allclose(found.lower, given_length.lower, rtol=1e-12)
    one = gpc.certified_radius(X[:4], features=[1], max_regions=5)
    alone = gpc.certified_radius(X[:4], features=[1], max_regions=5, max_radius=spread[1])
    assert_allclose(one.lower, alone.lower, rtol=1e-12)


def test_features_without_deviation_are_moved_by_that_of_the_others():
    inputs = np.column_stack([X[:, 0], np.full(len(X), 5.0)])
    gpc = RobustGPC(4.0 * RBF(0.7), optimizer=None, device="cpu").fit(inputs, Y)
    options = {"features": [1], "max_regions": 5}
    found = gpc.certified_radius(inputs[:2], **options)
    alone = gpc.certified_radius(inputs[:2], max_radius=inputs[:, 0].std(), **options)
    assert_allclose(found.lower, alone.lower, rtol=1e-12)


@pytest.mark.parametrize("size", [0.0, 3e-7, 2e30])
def test_inputs_that_are_all_the_same_have_the_unit_of_their_size(size):
    gpc = RobustGPC(max_iter=1, device="cpu").fit(np.full((4, 1), size), [0, 1, 0, 1])
    scale = gpc.kernel_.get_params()["k2__length_scale"]
    assert scale == pytest.approx(size or 1.0)
    gpc.certified_radius([[size]], max_regions=1)


@pytest.mark.parametrize("alpha", [0.3, 40.0, 1e6])
def test_rational_profiles_are_accurate_whatever_their_exponent(alpha):
    import torch
    from mpmath import mpf, workdps

    squared = [1e-9, 0.3, 2.0, 30.0]
    value = Rational(alpha).derivatives(torch.tensor(squared, dtype=torch.float64), 0)[0].tolist()
    for s, found in zip(squared, value, strict=True):
        with workdps(40):
            exact = (1 + mpf(s) / (2 * mpf(alpha))) ** -mpf(alpha)
            assert abs(mpf(found) / exact - 1) <= 8 * 2.0**-53 * (1 + s)
