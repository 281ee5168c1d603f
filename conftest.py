"""Which doctests run, which tests share a worker, and in which order.

Doctests of modules that need an extra run only where it is installed.
"""

import gc
from collections import Counter
from importlib.util import find_spec

import pytest
from _pytest.doctest import DoctestModule

RL = ["_algorithm", "_envs", "_estimator", "_history", "_policies"]
NEEDS = {
    "matplotlib": ["skuq/plotting/*", "skuq/datasets/_generated.py"],
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


def scope_of(nodeid):
    """Tests that go to one worker: those of a file, or of `tests/zk`, which share their proofs."""
    return "tests/zk" if nodeid.startswith("tests/zk/") else nodeid.partition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Let workers begin with what takes longest: one long test at the end would be alone."""
    if not hasattr(config, "workerinput"):
        return
    weight = Counter()
    for item in items:
        weight[scope_of(item.nodeid)] += 20 if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -weight[scope_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Divide tests by `scope_of`, in their order."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return scope_of(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)
