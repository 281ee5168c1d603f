"""A fitted model and a reference set for it."""

import pytest
from sklearn.datasets import make_moons
from sklearn.linear_model import LogisticRegression

X, Y = make_moons(600, noise=0.35, random_state=0)


@pytest.fixture
def model():
    return LogisticRegression().fit(X[:200], Y[:200])


@pytest.fixture
def reference():
    return X[200:], Y[200:]
