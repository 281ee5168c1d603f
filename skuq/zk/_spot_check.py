"""Spot check of reported predictions: the auditor's challenge, and the rows that it selects."""

import hashlib
import math
import secrets
import sys
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import IntArray
from skuq.zk import _files as files
from skuq.zk._files import REPORTED, VerificationError
from skuq.zk._fixed_point import ONE, IntegerPredictions
from skuq.zk._public_commitment import Commitment, folder_of, load_commitment
from skuq.zk._statements import SpotCheckStatement, encoded

DRAWN = ("commitment_digest", "reference_digest", "reported_digest", "nonce")
CHALLENGE = {**dict.fromkeys(DRAWN, str), "n_proven": int}  # form of the file, see `check_form`
REPORTS = {"label": [int], "confidence": [int], "reference_digest": str}
CHANGED = (
    "The challenge was drawn for a different commitment, different reference data or different "
    "reported confidences; none of these may change after the challenge."
)


def challenge(
    bundle: str | Path,
    commitment: str | Path | Commitment,
    X_ref: ArrayLike,
    y_ref: ArrayLike,
    out: str | Path,
    *,
    false_share: float = 0.02,
    error: float = 0.01,
) -> Path:
    """Create a challenge for reported confidences: a nonce that selects the rows to be proven.

    Parameters
    ----------
    bundle : str or Path
        Folder with the reported confidences, as written by `prove` at level "predictions".
    commitment : str, Path or Commitment
        The public folder as it was published. The challenge is valid only for this commitment.
    X_ref, y_ref : array-like
        The auditor's own reference data. The challenge is valid only for these data.
    out : str or Path
        JSON file to write. The auditor keeps it for `verify`, which accepts no other challenge.
    false_share, error : float, default=0.02 and 0.01
        A fraction `false_share` of false reports is detected with probability 1 - `error`. In each
        region, k predictions are proven: the smallest k with ``(1 - false_share) ** k <= error``.

    Raises
    ------
    FileExistsError
        If `out` exists, because a second challenge would give false reports a second chance.
    OSError
        If `out` is a symbolic link.
    ValueError
        If `out` is inside a folder of the provider, or an argument is out of range.
    """
    out = Path(out)
    files.check_outside(out, "out", bundle, folder_of(commitment))
    files.check_unlinked(out)
    committed = load_commitment(commitment)
    data = encoded(committed.encoding, committed.classes, X_ref, y_ref)
    record = {
        "commitment_digest": committed.digest,
        "reference_digest": data.digest,
        "reported_digest": files.digest_file(Path(bundle) / REPORTED),
        "nonce": secrets.token_hex(16),
        "n_proven": sample_size(false_share, error),
    }
    if out.exists():
        raise FileExistsError(
            f"{out} exists: an audit is challenged only once; choose a new file for a new audit."
        )
    files.write_json(out, record)
    return out


def sample_size(false_share: float, error: float) -> int:
    """Compute the smallest k with ``(1 - false_share) ** k <= error``."""
    for name, value in (("false_share", false_share), ("error", error)):
        if not 0 < value < 1:
            raise ValueError(f"`{name}` must be in (0, 1), got {value}.")
    most = float(sys.maxsize // 2)  # replaces an infinite quotient if `false_share` is tiny
    return math.ceil(min(most, math.log(error) / math.log1p(-false_share)))


def chosen_rows(statement: SpotCheckStatement, region: IntArray, k: int) -> IntArray:
    """Select the rows to prove: in each region, the `k` rows with the smallest hashes, or all.

    The hashes depend only on the nonce and on data that were fixed before the auditor chose the
    nonce. If they depended on anything else, such as the tolerance, a provider could try values
    until no false report is selected.
    """
    seed = files.canonical({name: getattr(statement, name) for name in DRAWN})
    keys = [hashlib.sha256(seed + b"\nrow %d" % i).digest() for i in range(len(region))]
    chosen: list[int] = []
    for number in np.unique(region):
        chosen += sorted(np.flatnonzero(region == number).tolist(), key=keys.__getitem__)[:k]
    return np.array(sorted(chosen), np.int64)


def check_challenge(
    bundle: Path, statement: SpotCheckStatement, challenge: str | Path | None, largest_region: int
) -> None:
    """Check that the audit answers the auditor's own challenge for the reported confidences."""
    if challenge is None:
        raise VerificationError("At level 'predictions', the auditor's `challenge` is needed.")
    record = files.read_form(Path(challenge), CHALLENGE)
    reported = files.digest_file(bundle / REPORTED)
    stated = (statement.commitment_digest, statement.reference_digest, statement.reported_digest)
    if stated != tuple(record[name] for name in DRAWN[:3]) or reported != stated[2]:
        raise VerificationError(CHANGED)
    if statement.nonce != record["nonce"]:
        raise VerificationError("The audit answers a different challenge from yours.")
    needed = min(largest_region, record["n_proven"])
    if statement.n_proven < needed:
        where = "" if statement.regions is None else " in each region"
        raise VerificationError(
            f"Only {statement.n_proven} predictions were proven{where}, but {needed} are needed."
        )


def read_reports(bundle: Path, statement: SpotCheckStatement, n_classes: int) -> IntegerPredictions:
    """Read the reported label and confidence of each row of the reference data."""
    record = files.read_form(bundle / REPORTED, REPORTS, files.MAX_BYTES)
    label, confidence = record["label"], record["confidence"]
    if {len(label), len(confidence)} != {statement.n_samples}:
        raise VerificationError(f"{REPORTED} does not hold one prediction per reference sample.")
    possible = 0 <= min(label) <= max(label) < n_classes
    if not possible or not 0 < min(confidence) <= max(confidence) <= ONE:
        raise VerificationError(f"{REPORTED} holds an impossible label or confidence.")
    if record["reference_digest"] != statement.reference_digest:
        raise VerificationError(f"{REPORTED} and the audit are based on different reference data.")
    return IntegerPredictions(np.array(label, np.int64), np.array(confidence, np.int64))


def spot_check_notes(n: int, n_proven: int, k: int, has_regions: bool) -> list[str]:
    """State which fractions of false reports a spot check of `n_proven` of `n` reports may miss."""
    if n_proven == n:
        return ["Every reported prediction was proven."]
    missed = ", ".join(
        f"{100 * fraction:g} % ({(1 - fraction) ** k:.2g})" for fraction in (0.01, 0.02, 0.05)
    )
    within = ""
    if has_regions:
        within = f" In each region, at least {k} were proven, or all if the region is smaller."
    return [
        f"{n_proven} of {n} reported predictions were proven. They were chosen after all reports "
        f"were fixed.{within} If one of these fractions of the reports were false, this would go "
        f"unnoticed with the probability in brackets: {missed}.",
        "A smaller fraction of false reports may go unnoticed. A fraction f can hide an expected "
        "calibration error of up to 2 f, or a whole bin whose share of the predictions is below f.",
    ]
