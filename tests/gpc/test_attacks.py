"""Attacks by gradients: within the region, and downhill."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from .bounds.oracles import KERNELS, fit_model, probabilities

ORDERS = {"linf": np.inf, "l2": 2, "l1": 1}


@pytest.fixture(scope="module", params=["probit", "logit", "softmax"])
def model(request):
    classes = 3 if request.param == "softmax" else 2
    rng = np.random.default_rng(1)
    return fit_model(rng, KERNELS["ard"](3), request.param, d=3, n_classes=classes)


@pytest.mark.parametrize(
    ("method", "norm"), [("pgd", "linf"), ("fgsm", "l1"), ("pgd", "l1"), ("fgsm", "l2")]
)
def test_attacks_stay_in_the_region_and_lower_the_probability(model, method, norm):
    X = np.random.default_rng(0).normal(size=(5, 3))
    limits = X.min(axis=0), X.max(axis=0)
    found = model.attack(X, radius=0.05, norm=norm, method=method, features=[0, 2], domain=limits)
    assert (np.linalg.norm(found.points - X, ORDERS[norm], axis=1) <= 0.05 * (1 + 1e-12)).all()
    assert (limits[0] <= found.points).all()
    assert (found.points <= limits[1]).all()
    assert_array_equal(found.points[:, 1], X[:, 1])
    labels = model.predict_proba(X).argmax(axis=1)
    rows = np.arange(len(X))
    before, after = (probabilities(model, points)[rows, labels] for points in (X, found.points))
    assert_allclose(after, found.proba, atol=1e-7)
    assert (after < before + 1e-4).mean() > 0.8
    assert (after < before - 1e-4).mean() > 0.5
    assert_array_equal(found.success, model.predict(found.points) != model.predict(X))


def test_many_steps_are_no_worse_than_none(model):
    X = np.random.default_rng(0).normal(size=(5, 3))
    many, one = (model.attack(X, radius=0.8, method=method) for method in ("pgd", "fgsm"))
    labels = model.predict_proba(X).argmax(axis=1)
    assert (many.proba <= model.predict_proba(X)[np.arange(5), labels] + 1e-4).all()
    assert many.proba.mean() <= one.proba.mean() + 1e-4


def test_one_step_of_the_sign_ends_in_a_corner(model):
    X = np.random.default_rng(0).normal(size=(4, 3))
    found = model.attack(X, radius=0.2, method="fgsm")
    assert_allclose(np.abs(found.points - X), 0.2)
    small = model.attack(X, radius=1e-5, method="fgsm")
    direction = np.sign(small.points - X)
    assert_array_equal(np.sign(found.points - X), direction)
    labels = model.predict_proba(X).argmax(axis=1)
    for j, step in enumerate(1e-4 * np.eye(3)):
        slope = probabilities(model, X + step) - probabilities(model, X - step)
        slope = slope[np.arange(4), labels]
        assert (np.sign(slope) == -direction[:, j])[np.abs(slope) > 1e-8].all()


def test_the_attacked_class_can_be_chosen(model):
    X = np.zeros((1, 3))
    for k, label in enumerate(model.classes_):
        found = model.attack(X, y=[label], radius=0.3)
        assert found.proba[0] <= model.predict_proba(X)[0, k] + 1e-4
        assert_allclose(found.proba[0], model.predict_proba(found.points)[0, k])


def test_restarts_never_find_less_and_are_reproducible(model):
    norm = "l2" if model.likelihood_ == "logit" else "linf"
    X = np.random.default_rng(0).normal(size=(4, 3))[2 if model.likelihood_ == "softmax" else 0 :]
    alone = model.attack(X, radius=1.5, norm=norm)
    more, again = (model.attack(X, radius=1.5, norm=norm, n_restarts=2) for _ in range(2))
    assert (more.proba <= alone.proba + 1e-9).all()
    assert (more.proba < alone.proba - 1e-4).any()
    assert (np.linalg.norm(more.points - X, ORDERS[norm], axis=1) <= 1.5 * (1 + 1e-12)).all()
    assert_array_equal(more.points, again.points)
