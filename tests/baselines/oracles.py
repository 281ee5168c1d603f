"""Equations written out, networks to apply them to, and a stand-in for processes."""

import pickle

import numpy as np
import torch


def assert_as_by_hand(u, reference, samples, setting, **tolerances):
    """Compare uncertainty with the equations; a score without parts has none."""
    if setting == "max-score":
        np.testing.assert_allclose(u.total, 1 - samples.mean(1).max(-1), **tolerances)
        assert np.isnan([u.aleatoric, u.epistemic]).all()
        return
    aleatoric, epistemic = by_hand(reference, samples, setting)
    np.testing.assert_allclose(u.aleatoric, aleatoric, **tolerances)
    np.testing.assert_allclose(u.epistemic, epistemic, **tolerances)


def by_hand(reference, samples, setting):
    """Parts from probabilities (n_points, n_classes) and (n_points, n_members, n_classes)."""
    if setting == "selected":
        aleatoric = -(reference * np.log(reference)).sum(-1)
        ratio = np.log(reference[:, None] / samples)
        return aleatoric, (reference[:, None] * ratio).sum(-1).mean(1)
    aleatoric = -(samples * np.log(samples)).sum(-1).mean(1)
    if setting == "pairwise":
        ratio = np.log(samples[:, :, None] / samples[:, None])
        return aleatoric, (samples[:, :, None] * ratio).sum(-1).mean((1, 2))
    mean = samples.mean(1)
    return aleatoric, -(mean * np.log(mean)).sum(-1) - aleatoric


def seeded_module(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build().eval()


class PickledJobs:
    """Stands for joblib's processes: jobs arrive pickled and run in any order."""

    def __init__(self, n_jobs):
        assert n_jobs == 2

    def __call__(self, jobs):
        results = {}
        for number, job in reversed(list(enumerate(jobs))):
            function, args, kwargs = pickle.loads(pickle.dumps(job))
            results[number] = pickle.loads(pickle.dumps(function(*args, **kwargs)))
        return [results[number] for number in sorted(results)]
