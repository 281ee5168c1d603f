"""RobustGPC as a user meets it."""

import pickle
import time
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Matern,
    RationalQuadratic,
)
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from skuq import RobustGPC, predict_uncertainty

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


def test_more_classes_are_told_apart(iris):
    assert RobustGPC(max_iter=15).fit(*iris).score(*iris) > 0.94
    X, y = load_digits(return_X_y=True)
    ten = RobustGPC(max_iter=4).fit(X[:200], y[:200])
    assert ten.score(X[200:500], y[200:500]) > 0.75
    assert ten.predict_proba(X[:2]).shape == (2, 10)


def test_extreme_hyperparameters_do_not_stop_a_sparse_search():
    X, y = make_moons(100, noise=0.1, random_state=0)
    gpc = RobustGPC(likelihood="logit", inference="ep", n_inducing=20, random_state=0).fit(X, y)
    assert gpc.score(X, y) > 0.97


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


def test_labels_and_column_names_are_the_users(iris):
    frame = pd.DataFrame(iris[0], columns=["a", "b", "c", "d"])
    names = np.array(["virginica", "setosa", "versicolor"])[iris[1]]
    gpc = RobustGPC(**FIXED).fit(frame, pd.Series(names))
    plain = RobustGPC(**FIXED).fit(*iris)
    assert gpc.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert gpc.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert gpc.score(frame, names) == plain.score(*iris)
    np.testing.assert_allclose(
        gpc.predict_proba(frame)[:, [2, 0, 1]], plain.predict_proba(iris[0]), atol=1e-8
    )
    with pytest.raises(ValueError, match="feature names"):
        gpc.predict(frame.rename(columns={"a": "z"}))


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


def test_search_over_kernels_and_pipelines_quantify(iris):
    X, y = iris[0][iris[1] > 0] * [1, 10, 100, 1000], iris[1][iris[1] > 0]
    pipe = make_pipeline(StandardScaler(), RobustGPC(max_iter=5))
    kernels = [None, Matern(1.0, nu=1.5), RationalQuadratic() + ConstantKernel(1.0)]
    search = GridSearchCV(pipe, {"robustgpc__kernel": kernels}, cv=2).fit(X, y)
    assert search.best_score_ > 0.85
    u = predict_uncertainty(search, X[:3])
    assert u.total.shape == (3,)
    alone = pipe.set_params(**search.best_params_).fit(X, y)
    np.testing.assert_array_equal(u.total, predict_uncertainty(alone, X[:3]).total)


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


def test_inducing_points_make_large_data_quick():
    X, y = make_moons(3000, noise=0.2, random_state=0)
    start = time.perf_counter()
    gpc = RobustGPC(n_inducing=30, max_iter=10, random_state=0).fit(X, y)
    assert time.perf_counter() - start < 15  # the exact model takes minutes
    assert gpc.posterior_.inputs.shape == (30, 2)
    assert gpc.score(*make_moons(500, noise=0.2, random_state=1)) > 0.95


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


def test_uncomputable_start_is_an_error_with_advice(moons):
    start = ConstantKernel(1e300, "fixed") * ConstantKernel(1e300, "fixed") * RBF()
    for optimizer in ("lbfgs", None):
        with pytest.raises(
            ValueError, match="Scale the features, or choose initial hyperparameters"
        ):
            RobustGPC(start, optimizer=optimizer).fit(*moons)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"likelihood": "student"}, "'likelihood' parameter"),
        ({"inference": "mcmc"}, "'inference' parameter"),
        ({"optimizer": "adam"}, "'optimizer' parameter"),
        ({"max_iter": 0}, "'max_iter' parameter"),
        ({"n_restarts": -1}, "'n_restarts' parameter"),
        ({"n_inducing": 0}, "'n_inducing' parameter"),
        ({"kernel": "rbf"}, "'kernel' parameter"),
        ({"device": "quantum"}, "cannot be used here"),
        ({"likelihood": "softmax", "inference": "ep"}, "use inference='laplace'"),
        ({"inference": "ep"}, "use inference='laplace'"),
        ({"likelihood": "probit"}, "3 classes; use likelihood='softmax'"),
        ({"likelihood": "logit"}, "3 classes; use likelihood='softmax'"),
        ({"kernel": DotProduct()}, "made of RBF, Matern with .* got DotProduct"),
        ({"kernel": Matern(nu=0.5)}, r"nu=1\.5 or nu=2\.5, got nu=0\.5"),
        ({"kernel": RBF([1.0, 2.0])}, "2 length scales, but the inputs have 4 features"),
    ],
)
def test_what_cannot_be_used_is_refused_in_fit(iris, params, message):
    with pytest.raises(ValueError, match=message):
        RobustGPC(**params).fit(*iris)


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


def test_global_random_state_is_left_alone(moons):
    np.random.seed(5)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    RobustGPC(n_inducing=5, max_iter=2, n_restarts=1, random_state=0).fit(*moons).predict(moons[0])
    np.testing.assert_array_equal(state, np.random.get_state()[1])  # noqa: NPY002
