"""Count of the proofs and pads that are used up under a commitment, by its provider.

Each proof reveals something about the weights, and a pad that serves twice reveals sums. A count
that began anew, from a backup of the private folder, would be noticed by nobody else. It is
therefore kept in a second place, outside that folder, and neither may fall behind the other.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from skuq.extras import import_optional
from skuq.zk._files import VerificationError, read_json, write_json

Kind = Literal["audits", "attestations", "pads"]
LEDGER = "ledger.json"  # in the private folder
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
LONGEST_WAIT = 10.0  # seconds, for the count of another call
STATE_HOME = "XDG_STATE_HOME"  # environment variable: folder of the second place
ROLLED_BACK = (
    "More proofs or pads of this commitment were used than its ledger counts: the private folder "
    "is an older copy. Proofs from it would disclose weights. Put the newest one back, or commit "
    "again."
)


def start_ledger(private: Path) -> None:
    """Write the ledger of a new commitment."""
    write_json(private / LEDGER, dict.fromkeys(KINDS, 0))


class Ledger:
    """The count of one commitment.

    Parameters
    ----------
    private : Path
        The provider's private folder.
    commitment_digest : str
        Its name in the second place.
    budgets : dict of str to int
        Largest count of each kind.
    """

    def __init__(self, private: Path, commitment_digest: str, budgets: dict[Kind, int]):
        self._private, self._budgets = private, budgets
        self._second = _state_folder() / f"{commitment_digest}.json"

    def take(self, kind: Kind, n: int = 1) -> int:
        """Count `n` more of a kind, before they are used; return how many there were."""
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
        """Fail if fewer than `n` more of a kind are left, before any is taken."""
        self._check_budget(kind, _counts(self._private / LEDGER)[kind], n)

    def check(self, kind: Kind, seen: int) -> None:
        """Fail if more of a kind were seen elsewhere than were counted here."""
        if seen > _counts(self._private / LEDGER)[kind]:
            raise RuntimeError(ROLLED_BACK)

    def _check_budget(self, kind: Kind, used: int, n: int) -> None:
        most = self._budgets[kind]
        if used + n > most:
            raise RuntimeError(
                f"This takes {n} of the {most} {NAMES[kind]} of the commitment, and "
                f"{most - used} are left; more would disclose weights or sums. Commit again, "
                f"with a larger {PARAMETERS[kind]}."
            )

    def _check_against(self, counts: dict[Kind, int]) -> None:
        try:
            second = _counts(self._second)
        except VerificationError:  # another machine, or the first use
            return
        if any(second[kind] > counts[kind] for kind in KINDS):
            raise RuntimeError(ROLLED_BACK)

    def _write_second(self, counts: dict[Kind, int]) -> None:
        try:
            self._second.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self._second, counts)
        except OSError as error:
            warnings.warn(
                f"The count of proofs is not kept in a second place ({error}), so that a private "
                f"folder restored from a backup would not be noticed; set {STATE_HOME} to a folder "
                "that is kept.",
                stacklevel=2,
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the count: two simultaneous calls must not take the same pad.

        The lock ends with its process, however that ends.
        """
        filelock = import_optional("filelock", extra="zk")
        lock = filelock.FileLock(self._private / "ledger.lock", timeout=LONGEST_WAIT)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise RuntimeError(
                f"Another call counts a proof of {self._private} at this moment. Try again."
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
