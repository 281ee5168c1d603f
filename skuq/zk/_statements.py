"""Statements and the public inputs of each proof, computed alike by both parties."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skuq.base import IntArray
from skuq.calibration import BinSums
from skuq.labels import codes_of
from skuq.zk._architecture import CONTEXT_BITS, N_ALPHAS, Architecture
from skuq.zk._circuits import edges, fixed_inputs, input_names
from skuq.zk._encoding import Encoding
from skuq.zk._files import canonical, digest
from skuq.zk._fixed_point import ONE, ROUNDING, IntegerPredictions
from skuq.zk._statement_entries import AuditStatement, SpotCheckStatement, VerdictStatement


def context(statement: bytes, part: str) -> int:
    """Hash of a statement's text and a place in it: the public input that binds a proof to both.

    Public inputs are part of the transcript from which a proof's challenges are derived
    (Fiat-Shamir).
    """
    text = statement + b"\n" + part.encode()
    return int.from_bytes(hashlib.sha256(text).digest(), "big") >> (256 - CONTEXT_BITS)


def public_inputs(
    circuit: str, shape: Architecture, values: Mapping[str, Any], context_hash: int
) -> list[list[int]]:
    """Public inputs of a proof in the order of its circuit."""
    known = {**fixed_inputs(shape), **values, "context": [context_hash]}
    inputs = []
    for name, size in input_names(circuit, shape).items():
        numbers = [int(value) for value in np.asarray(known[name], dtype=object).ravel()]
        if len(numbers) != math.prod(size):
            raise ValueError(f"{name!r} must have shape {size}, got {len(numbers)} numbers.")
        inputs.append(numbers)
    return inputs


def known_outputs(circuit: str, values: Mapping[str, Any]) -> list[int]:
    """Outputs that a proof must have, and that are not sent.

    For sums: the number of rows, because each has a single most probable class.
    """
    return [int(np.sum(values["counted"]))] if circuit in ("bins", "padded_bins") else []


def n_outputs(circuit: str, shape: Architecture) -> int:
    """Number of the outputs that are sent."""
    of_rows = 2 * shape.rows_of(circuit)
    special = {"attestation": of_rows, "predictions": of_rows, "verdict": N_ALPHAS}
    return special.get(circuit, 3 * shape.n_bins)


def bins_inputs(
    shape: Architecture, circuit: str, rows: IntArray, codes: IntArray, n_bins: int
) -> dict[str, Any]:
    """Inputs of a chunk of reference data; a chunk that is not full repeats its last row, which
    is not counted."""
    n = shape.rows_of(circuit)
    filled = np.minimum(np.arange(n), len(rows) - 1)
    return {
        "rows": rows[filled],
        "labels": np.eye(shape.widths[-1], dtype=np.int64)[codes[filled]],
        "counted": (np.arange(n) < len(rows)).astype(np.int64),
        "edges": edges(n_bins, shape.n_bins),
    }


def reference_chunks(
    shape: Architecture,
    circuit: str,
    rows: IntArray,
    codes: IntArray,
    statement: AuditStatement,
) -> list[dict[str, Any]]:
    """Inputs of all chunks of reference data, for the circuits "bins" and "padded_bins"."""
    size, chunks = shape.rows_of(circuit), []
    for k, start in enumerate(range(0, len(rows), size)):
        part = slice(start, start + size)
        values = bins_inputs(shape, circuit, rows[part], codes[part], statement.n_bins)
        if isinstance(statement, VerdictStatement):
            values["chunk"] = np.eye(shape.n_pads, dtype=np.int64)[statement.pads[k]]
        chunks.append(values)
    return chunks


def verdict_inputs(
    shape: Architecture,
    tolerance: float,
    statement: VerdictStatement,
    outputs: list[list[int]],
) -> dict[str, Any]:
    """Inputs of the final proof of a verdict, from the outputs of all chunks."""
    used = np.zeros(shape.n_pads, np.int64)
    used[list(statement.pads)] = 1
    return {
        "sums": np.array(outputs, dtype=object).sum(axis=0),
        "chunks": used,
        "alphas": thresholds(statement.alpha, tolerance),
        "chance": [chance_allowance(statement.n_bins, statement.confidence_level)],
    }


def prediction_inputs(
    shape: Architecture, rows: IntArray, circuit: str = "predictions"
) -> dict[str, Any]:
    """Inputs of a chunk of predictions, or of an attestation."""
    filled = np.minimum(np.arange(shape.rows_of(circuit)), len(rows) - 1)
    return {"rows": rows[filled]}


def prediction_outputs(
    shape: Architecture, found: IntegerPredictions, circuit: str = "predictions"
) -> list[int]:
    """Outputs of a chunk of predictions, or of an attestation, from labels and confidences."""
    filled = np.minimum(np.arange(shape.rows_of(circuit)), len(found.label) - 1)
    n_classes = shape.widths[-1]
    # Sum over classes of class * (1 if it is the label else -1).
    labels = 2 * found.label[filled] - n_classes * (n_classes - 1) // 2
    return [int(v) for v in np.stack([found.confidence[filled], labels], axis=1).ravel()]


def read_predictions(shape: Architecture, outputs: list[int], n: int) -> IntegerPredictions:
    """Labels and confidences from the outputs of a chunk."""
    confidence, label = np.array(outputs, np.int64).reshape(-1, 2)[:n].T
    n_classes = shape.widths[-1]
    return IntegerPredictions((label + n_classes * (n_classes - 1) // 2) // 2, confidence)


def signed_sums(
    found: IntegerPredictions, codes: IntArray, n_bins: int, max_bins: int
) -> list[int]:
    """Outputs of the circuit "bins", computed from known predictions."""
    reaches = np.where(2 * found.confidence[:, None] > edges(n_bins, max_bins), 1, -1)
    correct = np.where(found.label == codes, 1, -1)
    parts = np.stack([np.ones_like(correct), found.confidence, correct])
    return [int(v) for v in (parts @ reaches).ravel()]


def read_sums(outputs: list[int], n_bins: int, max_bins: int) -> BinSums:
    """Sums per bin from the added outputs of all chunks."""
    parts = np.array(outputs, dtype=object).reshape(3, max_bins)
    following = np.concatenate([parts[:, 1:], -parts[:, :1]], axis=1)
    twice = (parts - following)[:, :n_bins]
    count, confidence, correct = twice[0] // 2, twice[1] // 2, (twice[0] + twice[2]) // 4
    limits = -(-np.arange(n_bins + 1) * ONE // n_bins)
    return BinSums(
        limits,
        count.astype(np.int64),
        correct.astype(np.int64),
        confidence.astype(np.int64),
        scale=ONE,
    )


def thresholds(alpha: float, tolerance: float) -> list[int]:
    """Thresholds of a verdict in thousandths: alpha minus the tolerance, alpha, alpha plus it."""
    middle, step = round(1000 * alpha), math.ceil(round(1000 * tolerance, 6))
    values = [max(0, middle - step), middle, min(1000, middle + step)]
    assert len(values) == N_ALPHAS
    return values


def chance_allowance(n_bins: int, confidence_level: float | None) -> int:
    """Allowance for chance in a bin in quarters of millionths (Hoeffding, union of all bins).

    A bin of n independent predictions whose confidence is within alpha of the truth has
    ``max(0, |correct - confidence| - alpha n) ** 2 <= n log(2 B / delta) / 2`` in all B bins
    with probability at least 1 - delta, the confidence level. Without a level, 0: the
    comparison of Algorithm 1.
    """
    if confidence_level is None:
        return 0
    return math.ceil(4e6 * math.log(2 * n_bins / (1 - confidence_level)) / 2)


def too_few_to_fail(
    n_samples: int, n_classes: int, n_bins: int, alpha: float, confidence_level: float | None
) -> str:
    """Say why a verdict might pass whatever the true labels are; empty if that is impossible.

    Its sums are secret, so that confidences are taken to be where they hide the most: each bin
    that a largest probability can be in holds as many samples as are within alpha and chance
    both if all predictions are right and if none is. One sample more can fail.
    """
    lower, upper = np.arange(n_bins) / n_bins, np.arange(1, n_bins + 1) / n_bins
    reached = upper > 1 / n_classes - ROUNDING
    # The smallest, over mean confidences of the bin, of the larger gap of these two cases.
    gap = np.maximum(0.5, np.maximum(lower, 1 - upper))[reached] - alpha
    if (gap <= 0).any():
        return "This audit might pass whatever the true labels are: take a smaller alpha."
    allowance = chance_allowance(n_bins, confidence_level) / 4e6
    needed = int(np.floor(allowance / (gap * gap)).sum()) + 1
    if n_samples >= needed:
        return ""
    return (
        "This audit might pass whatever the true labels are: take a smaller alpha, fewer bins, or "
        f"at least {needed} reference samples instead of {n_samples}."
    )


def sample_size(false_share: float, error: float) -> int:
    """Number of predictions to prove, so that false ones are missed with at most that error.

    Parameters
    ----------
    false_share : float
        Fraction of false reports that must be found, in (0, 1).
    error : float
        Largest probability to miss it, in (0, 1).

    Returns
    -------
    int
        Smallest k with ``(1 - false_share) ** k <= error``.

    Examples
    --------
    >>> from skuq.zk._statements import sample_size
    >>> sample_size(0.02, 0.01)
    228
    """
    for name, value in (("false_share", false_share), ("error", error)):
        if not 0 < value < 1:
            raise ValueError(f"`{name}` must be in (0, 1), got {value}.")
    most = float(sys.maxsize // 2)  # of a share so small that the quotient is infinite
    return math.ceil(min(most, math.log(error) / math.log1p(-false_share)))


def chosen_rows(statement: SpotCheckStatement, n: int, k: int) -> IntArray:
    """Choose the rows to prove: those with the smallest hashes.

    They depend on the nonce and on what was fixed before the auditor chose it, but not on
    anything else, such as alpha: a provider who could still choose something would try values
    until no false report is among the rows.
    """
    names = ("commitment_digest", "reference_digest", "reported_digest", "nonce")
    seed = canonical({name: getattr(statement, name) for name in names})
    keys = [hashlib.sha256(seed + b"\nrow %d" % i).digest() for i in range(n)]
    return np.array(sorted(sorted(range(n), key=keys.__getitem__)[:k]), np.int64)


def reference_digest(rows: IntArray, codes: IntArray) -> str:
    """Compute the SHA-256 of encoded reference data."""
    data = rows.astype("<i8").tobytes() + codes.astype("<i8").tobytes()
    return digest(b"%d,%d\n" % rows.shape + data)


def encoded(encoding: Encoding, classes: NDArray[Any], X: Any, y: Any) -> tuple[IntArray, IntArray]:
    """Encode reference data as integers, and check their number."""
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise ValueError(f"Labels must have shape (n_samples,), got {labels.shape}.")
    rows, codes = encoding.encode(X), codes_of(labels, classes, "y")
    if len(rows) != len(codes):
        raise ValueError(f"There are {len(rows)} inputs and {len(codes)} labels.")
    return rows, codes
