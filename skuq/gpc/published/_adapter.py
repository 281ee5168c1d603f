"""Probability ranges by the published algorithm, in the form of the fast ones."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from skuq.base import FloatArray
from skuq.gpc._certificates import ProbabilityBounds
from skuq.gpc.bounds._probability_model import Limits, ProbabilityModel
from skuq.gpc.bounds._regions import Region
from skuq.gpc.published._algorithm import BoxBounds, branch_and_bound


def published_bounds(
    model: ProbabilityModel, regions: Region, classes: NDArray[np.intp], limits: Limits
) -> ProbabilityBounds:
    """Bound class probabilities by linear programmes, one point after the other.

    Parameters
    ----------
    model : ProbabilityModel
        The model, of two classes.
    regions : Region
        Boxes around n points.
    classes : ndarray of shape (k,)
        Indices of the classes.
    limits : Limits
        When to stop; the time is that of all points together.

    Returns
    -------
    ProbabilityBounds

    Raises
    ------
    ValueError
        If the model has more than two classes or a softmax, or the regions are no boxes.
    """
    if model.likelihood == "softmax" or regions.radius is not None:
        raise ValueError("bounds='published' is for two classes and for boxes; use bounds='fast'.")
    deadline, found = time.monotonic() + limits.max_time, []
    for row, (lower, upper) in enumerate(
        zip(regions.lower.numpy(), regions.upper.numpy(), strict=True)
    ):
        left = max(deadline - time.monotonic(), 0.0) / (len(regions) - row)
        share = limits._replace(max_time=left)._asdict()
        found.append(
            branch_and_bound(model.posterior, lower, upper, likelihood=model.likelihood, **share)
        )
    least, most = _column(found, "min"), _column(found, "max")
    argmin = np.array([one.argmin for one in found])
    argmax = np.array([one.argmax for one in found])
    # The smallest probability of the first class belongs to the largest of the second.
    smallest = np.stack([1 - most[:, ::-1], least], axis=1)[:, classes]
    largest = np.stack([1 - least[:, ::-1], most], axis=1)[:, classes]
    return ProbabilityBounds(
        smallest[..., 0],
        smallest[..., 1],
        largest[..., 0],
        largest[..., 1],
        np.stack([argmax, argmin], axis=1)[:, classes],
        np.stack([argmin, argmax], axis=1)[:, classes],
        np.array([one.n_regions for one in found]),
        np.array([one.converged for one in found]),
    )


def _column(found: list[BoxBounds], end: str) -> FloatArray:
    """Lower and upper bound of one extreme of all points, shape (n, 2)."""
    return np.array(
        [[getattr(one, f"{end}_{side}") for side in ("lower", "upper")] for one in found]
    )
