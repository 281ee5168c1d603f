"""Effects of features: signs, values against a dense grid, and limits."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF

from skuq.gpc._robust_gpc import RobustGPC

from .bounds.oracles import KERNELS, fit_model, probabilities


def by_grid(model, X, gamma, k, domain=None):
    """Largest plus smallest probability to the right, less those to the left."""
    effects = np.zeros(X.shape)
    for j in range(X.shape[1]):
        for i, x in enumerate(X):
            for sign in (1, -1):
                line = np.tile(x, (301, 1))
                line[:, j] += sign * gamma * np.linspace(0, 1, 301)
                if domain is not None:
                    line[:, j] = np.clip(line[:, j], *domain)
                p = probabilities(model, line)[:, k]
                effects[i, j] += sign * (p.max() + p.min())
    return effects


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_effects_are_those_of_a_dense_grid(likelihood):
    rng = np.random.default_rng(0)
    model = fit_model(rng, KERNELS["ard"](2), likelihood)
    X = rng.normal(size=(3, 2))
    for k, label in enumerate(model.classes_):
        found = model.explain(X, 0.5, class_=label, tol=1e-3)
        exact = by_grid(model, X, 0.5, k)
        assert (np.abs(found.local - exact) <= found.error + 1e-4).all()
        assert (found.error <= 4 * 1e-3 / 2 + 1e-9).all()
        np.testing.assert_allclose(found.overall, found.local.mean(axis=0))
    np.testing.assert_allclose(model.explain(X, 0.5, tol=1e-3).local, found.local, atol=1e-9)


def test_monotone_data_give_effects_of_the_gradients_sign():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (60, 3))
    y = (X @ [2.0, -1.0, 0.0] > 0).astype(int)
    model = RobustGPC(4.0 * RBF(3.0), optimizer=None, device="cpu").fit(X, y)
    found = model.explain(X[:5], 0.3)
    assert (found.local[:, 0] > 0).all()
    assert (found.local[:, 1] < 0).all()
    assert (np.abs(found.local[:, 2]) < np.abs(found.local[:, 1])).all()
    assert found.overall[0] > -found.overall[1] > 0


def test_domains_clip_and_other_features_have_no_effect():
    model = fit_model(np.random.default_rng(0), KERNELS["rbf"](2))
    X = np.array([[0.0, 0.1], [0.2, -0.1]])
    found = model.explain(X, 0.5, features=[0], domain=(-0.2, 0.3))
    np.testing.assert_array_equal(found.local[:, 1], 0)
    exact = by_grid(model, X, 0.5, 1, domain=(-0.2, 0.3))
    assert (np.abs(found.local - exact)[:, 0] <= found.error[:, 0] + 1e-4).all()
    border = model.explain(np.array([[-0.2, 0.1]]), 0.5, features=[0], domain=(-0.2, 0.3))
    exact = by_grid(model, np.array([[-0.2, 0.1]]), 0.5, 1, domain=(-0.2, 0.3))
    assert abs(border.local - exact)[0, 0] <= border.error[0, 0] + 1e-4


def test_of_several_classes_the_predicted_one_is_meant():
    model = fit_model(np.random.default_rng(0), KERNELS["rbf"](2), "softmax", n_classes=3)
    X = np.random.default_rng(1).normal(size=(2, 2))
    found = model.explain(X, 0.3, tol=0.01)
    for i, label in enumerate(model.predict(X)):
        one = model.explain(X[i : i + 1], 0.3, class_=label, tol=0.01)
        np.testing.assert_allclose(found.local[i], one.local[0], atol=0.04)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": 0.0}, "gamma"),
        ({"gamma": np.nan}, "finite"),
        ({"gamma": np.inf}, "finite"),
        ({"gamma": 0.1, "class_": "other"}, "`class_` must be one of"),
        ({"gamma": 0.1, "features": [5]}, "2 features"),
        ({"gamma": 0.1, "domain": (1.0, 2.0)}, "outside the domain"),
    ],
)
def test_bad_requests_are_refused(arguments, message):
    model = fit_model(np.random.default_rng(0), KERNELS["rbf"](2))
    with pytest.raises(ValueError, match=message):
        model.explain(np.zeros((1, 2)), **arguments)
