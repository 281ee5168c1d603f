"""Bounds for many classes by pairs, against brute force."""

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax

from skuq.gpc.bounds._expansion import Expander
from skuq.gpc.bounds._pairs import LEAST, PairsLink

from .oracles import KERNELS, fit_model, grid, moments, sample

CPU = torch.device("cpu")
NODES, MASSES = np.polynomial.hermite_e.hermegauss(80)
MASSES = MASSES / MASSES.sum()


def pairs_oracle(kind, own, mean, covariance):
    """Values of `PairsLink` by another quadrature, one point at a time."""
    values = []
    for mu, sigma in zip(mean, covariance, strict=True):
        leads = np.delete(np.eye(len(mu))[own] - np.eye(len(mu)), own, axis=0)
        spread = leads @ sigma @ leads.T
        deviation = np.sqrt(np.maximum(np.diag(spread), 0))
        s = expit((leads @ mu)[:, None] + deviation[:, None] * NODES) @ MASSES
        lower = 1 - (1 - s).sum()
        if (spread >= 0).all():
            lower = max(lower, s.prod())
        value = {"margin": lower - (1 - s).max(), "smallest": lower - 1, "largest": -s.min()}
        values.append(max(value[kind], -1.0))
    return np.array(values)


@pytest.fixture(scope="module", params=[(4, {}), (6, {"n_inducing": 15})], ids=["exact", "sparse"])
def model(request):
    n_classes, parameters = request.param
    rng = np.random.default_rng(n_classes)
    return fit_model(rng, KERNELS["rbf"](2), "softmax", n=40, n_classes=n_classes, **parameters)


@pytest.mark.parametrize("kind", ["margin", "smallest", "largest"])
@pytest.mark.parametrize("half", [1e-3, 0.05, 0.3])
def test_no_value_in_a_box_is_below_its_bound(model, kind, half):
    rng = np.random.default_rng(0)
    latent = model._probability_model().latent
    n_classes = len(model.classes_)
    link = PairsLink(kind, n_classes, latent.kernel.variance * (1 + latent.varsigma), CPU)
    centers = model.posterior_.inputs[:8] + 0.2 * rng.normal(size=(8, 2))
    own = rng.integers(n_classes, size=8)
    base = torch.as_tensor(centers)
    expander = Expander(latent, base, torch.arange(2))
    objective = LEAST * torch.eye(n_classes).double()[own]
    expansion = expander.expand(base - half, base + half, torch.arange(8))
    bound = link.minimum(objective, expansion, torch.zeros(8).double(), None).bound.numpy()
    gaps = []
    for i, center in enumerate(centers):
        tried = np.concatenate([center[None], center + half * rng.uniform(-1, 1, (200, 2))])
        values = pairs_oracle(kind, own[i], *moments(model.posterior_, tried))
        assert (bound[i] <= values + 1e-7).all()
        gaps.append(values.min() - bound[i])
        at = torch.as_tensor(tried)
        evaluation = Expander(latent, at, torch.arange(2)).evaluate(at, torch.arange(len(at)))
        found = link.evaluate(objective[[i] * len(at)], evaluation.mean, evaluation.covariance)
        np.testing.assert_allclose(found.value, values, atol=1e-6)
    assert max(gaps) < (0.01 if half < 0.01 else 1.5)


def test_values_by_pairs_are_below_what_they_stand_for():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(100_000, 5))
    for deviation in (0.3, 2.0, 10.0):
        root = rng.normal(size=(6, 5, 5)) * deviation / 2 + deviation * np.eye(5)
        mean = rng.normal(size=(6, 5)) * deviation
        mean[:, 0] += 2 * deviation
        covariance = root @ root.swapaxes(1, 2)
        for i in range(6):
            proba = softmax(mean[i] + z @ root[i].T, axis=-1).mean(axis=0)
            for own in range(5):
                found = {
                    kind: pairs_oracle(kind, own, mean[i : i + 1], covariance[i : i + 1])[0]
                    for kind in ("margin", "smallest", "largest")
                }
                rivals = np.delete(proba, own).max()
                assert found["margin"] <= proba[own] - rivals + 6e-3
                assert found["smallest"] <= proba[own] - 1 + 6e-3
                assert found["largest"] <= -proba[own] + 6e-3


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_safe_regions_hold_no_other_prediction_and_unsafe_ones_do(model, norm):
    rng = np.random.default_rng(2)
    X = model.posterior_.inputs[:8]
    labels = model.predict(X)
    seen = set()
    for radius in (1e-3, 0.6):
        found = model.certify(X, radius=radius, norm=norm, max_regions=20)
        seen |= set(found.status)
        for i, x in enumerate(X):
            tried = sample(rng, x, x - radius, x + radius, 40, radius, norm)
            changed = model.predict(tried) != labels[i]
            if found.status[i] == "safe":
                assert not changed.any()
            if found.status[i] == "unsafe":
                point = found.counterexample[i]
                order = {"linf": np.inf, "l2": 2}[norm]
                assert np.linalg.norm(point - x, ord=order) <= radius * (1 + 1e-9)
                assert model.predict(point[None])[0] != labels[i]
    assert {"safe", "unsafe"} <= seen
    wrong = (labels + 1) % len(model.classes_)
    assert (model.certify(X, wrong, radius=1e-3).status == "unsafe").all()


def test_ranges_by_pairs_hold_all_probabilities(model):
    X, radius = model.posterior_.inputs[:3], 0.05
    found = model.predict_proba_bounds(X, radius, tol=0.05, max_regions=20)
    for i, x in enumerate(X):
        proba = model.predict_proba(grid(x - radius, x + radius, 7))
        assert (found.min_lower[i] <= proba + 5e-3).all()
        assert (proba <= found.max_upper[i] + 5e-3).all()
    assert (found.min_lower <= found.min_upper).all()
    assert (found.max_lower <= found.max_upper).all()
    assert (found.min_lower.max(axis=1) > 0).any()
    one = model.predict_proba_bounds(X, radius, class_=model.classes_[1], max_regions=20)
    np.testing.assert_allclose(one.max_upper[:, 0], found.max_upper[:, 1], atol=0.06)


def test_radii_are_certified_for_many_classes(model):
    X = model.posterior_.inputs[:4]
    found = model.certified_radius(X, max_radius=0.5, precision=0.05, max_regions=20)
    assert (found.lower <= found.upper).all()
    assert (found.lower > 0).any()


def test_what_needs_all_classes_jointly_says_so(model):
    X = model.posterior_.inputs[:1]
    with pytest.raises(ValueError, match="at most 3 classes"):
        model.certify(X, radius=0.1, delta=0.1)
    with pytest.raises(ValueError, match="at most 3 classes"):
        model.explain(X, 0.1)
