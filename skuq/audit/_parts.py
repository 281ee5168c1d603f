"""Sums of a part of the samples, from which audits of all parts are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from skuq.calibration import BinSums, Grouping, Strategy, TopLabelPredictions, add_up, merged_sums

DENSITY_BINS = 20  # of the pictures that show how confidence is distributed


class Parts(NamedTuple):
    """Sums over the bins of the audit, and over finer ones for pictures.

    Attributes
    ----------
    sums, density : BinSums or None
        Of all samples.
    group_sums, group_density : mapping of hashable to BinSums
        Of each group.
    """

    sums: BinSums
    group_sums: Mapping[Any, BinSums]
    density: BinSums | None = None
    group_density: Mapping[Any, BinSums] = {}


def parts_of(
    predictions: TopLabelPredictions,
    grouping: list[Grouping],
    *,
    n_bins: int,
    strategy: Strategy = "uniform",
) -> Parts:
    """Add up predictions."""
    return Parts(
        *add_up(predictions, grouping, n_bins=n_bins, strategy=strategy),
        *add_up(predictions, grouping, n_bins=DENSITY_BINS, strategy="uniform"),
    )


def merged_parts(parts: Sequence[Parts]) -> Parts:
    """Add up; what some of the parts lack is left out."""
    density = [part.density for part in parts if part.density is not None]
    return Parts(
        merged_sums([part.sums for part in parts]),
        merged_groups([part.group_sums for part in parts]),
        merged_sums(density) if len(density) == len(parts) else None,
        merged_groups([part.group_density for part in parts]),
    )


def merged_groups(parts: Sequence[Mapping[Any, BinSums]]) -> dict[Any, BinSums]:
    """Add up the sums of groups by their names, in the order in which these come first."""
    collected: dict[Any, list[BinSums]] = {}
    for part in parts:
        for name, sums in part.items():
            collected.setdefault(name, []).append(sums)
    return {name: merged_sums(sums) for name, sums in collected.items()}
