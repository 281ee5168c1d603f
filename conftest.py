"""Which doctests run, and which tests share a worker.

Doctests of modules that need an extra run only where it is installed.
"""

from importlib.util import find_spec

import pytest

RL = [
    "_algorithm",
    "_baselines",
    "_checkpoint",
    "_envs",
    "_estimator",
    "_film",
    "_policies",
    "_run_configs",
    "_runs",
]
NEEDS = {
    "matplotlib": ["skuq/plotting/*", "skuq/datasets/_files.py"],
    "posteriors": ["skuq/baselines/_chains.py", "skuq/baselines/_sgmcmc.py"],
    "stable_baselines3": [
        "tests/uadqn/environments.py",
        *(f"skuq/uadqn/{name}.py" for name in RL),
    ],
}
collect_ignore_glob = [
    path for package, paths in NEEDS.items() if find_spec(package) is None for path in paths
]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give the files of `tests/zk`, which share one run of the protocol, to one worker."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            shared = "tests/zk"
            return shared if nodeid.startswith(f"{shared}/") else super()._split_scope(nodeid)

    return Scheduling(config, log)
