"""Combination of several scores of an input into one statistic, with a known false alarm rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from skuq.base import FloatArray
from skuq.calibration import conformal_limit, conformal_p_values
from skuq.files import stored

_SHARE_OF_TAIL = 0.1
_LARGEST = 1e100  # largest score and largest surprise; replaces NaN and larger values
_N_FOLDS = 20  # number of cross-validation folds of the held-out inputs


def _bounded(scores: FloatArray) -> FloatArray:
    """Clip scores to finite values; replace NaN and overflow by the most unusual score."""
    bounded: FloatArray = np.nan_to_num(scores, nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
    return bounded.clip(-_LARGEST, _LARGEST)


@stored("ood.tail")
@dataclass(frozen=True)
class Tail:
    """Surprise at a score: the negative log of its p-value among the held-out scores.

    Beyond the 90 % quantile of the held-out scores, the surprise grows linearly, as if the largest
    tenth of the scores were exponentially distributed. Therefore, two different scores above all
    held-out scores still have different surprises.
    """

    ordered: NDArray[np.float64]  # scores of the held-out inputs, ascending, (n_held_out,)
    start: float  # score at which the tail starts
    share: float  # fraction of the held-out scores in the tail
    scale: float  # mean distance of the tail's scores from `start`

    @classmethod
    def of(cls, held_out: FloatArray) -> Self:
        """Fit the tail to the scores of held-out inputs, (n_held_out,)."""
        ordered = np.sort(_bounded(held_out))
        start = float(np.quantile(ordered, 1 - _SHARE_OF_TAIL))
        above = ordered[ordered > start]
        share = (len(above) + 1) / (len(ordered) + 1)
        if len(above):
            return cls(ordered, start, share, float((above - start).mean()))
        # All scores in the tail are equal, as can happen with counts: use the standard deviation,
        # or 1.
        return cls(ordered, start, share, float(ordered.std()) or 1.0)

    def surprise(self, scores: FloatArray) -> FloatArray:
        """Surprise at each score, (n,), in nats."""
        scores = _bounded(scores)
        p_values = conformal_p_values(scores, self.ordered)
        with np.errstate(over="ignore"):
            beyond = (scores - self.start) / self.scale - np.log(self.share)
        surprise: FloatArray = np.where(scores > self.start, beyond, -np.log(p_values))
        return surprise.clip(max=_LARGEST)


@stored("ood.combination")
@dataclass(frozen=True)
class Combination:
    """A statistic of several scores, compared with the statistic of held-out inputs.

    The statistic is the sum over groups of the mean squared surprise within each group. Scores of
    one group, such as all scores computed from logits, therefore count as one score. A large
    surprise in one group outweighs small surprises in all groups.
    """

    groups: dict[str, str]  # group of each score
    tails: dict[str, Tail]  # surprise at each score
    held_out: NDArray[np.float64]  # statistic of the held-out inputs, (n_held_out,)
    # Classes of the held-out inputs, if the false alarm rate must hold within each class.
    codes: NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls,
        scores: Mapping[str, FloatArray],
        groups: Mapping[str, str],
        codes: NDArray[np.int64] | None = None,
    ) -> Self:
        """Fit the combination to scores of held-out inputs, each of shape (n_held_out,).

        By cross-validation, the statistic of a held-out input is computed from tails that were
        fitted without this input, as for a new input. With tails fitted to its own scores, it would
        appear less surprising than a new input.
        """
        whole = cls(dict(groups), {n: Tail.of(each) for n, each in scores.items()}, np.empty(0))
        n_rows = len(next(iter(scores.values())))
        if n_rows == 1:  # cross-validation needs two rows; use the largest possible statistic
            return replace(whole, held_out=np.full(1, _LARGEST**2), codes=codes)
        fold = np.arange(n_rows) % _N_FOLDS
        held_out = np.empty(n_rows)
        for own in (fold == k for k in range(min(_N_FOLDS, n_rows))):
            others = {n: Tail.of(each[~own]) for n, each in scores.items()}
            part = replace(whole, tails=others)
            held_out[own] = part.statistic({n: each[own] for n, each in scores.items()})
        return replace(whole, held_out=held_out, codes=codes)

    def statistic(self, scores: Mapping[str, FloatArray]) -> FloatArray:
        """Sum over groups of the mean squared surprise, (n,)."""
        by_group: dict[str, list[FloatArray]] = {}
        for name, surprise in self.surprises(scores).items():
            by_group.setdefault(self.groups[name], []).append(surprise**2)
        total: FloatArray = np.sum([np.mean(each, axis=0) for each in by_group.values()], axis=0)
        return total

    def surprises(self, scores: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Surprise at each score separately, (n,) each, in nats."""
        return {name: tail.surprise(scores[name]) for name, tail in self.tails.items()}

    def p_values(self, statistic: FloatArray) -> FloatArray:
        """Conformal p-values, (n,): fraction of held-out inputs at least as unusual."""
        return conformal_p_values(statistic, self.held_out, y_held_out=self.codes)

    def single_p_values(self, scores: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Conformal p-values of each score separately, (n,) each."""
        return {
            name: conformal_p_values(_bounded(scores[name]), tail.ordered)
            for name, tail in self.tails.items()
        }

    @property
    def smallest_p_value(self) -> float:
        """Smallest possible p-value of an input."""
        if self.codes is None:
            return 1 / (1 + len(self.held_out))
        return float(1 / (1 + np.unique(self.codes, return_counts=True)[1].min()))

    def limit(self, false_alarm_rate: float) -> float:
        """Largest statistic that is not flagged; infinite if no statistic can be flagged."""
        groups = [self.held_out]
        if self.codes is not None:
            groups = [self.held_out[self.codes == code] for code in np.unique(self.codes)]
        limits = [conformal_limit(group, 1 - false_alarm_rate) for group in groups]
        # The factor is larger than the relative tolerance with which p-values compare scores.
        return (1 + 2e-6) * max(limits)
