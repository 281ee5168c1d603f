"""Uncertainty scores of logits and of averaged models."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skuq.base import FloatArray, Uncertainty
from skuq.information import decompose_expected, entropy

Score = Literal["entropy", "max-score", "energy"]
AverageMeasure = Literal["score", "information"]


def logit_score(logits: Tensor, score: Score) -> FloatArray:
    """Compute the uncertainty score of logits.

    Parameters
    ----------
    logits : Tensor of shape (n_samples, n_classes)
        Logits.
    score : {"entropy", "max-score", "energy"}
        Entropy of the class probabilities in nats (Eq. 82), 1 minus the largest of them
        (Eq. 83), or minus the logarithm of the summed exponentials (Eq. 84 at temperature 1,
        which is printed without the logarithm).

    Returns
    -------
    ndarray of shape (n_samples,), float64

    References
    ----------
    Hendrycks and Gimpel, ICLR 2017; Liu et al., NeurIPS 2020; Yu et al., AISTATS 2025,
    Eq. 82 to 84.

    Examples
    --------
    >>> logits = torch.tensor([[0.0, 0.0]])
    >>> logit_score(logits, "max-score")
    array([0.5])
    """
    logits = logits.double()
    if score == "energy":
        values = -torch.logsumexp(logits, dim=1)  # Eq. 84
    elif score == "entropy":
        values = entropy(logits.log_softmax(dim=1))  # Eq. 82
    else:
        values = 1 - logits.softmax(dim=1).amax(dim=1)  # Eq. 83
    return np.asarray(values.numpy(), dtype=np.float64)


def in_halves(score: FloatArray) -> Uncertainty:
    """Split a score evenly, for methods that do not separate the sources of uncertainty.

    Parameters
    ----------
    score : ndarray of shape (n_samples,)
        Total.

    Returns
    -------
    Uncertainty
        Both parts rank samples as the total does, which is what Eq. 82 to 85 ask for, and
        they add up to it, which the protocol asks for.
    """
    return Uncertainty.from_parts(score / 2, score / 2)


class ModelAverage(NamedTuple):
    """What several models say together.

    Attributes
    ----------
    proba : ndarray of shape (n_samples, n_classes)
        Mean class probabilities.
    expected_entropy, information : ndarrays of shape (n_samples,)
        Expected entropy, and mutual information of class and model, in nats.
    """

    proba: FloatArray
    expected_entropy: FloatArray
    information: FloatArray

    @classmethod
    def of(cls, proba: FloatArray) -> ModelAverage:
        """Average probabilities of shape (n_models, n_samples, n_classes).

        Examples
        --------
        >>> opposed = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
        >>> ModelAverage.of(opposed).proba
        array([[0.5, 0.5]])
        """
        with np.errstate(divide="ignore"):
            log_proba = np.log(np.moveaxis(proba, 0, 1))
        weights = np.full(log_proba.shape[:2], 1 / len(proba))
        return cls(proba.mean(axis=0), *decompose_expected(log_proba, weights))

    def at(self, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> ModelAverage:
        """The same for some of the samples."""
        return ModelAverage(*(part[rows] for part in self))

    def uncertainty(self, measure: AverageMeasure) -> Uncertainty:
        """Uncertainty by one of the measures.

        Parameters
        ----------
        measure : {"score", "information"}
            1 minus the largest mean probability, in halves; or expected entropy and mutual
            information in nats.
        """
        if measure == "score":
            return in_halves(1 - self.proba.max(axis=1))
        return Uncertainty.from_parts(self.expected_entropy, self.information)
