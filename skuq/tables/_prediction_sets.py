"""Conformal prediction sets from the scores of held-out rows.

Held-out rows and new rows from the same distribution are exchangeable. A quantile of the held-out
scores therefore bounds the score of a new row with known probability, for any model (Vovk,
Gammerman, Shafer, "Algorithmic Learning in a Random World", Springer 2005). The functions need only
the scores, so a saved model contains only a single array for this purpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skuq.base import BoolArray, FloatArray, IntArray


def set_scores(proba: FloatArray, codes: IntArray) -> FloatArray:
    """One minus the predicted probability of each row's true class; (n_rows,)."""
    scores: FloatArray = 1 - proba[np.arange(len(codes)), codes]
    return scores


def prediction_sets(proba: FloatArray, limit: float) -> BoolArray:
    """Mask of classes with a score up to `limit`, and the most probable class; (n_rows, n_classes).

    Sadinle, Lei, Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels",
    Journal of the American Statistical Association 114, 2019.
    """
    inside: BoolArray = 1 - proba <= limit
    inside[np.arange(len(proba)), proba.argmax(axis=1)] = True
    return inside


def halves(n: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two random halves of the row positions, one for calibration and one for measurement."""
    order = np.random.default_rng(seed).permutation(n)
    return order[: n // 2], order[n // 2 :]
