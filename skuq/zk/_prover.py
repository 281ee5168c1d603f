"""Generation of proofs under one commitment, by its provider, who counts what each one uses up."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from skuq.zk import _ezkl as backend
from skuq.zk._files import read_json, write_json
from skuq.zk._fixed_point import IntegerNetwork
from skuq.zk._public_commitment import Commitment
from skuq.zk._statements import context, n_outputs, public_inputs

CONSTANTS, LEDGER = "constants.npz", "ledger.json"  # in the private folder


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
        self, statement: dict[str, Any], circuit: str, values: dict[str, Any], part: str
    ) -> dict[str, Any]:
        """Prove one part of a statement; return the proof and its outputs as JSON."""
        committed = self.committed
        inputs = public_inputs(circuit, committed.shape, values, context(statement, part))
        compiled, key, proving_key, witness = (
            self.private / f"{circuit}.{end}" for end in ("circuit", "vk", "pk", "witness")
        )
        outputs, _ = backend.witness(inputs, compiled, witness, key, committed.srs)
        outputs = outputs[: n_outputs(circuit, committed.shape)]
        self._count_proof()
        proof = backend.prove(witness, compiled, proving_key, committed.srs, timeout=self._timeout)
        return {
            "part": part,
            "outputs": [str(v) for v in outputs],
            "proof": base64.b64encode(proof).decode(),
        }

    def take_pads(self, n: int) -> list[int]:
        """Reserve one-time pads: no other statement will use them."""
        with _ledger(self.private) as ledger:
            first, most = ledger["pads"], self.committed.shape.n_pads
            if first + n > most:
                raise RuntimeError(
                    f"The verdict needs {n} pads, and {most - first} of {most} are left; each pad "
                    "hides sums only once. Commit again, with a larger verdict_samples."
                )
            ledger["pads"] = first + n
        return list(range(first, first + n))

    def _count_proof(self) -> None:
        most = self.committed.record["n_proofs"]
        with _ledger(self.private) as ledger:
            if ledger["proofs"] >= most:
                raise RuntimeError(
                    f"All n_proofs={most} proofs of this commitment are made; more would disclose "
                    "weights. Commit again, with a larger n_proofs."
                )
            ledger["proofs"] += 1


def _private_folder(commitment: Commitment) -> Path:
    folder = commitment.folder.parent / "private"
    if not (folder / CONSTANTS).exists():
        raise FileNotFoundError(
            f"{folder} does not hold the provider's keys; proofs can only be made where the "
            "commitment was made."
        )
    return folder


@contextmanager
def _ledger(private: Path) -> Iterator[dict[str, Any]]:
    """Lock the count of used proofs and pads; write it back unless an exception is raised.

    Two simultaneous calls must not take the same pad.
    """
    lock = private / "ledger.lock"
    for _ in range(100):
        with suppress(FileExistsError):
            lock.open("x").close()
            break
        time.sleep(0.1)
    else:
        raise RuntimeError(f"{lock} is held by another call; if there is none, remove it.")
    try:
        ledger = read_json(private / LEDGER)
        yield ledger
        write_json(private / LEDGER, ledger)
    finally:
        lock.unlink()
