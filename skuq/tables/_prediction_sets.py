"""Conformal prediction sets, from the scores of held-out rows of a table.

Held-out rows and new rows of the same distribution are exchangeable, so that a quantile of the
scores of the former bounds that of the latter, whatever the model (Vovk, Gammerman, Shafer,
"Algorithmic Learning in a Random World", Springer 2005). Functions take scores only, so that what
a saved model needs is one array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skuq.base import BoolArray, FloatArray, IntArray


def set_scores(proba: FloatArray, codes: IntArray) -> FloatArray:
    """One minus the probability of each row's class; (n_rows,)."""
    scores: FloatArray = 1 - proba[np.arange(len(codes)), codes]
    return scores


def prediction_sets(proba: FloatArray, limit: float) -> BoolArray:
    """Classes not excluded at a limit, and the most probable one; (n_rows, n_classes).

    Sadinle, Lei, Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels",
    Journal of the American Statistical Association 114, 2019.
    """
    inside: BoolArray = 1 - proba <= limit
    inside[np.arange(len(proba)), proba.argmax(axis=1)] = True
    return inside


def halves(n: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two random halves of rows: what one calibrates is measured on the other."""
    order = np.random.default_rng(seed).permutation(n)
    return order[: n // 2], order[n // 2 :]
