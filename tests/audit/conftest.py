"""A fitted model and a reference set for it."""

import pytest
from sklearn.datasets import make_moons
from sklearn.linear_model import LogisticRegression


@pytest.fixture(scope="module")
def moons():
    X, y = make_moons(600, noise=0.35, random_state=0)
    return X, y


@pytest.fixture(scope="module")
def model(moons):
    return LogisticRegression().fit(moons[0][:200], moons[1][:200])


@pytest.fixture(scope="module")
def reference(moons):
    return moons[0][200:], moons[1][200:]
