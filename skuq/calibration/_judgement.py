"""From integer sums to the judgement of an audit, without the predictions or the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from skuq.calibration._groups import Grouping
from skuq.calibration._limits import BinAudit, audit_bins
from skuq.calibration._noise import ece_bootstrap, ece_under_calibration
from skuq.calibration._sums import Binning, BinSums, Predictions, bin_edges, bin_sums


class Judgement(NamedTuple):
    """What an audit found.

    Attributes
    ----------
    bins : BinAudit
        Findings of all samples.
    group_bins : dict of str to BinAudit
        Findings of each group.
    n_families : int
        Sets of samples that were tested: all of them, and each group that has any.
    ece_interval : tuple of float
        Bootstrap interval of the expected calibration error.
    ece_chance : float
        What this error exceeds with probability ``1 - confidence_level`` if the model is
        perfectly calibrated.
    """

    bins: BinAudit
    group_bins: dict[str, BinAudit]
    n_families: int
    ece_interval: tuple[float, float]
    ece_chance: float

    @property
    def passed(self) -> bool:
        """Whether there is no finding, among all samples or in a group."""
        return not any(part.significant.any() for part in (self.bins, *self.group_bins.values()))


def add_up(
    predictions: Predictions, grouping: list[Grouping], *, n_bins: int, binning: Binning
) -> tuple[BinSums, dict[str, BinSums]]:
    """Add up predictions per bin, for all samples and for each group, over the same bins."""
    edges = bin_edges(predictions.confidence, n_bins, binning)
    group_sums: dict[str, BinSums] = {}
    for group in grouping:
        parts = bin_sums(predictions, edges, groups=group.codes, n_groups=len(group.names))
        group_sums.update(zip(group.names, parts, strict=True))
    return bin_sums(predictions, edges)[0], group_sums


def judge(
    sums: BinSums,
    group_sums: Mapping[str, BinSums] | None = None,
    *,
    alpha: float = 0.05,
    confidence_level: float = 0.95,
) -> Judgement:
    """Judge sums per bin, as `CalibrationAuditor` does.

    Parameters
    ----------
    sums : BinSums
        Of all samples; sums of parts may have been added up.
    group_sums : mapping of str to BinSums, default=None
        Of each group.
    alpha : float, default=0.05
        Tolerated distance between accuracy and confidence of a bin.
    confidence_level : float, default=0.95
        Probability that a model within alpha passes.

    Returns
    -------
    Judgement

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.calibration import BinSums, judge
    >>> sums = BinSums(np.array([0, 5, 10]), np.array([20, 0]), np.array([19, 0]),
    ...                np.array([80, 0]), scale=10)
    >>> judge(sums).passed
    False
    """
    parts = {} if group_sums is None else dict(group_sums)
    n_families = sum(bool(part.count.any()) for part in (sums, *parts.values()))
    bins, *group_bins = (
        audit_bins(part, alpha=alpha, confidence_level=confidence_level, n_families=n_families)
        for part in (sums, *parts.values())
    )
    tail = (1 - confidence_level) / 2
    low, high = np.quantile(ece_bootstrap(sums), [tail, 1 - tail])
    return Judgement(
        bins,
        dict(zip(parts, group_bins, strict=True)),
        n_families,
        (float(low), float(high)),
        float(np.quantile(ece_under_calibration(sums), confidence_level)),
    )
