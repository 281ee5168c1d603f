"""Entries of the statements that are proven, with one validator for both sides.

A statement is a JSON object. Proofs are bound to its canonical text, and so to all of its entries,
by `skuq.zk._statements.context`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from skuq.zk import _ezkl as backend
from skuq.zk._files import FORMAT, VerificationError, field
from skuq.zk._fixed_point import ONE
from skuq.zk._public_commitment import Commitment

Level = Literal["verdict", "bins", "predictions"]
LEVELS: tuple[Level, ...] = ("verdict", "bins", "predictions")  # of disclosure
ATTESTATION = "attestation"  # the level of a single prediction

Entries = dict[str, type | tuple[type, ...]]
COMMON: Entries = {"format": int, "versions": dict, "commitment_digest": str, "level": str}
AUDIT: Entries = {
    **COMMON,
    "alpha": float,
    "n_bins": int,
    "confidence_level": (float, type(None)),
    "n_samples": int,
    "reference_digest": str,
}
ENTRIES: dict[str, Entries] = {
    "bins": AUDIT,
    "verdict": {**AUDIT, "pads": list},
    "predictions": {**AUDIT, "reported_digest": str, "nonce": str, "n_proven": int},
    ATTESTATION: {
        **COMMON,
        "x": list,
        "label": int,
        "confidence": int,
        "nonce": str,
        "number": int,
    },
}


def check_statement(
    statement: Any, committed: Commitment, levels: tuple[str, ...], where: str
) -> dict[str, Any]:
    """Check that a statement has the entries of its level, no others, and possible values."""
    if field(statement, "format", int, where) != FORMAT:
        raise VerificationError(f"{where} has format {statement['format']}, expected {FORMAT}.")
    level = field(statement, "level", str, where)
    if level not in levels:
        raise VerificationError(f"{where} is about an unknown level {level!r}.")
    for name, types in ENTRIES[level].items():
        field(statement, name, types, where)
    unknown = sorted(set(statement) - set(ENTRIES[level]))
    if unknown:
        raise VerificationError(f"{where} has the unknown entry {unknown[0]!r}.")
    if statement["commitment_digest"] != committed.digest:
        raise VerificationError(f"{where} is about another commitment than the published one.")
    if statement["versions"].get("ezkl") != backend.version():
        raise VerificationError(
            f"{where} was made with another version of ezkl than {backend.version()}."
        )
    possible = _prediction if level == ATTESTATION else _audit
    impossible = possible(statement, committed)
    if impossible:
        raise VerificationError(f"{where}: {impossible} is impossible.")
    found: dict[str, Any] = statement
    return found


def _audit(statement: dict[str, Any], committed: Commitment) -> str | None:
    """Name the first impossible value of an audit."""
    alpha, n_bins, n = (statement[name] for name in ("alpha", "n_bins", "n_samples"))
    confidence_level = statement["confidence_level"]
    if not 0 <= alpha <= 1:
        return f"alpha={alpha}"
    if statement["level"] == "verdict" and abs(1000 * alpha - round(1000 * alpha)) > 1e-9:
        return f"alpha={alpha}, no multiple of 0.001,"
    if not 1 <= n_bins <= committed.shape.n_bins:
        return f"n_bins={n_bins}"
    if confidence_level is not None and not 0 < confidence_level < 1:
        return f"confidence_level={confidence_level}"
    if n < 1:
        return f"n_samples={n}"
    if not 1 <= statement.get("n_proven", n) <= n:
        return f"n_proven={statement['n_proven']}"
    pads = statement.get("pads")
    if pads is not None:
        size = max(1, committed.shape.rows_of("padded_bins"))
        valid = all(type(pad) is int and 0 <= pad < committed.shape.n_pads for pad in pads)
        if not valid or not len(set(pads)) == len(pads) == -(-n // size):
            return "the list of pads"
    return None


def _prediction(statement: dict[str, Any], committed: Commitment) -> str | None:
    """Name the first impossible value of an attestation."""
    if not all(isinstance(value, float) and math.isfinite(value) for value in statement["x"]):
        return "the input"
    if not 0 <= statement["label"] < len(committed.classes):
        return "the label"
    if not 0 < statement["confidence"] <= ONE:
        return "the confidence"
    if not 1 <= statement["number"] <= committed.record["n_attestations"]:
        return "the number, beyond what the commitment allows,"
    return None
