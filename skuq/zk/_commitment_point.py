"""Commitment to the constants of a circuit by its definition, to compare the proof system with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skuq.zk import _ezkl as backend
from skuq.zk._architecture import Architecture
from skuq.zk._bn254 import P, affine, combination
from skuq.zk._reference_string import lagrange_points


def commitment_point(shape: Architecture, constants: Sequence[NDArray[Any]], srs: Path) -> str:
    """Compute the commitment to constants in the order of ``shape.shapes``, as a compressed point.

    The numbers stand in one column in that order, and the rows that the proof system cannot use
    hold 1. The commitment is the sum of each number times the Lagrange point of its row.
    """
    points = lagrange_points(srs, shape.log_rows)
    scalars = [int(value) for part in constants for value in part.ravel()]
    # Short scalars are quicker than the negative ones modulo the order.
    used = [
        (x, y if scalar >= 0 else P - y)
        for scalar, (x, y) in zip(scalars, points[: len(scalars)], strict=True)
    ]
    used += points[-backend.UNUSABLE_ROWS :]
    total = affine(combination([*map(abs, scalars), *[1] * backend.UNUSABLE_ROWS], used))
    return "" if total is None else backend.compressed(total)


def sample_constants(shape: Architecture) -> list[NDArray[np.int64]]:
    """Fixed constants, no two of them equal, with which any circuit runs on zeros.

    No other order of them has the same commitment. Negative biases make hidden layers 0, and biases
    are the smallest numbers, so that none gets large whatever the architecture.
    """
    last_bias = 2 * len(shape.widths) - 3
    biases = list(range(last_bias, 0, -2))
    others = [k for k in range(len(shape.shapes)) if k not in biases]
    constants, first = {}, 1
    for k in biases + others:
        size = shape.shapes[k]
        count = int(np.prod(size))
        values = np.arange(first, first + count).reshape(size)
        constants[k] = -values if k in biases[1:] else values
        first += count
    return [constants[k] for k in range(len(shape.shapes))]
