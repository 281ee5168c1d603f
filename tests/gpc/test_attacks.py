"""Attacks by gradients: within the region, and downhill."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from .bounds.oracles import ORDERS, fit_model, probabilities, within

X, ROWS = np.random.default_rng(0).normal(size=(5, 3)), np.arange(5)


@pytest.fixture(scope="module", params=["probit", "logit", "softmax"])
def model(request):
    return fit_model(1, "ard", request.param, d=3, n_classes=3 if request.param == "softmax" else 2)


@pytest.mark.parametrize(
    ("method", "norm"), [("pgd", "linf"), ("fgsm", "l1"), ("pgd", "l1"), ("fgsm", "l2")]
)
def test_attacks_stay_in_the_region_and_lower_the_probability(model, method, norm):
    limits = X.min(axis=0), X.max(axis=0)
    found = model.attack(X, radius=0.05, norm=norm, method=method, features=[0, 2], domain=limits)
    assert (np.linalg.norm(found.points - X, ORDERS[norm], axis=1) <= 0.05 * (1 + 1e-12)).all()
    assert within(limits[0], found.points, limits[1])
    assert_array_equal(found.points[:, 1], X[:, 1])
    labels = model.predict_proba(X).argmax(axis=1)
    before, after = (probabilities(model, points)[ROWS, labels] for points in (X, found.points))
    assert_allclose(after, found.proba, atol=1e-7)
    assert (after < before + 1e-4).mean() > 0.8
    assert (after < before - 1e-4).mean() > 0.5
    assert_array_equal(found.success, model.predict(found.points) != model.predict(X))


def test_many_steps_are_no_worse_than_none_and_one_step_of_the_sign_ends_in_a_corner(model):
    proba = model.predict_proba(X)
    labels = proba.argmax(axis=1)
    many, one = (model.attack(X, radius=0.8, method=method) for method in ("pgd", "fgsm"))
    assert (many.proba <= proba[ROWS, labels] + 1e-4).all()
    assert many.proba.mean() <= one.proba.mean() + 1e-4
    assert_allclose(np.abs(one.points - X), 0.8)
    direction = np.sign(model.attack(X, radius=1e-5, method="fgsm").points - X)
    assert_array_equal(np.sign(one.points - X), direction)
    for j, step in enumerate(1e-4 * np.eye(3)):
        slope = (probabilities(model, X + step) - probabilities(model, X - step))[ROWS, labels]
        assert (np.sign(slope) == -direction[:, j])[np.abs(slope) > 1e-8].all()


def test_the_attacked_class_can_be_chosen(model):
    for k, label in enumerate(model.classes_):
        found = model.attack(np.zeros((1, 3)), y=[label], radius=0.3)
        assert found.proba[0] <= model.predict_proba(np.zeros((1, 3)))[0, k] + 1e-4
        assert_allclose(found.proba[0], model.predict_proba(found.points)[0, k])


def test_restarts_never_find_less_and_are_reproducible(model):
    norm = "l2" if model.likelihood_ == "logit" else "linf"
    at = X[2:4] if model.likelihood_ == "softmax" else X[:4]
    alone = model.attack(at, radius=1.5, norm=norm)
    more, again = (model.attack(at, radius=1.5, norm=norm, n_restarts=2) for _ in range(2))
    assert (more.proba <= alone.proba + 1e-9).all()
    assert (more.proba < alone.proba - 1e-4).any()
    assert (np.linalg.norm(more.points - at, ORDERS[norm], axis=1) <= 1.5 * (1 + 1e-12)).all()
    assert_array_equal(more.points, again.points)
