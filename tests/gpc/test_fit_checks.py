"""Checks before a fit: memory that it takes, and scales of the features."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from skuq import RobustGPC
from skuq.gpc import _estimator


@pytest.fixture
def iris():
    return load_iris(return_X_y=True)


@pytest.mark.parametrize("parameters", [{}, {"inference": "ep"}])
def test_a_fit_that_does_not_fit_into_memory_is_refused_with_advice(iris, monkeypatch, parameters):
    X, y = (part[iris[1] > 0] for part in iris)
    gpc = RobustGPC(max_iter=1, **parameters)
    needed = _estimator.exact_fit_bytes(len(X), 2, ConstantKernel() * RBF())
    monkeypatch.setattr(_estimator, "available_memory", lambda: needed - 1)
    with pytest.raises(MemoryError, match=r"100 rows.*GB.*n_inducing=200"):
        gpc.fit(X, y)
    gpc.set_params(n_inducing=5).fit(X, y)
    monkeypatch.setattr(_estimator, "available_memory", lambda: needed)
    gpc.set_params(n_inducing=None).fit(X, y)


def test_memory_grows_with_rows_matrices_and_kernels():
    small = _estimator.exact_fit_bytes(1000, 2, RBF())
    assert 8e6 * 5 < small < 8e6 * 12  # five to twelve matrices
    assert _estimator.exact_fit_bytes(2000, 2, RBF()) == 4 * small
    assert _estimator.exact_fit_bytes(1000, 2, 2.0 * RBF() + Matern(nu=1.5)) > small
    assert _estimator.exact_fit_bytes(1000, 9, RBF()) > small


def test_features_on_different_scales_are_pointed_out(iris):
    X, y = iris[0] * [1, 1, 1e4, 1], iris[1]
    with pytest.warns(UserWarning, match="Feature 2 .*StandardScaler"):
        RobustGPC(max_iter=1).fit(X, y)
    for kernel, inputs in ((RBF(np.ones(4)), X), (None, iris[0]), (None, X[:, 2:3])):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            warnings.simplefilter("ignore", RuntimeWarning)
            RobustGPC(kernel, max_iter=1, n_inducing=5, random_state=0).fit(inputs, y)


def test_a_fit_shows_its_progress_if_asked_to(iris, capsys):
    RobustGPC(max_iter=2, verbose=1).fit(*iris)
    assert "log_evidence" in capsys.readouterr().err
    RobustGPC(max_iter=2).fit(*iris)
    assert capsys.readouterr().err == ""
