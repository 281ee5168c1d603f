"""Fixtures that tests of several packages share."""

import sys
from dataclasses import replace

import pytest


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory):
    """Nothing is written to the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def short_training(monkeypatch):
    """Default networks are trained for a quarter of their epochs: for tests of behaviour."""
    training = sys.modules[pytest.importorskip("skuq.networks").train.__module__]
    for name in ("CLASSIFIER", "REGRESSOR"):
        settings = getattr(training, name)
        short = replace(settings, max_epochs=settings.max_epochs // 4)
        monkeypatch.setattr(training, name, short)
