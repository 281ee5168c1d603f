"""Doctests of modules that need an extra run only where it is installed."""

from importlib.util import find_spec

RL = ["agents", "algorithm", "baselines", "checkpoint", "envs", "estimator", "history", "policies"]
RL += ["_plan", "film", "runs", "spaces", "training", "worlds"]
NEEDS = {
    "matplotlib": ["skuq/plotting/*", "skuq/datasets/_digits.py"],
    "dgl": [
        "skuq/evidential/classifier.py",
        "skuq/evidential/comparison.py",
        *(f"skuq/evidential/baselines/{name}.py" for name in ("egnn", "ensemble", "gkde", "gpn")),
    ],
    "posteriors": ["skuq/quam/chains.py", "skuq/quam/langevin.py", "skuq/quam/baselines/sgmcmc.py"],
    "stable_baselines3": [
        "tests/uadqn/environments.py",
        *(f"skuq/uadqn/{name}.py" for name in RL),
    ],
}
collect_ignore_glob = [
    path for package, paths in NEEDS.items() if find_spec(package) is None for path in paths
]
