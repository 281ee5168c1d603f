"""Verification of proofs of one statement under one commitment, with public data alone."""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from skuq.base import IntArray
from skuq.zk import _ezkl as backend
from skuq.zk._files import CHUNKS, VerificationError, field, read_json
from skuq.zk._keys import verifying_key
from skuq.zk._public_commitment import Commitment
from skuq.zk._statement_entries import AuditStatement, Statement
from skuq.zk._statements import (
    context,
    known_outputs,
    n_outputs,
    public_inputs,
    reference_chunks,
)


class Verifier:
    """Verifier of all proofs that belong to one statement under one commitment.

    Parameters
    ----------
    committed : Commitment
        The published commitment.
    statement : Statement
        What the proofs must be bound to.
    keys : str, Path or None
        The verifier's own folder for verifying keys; None builds them anew.
    """

    def __init__(self, committed: Commitment, statement: Statement, keys: str | Path | None):
        self.committed, self.statement = committed, statement
        self._keys = None if keys is None else Path(keys)

    def verify(
        self, circuit: str, part: str, values: dict[str, Any], outputs: list[int], proof: str
    ) -> None:
        """Verify a single proof, in base64, of these outputs."""
        with self._tools(circuit) as tools:
            self._verify(tools, circuit, part, values, outputs, proof)

    def chunks(self, bundle: Path, circuit: str, values: list[dict[str, Any]]) -> list[list[int]]:
        """Verify the proofs of all chunks, and return their outputs."""
        folder = bundle / CHUNKS
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        expected = [f"{k:05d}.json" for k in range(len(values))]
        if names != set(expected):
            raise VerificationError(
                f"The audit has {len(names)} proofs of chunks where {len(expected)} are needed."
            )
        found = []
        with self._tools(circuit) as tools:
            for k, (name, value) in enumerate(zip(expected, values, strict=True)):
                record = read_json(folder / name)
                outputs = integers(record, name)
                proof = field(record, "proof", str, name)
                self._verify(tools, circuit, f"{circuit} {k}", value, outputs, proof)
                found.append(outputs)
        return found

    def sums(self, bundle: Path, circuit: str, rows: IntArray, codes: IntArray) -> list[list[int]]:
        """Verify the sums of all chunks of reference data, and return them."""
        assert isinstance(self.statement, AuditStatement)
        values = reference_chunks(self.committed.shape, circuit, rows, codes, self.statement)
        return self.chunks(bundle, circuit, values)

    @contextmanager
    def _tools(self, circuit: str) -> Iterator[_Tools]:
        with (
            tempfile.TemporaryDirectory() as temporary,
            verifying_key(self.committed, circuit, self._keys) as (settings, key),
        ):
            yield _Tools(settings, key, Path(temporary))

    def _verify(
        self,
        tools: _Tools,
        circuit: str,
        part: str,
        values: dict[str, Any],
        outputs: list[int],
        text: str,
    ) -> None:
        committed = self.committed
        try:
            proof = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise VerificationError(f"The proof of {part!r} is damaged.") from error
        if backend.commitment_point(proof) != committed.point:
            raise VerificationError(
                f"The proof of {part!r} is one of other weights: its commitment is not the "
                "published one."
            )
        if len(outputs) != n_outputs(circuit, committed.shape):
            raise VerificationError(f"The result of {part!r} has the wrong length.")
        hashed = context(self.statement.canonical(), part)
        inputs = public_inputs(circuit, committed.shape, values, hashed)
        known = known_outputs(circuit, values)
        instances = [v for numbers in inputs for v in numbers] + [*outputs, *known, hashed]
        settings, key, work = tools
        if not backend.verify(proof, instances, settings, key, committed.srs, work):
            raise VerificationError(
                f"The proof of {part!r} does not hold for this statement, these data and these "
                "results."
            )


class _Tools(NamedTuple):
    """Settings and verifying key of a circuit, and a temporary folder."""

    settings: Path
    key: Path
    work: Path


def integers(record: Any, where: str, name: str = "outputs", bits: int = 128) -> list[int]:
    """Return a list of integers of another party's record; fail if it is anything else."""
    values = field(record, name, list, where)
    try:
        if not all(type(value) in (int, str) for value in values):
            raise TypeError
        numbers = [int(value) for value in values]
    except (TypeError, ValueError) as error:
        raise VerificationError(f"The numbers {name!r} in {where} are not integers.") from error
    if any(abs(number) >= 1 << bits for number in numbers):
        raise VerificationError(f"The numbers {name!r} in {where} are out of range.")
    return numbers
