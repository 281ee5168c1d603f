"""What a Dirichlet distribution over class probabilities says about uncertainty."""

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
        "vacuity": the aleatoric part is 1 minus the largest expected
        probability (Eq. 6, which has the opposite sign and no 1), the epistemic part
        ``C / alpha_0`` (Eq. 7), at most 1 unless Eq. 91 thinned out concentrations; the total
        is their sum, a score and no probability.
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
        If `alpha` is no matrix of positive numbers, or `measure` is unknown.

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
    total = alpha.sum(axis=1)
    mean = alpha / total[:, None]
    if measure == "vacuity":
        return Uncertainty.from_parts(1 - mean.max(axis=1), alpha.shape[1] / total)
    expected = expected_entropy(alpha)
    with np.errstate(divide="ignore"):
        whole = entropy(np.log(mean))
    return Uncertainty.from_parts(expected, (whole - expected).clip(0))


def expected_entropy(alpha: FloatArray) -> FloatArray:
    """Entropy of the class, expected over class probabilities that are Dirichlet distributed.

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
    total = alpha.sum(axis=1, keepdims=True)
    nats: FloatArray = (alpha / total * (digamma(total + 1) - digamma(alpha + 1))).sum(axis=1)
    return nats
