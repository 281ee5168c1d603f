"""Private side of a commitment: weights, keys, and a ledger of the proofs and pads used.

Each proof reveals something about the weights, and a pad that is used twice reveals sums. Restoring
the private folder from a backup would reset the ledger unnoticed. Therefore a second copy of the
ledger is kept outside the private folder, and the two copies are compared.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from skuq.extras import import_optional
from skuq.validation import warn_user
from skuq.zk import _ezkl as backend
from skuq.zk._files import VerificationError, read_json, write_json
from skuq.zk._fixed_point import IntegerNetwork
from skuq.zk._public_commitment import Commitment
from skuq.zk._simultaneous import simultaneous_proofs, threads_of_each
from skuq.zk._statements import (
    ATTESTATION,
    AttestationStatement,
    Statement,
    check_statement,
    context,
    n_outputs,
    public_inputs,
)

Kind = Literal["audits", "attestations", "pads"]
LEDGER = "ledger.json"  # file in the private folder
KINDS: tuple[Kind, ...] = ("audits", "attestations", "pads")
NAMES: dict[Kind, str] = {
    "audits": "proofs of audits",
    "attestations": "attestations",
    "pads": "pads",
}
PARAMETERS: dict[Kind, str] = {
    "audits": "n_proofs",
    "attestations": "n_attestations",
    "pads": "verdict_samples",
}
LONGEST_WAIT = 10.0  # maximum time, in seconds, to wait until another process releases the lock
STATE_HOME = "XDG_STATE_HOME"  # environment variable with the folder of the second copy
ROLLED_BACK = (
    "More proofs or pads of this commitment were used than its ledger states: the private folder "
    "is an older copy. Proofs from it would disclose weights. Restore the newest copy, or commit "
    "again."
)
CONSTANTS = "constants.npz"  # file in the private folder


class Prover:
    """Secrets of one commitment, and methods that create proofs with them."""

    def __init__(
        self,
        committed: Commitment,
        timeout: float = 600.0,  # maximum time for one proof, in seconds
        n_jobs: int | None = None,
    ):
        self.committed = committed
        self.private = _private_folder(committed)
        memory = max(map(backend.memory_of_a_proof, self.private.glob("*.pk")))
        self.n_jobs = simultaneous_proofs(n_jobs, memory)
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
        self._threads = threads_of_each(self.n_jobs)

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
        """Prove one part of an audit statement; return proof and outputs as JSON."""
        return self._proven(statement, circuit, values, part, "audits")

    def next_attestation(self) -> int:
        """Reserve the next attestation number, starting at 1."""
        return self.ledger.take("attestations") + 1

    def attest(self, statement: AttestationStatement, values: dict[str, Any]) -> dict[str, Any]:
        """Prove an attestation whose number was reserved."""
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
        # Each call has its own folder, because simultaneous calls would overwrite each other's
        # witness in a common folder.
        with tempfile.TemporaryDirectory(dir=self.private) as temporary:
            witness = Path(temporary) / "witness"
            outputs, _ = backend.witness(inputs, compiled, witness, key, committed.srs)
            outputs = outputs[: n_outputs(circuit, committed.shape)]
            if counted is not None:
                self.ledger.take(counted)
            proof = backend.prove(
                witness,
                compiled,
                proving_key,
                committed.srs,
                timeout=self._timeout,
                threads=self._threads,
            )
        return {
            "part": part,
            "outputs": [str(v) for v in outputs],
            "proof": base64.b64encode(proof).decode(),
        }

    def take_pads(self, n: int) -> list[int]:
        """Reserve one-time pads for a single statement."""
        first = self.ledger.take("pads", n)
        return list(range(first, first + n))


def _private_folder(commitment: Commitment) -> Path:
    folder = commitment.folder.parent / "private"
    if not (folder / CONSTANTS).exists():
        raise FileNotFoundError(
            f"{folder} does not hold the provider's keys; proofs can only be created where the "
            "commitment was made."
        )
    return folder


def start_ledger(private: Path) -> None:
    """Write the ledger of a new commitment."""
    write_json(private / LEDGER, dict.fromkeys(KINDS, 0))


class Ledger:
    """Ledger of a commitment in its private folder, with a second copy in the state folder.

    The second copy is named by the digest of the commitment.
    """

    def __init__(self, private: Path, commitment_digest: str, budgets: dict[Kind, int]):
        self._private, self._budgets = private, budgets
        self._second = _state_folder() / f"{commitment_digest}.json"

    def take(self, kind: Kind, n: int = 1) -> int:
        """Record `n` more proofs or pads before they are used; return the number used before."""
        with self._locked():
            counts = _counts(self._private / LEDGER)
            self._check_against(counts)
            used = counts[kind]
            self._check_budget(kind, used, n)
            counts[kind] = used + n
            write_json(self._private / LEDGER, counts)
            self._write_second(counts)
        return used

    def demand(self, kind: Kind, n: int) -> None:
        """Raise if fewer than `n` proofs or pads of a kind are left, without using any."""
        self._check_budget(kind, _counts(self._private / LEDGER)[kind], n)

    def check(self, kind: Kind, seen: int) -> None:
        """Raise if the number in an existing file exceeds the number recorded here."""
        if seen > _counts(self._private / LEDGER)[kind]:
            raise RuntimeError(ROLLED_BACK)

    def _check_budget(self, kind: Kind, used: int, n: int) -> None:
        most = self._budgets[kind]
        if used + n > most:
            raise RuntimeError(
                f"This call needs {n} of the {most} {NAMES[kind]} of the commitment, but only "
                f"{most - used} are left; more of them would disclose weights or sums. Commit "
                f"again, with a larger `{PARAMETERS[kind]}`."
            )

    def _check_against(self, counts: dict[Kind, int]) -> None:
        try:
            second = _counts(self._second)
        except VerificationError:  # before the first use on a machine, there is no second ledger
            return
        if any(second[kind] > counts[kind] for kind in KINDS):
            raise RuntimeError(ROLLED_BACK)

    def _write_second(self, counts: dict[Kind, int]) -> None:
        try:
            self._second.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self._second, counts)
        except OSError as error:
            warn_user(
                f"The second copy of the proof ledger cannot be written ({error}), so a private "
                f"folder restored from a backup would not be detected; set {STATE_HOME} to a "
                "persistent folder."
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the ledger: two simultaneous calls must not use the same pad.

        The operating system releases the lock when the process ends, even if it crashes.
        """
        filelock = import_optional("filelock", extra="zk")
        lock = filelock.FileLock(self._private / "ledger.lock", timeout=LONGEST_WAIT)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise RuntimeError(
                f"The proof ledger of {self._private} is locked by another process; retry."
            ) from error
        try:
            yield
        finally:
            lock.release()


def _counts(path: Path) -> dict[Kind, int]:
    record = read_json(path)
    if not isinstance(record, dict) or not all(type(record.get(kind)) is int for kind in KINDS):
        raise VerificationError(f"{path.name} is damaged.")
    return {kind: record[kind] for kind in KINDS}


def _state_folder() -> Path:
    home = os.environ.get(STATE_HOME)
    return (Path(home) if home else Path.home() / ".local" / "state") / "skuq"
