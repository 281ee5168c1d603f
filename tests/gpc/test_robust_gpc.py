"""RobustGPC as a user meets it."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import ndtr, softmax
from sklearn.base import clone
from sklearn.datasets import load_iris, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern
from sklearn.preprocessing import scale

from skuq import RobustGPC
from skuq.gpc import _estimator

KERNEL = 4.0 * RBF(0.7)
FIXED = {"kernel": KERNEL, "optimizer": None}
METHODS = [
    *(("probit", "laplace", None), ("logit", "laplace", 12), ("probit", "ep", 12)),
    *(("logit", "ep", None), ("softmax", "laplace", None), ("softmax", "laplace", 12)),
]
X, Y = make_moons(60, noise=0.2, random_state=0)
IRIS = scale(load_iris().data)[::3], load_iris().target[::3]


@pytest.mark.parametrize(("likelihood", "inference", "n_inducing"), METHODS)
def test_classes_are_told_apart_and_weight_two_is_two_samples(likelihood, inference, n_inducing):
    gpc = RobustGPC(likelihood=likelihood, inference=inference, n_inducing=n_inducing)
    gpc.set_params(max_iter=8, random_state=0).fit(X, Y)
    assert gpc.score(*make_moons(200, noise=0.2, random_state=1)) > 0.93
    assert gpc.likelihood_ == likelihood
    assert gpc.log_marginal_likelihood_ > -60 * np.log(2)
    # Epistemic uncertainty grows away from the data.
    steps = gpc.predict_uncertainty([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 99.0]])
    assert (np.diff(steps.epistemic) > 0).all()
    assert steps.total[-1] == pytest.approx(np.log(2), abs=1e-6)
    weight = np.random.default_rng(0).integers(0, 3, len(Y))
    gpc.set_params(max_iter=3)
    weighted = clone(gpc).fit(X, Y, sample_weight=weight)
    repeated = clone(gpc).fit(X.repeat(weight, axis=0), Y.repeat(weight))
    assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-5)
    values = [each.log_marginal_likelihood_ for each in (weighted, repeated)]
    assert_allclose(*values, rtol=1e-6)


def test_logit_laplace_agrees_with_scikit_learn():
    grid = np.random.default_rng(0).uniform(-2, 3, (50, 2))
    ours = RobustGPC(**FIXED, likelihood="logit").fit(X, Y)
    theirs = GaussianProcessClassifier(**FIXED).fit(X, Y)
    # They stop Newton's method early, and integrate by five error functions.
    assert_allclose(ours.predict_proba(grid), theirs.predict_proba(grid), atol=2e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_parts_of_uncertainty_are_those_of_sampled_functions(n_classes):
    inputs, y = (part[IRIS[1] < n_classes] for part in IRIS)
    gpc = RobustGPC(**FIXED, likelihood="probit" if n_classes == 2 else "softmax").fit(inputs, y)
    at = np.r_[inputs[:1], inputs[-1:], inputs[:1] + 2.0]
    rng, u = np.random.default_rng(0), gpc.predict_uncertainty(at)
    assert_allclose(u.total, u.aleatoric + u.epistemic)
    for i, moments in enumerate(zip(*gpc.posterior_.moments(at), strict=True)):
        f = rng.multivariate_normal(*moments, size=100_000)
        p = np.c_[ndtr(-f), ndtr(f)] if n_classes == 2 else softmax(f, axis=1)
        average = p.mean(0)
        conditional = -(p * np.log(np.maximum(p, 1e-300))).sum(1).mean()
        assert_allclose(gpc.predict_proba(at[i : i + 1])[0], average, atol=5e-3)
        assert u.aleatoric[i] == pytest.approx(conditional, abs=5e-3)
        assert u.total[i] == pytest.approx(-(average * np.log(average)).sum(), abs=5e-3)
    far = gpc.predict_proba([[1e3] * 4, [-1e9] * 4])  # far points have the prior
    assert_allclose(far, 1 / n_classes, atol=1e-9)


def test_classes_without_weight_are_not_known():
    gpc = RobustGPC(**FIXED).fit(*IRIS, sample_weight=(IRIS[1] != 1).astype(float))
    assert (gpc.classes_.tolist(), gpc.likelihood_) == ([0, 2], "probit")
    for weight in (np.zeros(50), (IRIS[1] == 2).astype(float)):
        with pytest.raises(ValueError, match=r"[Zz]ero|one class"):
            RobustGPC(**FIXED).fit(*IRIS, sample_weight=weight)


def test_certificates_are_not_pickled_and_refitting_forgets_them():
    gpc = RobustGPC(**FIXED).fit(X, Y)
    before = len(pickle.dumps(gpc))
    first = gpc.certify(X[:3], radius=0.05).status
    stored = pickle.dumps(gpc)
    assert len(stored) < 1.5 * before
    again = pickle.loads(stored)
    assert_array_equal(again.certify(X[:3], radius=0.05).status, first)
    flipped = gpc.fit(X, 1 - Y).certify(X[:3], y=1 - Y[:3], radius=0.05).status
    assert_array_equal(flipped, again.certify(X[:3], y=Y[:3], radius=0.05).status)


def test_hyperparameters_move_with_an_optimizer_only_and_not_with_the_origin():
    kept, moved = (RobustGPC(KERNEL, optimizer=each).fit(X, Y) for each in (None, "lbfgs"))
    assert (kept.kernel_, kept.n_iter_) == (KERNEL, 1)
    assert moved.log_marginal_likelihood_ > kept.log_marginal_likelihood_ + 0.1
    assert moved.kernel == 4.0 * RBF(0.7)  # the user's own kernel is not changed
    assert RobustGPC(max_iter=3).fit(X, Y).n_iter_ == 3
    plain = RobustGPC(max_iter=10).fit(X, Y).predict_proba(X)
    there = X + [100.0, -3000.0]
    assert_allclose(RobustGPC(max_iter=10).fit(there, Y).predict_proba(there), plain, atol=1e-3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("n_inducing", "n_classes"), [(None, 2), (3, 2), (None, 3), (3, 3)])
def test_inputs_that_are_all_the_same_predict_frequencies(n_inducing, n_classes):
    y = np.r_[np.zeros(30), np.arange(1, n_classes)]
    same = np.full((len(y), 2), 0.1)
    gpc = RobustGPC(n_inducing=n_inducing, random_state=0).fit(same, y)
    assert gpc.predict_proba(same)[0, 0] > 0.8
    assert np.isfinite(gpc.predict_proba([[7.0, -1e5]])).all()


def test_a_covariance_close_to_singular_is_reported_with_the_jitter(monkeypatch):
    # Distances are too precise for a kernel that needs a noticeable jitter: any is noticed here.
    monkeypatch.setattr(_estimator, "_NOTED_JITTER", 0.0)
    with pytest.warns(ConvergenceWarning, match=r"singular: 1e-\d\d"):
        RobustGPC(RBF(1.0), optimizer=None, n_inducing=20, random_state=0).fit(X, Y)


@pytest.mark.parametrize("inference", ["laplace", "ep"])
def test_a_fit_that_does_not_fit_into_memory_is_refused_with_advice(monkeypatch, inference):
    gpc = RobustGPC(max_iter=1, inference=inference)
    needed = _estimator.exact_fit_bytes(60, 2, KERNEL)
    monkeypatch.setattr(_estimator, "available_memory", lambda: needed - 1)
    with pytest.raises(MemoryError, match="n_inducing"):
        gpc.fit(X, Y)
    gpc.set_params(n_inducing=5).fit(X, Y)
    monkeypatch.setattr(_estimator, "available_memory", lambda: needed)
    gpc.set_params(n_inducing=None).fit(X, Y)


def test_memory_grows_with_rows_matrices_and_kernels():
    small = _estimator.exact_fit_bytes(1000, 2, RBF())
    assert 8e6 * 5 < small < 8e6 * 12  # five to twelve matrices
    assert _estimator.exact_fit_bytes(2000, 2, RBF()) == 4 * small
    assert _estimator.exact_fit_bytes(1000, 2, ConstantKernel() * RBF()) == small
    assert _estimator.exact_fit_bytes(1000, 2, RBF() + Matern(nu=1.5)) > small
    assert _estimator.exact_fit_bytes(1000, 9, RBF()) > small


@pytest.mark.filterwarnings("error::UserWarning", "ignore::RuntimeWarning")
def test_features_on_different_scales_are_pointed_out(capsys):
    inputs, y = IRIS[0] * [1, 1, 1e4, 1], IRIS[1]
    with pytest.warns(UserWarning, match="Feature 2 .*StandardScaler"):
        RobustGPC(max_iter=1).fit(inputs, y)
    for kernel, given in ((RBF(np.ones(4)), inputs), (None, IRIS[0]), (None, inputs[:, 2:3])):
        RobustGPC(kernel, max_iter=1, n_inducing=5, random_state=0).fit(given, y)
    assert capsys.readouterr().err == ""
    RobustGPC(max_iter=2, verbose=1).fit(*IRIS)
    assert "log_evidence" in capsys.readouterr().err
