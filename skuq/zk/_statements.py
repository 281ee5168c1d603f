"""Statements that are proven at each level of disclosure, and the public inputs of each proof.

Both parties share one validator and one encoding of statements, which are JSON objects. `context`
binds a proof to the canonical text of a statement, and hence to all its entries.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from skuq.base import IntArray
from skuq.calibration import BinSums
from skuq.labels import codes_of
from skuq.zk import _fixed_point as fixed
from skuq.zk._circuits import edges, fixed_inputs, input_names
from skuq.zk._files import VERDICT, VERDICTS, VERSIONS, VerificationError, canonical, digest
from skuq.zk._fixed_point import Architecture, IntegerPredictions
from skuq.zk._public_commitment import Commitment, Encoding, check_record
from skuq.zk._regions import Regions, rows_of_chunks, valid_tree

Level = Literal["verdict", "bins", "predictions"]
LEVELS: tuple[Level, ...] = ("verdict", "bins", "predictions")  # levels of disclosure
ATTESTATION = "attestation"  # level of a single prediction
VERDICT_PART = "verdict"  # name of the verdict on all samples; for a region, a number follows


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Common entries of all statements."""

    format: int  # version of the format of all files
    versions: Mapping[str, Any]  # versions of the provider's software
    commitment_digest: str  # SHA-256 of commitment.json
    level: str  # level of disclosure, which determines the other entries

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        values: dict[str, Any]
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
        return cls(**values)

    def record(self) -> dict[str, Any]:
        values = ((entry.name, getattr(self, entry.name)) for entry in fields(self))
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values}

    def canonical(self) -> bytes:
        """Return the canonical text to which proofs are bound."""
        return canonical(self.record())

    def impossible(self, committed: Commitment) -> str | None:
        """Describe the first impossible value; return None if all values are possible."""
        return None


@dataclass(frozen=True, kw_only=True)
class AuditStatement(Statement):
    """Settings and reference data of an audit; other levels than "bins" add entries."""

    alpha: float
    n_bins: int
    confidence_level: float | None
    n_samples: int
    reference_digest: str  # SHA-256 of the encoded reference data
    regions: tuple[Any, ...] | None  # tree of regions with separate verdicts

    @property
    def n_regions(self) -> int:
        """Number of regions with separate sums; 1 if all samples are one region."""
        return 1 if self.regions is None else len(Regions(self.regions).paths)

    @property
    def n_audits(self) -> int:
        """Number of verdicts: on all samples and, if there are regions, on each region."""
        return 1 if self.regions is None else 1 + self.n_regions

    @property
    def single_level(self) -> float | None:
        """Confidence level of each verdict, by the Bonferroni correction for several verdicts."""
        if self.confidence_level is None or self.n_audits == 1:
            return self.confidence_level
        # Round the level, so that prover and verifier obtain the same number.
        return round(1 - (1 - self.confidence_level) / self.n_audits, 12)

    def impossible(self, committed: Commitment) -> str | None:
        if not 0 <= self.alpha <= 1:
            return f"alpha={self.alpha}"
        if self.level == "verdict" and abs(1000 * self.alpha - round(1000 * self.alpha)) > 1e-9:
            return f"alpha={self.alpha}, which is not a multiple of 0.001,"
        if not 1 <= self.n_bins <= committed.shape.n_bins:
            return f"n_bins={self.n_bins}, which must be from 1 to {committed.shape.n_bins},"
        if self.confidence_level is not None and not 0 < self.confidence_level < 1:
            return f"confidence_level={self.confidence_level}"
        if self.n_samples < 1:
            return f"n_samples={self.n_samples}"
        tree = None if self.regions is None else list(self.regions)
        if tree is not None and not valid_tree(tree, len(committed.encoding.columns)):
            return "the tree of regions"
        if self.single_level is not None and self.single_level >= 1:
            return f"confidence_level={self.confidence_level} for {self.n_audits} verdicts"
        return None


@dataclass(frozen=True, kw_only=True)
class VerdictStatement(AuditStatement):
    pads: tuple[int, ...]  # index of the one-time pad of each chunk of reference data

    def impossible(self, committed: Commitment) -> str | None:
        found = super().impossible(committed)
        if found is not None:
            return found
        valid = all(0 <= pad < committed.shape.n_pads for pad in self.pads)
        least = -(-self.n_samples // max(1, committed.shape.rows_of("padded_bins")))
        # Regions have separate chunks, so each region except one may need an additional chunk.
        most = least + self.n_regions - 1
        if not valid or not least <= len(set(self.pads)) == len(self.pads) <= most:
            return "the list of pads"
        return None


@dataclass(frozen=True, kw_only=True)
class SpotCheckStatement(AuditStatement):
    """Statement of an audit at level "predictions"."""

    reported_digest: str  # SHA-256 of the reported predictions
    nonce: str  # the auditor's random number, which selects the rows to prove
    # number of proven rows in each region; a region with fewer rows is proven completely
    n_proven: int

    def impossible(self, committed: Commitment) -> str | None:
        found = super().impossible(committed)
        if found is None and not 1 <= self.n_proven <= self.n_samples:
            return f"n_proven={self.n_proven}"
        return found


@dataclass(frozen=True, kw_only=True)
class AttestationStatement(Statement):
    x: tuple[float, ...]  # the input
    label: int  # index of the predicted class
    confidence: int  # probability of this class in units of 2 ** -CONFIDENCE_BITS
    nonce: str  # the client's text
    number: int  # number of this attestation, starting at 1

    def impossible(self, committed: Commitment) -> str | None:
        if not 0 <= self.label < len(committed.classes):
            return "the label"
        if not 0 < self.confidence <= fixed.ONE:
            return "the confidence"
        allowed = committed.record["n_attestations"]
        if not 1 <= self.number <= allowed:
            return f"the number {self.number}, which must be from 1 to {allowed},"
        return None


KINDS: dict[str, type[Statement]] = {
    "bins": AuditStatement,
    "verdict": VerdictStatement,
    "predictions": SpotCheckStatement,
    ATTESTATION: AttestationStatement,
}
FORMS = {  # forms of the entries of statements, see `check_form`
    "format": int,
    "versions": VERSIONS,
    "commitment_digest": str,
    "level": str,
    "alpha": float,
    "n_bins": int,
    "confidence_level": float | None,
    "n_samples": int,
    "reference_digest": str,
    "regions": list | None,
    "pads": [int],
    "reported_digest": str,
    "nonce": str,
    "n_proven": int,
    "x": [float],
    "label": int,
    "confidence": int,
    "number": int,
}


def read_statement(record: Any, committed: Commitment, level: str, where: str) -> Statement:
    """Convert a record to a statement; raise unless it has the entries of `level`, all possible."""
    if isinstance(record, dict):  # checked first: the other entries depend on the level
        check_asked("level", record.get("level", level), level)
    check_record(record, {entry.name: FORMS[entry.name] for entry in fields(KINDS[level])}, where)
    statement = KINDS[level].of(record)
    if statement.commitment_digest != committed.digest:
        raise VerificationError(f"{where} is about a different commitment from the published one.")
    impossible = statement.impossible(committed)
    if impossible is not None:
        raise VerificationError(f"{where}: {impossible} is impossible.")
    return statement


def check_level(level: str) -> None:
    if level not in LEVELS:
        raise ValueError(f"`level` must be one of {', '.join(LEVELS)}, got {level!r}.")


def check_asked(name: str, stated: Any, asked: Any) -> None:
    """Raise if an entry of a statement is not what the verifier requested."""
    if stated != asked:
        raise VerificationError(f"The statement has {name}={stated}, but you asked for {asked}.")


def context(statement: bytes, part: str) -> int:
    """Compute the hash that binds a proof to a statement and to the name of one of its parts.

    The hash is a public input. Public inputs are part of the transcript from which the challenges
    of a proof are derived (Fiat-Shamir).
    """
    text = statement + b"\n" + part.encode()
    return int.from_bytes(hashlib.sha256(text).digest(), "big") >> (256 - fixed.CONTEXT_BITS)


def public_inputs(
    circuit: str, shape: Architecture, values: Mapping[str, Any], context_hash: int
) -> list[list[int]]:
    """Return the public inputs of a proof in the order of its circuit."""
    known = {**fixed_inputs(shape), **values, "context": [context_hash]}
    inputs = []
    for name, size in input_names(circuit, shape).items():
        numbers = [int(value) for value in np.asarray(known[name], dtype=object).ravel()]
        if len(numbers) != math.prod(size):
            raise ValueError(f"{name!r} must have shape {size}, got {len(numbers)} numbers.")
        inputs.append(numbers)
    return inputs


def known_outputs(circuit: str, values: Mapping[str, Any]) -> list[int]:
    """Return the outputs that are not transmitted because the verifier can compute them.

    If the outputs are sums, one output is the number of most probable classes, summed over all
    counted rows. Each row must have one such class, so the sum is the number of counted rows.
    """
    return [int(np.sum(values["counted"]))] if circuit in ("bins", "padded_bins") else []


def n_outputs(circuit: str, shape: Architecture) -> int:
    of_rows = 2 * shape.rows_of(circuit)
    special = {"attestation": of_rows, "predictions": of_rows, "verdict": fixed.N_ALPHAS}
    return special.get(circuit, 3 * shape.n_bins)


def bins_inputs(
    shape: Architecture, circuit: str, rows: IntArray, codes: IntArray, n_bins: int
) -> dict[str, Any]:
    """Return the inputs for a chunk of rows, filled up with uncounted copies of the last row."""
    n = shape.rows_of(circuit)
    filled = np.minimum(np.arange(n), len(rows) - 1)
    return {
        "rows": rows[filled],
        "labels": np.eye(shape.widths[-1], dtype=np.int64)[codes[filled]],
        "counted": (np.arange(n) < len(rows)).astype(np.int64),
        "edges": edges(n_bins, shape.n_bins),
    }


class ReferenceData(NamedTuple):
    """Encoded reference data, and the region of each row (0 without regions)."""

    rows: IntArray
    codes: IntArray
    region: IntArray

    @property
    def digest(self) -> str:
        data = self.rows.astype("<i8").tobytes() + self.codes.astype("<i8").tobytes()
        return digest(b"%d,%d\n" % self.rows.shape + data)

    @property
    def largest_region(self) -> int:
        return int(np.bincount(self.region).max())

    def region_of_chunks(self, size: int) -> IntArray:
        """Return the region number of each chunk of at most `size` rows."""
        return np.array([self.region[rows[0]] for rows in rows_of_chunks(size, self.region)])


def verdict_inputs(
    shape: Architecture,
    max_error: float,
    statement: VerdictStatement,
    outputs: list[list[int]],
    chunks: Sequence[int],
) -> dict[str, Any]:
    used = np.zeros(shape.n_pads, np.int64)
    used[[statement.pads[k] for k in chunks]] = 1
    return {
        "sums": np.array([outputs[k] for k in chunks], dtype=object).sum(axis=0),
        "chunks": used,
        "alphas": thresholds(statement.alpha, max_error),
        "chance": [chance_allowance(statement.n_bins, statement.single_level)],
    }


def verdict_chunks(
    shape: Architecture, statement: AuditStatement, data: ReferenceData
) -> dict[str, list[int]]:
    """Return the chunk numbers of each verdict: on all samples, and then on each region."""
    where = data.region_of_chunks(shape.rows_of("padded_bins"))
    found = {VERDICT_PART: list(range(len(where)))}
    if statement.regions is not None:
        for k in np.unique(where):  # regions without samples have no verdict
            found[f"{VERDICT_PART} {k}"] = np.flatnonzero(where == k).tolist()
    return found


def verdict_file(part: str) -> str:
    number = part.removeprefix(VERDICT_PART)
    return f"{VERDICTS}/{int(number):05d}.json" if number else VERDICT


def thresholds(alpha: float, max_error: float) -> list[int]:
    """Compute thresholds in thousandths: alpha - max_error, alpha, alpha + max_error."""
    middle, step = round(1000 * alpha), math.ceil(round(1000 * max_error, 6))
    return [max(0, middle - step), middle, min(1000, middle + step)]


def chance_allowance(n_bins: int, confidence_level: float | None) -> int:
    """Compute the margin for sampling error in a bin, in quarters of millionths (Hoeffding).

    In each of B bins, let n independent predictions have a mean confidence within alpha of their
    mean probability of being correct. Then ``max(0, |correct - confidence| - alpha n) ** 2`` is at
    most ``n log(2 B / delta) / 2`` in all bins, with probability at least 1 - delta (union bound).
    The confidence level is 1 - delta. Without a level, the margin is 0.
    """
    if confidence_level is None:
        return 0
    return math.ceil(4e6 * math.log(2 * n_bins / (1 - confidence_level)) / 2)


def too_few_to_fail(n_samples: int, n_classes: int, statement: AuditStatement) -> str:
    """Explain why a verdict might pass whatever the labels are; return "" if it could fail.

    The sums are secret, so this function assumes the worst case: every bin that predictions can
    reach has as many samples as possible while it passes both if all its predictions are correct
    and if all are wrong. With one more sample in total, at least one bin can fail.
    """
    n_bins = statement.n_bins
    lower, upper = np.arange(n_bins) / n_bins, np.arange(1, n_bins + 1) / n_bins
    reached = upper > 1 / n_classes - fixed.ROUNDING
    # With mean confidence c, the gap is 1 - c if all predictions in a bin are correct, and c if all
    # are wrong. Compute the larger of the two, minimised over the values of c in the bin.
    gap = np.maximum(0.5, np.maximum(lower, 1 - upper))[reached] - statement.alpha
    if (gap <= 0).any():
        return "This audit might pass whatever the true labels are: use a smaller tolerance."
    allowance = chance_allowance(n_bins, statement.single_level) / 4e6
    needed = int(np.floor(allowance / (gap * gap)).sum()) + 1
    if n_samples >= needed:
        return ""
    return (
        "This audit might pass whatever the true labels are: use a smaller tolerance, fewer bins, "
        f"or at least {needed} reference samples instead of {n_samples}."
    )


def reference_chunks(
    shape: Architecture, circuit: str, data: ReferenceData, statement: AuditStatement
) -> list[dict[str, Any]]:
    """Return the inputs of all chunks of reference data, for circuit "bins" or "padded_bins"."""
    parts, chunks = rows_of_chunks(shape.rows_of(circuit), data.region), []
    pads = statement.pads if isinstance(statement, VerdictStatement) else None
    if pads is not None and len(pads) != len(parts):
        raise VerificationError("The statement needs one index of a one-time pad per chunk.")
    for k, part in enumerate(parts):
        values = bins_inputs(shape, circuit, data.rows[part], data.codes[part], statement.n_bins)
        if pads is not None:
            values["chunk"] = np.eye(shape.n_pads, dtype=np.int64)[pads[k]]
        chunks.append(values)
    return chunks


def prediction_inputs(
    shape: Architecture, rows: IntArray, circuit: str = "predictions"
) -> dict[str, Any]:
    filled = np.minimum(np.arange(shape.rows_of(circuit)), len(rows) - 1)
    return {"rows": rows[filled]}


def prediction_outputs(
    shape: Architecture, found: IntegerPredictions, circuit: str = "predictions"
) -> list[int]:
    filled = np.minimum(np.arange(shape.rows_of(circuit)), len(found.label) - 1)
    n_classes = shape.widths[-1]
    # Twice the label minus the sum of all class numbers, as computed in the circuit.
    labels = 2 * found.label[filled] - n_classes * (n_classes - 1) // 2
    return [int(v) for v in np.stack([found.confidence[filled], labels], axis=1).ravel()]


def read_predictions(shape: Architecture, outputs: list[int], n: int) -> IntegerPredictions:
    confidence, label = np.array(outputs, np.int64).reshape(-1, 2)[:n].T
    n_classes = shape.widths[-1]
    return IntegerPredictions((label + n_classes * (n_classes - 1) // 2) // 2, confidence)


def signed_sums(
    found: IntegerPredictions, codes: IntArray, n_bins: int, max_bins: int
) -> list[int]:
    """Compute the outputs of the circuit "bins" from known predictions."""
    reaches = np.where(2 * found.confidence[:, None] > edges(n_bins, max_bins), 1, -1)
    correct = np.where(found.label == codes, 1, -1)
    parts = np.stack([np.ones_like(correct), found.confidence, correct])
    return [int(v) for v in (parts @ reaches).ravel()]


def read_sums(outputs: list[int], n_bins: int, max_bins: int) -> BinSums:
    """Convert outputs of the circuit "bins", added over all chunks, to the sums of each bin."""
    parts = np.array(outputs, dtype=object).reshape(3, max_bins)
    following = np.concatenate([parts[:, 1:], -parts[:, :1]], axis=1)
    twice = (parts - following)[:, :n_bins]
    count, confidence, correct = twice[0] // 2, twice[1] // 2, (twice[0] + twice[2]) // 4
    limits = -(-np.arange(n_bins + 1) * fixed.ONE // n_bins)
    count, correct, confidence = (v.astype(np.int64) for v in (count, correct, confidence))
    return BinSums(limits, count, correct, confidence, fixed.ONE)


def encoded(
    encoding: Encoding, classes: NDArray[Any], X: Any, y: Any, regions: Regions | None = None
) -> ReferenceData:
    """Encode reference data as integers, with the region of each row."""
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise ValueError(f"Labels must have shape (n_samples,), got {labels.shape}.")
    rows, codes = encoding.encode(X), codes_of(labels, classes, "y")
    if len(rows) != len(codes):
        raise ValueError(f"There are {len(rows)} inputs, but {len(codes)} labels.")
    region = np.zeros(len(rows), np.int64) if regions is None else regions.assign(X)
    return ReferenceData(rows, codes, region)
