"""Data that several files of these tests share."""

import pytest
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale


@pytest.fixture(scope="session")
def iris():
    X, y = load_iris(return_X_y=True)
    return scale(X)[::2], y[::2]
