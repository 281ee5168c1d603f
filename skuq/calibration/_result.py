"""Result of an audit, computed from integer sums without the predictions or the model.

Lines are those of Algorithm 1 of Rabanser et al., "Confidential Guardian: Cryptographically
Prohibiting the Abuse of Model Abstention", ICML 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from skuq.calibration._chance import ece_bootstrap, ece_under_calibration
from skuq.calibration._groups import Grouping
from skuq.calibration._limits import BinAudit, audit_bins
from skuq.calibration._region_search import RegionSearch, search_regions
from skuq.calibration._sums import BinSums, Strategy, TopLabelPredictions, bin_edges, bin_sums


class AuditResult(NamedTuple):
    """Result of an audit.

    Attributes
    ----------
    sums : BinSums
        Integer sums of all samples.
    group_sums : dict of str to BinSums
        Integer sums of each group.
    bins : BinAudit
        Findings of all samples.
    group_bins : dict of str to BinAudit
        Findings of each group.
    n_families : int
        Tests that share the error: all samples, each group that has any, and the search.
    ece_interval : tuple of float
        Bootstrap interval of the expected calibration error.
    ece_chance : float
        Expected calibration error that a perfectly calibrated model exceeds with probability
        ``1 - confidence_level``.
    regions : RegionSearch or None
        Regions of the inputs that deviate; None if none were searched.
    """

    sums: BinSums
    group_sums: dict[str, BinSums]
    bins: BinAudit
    group_bins: dict[str, BinAudit]
    n_families: int
    ece_interval: tuple[float, float]
    ece_chance: float
    regions: RegionSearch | None = None

    @property
    def passed(self) -> bool:
        """Whether there is no finding, among all samples, in a group or in a region."""
        if self.regions is not None and self.regions.regions:
            return False
        return not any(part.significant.any() for part in (self.bins, *self.group_bins.values()))

    @property
    def within_alpha(self) -> bool:
        """Verdict of Algorithm 1: whether ``|gap| <= alpha`` in every bin of all samples."""
        return bool(self.bins.within_alpha.all())  # Line 22


def add_up(
    predictions: TopLabelPredictions, grouping: list[Grouping], *, n_bins: int, strategy: Strategy
) -> tuple[BinSums, dict[str, BinSums]]:
    """Add up predictions per bin, for all samples and for each group, over the same bins."""
    edges = bin_edges(predictions.confidence, n_bins, strategy)
    group_sums: dict[str, BinSums] = {}
    for group in grouping:
        parts = bin_sums(predictions, edges, groups=group.codes, n_groups=len(group.names))
        group_sums.update(zip(group.names, parts, strict=True))
    return bin_sums(predictions, edges)[0], group_sums


def audit_sums(
    sums: BinSums,
    group_sums: Mapping[str, BinSums] | None = None,
    *,
    alpha: float = 0.05,
    confidence_level: float = 0.95,
    rows: tuple[Any, TopLabelPredictions] | None = None,
    region_alpha: float | None = None,
) -> AuditResult:
    """Audit sums per bin, as `CalibrationAuditor` does.

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
    rows : tuple of X and TopLabelPredictions, default=None
        Inputs and predictions of which the sums were made, to search regions too
        (`search_regions`).
    region_alpha : float, default=None
        Tolerated distance between accuracy and confidence of a region. Default: `alpha`.

    Returns
    -------
    AuditResult

    Raises
    ------
    ValueError
        If `alpha` or `region_alpha` is not in [0, 1], or `confidence_level` not in (0, 1), or
        the sums are of no predictions, or of weights.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.calibration import BinSums, audit_sums
    >>> sums = BinSums(np.array([0, 5, 10]), np.array([20, 0]), np.array([19, 0]),
    ...                np.array([80, 0]), scale=10)
    >>> audit_sums(sums).passed
    False
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"`alpha` must be a share in [0, 1], got {alpha}.")
    if region_alpha is not None and not 0 <= region_alpha <= 1:
        raise ValueError(f"`region_alpha` must be a share in [0, 1], got {region_alpha}.")
    if not 0 < confidence_level < 1:
        raise ValueError(f"`confidence_level` must be in (0, 1), got {confidence_level}.")
    if not sums.count.any():
        raise ValueError("`sums` must be of at least one prediction, got none.")
    groups = {} if group_sums is None else dict(group_sums)
    families = (sums, *groups.values())
    if any(part.count.dtype.kind == "f" for part in families):
        raise ValueError(
            "`sums` must count predictions, got sums of weights; an audit compares them with what "
            "chance does to as many samples, which weights do not say."
        )
    n_families = sum(bool(part.count.any()) for part in families) + (rows is not None)
    tolerated = alpha if region_alpha is None else region_alpha
    shared: dict[str, Any] = {"confidence_level": confidence_level, "n_families": n_families}
    bins, *group_bins = (audit_bins(part, alpha=alpha, **shared) for part in families)
    tail = (1 - confidence_level) / 2
    low, high = np.quantile(ece_bootstrap(sums), [tail, 1 - tail])
    return AuditResult(
        sums,
        groups,
        bins,
        dict(zip(groups, group_bins, strict=True)),
        n_families,
        (float(low), float(high)),
        float(np.quantile(ece_under_calibration(sums), confidence_level)),
        None if rows is None else search_regions(*rows, alpha=tolerated, **shared),
    )
