"""Fixtures that tests of tables share."""

import pytest

from skuq.tables._training import LEARNERS


@pytest.fixture
def small_learners(monkeypatch, few_trees):
    """Forests have 10 trees, and boosting 10 iterations: for tests of behaviour."""
    for name, few in (("forest", {"n_estimators": 10}), ("hgb", {"max_iter": 10})):

        def make(*given, usual=LEARNERS[name].make, few=few):
            return usual(*given).set_params(**few)

        monkeypatch.setitem(LEARNERS, name, LEARNERS[name]._replace(make=make))
