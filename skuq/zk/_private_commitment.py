"""Private side of a commitment: weights, keys, and a ledger of the proofs and pads used.

Each proof reveals something about the weights, and a pad that is used twice no longer hides sums.
Therefore, the provider must never reset the ledger by restoring the private folder from a backup.
"""

import base64
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from joblib import cpu_count, effective_n_jobs

from skuq.devices import available_memory
from skuq.imports import import_optional
from skuq.zk import _ezkl as backend
from skuq.zk import _statements as statements
from skuq.zk._files import read_form, write_json
from skuq.zk._fixed_point import IntegerNetwork
from skuq.zk._public_commitment import Commitment

Result = TypeVar("Result")
Kind = Literal["audits", "attestations", "pads"]
LEDGER, CONSTANTS = "ledger.json", "constants.npz"  # files in the private folder
# Name of each kind in messages, and the parameter of `commit` that sets its budget.
KINDS: dict[Kind, tuple[str, str]] = {
    "audits": ("proofs of audits", "n_proofs"),
    "attestations": ("attestations", "n_attestations"),
    "pads": ("pads", "verdict_samples"),
}
LONGEST_WAIT = 10.0  # seconds to wait for a lock of another process before an error is raised


class Prover:
    """Secrets of one commitment, and methods that create proofs with them."""

    def __init__(
        self,
        committed: Commitment,
        timeout: float = 600.0,  # maximum time for one proof, in seconds
        n_jobs: int | None = None,
    ):
        self.committed = committed
        self.private = committed.folder.parent / "private"
        if not (self.private / CONSTANTS).exists():
            raise FileNotFoundError(
                f"{self.private} does not hold the provider's keys, which `commit` wrote."
            )
        memory = max(map(backend.memory_of_a_proof, self.private.glob("*.pk")))
        self.n_jobs = simultaneous_proofs(n_jobs, memory)
        budgets: dict[Kind, int] = {
            "audits": committed.record["n_proofs"],
            "attestations": committed.record["n_attestations"],
            "pads": committed.shape.n_pads,
        }
        self.ledger = Ledger(self.private, budgets)
        self._timeout = timeout
        # None lets the proof system decide on the number of threads of a proof.
        self._threads = None if self.n_jobs == 1 else max(1, cpu_count() // self.n_jobs)

    def network(self) -> IntegerNetwork:
        with np.load(self.private / CONSTANTS) as arrays:
            constants = [arrays[name] for name in arrays.files]
        n_layers = len(self.committed.shape.widths) - 1
        bits = self.committed.encoding.bits
        weights, biases = constants[: 2 * n_layers : 2], constants[1 : 2 * n_layers : 2]
        weight_bits = (self.committed.shape.logit_bits + 1 - bits) // n_layers - 1
        return IntegerNetwork(weights, [bias[0] for bias in biases], bits, weight_bits)

    def prove(
        self,
        statement: statements.Statement,
        circuit: str,
        values: dict[str, Any],
        part: str,
        counted: Kind | None = "audits",  # None if the ledger has counted the proof already
    ) -> dict[str, Any]:
        committed = self.committed
        statements.read_statement(statement.record(), committed, statement.level, "The statement")
        bound = statements.context(statement.canonical(), part)
        inputs = statements.public_inputs(circuit, committed.shape, values, bound)
        ends = "circuit", "vk", "pk"
        compiled, key, proving_key = (self.private / f"{circuit}.{end}" for end in ends)
        # In a common folder, simultaneous calls would overwrite each other's witness.
        with tempfile.TemporaryDirectory(dir=self.private) as temporary:
            witness = Path(temporary) / "witness"
            outputs, _ = backend.witness(inputs, compiled, witness, key, committed.srs)
            if counted is not None:
                self.ledger.take(counted)
            paths = witness, compiled, proving_key, committed.srs
            proof = backend.prove(*paths, timeout=self._timeout, threads=self._threads)
        return {
            "part": part,
            "outputs": [str(v) for v in outputs[: statements.n_outputs(circuit, committed.shape)]],
            "proof": base64.b64encode(proof).decode(),
        }


def simultaneous_proofs(n_jobs: int | None, memory: float) -> int:
    """Limit `n_jobs` to the number of proofs, of `memory` GiB each, that fit into free memory."""
    wanted = int(effective_n_jobs(n_jobs))
    free = available_memory() / 2**30
    return 1 if wanted == 1 else max(1, min(wanted, int(free / memory)))


def results_of(
    calls: Sequence[Callable[[], Result]], n_threads: int, bar: Callable[[Iterable[Any]], Any]
) -> list[Result]:
    """Return the results of calls, in order; after an error, no further calls are started.

    Calls that are already running are completed, because their proofs are counted in the ledger
    and can be reused when the audit is repeated.
    """
    if n_threads == 1:
        return [call() for call in bar(calls)]
    with ThreadPoolExecutor(n_threads) as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            for future in bar(as_completed(futures)):
                future.result()
        finally:
            for future in futures:
                future.cancel()
    return [future.result() for future in futures]


class Ledger:
    """Counts the proofs and pads that were used, in a file of a commitment's private folder."""

    def __init__(self, private: Path, budgets: dict[Kind, int]):
        self._private, self._budgets = private, budgets

    def take(self, kind: Kind, n: int = 1) -> int:
        """Record `n` more proofs or pads before they are used; return the number used before."""
        with self._locked():
            counts = self._counts()
            used = counts[kind]
            self._check_budget(kind, used, n)
            counts[kind] = used + n
            write_json(self._private / LEDGER, counts)
        return used

    def demand(self, kind: Kind, n: int) -> None:
        self._check_budget(kind, self._counts()[kind], n)

    def check(self, kind: Kind, seen: int) -> None:
        """Raise if `seen`, the serial number of an existing proof, exceeds the recorded count."""
        if seen > self._counts()[kind]:
            raise RuntimeError(
                "The ledger is older than an existing proof, so more proofs could disclose the "
                "weights; restore the newest private folder, or commit again."
            )

    def _check_budget(self, kind: Kind, used: int, n: int) -> None:
        most, (name, parameter) = self._budgets[kind], KINDS[kind]
        if used + n > most:
            raise RuntimeError(
                f"This call needs {n} of the {most} {name} of the commitment, but only "
                f"{most - used} are left; commit again, with a larger `{parameter}`."
            )

    def _counts(self) -> dict[Kind, int]:
        record = read_form(self._private / LEDGER, dict.fromkeys(KINDS, int))
        return {kind: record[kind] for kind in KINDS}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the ledger, so that no two calls use the same pad; a crash releases the lock."""
        filelock = import_optional("filelock", extra="zk")
        try:
            with filelock.FileLock(self._private / "ledger.lock", timeout=LONGEST_WAIT):
                yield
        except filelock.Timeout as error:
            raise RuntimeError(f"Another process has locked {self._private}; retry.") from error
