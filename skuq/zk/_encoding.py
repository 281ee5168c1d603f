"""Inputs as the integers that proofs are about: centred, scaled and rounded; public."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray, IntArray
from skuq.zk._files import integer
from skuq.zk._names import check_columns, columns_of

LARGEST_INTEGER = 2.0**62  # of the encoded ones, which have 64 bits


class Column(NamedTuple):
    """Encoding of one input column as integers.

    Attributes
    ----------
    levels : int
        0 for a number, else the number of category codes.
    center, scale : float
        A number ``x`` becomes ``round((x - center) / scale * 2 ** input_bits)``.
    limit : float
        Largest ``abs(x - center) / scale`` that is accepted.
    """

    levels: int
    center: float = 0.0
    scale: float = 1.0
    limit: float = 1.0

    @property
    def width(self) -> int:
        """Number of integers: 1, or one indicator per level and one for all other values."""
        return self.levels + 1 if self.levels else 1


class Encoding(NamedTuple):
    """Encoding of inputs as the integers that a proof is about; public.

    Attributes
    ----------
    columns : tuple of Column
        One per input column.
    bits : int
        Binary digits after the point of a scaled number.
    names : tuple of str or None
        Names of the columns, where the provider's data had some.
    """

    columns: tuple[Column, ...]
    bits: int
    names: tuple[str, ...] | None = None

    @property
    def width(self) -> int:
        """Integers per row."""
        return sum(column.width for column in self.columns)

    def limits(self) -> IntArray:
        """Largest absolute value of each integer, shape (width,)."""
        return np.concatenate(
            [
                np.ones(c.width, np.int64)
                if c.levels
                else np.array([int(np.ceil(c.limit * 2**self.bits))], np.int64)
                for c in self.columns
            ]
        )

    def encode(self, X: ArrayLike) -> IntArray:
        """Encode rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Finite numbers; category codes in columns that have levels.

        Returns
        -------
        ndarray of shape (n_samples, width), int64

        Raises
        ------
        ValueError
            If the shape is wrong, a value is not finite or outside the committed range, or a data
            frame has other columns than the committed ones.
        """
        values = self._checked(X)
        blocks = []
        for j, column in enumerate(self.columns):
            x = values[:, j]
            if column.levels:
                code = x.astype(np.int64)
                known = (code >= 0) & (code < column.levels)
                place = np.where(known, code, column.levels)
                blocks.append((place[:, None] == np.arange(column.width)).astype(np.int64))
                continue
            scaled = (x - column.center) / column.scale
            outside = np.abs(scaled) > column.limit
            if outside.any():
                row = int(outside.argmax())
                reach = column.limit * column.scale
                raise ValueError(
                    f"Feature {j} is {x[row]:.6g} in row {row}, outside the committed range "
                    f"[{column.center - reach:.6g}, {column.center + reach:.6g}]; commit again "
                    "with calibration data that cover such values, or leave the row out."
                )
            blocks.append(np.rint(scaled * 2**self.bits).astype(np.int64)[:, None])
        return np.concatenate(blocks, axis=1)

    def _checked(self, X: ArrayLike) -> FloatArray:
        values = np.asarray(X, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != len(self.columns):
            raise ValueError(
                f"Inputs must have shape (n_samples, {len(self.columns)}), got {values.shape}."
            )
        names = columns_of(X)
        if self.names is not None and names not in (None, self.names):
            raise ValueError(
                f"Inputs must have the committed columns in their order: {', '.join(self.names)}; "
                f"got {', '.join(names or ())}."
            )
        if len(values) == 0:
            raise ValueError("At least one row is needed, got none.")
        if not np.isfinite(values).all():
            row = int((~np.isfinite(values)).any(axis=1).argmax())
            raise ValueError(f"Inputs must be finite numbers; row {row} has NaN or infinity.")
        return values


def record_of(encoding: Encoding) -> dict[str, Any]:
    """Return an encoding as JSON."""
    names = None if encoding.names is None else list(encoding.names)
    columns = [list(column) for column in encoding.columns]
    return {"bits": encoding.bits, "columns": columns, "names": names}


def encoding_of(record: dict[str, Any]) -> Encoding:
    """Read an encoding from JSON; `ValueError` if it is malformed."""
    try:
        columns = tuple(
            Column(integer(levels), _number(center), _number(scale), _number(limit))
            for levels, center, scale, limit in record["columns"]
        )
        names = record["names"]
        if names is not None:
            names = check_columns(names, len(columns))
        encoding = Encoding(columns, integer(record["bits"]), names)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"The encoding of inputs is malformed: {error}") from error
    numbers = np.array([column[1:] for column in columns])
    if not columns or not np.isfinite(numbers).all() or (numbers[:, 1:] <= 0).any():
        raise ValueError("The encoding of inputs is malformed: scales and limits must be > 0.")
    if min(column.levels for column in columns) < 0:
        raise ValueError("The encoding of inputs is malformed: levels must be >= 0.")
    if encoding.bits >= 64 or (numbers[:, 2] * 2.0**encoding.bits > LARGEST_INTEGER).any():
        raise ValueError("The encoding of inputs is malformed: limits must fit into integers.")
    return encoding


def _number(value: Any) -> float:
    return float(value if type(value) is float else integer(value))
