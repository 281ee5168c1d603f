"""Uncertainty of Dirichlet distributions over class probabilities."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma

from skuq.base import FloatArray, Uncertainty
from skuq.information import entropy

Measure = Literal["vacuity", "information"]


def dirichlet_uncertainty(alpha: ArrayLike, measure: Measure = "vacuity") -> Uncertainty:
    """Split the uncertainty of Dirichlet distributions into its two sources.

    Parameters
    ----------
    alpha : array-like of shape (n_samples, n_classes)
        Concentration, positive.
    measure : {"vacuity", "information"}, default="vacuity"
        "vacuity": the aleatoric part is 1 minus the largest expected probability (Eq. 6 has
        minus that probability), the epistemic part the vacuity ``C / alpha_0`` (Eq. 7), at most
        1 unless Eq. 91 lowered concentrations; the total is their sum, a score and not a
        probability.
        "information", in nats: the total is the entropy of the expected probabilities, the
        aleatoric part the expected entropy, the epistemic part the mutual information of
        class and probabilities.

    Returns
    -------
    Uncertainty
        Each part of shape (n_samples,).

    Raises
    ------
    ValueError
        If `alpha` is not a matrix of positive numbers, or `measure` is unknown.

    References
    ----------
    Yu et al., AISTATS 2025, Eq. 6 and 7; Malinin and Gales, NeurIPS 2018.

    Examples
    --------
    >>> import numpy as np
    >>> dirichlet_uncertainty(np.array([[1.0, 1.0], [7.0, 1.0]])).epistemic
    array([1.  , 0.25])
    """
    alpha = np.asarray(alpha, dtype=np.float64)
    if alpha.ndim != 2 or not (alpha > 0).all():
        raise ValueError("`alpha` must hold positive numbers, shape (n_samples, n_classes).")
    if measure not in ("vacuity", "information"):
        raise ValueError(f"`measure` must be 'vacuity' or 'information', got {measure!r}.")
    C, alpha_0 = alpha.shape[1], alpha.sum(axis=1)
    p = alpha / alpha_0[:, None]
    if measure == "vacuity":
        return Uncertainty.from_parts(1 - p.max(axis=1), C / alpha_0)  # Eq. 6 and 7
    expected = expected_entropy(alpha)
    with np.errstate(divide="ignore"):
        total = entropy(np.log(p))
    return Uncertainty.from_parts(expected, (total - expected).clip(0))


def expected_entropy(alpha: FloatArray) -> FloatArray:
    """Compute the expected entropy of the class under Dirichlet distributions.

    Parameters
    ----------
    alpha : ndarray of shape (n_samples, n_classes)
        Concentration, positive.

    Returns
    -------
    ndarray of shape (n_samples,)
        In nats.

    Examples
    --------
    >>> import numpy as np
    >>> expected_entropy(np.array([[1.0, 1.0]]))
    array([0.5])
    """
    alpha_0 = alpha.sum(axis=1, keepdims=True)
    nats: FloatArray = (alpha / alpha_0 * (digamma(alpha_0 + 1) - digamma(alpha + 1))).sum(axis=1)
    return nats
