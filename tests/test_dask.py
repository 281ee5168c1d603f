"""Work on a Dask cluster of two processes gives what one process gives."""

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.gaussian_process.kernels import RBF
from sklearn.preprocessing import scale

from skuq import QUAMClassifier, RobustGPC
from skuq.quam import PointwiseSearch

distributed = pytest.importorskip("distributed")
X, y = load_iris(return_X_y=True)
X = scale(X)


@pytest.fixture(scope="module")
def on_cluster():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        yield lambda: joblib.parallel_config(backend="dask")


def test_adversarial_models_are_searched(on_cluster):
    quam = QUAMClassifier(search=PointwiseSearch(n_steps=6), random_state=0).fit(X, y)
    serial = quam.predict_uncertainty(X[:30])
    with on_cluster():
        found = quam.set_params(n_jobs=2).predict_uncertainty(X[:30])
    np.testing.assert_allclose(found.epistemic, serial.epistemic, rtol=1e-12)


def test_regions_are_certified(on_cluster):
    gpc = RobustGPC(4.0 * RBF(0.8), optimizer=None).fit(X[:100:4], y[:100:4])
    serial = gpc.certify(X[:70], radius=0.1)
    with on_cluster():
        found = gpc.set_params(n_jobs=2).certify(X[:70], radius=0.1)
    np.testing.assert_array_equal(found.status, serial.status)
    np.testing.assert_allclose(found.margin_lower, serial.margin_lower, atol=1e-9)
