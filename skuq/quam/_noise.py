"""Noise variance of a regressor, estimated on samples that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import train_test_split
from sklearn.utils import _safe_indexing

from skuq.base import FloatArray
from skuq.models import taken_as_it_is


def estimate_noise(
    estimator: Any,
    X: Any,
    y: FloatArray,
    *,
    sample_weight: FloatArray | None,
    fraction: float,
    seed: int,
    fit: Callable[..., Any],
) -> float:
    """Noise variance of a regressor, Eq. 28: its mean squared error on held-out samples.

    A model that is taken as it is has seen all of them: then it is the error on the samples
    themselves. Any other is trained once more, without those held out. `fraction` is the share
    that is held out, and ``fit(estimator, X, y, sample_weight=...)`` returns a model.

    Returns
    -------
    float
        In squared units of the target.

    Raises
    ------
    ValueError
        If there are too few samples to hold some out, or the error is 0.
    """
    # Not fitted any more: that it is trained again was said when the model itself was.
    estimator = clone(estimator, safe=False)
    rows = held_out = np.arange(len(y))
    if not taken_as_it_is(estimator):
        rows, held_out = train_test_split(rows, test_size=fraction, random_state=seed)
    weight = np.ones_like(y) if sample_weight is None else sample_weight
    model = fit(
        estimator,
        _safe_indexing(X, rows),
        y[rows],
        sample_weight=None if sample_weight is None else weight[rows],
    )
    inputs = model.inputs(_safe_indexing(X, held_out))
    predicted = model.outputs(inputs).double()[:, 0].numpy()
    variance = float(np.average((y[held_out] - predicted) ** 2, weights=weight[held_out]))
    if variance == 0:
        raise ValueError(
            "The model errs nowhere on the samples that the variance of the noise is estimated "
            "on; give `noise_variance`."
        )
    return variance
