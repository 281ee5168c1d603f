"""Conformal p-values and limits, which compare scores with the scores of held-out samples."""

import math

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_consistent_length, column_or_1d

from skuq.base import FloatArray, IntArray
from skuq.validation import checked_labels

# Scores within this relative tolerance count as equal, because the rounding error of a score can
# depend on the other samples in the batch.
ROUNDING = 1e-6


def conformal_p_values(
    scores: ArrayLike,
    held_out: ArrayLike,
    *,
    y_held_out: ArrayLike | None = None,
    counts: FloatArray | None = None,
) -> FloatArray:
    """Compute the fraction of held-out scores that are at least as large as each score.

    The tested sample counts as one more held-out sample. If a sample is exchangeable with the
    held-out samples, its p-value is at most p with probability at most p, for every p and any
    distribution of scores. For example, at most 5 % of such samples have p-values up to 0.05.

    Parameters
    ----------
    scores : array-like of shape (n_samples,)
        Scores, such as the epistemic part of an `Uncertainty`; larger scores belong to more unusual
        samples. Scores with a relative difference below one millionth count as equal, because the
        score of a sample can depend slightly on the other samples in its batch.
    held_out : array-like of shape (n_held_out,)
        Scores of samples from the same distribution as the samples to be tested. The held-out
        samples must not have been used to train the model that computes the scores.
    y_held_out : array-like of shape (n_held_out,), default=None
        Classes of the held-out samples. A p-value is then computed from each class alone, and the
        largest is returned. It is valid even if new samples have other class proportions.
    counts : ndarray of shape (n_held_out,), default=None
        Number of independent samples that each held-out sample counts as (default: 1). If each
        sample of a group of n counts as 1 / n, p-values are valid for new groups (Lee et al.).

    Returns
    -------
    ndarray of shape (n_samples,), float64
        In (0, 1]; the smallest possible value is 1 / (n_held_out + 1), or, with `y_held_out`,
        1 / (size of the smallest class + 1).

    References
    ----------
    Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", Springer 2005; for
    out-of-distribution detection: Bates, Candès, Lei, Romano, Sesia, "Testing for Outliers with
    Conformal p-values", Annals of Statistics 51, 2023. Lee, Barber, Willett, "Distribution-free
    Inference with Hierarchical Data", 2023.

    Examples
    --------
    >>> conformal_p_values([0.25, 0.9], [0.1, 0.2, 0.3, 0.8])
    array([0.6, 0.2])
    >>> conformal_p_values([0.25, 0.9], [0.1, 0.2, 0.3, 0.8], y_held_out=["a", "a", "b", "b"])
    array([1.        , 0.33333333])
    """
    checked, held = _checked_scores(scores, "scores"), _checked_scores(held_out, "held_out")
    counts = np.ones(len(held)) if counts is None else counts
    labels = np.zeros(len(held))
    if y_held_out is not None:
        labels = checked_labels(column_or_1d(y_held_out), "y_held_out")
        check_consistent_length(held, labels)
    classes = (labels == label for label in np.unique(labels))
    at_least = ((1 + count_at_least(checked, held[c], counts[c]), counts[c].sum()) for c in classes)
    return np.max([count / (1 + total) for count, total in at_least], axis=0)


def conformal_limit(
    held_out: ArrayLike, coverage: float, counts: FloatArray | None = None
) -> float:
    """Return a limit that a new sample's score exceeds with probability at most 1 - coverage.

    The limit is one of the scores in `held_out`, (n_held_out,), or infinity if there are fewer than
    ``coverage / (1 - coverage)`` of these. `counts` is as in `conformal_p_values`.
    """
    held = _checked_scores(held_out, "held_out", min_samples=0)
    counts, order = np.ones(len(held)) if counts is None else counts, np.argsort(held)
    enough = np.cumsum(counts[order]) >= (1 + counts.sum()) * coverage - 1e-9
    return float(held[order[enough.argmax()]]) if enough.any() else math.inf


def count_at_least(scores: FloatArray, held_out: FloatArray, counts: FloatArray) -> FloatArray:
    """Sum the counts of the held-out scores that are at least as large as each score, (n,)."""
    order = np.argsort(held_out)
    from_each_on = np.append(np.cumsum(counts[order][::-1])[::-1], 0.0)
    return from_each_on[first_at_least(scores, held_out[order])]


def first_at_least(scores: FloatArray, ordered: FloatArray) -> IntArray:
    """Return the position of the first score in `ordered` that is >= each of `scores`, (n,)."""
    position: IntArray = np.searchsorted(ordered, scores - ROUNDING * np.abs(scores), side="left")
    return position


def _checked_scores(scores: ArrayLike, name: str, min_samples: int = 1) -> FloatArray:
    checked: FloatArray = np.asarray(scores, np.float64)
    if checked.ndim != 1 or len(checked) < min_samples or not np.isfinite(checked).all():
        raise ValueError(
            f"`{name}` must be a 1D array of at least {min_samples} finite numbers, one for each "
            f"sample, got shape {checked.shape}."
        )
    return checked
