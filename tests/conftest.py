"""Fixtures that tests of several packages share."""

import os
import sys
from dataclasses import replace

import pytest

if kind := os.environ.get("PRETEND_DEVICE"):
    from tests import pretend_device

    try:
        pretend_device.install(kind)
    except OSError as error:  # no compiler
        print(f"Tests of a GPU are skipped: {error}.", file=sys.stderr)


@pytest.fixture
def few_trees(monkeypatch):
    """Noise of regressors is learnt by five trees instead of 100: for tests of behaviour."""
    monkeypatch.setattr("skuq.residuals.N_TREES", 5)


@pytest.fixture
def short_training(monkeypatch, few_trees):
    """Default networks are trained for a quarter of their epochs, and noise by few trees."""
    training = sys.modules[pytest.importorskip("skuq._networks").train.__module__]
    for name in ("CLASSIFIER", "REGRESSOR"):
        settings = getattr(training, name)
        short = replace(settings, max_epochs=settings.max_epochs // 4)
        monkeypatch.setattr(training, name, short)


@pytest.fixture
def bytes_of_a_tensor(monkeypatch):
    """Lets tensors of networks take so many bytes, as where memory is short."""
    devices = sys.modules[pytest.importorskip("skuq._networks").within_memory.__module__]
    return lambda n_bytes: monkeypatch.setattr(devices, "_CACHED_BYTES", n_bytes)


@pytest.fixture
def watched():
    """What counts kernels and copies: only a pretended device tells."""
    kind = os.environ.get("PRETEND_DEVICE")
    if not kind:
        pytest.skip("needs a pretended device")
    return lambda: pretend_device.watch(kind)
