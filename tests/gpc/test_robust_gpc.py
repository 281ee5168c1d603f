"""RobustGPC as a user meets it."""

import pickle
import warnings

import numpy as np
import pytest
from scipy.special import ndtr
from sklearn.base import clone
from sklearn.datasets import load_iris, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import (
    RBF,
)
from sklearn.preprocessing import scale

from skuq import RobustGPC

KERNEL = 4.0 * RBF(0.7)
FIXED = {"kernel": KERNEL, "optimizer": None}
BINARY = [(link, method) for link in ("probit", "logit") for method in ("laplace", "ep")]


@pytest.fixture(scope="module")
def moons():
    return make_moons(80, noise=0.2, random_state=0)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return scale(X), y


@pytest.mark.parametrize("n_inducing", [None, 20])
@pytest.mark.parametrize(("likelihood", "inference"), [*BINARY, ("softmax", "laplace")])
def test_two_classes_are_told_apart(moons, likelihood, inference, n_inducing):
    gpc = RobustGPC(
        likelihood=likelihood, inference=inference, n_inducing=n_inducing, random_state=0
    ).fit(*moons)
    fresh = make_moons(200, noise=0.2, random_state=1)
    assert gpc.score(*fresh) > 0.93
    assert gpc.likelihood_ == likelihood
    assert gpc.log_marginal_likelihood_ > -80 * np.log(2)


def test_logit_laplace_agrees_with_scikit_learn(moons):
    X, y = moons
    grid = np.random.default_rng(0).uniform(-2, 3, (50, 2))
    ours = RobustGPC(KERNEL, likelihood="logit", optimizer=None).fit(X, y)
    theirs = GaussianProcessClassifier(KERNEL, optimizer=None).fit(X, y)
    # They stop Newton's method early, and integrate by five error functions.
    np.testing.assert_allclose(ours.predict_proba(grid), theirs.predict_proba(grid), atol=2e-3)
    np.testing.assert_allclose(
        ours.log_marginal_likelihood_, theirs.log_marginal_likelihood(KERNEL.theta), rtol=1e-6
    )


def test_probit_ep_agrees_with_gpy(moons):
    gpy = pytest.importorskip("GPy")
    X, y = moons
    grid = np.random.default_rng(0).uniform(-2, 3, (50, 2))
    kernel = gpy.kern.RBF(2, variance=4.0, lengthscale=0.7)
    theirs = gpy.models.GPClassification(X, y[:, None], kernel=kernel).predict(grid)[0][:, 0]
    ours = RobustGPC(likelihood="probit", inference="ep", **FIXED).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(grid)[:, 1], theirs, atol=1e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_parts_of_uncertainty_are_those_of_sampled_functions(iris, n_classes):
    X, y = iris[0][iris[1] < n_classes], iris[1][iris[1] < n_classes]
    gpc = RobustGPC(**FIXED, likelihood="probit" if n_classes == 2 else "softmax").fit(X, y)
    at = np.r_[X[:3], X[-3:], X[:2] + 2.0]
    mean, covariance = gpc.posterior_.moments(at)
    rng = np.random.default_rng(0)
    u = gpc.predict_uncertainty(at)
    np.testing.assert_allclose(u.total, u.aleatoric + u.epistemic)
    for i in range(len(at)):
        f = rng.multivariate_normal(mean[i], covariance[i], size=100_000)
        if n_classes == 2:
            p = np.c_[ndtr(-f), ndtr(f)]
        else:
            p = np.exp(f - f.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
        average = p.mean(0)
        conditional = -(p * np.log(np.maximum(p, 1e-300))).sum(1).mean()
        np.testing.assert_allclose(gpc.predict_proba(at[i : i + 1])[0], average, atol=5e-3)
        assert u.aleatoric[i] == pytest.approx(conditional, abs=5e-3)
        assert u.total[i] == pytest.approx(-(average * np.log(average)).sum(), abs=5e-3)


@pytest.mark.parametrize(("likelihood", "inference"), [*BINARY, ("softmax", "laplace")])
def test_epistemic_uncertainty_grows_away_from_the_data(moons, likelihood, inference):
    gpc = RobustGPC(likelihood=likelihood, inference=inference, **FIXED).fit(*moons)
    steps = gpc.predict_uncertainty([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 9.0]])
    assert (np.diff(steps.epistemic) > 0).all()
    assert steps.total[-1] == pytest.approx(np.log(2), abs=1e-6)


@pytest.mark.parametrize("n_inducing", [None, 10])
@pytest.mark.parametrize(("likelihood", "inference"), [*BINARY, ("softmax", "laplace")])
def test_weight_two_is_the_sample_twice(moons, likelihood, inference, n_inducing):
    X, y = moons
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    gpc = RobustGPC(
        likelihood=likelihood,
        inference=inference,
        n_inducing=n_inducing,
        max_iter=4,
        random_state=0,
    )
    weighted = clone(gpc).fit(X, y, sample_weight=weight)
    repeated = clone(gpc).fit(X.repeat(weight, axis=0), y.repeat(weight))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(
        weighted.log_marginal_likelihood_, repeated.log_marginal_likelihood_, rtol=1e-6
    )


def test_classes_without_weight_are_not_known(iris):
    gpc = RobustGPC(**FIXED).fit(*iris, sample_weight=(iris[1] != 1).astype(float))
    assert gpc.classes_.tolist() == [0, 2]
    assert gpc.likelihood_ == "probit"
    with pytest.raises(ValueError, match=r"[Zz]ero"):
        RobustGPC(**FIXED).fit(*iris, sample_weight=np.zeros(len(iris[1])))
    with pytest.raises(ValueError, match="one class, 2"):
        RobustGPC(**FIXED).fit(*iris, sample_weight=(iris[1] == 2).astype(float))


def test_fitted_classifier_survives_pickling_also_after_certificates(moons):
    X = moons[0]
    gpc = RobustGPC(**FIXED).fit(*moons)
    before = len(pickle.dumps(gpc))
    certificate = gpc.certify(X[:3], radius=0.05)
    stored = pickle.dumps(gpc)
    assert len(stored) < 1.5 * before
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again.predict_proba(X), gpc.predict_proba(X))
    np.testing.assert_array_equal(again.certify(X[:3], radius=0.05).status, certificate.status)
    refitted = clone(again).fit(*moons)
    np.testing.assert_array_equal(refitted.predict_proba(X), gpc.predict_proba(X))


def test_refitting_forgets_what_was_prepared(moons):
    X, y = moons
    gpc = RobustGPC(**FIXED).fit(X, y)
    first = gpc.certify(X[:2], radius=0.01)
    flipped = gpc.fit(X, 1 - y).certify(X[:2], y=1 - y[:2], radius=0.01)
    np.testing.assert_array_equal(first.status, flipped.status)
    gpc.set_params(likelihood="logit", kernel=RBF(2.0)).fit(X, y)
    assert (gpc.likelihood_, gpc.kernel_) == ("logit", RBF(2.0))


def test_hyperparameters_stay_without_optimizer_and_move_with_it(moons):
    kept = RobustGPC(**FIXED).fit(*moons)
    moved = RobustGPC(KERNEL).fit(*moons)
    assert (kept.kernel_, kept.n_iter_) == (KERNEL, 1)
    assert moved.log_marginal_likelihood_ > kept.log_marginal_likelihood_ + 0.1
    assert clone(KERNEL) == KERNEL  # the user's own kernel is not changed
    assert moved.kernel == 4.0 * RBF(0.7)


def test_default_kernel_does_not_depend_on_units_or_origin(moons):
    X, y = moons
    plain = RobustGPC(max_iter=10).fit(X, y).predict_proba(X)
    for moved in (1e4 * X, 1e-5 * X, X + [100.0, -3000.0]):
        proba = RobustGPC(max_iter=10).fit(moved, y).predict_proba(moved)
        np.testing.assert_allclose(proba, plain, atol=1e-3)


@pytest.mark.parametrize("max_iter", [1, 3])
def test_evaluations_are_limited(moons, max_iter):
    assert RobustGPC(max_iter=max_iter).fit(*moons).n_iter_ == max_iter


def test_restarts_never_lead_to_less(moons):
    poor = RobustGPC(1.0 * RBF(1e-3, (1e-3, 1e2)), max_iter=15, random_state=0)
    alone = clone(poor).fit(*moons)
    more = clone(poor).set_params(n_restarts=2).fit(*moons)
    assert more.log_marginal_likelihood_ >= alone.log_marginal_likelihood_
    assert more.n_iter_ > alone.n_iter_


@pytest.mark.parametrize("n_inducing", [None, 3])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_inputs_that_are_all_the_same_predict_frequencies(n_inducing, n_classes):
    y = np.r_[np.zeros(30), np.arange(1, n_classes)]
    X = np.full((len(y), 2), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpc = RobustGPC(n_inducing=n_inducing, random_state=0).fit(X, y)
        proba = gpc.predict_proba(X)
        elsewhere = gpc.predict_proba([[7.0, -1e5]])
    assert proba[0, 0] > 0.8
    assert np.isfinite(elsewhere).all()


def test_a_covariance_close_to_singular_is_reported_with_the_jitter(moons, monkeypatch):
    # Distances are too precise for a kernel that needs a noticeable jitter: any is noticed here.
    monkeypatch.setattr("skuq.gpc._estimator._NOTED_JITTER", 0.0)
    gpc = RobustGPC(RBF(1.0), optimizer=None, n_inducing=20, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"close to singular: 1e-\d\d of its diagonal"):
        gpc.fit(*moons)


def test_far_points_have_the_prior(iris):
    for likelihood, n_classes in (("probit", 2), ("logit", 2), ("softmax", 3)):
        X, y = iris[0][iris[1] < n_classes], iris[1][iris[1] < n_classes]
        gpc = RobustGPC(likelihood=likelihood, **FIXED).fit(X, y)
        proba = gpc.predict_proba([[1e3] * 4, [-1e9] * 4])
        np.testing.assert_allclose(proba, 1 / n_classes, atol=1e-9)


@pytest.mark.parametrize("n_inducing", [None, 20])
def test_probabilities_do_not_depend_on_far_points_asked_for_with_them(moons, n_inducing):
    X, y = moons
    model = RobustGPC(10.0 * RBF(0.5), optimizer=None, n_inducing=n_inducing, random_state=0)
    model.fit(X, y)
    together = model.predict_proba(np.vstack([X[:5], [[1e9, 0.0]]]))
    np.testing.assert_allclose(together[:5], model.predict_proba(X[:5]), rtol=0, atol=1e-9)
