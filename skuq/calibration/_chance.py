"""Calibration errors by chance: simulations, always with the same seed."""

from __future__ import annotations

import numpy as np

from skuq.base import FloatArray
from skuq.calibration._scan import SEED
from skuq.calibration._sums import BinSums

N_SIMULATIONS = 2000


def ece_under_calibration(sums: BinSums) -> FloatArray:
    """Simulate the ECE that a perfectly calibrated model shows on as many samples.

    Parameters
    ----------
    sums : BinSums
        Integer sums per bin.

    Returns
    -------
    ndarray of shape (2000,), float64
        Simulated expected calibration errors.
    """
    filled = sums.count > 0
    count, confidence = sums.count[filled], sums.mean_confidence[filled].clip(0, 1)
    correct = np.random.default_rng(SEED).binomial(
        count, confidence, size=(N_SIMULATIONS, len(count))
    )
    return np.abs(correct - count * confidence).sum(axis=1) / count.sum()


def ece_bootstrap(sums: BinSums) -> FloatArray:
    """Draw expected calibration errors of reference sets like this one.

    Parameters
    ----------
    sums : BinSums
        Integer sums per bin.

    Returns
    -------
    ndarray of shape (2000,), float64
        Calibration errors of bootstrap samples. Sizes and accuracies of the bins vary, their
        mean confidences do not.
    """
    filled = sums.count > 0
    total, confidence = sums.count.sum(), sums.mean_confidence[filled]
    share = sums.count[filled] / total
    rng = np.random.default_rng(SEED)
    count = rng.multinomial(total, share / share.sum(), size=N_SIMULATIONS)
    correct = rng.binomial(count, sums.accuracy[filled])
    return np.abs(correct - count * confidence).sum(axis=1) / total
