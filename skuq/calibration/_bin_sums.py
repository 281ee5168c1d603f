"""Confidence bins, and integer sums of predictions per bin.

Sums of integers are exact in any order. Sums of parts of the samples, from several files or
machines for example, therefore add up to exactly the sums of all samples.

Line and equation numbers are those of Algorithm 1 and Eq. 6 of Rabanser et al., "Confidential
Guardian", ICML 2025.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.labels import columns_and_proba
from skuq.validation import check_n_bins, sum_rounding

Strategy = Literal["uniform", "quantile"]
Sums = NDArray[Any]  # exact int64, or float64 if there are fractional weights

SCALE = 10**9  # a power of ten, so that a confidence of 0.7 lies exactly on the edge of a bin
CHUNK = 2**18  # rows per chunk; limits memory, and keeps float64 sums below 2**53, thus exact


class TopLabelPredictions(NamedTuple):
    """Confidence and correctness of the most probable class."""

    confidence: NDArray[np.int32]  # (n_samples,), rounded to multiples of 1 / SCALE, in this unit
    correct: BoolArray  # (n_samples,), whether the most probable class is the true class

    def at(self, rows: NDArray[Any]) -> TopLabelPredictions:
        """Return the predictions at `rows`, an array of positions or a boolean mask."""
        return TopLabelPredictions(self.confidence[rows], self.correct[rows])


class BinSums(NamedTuple):
    """Sums per confidence bin, from which all binned statistics of an audit are computed.

    Attributes
    ----------
    edges : ndarray of shape (n_bins + 1,), int64
        Bins ``[edges[b], edges[b + 1])`` in units of ``1 / scale``; the last bin includes
        its upper edge.
    count, correct, confidence : ndarray of shape (n_bins,), int64, or float64 with weights
        Number of predictions, number of correct predictions, and sum of confidences in
        units of ``1 / scale``. With weights, the corresponding weighted sums.
    scale : int
        Number of units in a confidence of 1.
    weight_square : ndarray of shape (n_bins,), default=None
        Sum of the squared weights; None without weights.
    """

    edges: IntArray
    count: Sums  # type: ignore[assignment]  # hides tuple.count, which is not used here
    correct: Sums
    confidence: Sums
    scale: int = SCALE
    weight_square: Sums | None = None

    @property
    def lower(self) -> FloatArray:
        """Lower edge of each bin, shape (n_bins,)."""
        return self.edges[:-1] / self.scale

    @property
    def upper(self) -> FloatArray:
        """Upper edge of each bin, shape (n_bins,)."""
        return self.edges[1:] / self.scale

    @property
    def mean_confidence(self) -> FloatArray:
        """Mean confidence of each bin, shape (n_bins,); NaN in an empty bin."""
        return self.confidence / self._size / self.scale

    @property
    def accuracy(self) -> FloatArray:
        """Fraction of correct predictions in each bin, shape (n_bins,); NaN in an empty bin."""
        return self.correct / self._size

    @property
    def gap(self) -> FloatArray:
        """``accuracy - mean_confidence`` of each bin, shape (n_bins,); NaN in an empty bin."""
        return self.accuracy - self.mean_confidence

    @property
    def deviation(self) -> Sums:
        """Gap of each bin times ``scale * count``, which is an exact integer without weights."""
        return self.correct * self.scale - self.confidence

    @property
    def expected_calibration_error(self) -> float:
        """Mean distance between accuracy and confidence, weighted by bin size, in [0, 1]."""
        return np.abs(self.deviation).sum().item() / (self.n_samples * self.scale)  # Eq. 6

    @property
    def maximum_calibration_error(self) -> float:
        """Largest distance between the accuracy and the confidence of a bin, in [0, 1]."""
        return float(np.nanmax(np.abs(self.gap)))

    @property
    def n_samples(self) -> Any:
        """Number of predictions in all bins, or sum of their weights."""
        return self.count.sum().item()

    @property
    def effective_count(self) -> IntArray:
        """Effective number of predictions per bin (Kish): sum(w)**2 / sum(w**2), rounded down."""
        if self.count.dtype.kind != "f":
            return self.count
        assert self.weight_square is not None
        square = np.where(self.count > 0, self.weight_square, 1.0)
        return np.floor(self.count**2 / square + 1e-6).astype(np.int64)

    @property
    def n_effective(self) -> Any:
        """Effective number of predictions in all bins; for integer weights, `n_samples`."""
        if self.count.dtype.kind != "f":
            return self.n_samples
        assert self.weight_square is not None
        return self.n_samples**2 / self.weight_square.sum().item()

    @property
    def overall_accuracy(self) -> float:
        """Fraction of all predictions that are correct, in [0, 1]."""
        return self.correct.sum().item() / self.n_samples

    @property
    def overall_confidence(self) -> float:
        """Mean confidence of all predictions, in [0, 1]."""
        return self.confidence.sum().item() / self.n_samples / self.scale

    def bin_of(self, confidence: NDArray[Any]) -> IntArray:
        """Return the bin of each confidence: a float in [0, 1] or an integer number of units."""
        units = in_units(confidence) if confidence.dtype.kind == "f" else confidence
        return np.searchsorted(self.edges[1:-1].astype(np.int32), units, side="right")

    @property
    def _size(self) -> FloatArray:
        return np.where(self.count > 0, self.count, np.nan)


def top_label_predictions(
    y_true: ArrayLike,
    proba: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    predicted: IntArray | None = None,
) -> TopLabelPredictions:
    """Reduce probabilities to the confidence and correctness of the most probable class.

    `y_true`, `proba` and `classes` are as in `skuq.metrics.calibration_table`. If several classes
    have the largest probability, the first of them is the prediction. `predicted`, if passed, holds
    the column of each predicted class, which is used instead of the most probable class. Where it
    is -1 (rejected), the most probable class is used, so rejections cannot hide errors from audits.
    """
    column, checked, _ = columns_and_proba(y_true, proba, classes)
    confidence, correct = np.empty(len(column), np.int32), np.empty(len(column), bool)
    for start in range(0, len(column), CHUNK):
        rows = slice(start, start + CHUNK)
        # Line 8. The largest probability is read at argmax: `max` would read all columns again.
        best = checked[rows].argmax(axis=1)
        if predicted is not None:
            best = np.where(predicted[rows] < 0, best, predicted[rows])
        top = np.take_along_axis(checked[rows], best[:, None], axis=1)[:, 0]
        confidence[rows] = in_units(top)
        correct[rows] = best == column[rows]
    return TopLabelPredictions(confidence, correct)


def in_units(confidence: FloatArray) -> NDArray[np.int32]:
    """Convert confidences to units of 1 / SCALE; values above 1, from rounding, become 1."""
    return np.rint(np.minimum(confidence.astype(np.float64), 1.0) * SCALE).astype(np.int32)


def bin_edges(
    confidence: NDArray[np.int32],
    n_bins: int,
    strategy: Strategy = "uniform",
    *,
    weight: FloatArray | None = None,
) -> IntArray:
    """Compute the edges of the confidence bins in units of 1 / SCALE, (n_bins + 1,), int64.

    "uniform": bins of equal width on [0, 1]. "quantile": bins of equal numbers of predictions (or
    of equal sums of positive weights), except that equal confidences always share a bin.
    """
    check_n_bins(n_bins)
    if strategy not in get_args(Strategy):
        raise ValueError(f"`strategy` must be one of {get_args(Strategy)}, got {strategy!r}.")
    steps = np.arange(n_bins + 1)
    if strategy == "uniform":
        # Line 13. Edges are rounded up, so that bin b contains exactly the values with
        # floor(value * n_bins) = b.
        return -(-steps * SCALE // n_bins)
    if weight is None:
        # Inner edge b is the order statistic of rank floor(b n / n_bins). The rank is computed with
        # integers, because the quantile level b / n_bins would have rounding errors.
        rank = steps[1:-1] * len(confidence) // n_bins
        inner = np.partition(confidence, rank)[rank]
    else:
        order = np.argsort(confidence)
        below = np.cumsum(weight[order]) * n_bins  # weight up to and including each sample
        reached = steps[1:-1] * (below[-1] / n_bins) * (1 + sum_rounding(len(weight)))
        first = np.searchsorted(below, reached, side="right")
        inner = confidence[order[first.clip(max=len(order) - 1)]]
    return np.array([confidence.min(), *inner, confidence.max()], np.int64)


def bin_sums(
    predictions: TopLabelPredictions, edges: IntArray, *, weight: NDArray[Any] | None = None
) -> BinSums:
    """Sum predictions per bin (Algorithm 1, step 2); sums are exact for integer weights."""
    return group_sums(predictions, [edges], [], weight=weight)[0][0]


def group_sums(
    predictions: TopLabelPredictions,
    several_edges: Sequence[IntArray],
    groupings: Iterable[tuple[NDArray[np.integer], int]],
    *,
    weight: NDArray[Any] | None = None,
    square: FloatArray | None = None,
) -> list[list[BinSums]]:
    """Return a list for each set of edges: the sums of all samples, then the sums of each group.

    A grouping is a pair: the group number of each sample, counted from 0, and the number of groups.
    The field `weight_square` of the results sums `square` (default: the squared weights).
    """
    # Count samples once, in the cells between all edges of all sets; each bin is a union of cells.
    inner = np.unique(np.concatenate([edges[1:-1] for edges in several_edges]))
    n_cells = len(inner) + 1
    divided = [(np.zeros(len(predictions.correct), np.int8), 1), *groupings]
    dtype = np.int64 if weight is None or weight.dtype.kind == "i" else np.float64
    totals = [np.zeros((4, size * n_cells), dtype) for _, size in divided]
    for start in range(0, len(predictions.correct), CHUNK):
        rows = slice(start, start + CHUNK)
        values, right = predictions.confidence[rows], predictions.correct[rows]
        added: list[Any] = [None, right, values]
        if weight is not None:
            share = weight[rows]
            squared = share**2 if square is None else square[rows]
            added = [share, share * right, share * values, squared]
        cells = np.searchsorted(inner.astype(np.int32), values, side="right")
        for (codes, _), total in zip(divided, totals, strict=True):
            cell = cells + n_cells * codes[rows].astype(np.int64)
            for row, part in zip(total, added, strict=False):  # Lines 14 to 16
                if weight is None or dtype is np.float64:
                    row += np.bincount(cell, part, len(row)).astype(dtype)
                else:  # integer sums: with large weights, float64 would not be exact
                    np.add.at(row, cell, part)
    counted = np.concatenate([total.reshape(4, -1, n_cells) for total in totals], axis=1)
    found = []
    for edges in several_edges:
        bins = np.searchsorted(edges[1:-1], np.append(edges[0] - 1, inner), side="right")
        sums = np.zeros((len(edges) - 1, *counted.shape[:2]), dtype)
        np.add.at(sums, bins, np.moveaxis(counted, -1, 0))
        sums = np.moveaxis(sums, 0, -1)
        parts = [BinSums(edges, *part[:3]) for part in sums.swapaxes(0, 1)]
        squares = [None] * len(parts) if weight is None else sums[3]
        pairs = zip(parts, squares, strict=True)
        found.append([part._replace(weight_square=square) for part, square in pairs])
    return found


def n_repeated(predictions: TopLabelPredictions) -> int:
    """Count neighbours of equal confidence if most are probably copies of a sample; else return 0.

    Of two independent samples in a bin of accuracy a, exactly one is right with probability
    ``2 a (1 - a)``; of two copies, both or none. Neighbours count as copies if fewer than a third
    of the expected number of pairs differ.
    """
    shuffled = predictions.at(np.random.default_rng(0).permutation(len(predictions.correct)))
    confidence, correct = shuffled.at(np.argsort(shuffled.confidence, kind="stable"))
    same = np.diff(confidence) == 0
    tenth = confidence // (SCALE // 10)
    accuracy = (np.bincount(tenth, correct) / np.maximum(np.bincount(tenth), 1))[tenth[1:][same]]
    expected = 2 * (accuracy * (1 - accuracy)).sum()
    differ = (np.diff(correct.astype(np.int8)) != 0)[same].sum()
    return int(same.sum()) if differ < expected / 3 and expected >= 10 else 0


def merged_sums(parts: Iterable[BinSums]) -> BinSums:
    """Add up the sums of several parts of the samples.

    Parameters
    ----------
    parts : iterable of BinSums
        Sums of each part; all parts must have the same bins, and at least one part is needed.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.calibration import BinSums, merged_sums
    >>> part = BinSums(np.array([0, 5, 10]), np.array([0, 20]), np.array([0, 9]),
    ...                np.array([0, 180]), scale=10)
    >>> merged_sums([part, part]).correct
    array([ 0, 18])
    """
    parts = list(parts)
    first, *others = parts
    for other in others:
        if other.scale != first.scale or not np.array_equal(other.edges, first.edges):
            raise ValueError(
                "Only sums over the same bins can be added up; compute all of them with the same "
                "`n_bins` and strategy='uniform'."
            )
    count, correct, confidence = (
        np.sum([getattr(part, name) for part in parts], axis=0)
        for name in ("count", "correct", "confidence")
    )
    squares = [part.count if part.weight_square is None else part.weight_square for part in parts]
    weighted = any(part.weight_square is not None for part in parts)
    square = np.sum(squares, axis=0) if weighted else None
    return BinSums(first.edges, count, correct, confidence, first.scale, square)


def whole_sums(sums: BinSums) -> BinSums:
    """Rescale weighted sums to effective numbers of predictions, without changing bins' means."""
    if sums.count.dtype.kind != "f":
        return sums
    count, size = sums.effective_count, np.where(sums.count > 0, sums.count, 1.0)
    correct, confidence = count * (sums.correct / size), count * (sums.confidence / size)
    return BinSums(sums.edges, count, correct, confidence, sums.scale)
