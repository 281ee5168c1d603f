"""Generation of proofs under one commitment, by its provider, who counts what each one uses up."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from skuq.zk import _ezkl as backend
from skuq.zk._fixed_point import IntegerNetwork
from skuq.zk._ledger import Kind, Ledger
from skuq.zk._public_commitment import Commitment
from skuq.zk._statement_entries import (
    ATTESTATION,
    AttestationStatement,
    Statement,
    check_statement,
)
from skuq.zk._statements import context, n_outputs, public_inputs

CONSTANTS = "constants.npz"  # in the private folder


class Prover:
    """The provider's secrets of one commitment, and proofs that are made with them.

    Parameters
    ----------
    committed : Commitment
        The folder ``public``, with ``private`` beside it.
    timeout : float, default=600.0
        Longest time for one proof, in seconds.
    """

    def __init__(self, committed: Commitment, timeout: float = 600.0):
        self.committed = committed
        self.private = _private_folder(committed)
        record = committed.record
        self.ledger = Ledger(
            self.private,
            committed.digest,
            {
                "audits": record["n_proofs"],
                "attestations": record["n_attestations"],
                "pads": committed.shape.n_pads,
            },
        )
        self._timeout = timeout

    def network(self) -> IntegerNetwork:
        """Load the committed weights."""
        with np.load(self.private / CONSTANTS) as arrays:
            constants = [arrays[name] for name in arrays.files]
        n_layers = len(self.committed.shape.widths) - 1
        bits = self.committed.encoding.bits
        return IntegerNetwork(
            constants[: 2 * n_layers : 2],
            [bias[0] for bias in constants[1 : 2 * n_layers : 2]],
            bits,
            (self.committed.shape.logit_bits + 1 - bits) // n_layers - 1,
        )

    def prove(
        self, statement: Statement, circuit: str, values: dict[str, Any], part: str
    ) -> dict[str, Any]:
        """Prove one part of the statement of an audit; return proof and outputs as JSON."""
        return self._proven(statement, circuit, values, part, "audits")

    def next_attestation(self) -> int:
        """Take the number of an attestation, from 1: no other one will have it."""
        return self.ledger.take("attestations") + 1

    def attest(self, statement: AttestationStatement, values: dict[str, Any]) -> dict[str, Any]:
        """Prove an attestation that has a number."""
        record = self._proven(statement, ATTESTATION, values, ATTESTATION, None)
        return {"statement": statement.record(), "proof": record["proof"]}

    def _proven(
        self,
        statement: Statement,
        circuit: str,
        values: dict[str, Any],
        part: str,
        counted: Kind | None,
    ) -> dict[str, Any]:
        committed = self.committed
        check_statement(statement, committed)
        bound = context(statement.canonical(), part)
        inputs = public_inputs(circuit, committed.shape, values, bound)
        compiled, key, proving_key = (
            self.private / f"{circuit}.{end}" for end in ("circuit", "vk", "pk")
        )
        # Of this call alone: of two at once, one would prove the witness of the other.
        with tempfile.TemporaryDirectory(dir=self.private) as temporary:
            witness = Path(temporary) / "witness"
            outputs, _ = backend.witness(inputs, compiled, witness, key, committed.srs)
            outputs = outputs[: n_outputs(circuit, committed.shape)]
            if counted is not None:
                self.ledger.take(counted)
            proof = backend.prove(
                witness, compiled, proving_key, committed.srs, timeout=self._timeout
            )
        return {
            "part": part,
            "outputs": [str(v) for v in outputs],
            "proof": base64.b64encode(proof).decode(),
        }

    def take_pads(self, n: int) -> list[int]:
        """Reserve one-time pads: no other statement will use them."""
        first = self.ledger.take("pads", n)
        return list(range(first, first + n))


def _private_folder(commitment: Commitment) -> Path:
    folder = commitment.folder.parent / "private"
    if not (folder / CONSTANTS).exists():
        raise FileNotFoundError(
            f"{folder} does not hold the provider's keys; proofs can only be made where the "
            "commitment was made."
        )
    return folder
