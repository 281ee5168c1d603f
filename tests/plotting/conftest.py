"""Figures are closed after each test."""

import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def plt():
    pyplot.close("all")
    yield pyplot
    pyplot.close("all")
