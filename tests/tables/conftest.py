"""Fixtures that tests of tables share."""

import pytest

from skuq.tables._training import Learner
from tests.tables.toy import made, of_unaltered


@pytest.fixture
def train():
    return made()


@pytest.fixture
def table(train):
    return train.drop(columns="kind").head(7)


@pytest.fixture(scope="session")
def plain():
    return of_unaltered()


@pytest.fixture
def small_learners(monkeypatch, few_trees):
    """Forests have 10 trees, and boosting 10 iterations: for tests of behaviour."""
    few, usual = {"forest": {"n_estimators": 10}, "hgb": {"max_iter": 10}}, Learner.model

    def model(self, y):
        made = usual(self, y)
        return made.set_params(**few[self.name]) if self.name in few else made

    monkeypatch.setattr(Learner, "model", model)
