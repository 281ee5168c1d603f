"""Statements: what is proven at each level, with one validator and one encoding for both sides.

A statement is a JSON object in files. Proofs are bound to its canonical text, and so to all of its
entries, by `skuq.zk._statements.context`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from skuq.zk import _ezkl as backend
from skuq.zk._files import FORMAT, VerificationError, canonical, field
from skuq.zk._fixed_point import ONE
from skuq.zk._public_commitment import Commitment

Level = Literal["verdict", "bins", "predictions"]
LEVELS: tuple[Level, ...] = ("verdict", "bins", "predictions")  # of disclosure
ATTESTATION = "attestation"  # the level of a single prediction


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Entries of every statement.

    Attributes
    ----------
    format : int
        Of all files.
    versions : mapping of str to str
        Software of the provider.
    commitment_digest : str
        SHA-256 of ``commitment.json``.
    level : str
        What is disclosed; it decides which other entries there are.
    """

    format: int
    versions: Mapping[str, Any]
    commitment_digest: str
    level: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Read a statement from a record with its entries."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in record.items()
        }
        return cls(**values)

    def record(self) -> dict[str, Any]:
        """Return all entries as JSON."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def canonical(self) -> bytes:
        """Return the text that proofs are bound to."""
        return canonical(self.record())

    def impossible(self, committed: Commitment) -> str | None:
        """Name the first impossible value."""
        return None


@dataclass(frozen=True, kw_only=True)
class AuditStatement(Statement):
    """Question of an audit, and its reference data; at level "bins", all that is proven.

    Attributes
    ----------
    alpha, n_bins, confidence_level : float, int, float or None
        The question.
    n_samples : int
        Reference samples.
    reference_digest : str
        SHA-256 of the encoded reference data.
    """

    alpha: float
    n_bins: int
    confidence_level: float | None
    n_samples: int
    reference_digest: str

    def impossible(self, committed: Commitment) -> str | None:
        """Name the first impossible value."""
        if not 0 <= self.alpha <= 1:
            return f"alpha={self.alpha}"
        if not 1 <= self.n_bins <= committed.shape.n_bins:
            return f"n_bins={self.n_bins}"
        if self.confidence_level is not None and not 0 < self.confidence_level < 1:
            return f"confidence_level={self.confidence_level}"
        if self.n_samples < 1:
            return f"n_samples={self.n_samples}"
        return None


@dataclass(frozen=True, kw_only=True)
class VerdictStatement(AuditStatement):
    """What is proven at level "verdict".

    Attributes
    ----------
    pads : tuple of int
        Number of the one-time pad of each chunk of reference data.
    """

    pads: tuple[int, ...]

    def impossible(self, committed: Commitment) -> str | None:
        """Name the first impossible value."""
        found = super().impossible(committed)
        if found is not None:
            return found
        if abs(1000 * self.alpha - round(1000 * self.alpha)) > 1e-9:
            return f"alpha={self.alpha}, no multiple of 0.001,"
        size = max(1, committed.shape.rows_of("padded_bins"))
        valid = all(type(pad) is int and 0 <= pad < committed.shape.n_pads for pad in self.pads)
        if not valid or not len(set(self.pads)) == len(self.pads) == -(-self.n_samples // size):
            return "the list of pads"
        return None


@dataclass(frozen=True, kw_only=True)
class SpotCheckStatement(AuditStatement):
    """What is proven at level "predictions".

    Attributes
    ----------
    reported_digest : str
        SHA-256 of the reported predictions.
    nonce : str
        The auditor's random number, which chooses the rows that are proven.
    n_proven : int
        Number of these rows.
    """

    reported_digest: str
    nonce: str
    n_proven: int

    def impossible(self, committed: Commitment) -> str | None:
        """Name the first impossible value."""
        found = super().impossible(committed)
        if found is None and not 1 <= self.n_proven <= self.n_samples:
            return f"n_proven={self.n_proven}"
        return found


@dataclass(frozen=True, kw_only=True)
class AttestationStatement(Statement):
    """A single prediction.

    Attributes
    ----------
    x : tuple of float
        The input.
    label : int
        Number of the predicted class.
    confidence : int
        Its probability in units of ``2 ** -CONFIDENCE_BITS``.
    nonce : str
        The client's text.
    number : int
        Number of this attestation, from 1.
    """

    x: tuple[float, ...]
    label: int
    confidence: int
    nonce: str
    number: int

    def impossible(self, committed: Commitment) -> str | None:
        """Name the first impossible value."""
        if not all(isinstance(value, float) and math.isfinite(value) for value in self.x):
            return "the input"
        if not 0 <= self.label < len(committed.classes):
            return "the label"
        if not 0 < self.confidence <= ONE:
            return "the confidence"
        if not 1 <= self.number <= committed.record["n_attestations"]:
            return "the number, beyond what the commitment allows,"
        return None


KINDS: dict[str, type[Statement]] = {
    "bins": AuditStatement,
    "verdict": VerdictStatement,
    "predictions": SpotCheckStatement,
    ATTESTATION: AttestationStatement,
}
JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "format": int,
    "versions": dict,
    "commitment_digest": str,
    "level": str,
    "alpha": float,
    "n_bins": int,
    "confidence_level": (float, type(None)),
    "n_samples": int,
    "reference_digest": str,
    "pads": list,
    "reported_digest": str,
    "nonce": str,
    "n_proven": int,
    "x": list,
    "label": int,
    "confidence": int,
    "number": int,
}


def read_audit(record: Any, committed: Commitment, where: str) -> AuditStatement:
    """Read and validate the statement of an audit."""
    found = _read(record, committed, LEVELS, where)
    assert isinstance(found, AuditStatement)
    return found


def read_attestation(record: Any, committed: Commitment, where: str) -> AttestationStatement:
    """Read and validate the statement of a single prediction."""
    found = _read(record, committed, (ATTESTATION,), where)
    assert isinstance(found, AttestationStatement)
    return found


def check_statement(statement: Statement, committed: Commitment) -> None:
    """Fail if a verifier would refuse a statement."""
    _read(statement.record(), committed, tuple(KINDS), "The statement")


def _read(record: Any, committed: Commitment, levels: tuple[str, ...], where: str) -> Statement:
    """Check that a statement has the entries of its level, no others, and possible values."""
    if field(record, "format", int, where) != FORMAT:
        raise VerificationError(f"{where} has format {record['format']}, expected {FORMAT}.")
    level = field(record, "level", str, where)
    if level not in levels:
        raise VerificationError(f"{where} is about an unknown level {level!r}.")
    names = {entry.name for entry in fields(KINDS[level])}
    for name in sorted(names):
        field(record, name, JSON_TYPES[name], where)
    unknown = sorted(set(record) - names)
    if unknown:
        raise VerificationError(f"{where} has the unknown entry {unknown[0]!r}.")
    statement = KINDS[level].of(record)
    if statement.commitment_digest != committed.digest:
        raise VerificationError(f"{where} is about another commitment than the published one.")
    if statement.versions.get("ezkl") != backend.version():
        raise VerificationError(
            f"{where} was made with another version of ezkl than {backend.version()}."
        )
    impossible = statement.impossible(committed)
    if impossible is not None:
        raise VerificationError(f"{where}: {impossible} is impossible.")
    return statement
