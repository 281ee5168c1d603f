"""Verification of the proofs that belong to one statement under one commitment."""

from __future__ import annotations

import base64
import binascii
import tempfile
from pathlib import Path
from typing import Any

from skuq.base import IntArray
from skuq.zk import _ezkl as backend
from skuq.zk._commitment_files import Commitment
from skuq.zk._files import Refused, field, read_json
from skuq.zk._keys import verifying_key
from skuq.zk._provider import CHUNKS
from skuq.zk._statements import (
    context,
    known_outputs,
    n_outputs,
    public_inputs,
    reference_chunks,
)


class Checker:
    """Verification of proofs that belong to one statement under one commitment."""

    def __init__(self, committed: Commitment, statement: dict[str, Any], keys: Path | None):
        self.committed, self.statement = committed, statement
        self._keys = keys

    def proof(
        self, kind: str, part: str, values: dict[str, Any], outputs: list[int], text: str
    ) -> None:
        """Verify a single proof."""
        with (
            tempfile.TemporaryDirectory() as temporary,
            verifying_key(self.committed, kind, self._keys) as (settings, key),
        ):
            self._verify(kind, part, values, outputs, text, settings, key, Path(temporary))

    def chunks(self, bundle: Path, kind: str, values: list[dict[str, Any]]) -> list[list[int]]:
        """Verify the proofs of all chunks, and return their outputs."""
        folder = bundle / CHUNKS
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        expected = [f"{k:05d}.json" for k in range(len(values))]
        if names != set(expected):
            raise Refused(
                f"The audit has {len(names)} proofs of chunks where {len(expected)} are needed."
            )
        found = []
        with (
            tempfile.TemporaryDirectory() as temporary,
            verifying_key(self.committed, kind, self._keys) as (settings, key),
        ):
            for k, (name, value) in enumerate(zip(expected, values, strict=True)):
                record = read_json(bundle / CHUNKS / name)
                outputs = integers(record, name)
                text = field(record, "proof", str, name)
                part = f"{kind} {k}"
                self._verify(kind, part, value, outputs, text, settings, key, Path(temporary))
                found.append(outputs)
        return found

    def sums(self, bundle: Path, kind: str, rows: IntArray, codes: IntArray) -> list[list[int]]:
        """Verify the sums of all chunks of reference data, and return them."""
        values = reference_chunks(self.committed.shape, kind, rows, codes, self.statement)
        return self.chunks(bundle, kind, values)

    def _verify(
        self,
        kind: str,
        part: str,
        values: dict[str, Any],
        outputs: list[int],
        text: str,
        settings: Path,
        key: Path,
        work: Path,
    ) -> None:
        try:
            proof = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Refused(f"The proof of {part!r} is damaged.") from error
        if backend.commitment_of(proof) != self.committed.point:
            raise Refused(
                f"The proof of {part!r} is one of other weights: its commitment is not the "
                "published one."
            )
        if len(outputs) != n_outputs(kind, self.committed.shape):
            raise Refused(f"The result of {part!r} has the wrong length.")
        tied = context(self.statement, part)
        inputs = public_inputs(kind, self.committed.shape, values, tied)
        known = known_outputs(kind, values)
        instances = [v for numbers in inputs for v in numbers] + [*outputs, *known, tied]
        if not backend.verify(proof, instances, settings, key, self.committed.srs, work):
            raise Refused(
                f"The proof of {part!r} does not hold for this statement, these data and these "
                "results."
            )


def integers(record: Any, where: str, name: str = "outputs", bits: int = 128) -> list[int]:
    values = field(record, name, list, where)
    try:
        if not all(type(value) in (int, str) for value in values):
            raise TypeError
        numbers = [int(value) for value in values]
    except (TypeError, ValueError) as error:
        raise Refused(f"The numbers {name!r} in {where} are no integers.") from error
    if any(abs(number) >= 1 << bits for number in numbers):
        raise Refused(f"The numbers {name!r} in {where} are out of range.")
    return numbers
