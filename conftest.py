"""Doctests of modules that need an extra run only where it is installed."""

import gc
from importlib.util import find_spec

import pytest
from _pytest.doctest import DoctestModule

pytest_plugins = ["tests.tiers"]

RL = ["_algorithm", "_envs", "_estimator", "_policies", "_training"]
NEEDS = {
    "matplotlib": ["skuq/plotting/*", "skuq/datasets/__init__.py"],
    "posteriors": ["skuq/baselines/_sgmcmc.py"],
    "stable_baselines3": [
        "tests/uadqn/environments.py",
        *(f"skuq/uadqn/{name}.py" for name in RL),
    ],
}
collect_ignore_glob = [
    path for package, paths in NEEDS.items() if find_spec(package) is None for path in paths
]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let the garbage collector pass over modules and tests: all of them stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Search modules for doctests only where there are examples: it takes a while for each."""
    found = yield
    if file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8"):
        return found
    return [each for each in found if not isinstance(each, DoctestModule)]
