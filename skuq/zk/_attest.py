"""Proofs of single predictions, created by the provider of the committed model."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from skuq.files import check_unlinked
from skuq.zk import _ezkl as backend
from skuq.zk._files import FORMAT, VerificationError, field, read_json, write_json
from skuq.zk._fixed_point import integer_predictions
from skuq.zk._private_commitment import Prover
from skuq.zk._public_commitment import load_commitment
from skuq.zk._statements import ATTESTATION, AttestationStatement, prediction_inputs


def attest(
    commitment: str | Path,
    x: ArrayLike,
    out: str | Path,
    *,
    nonce: str,
    timeout: float = 600.0,
) -> Path:
    """Prove a single prediction of the committed model and its confidence.

    Parameters
    ----------
    commitment : str or Path
        The provider's folder ``public``, which must be next to ``private``.
    x : array-like of shape (n_features,)
        The client's input.
    out : str or Path
        JSON file to write.
    nonce : str
        Text chosen by the client, which prevents the replay of an older attestation.
    timeout : float, default=600.0
        Time limit of the proof, in seconds.

    Returns
    -------
    Path
        Path of the written file.

    Raises
    ------
    ValueError
        If the input has the wrong shape or is outside the committed range, or the nonce is empty.
    OSError
        If `out` cannot be written, or is a link. No attestation is used up in this case.
    RuntimeError
        If all attestations of this commitment are used up, or the proof system fails.
    """
    if not nonce:
        raise ValueError("`nonce` must be the text that the client chose, got an empty string.")
    check_unlinked(out)
    committed = load_commitment(commitment)
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"`x` must have shape (n_features,), got {values.shape}.")
    rows = committed.encoding.encode(values[None])
    out = Path(out)
    prover = Prover(committed, timeout)
    _check_ledger(prover, out)
    _check_writable(out)
    found = integer_predictions(prover.network(), rows)
    statement = AttestationStatement(
        format=FORMAT,
        versions=backend.versions(),
        commitment_digest=committed.digest,
        level=ATTESTATION,
        x=tuple(values.tolist()),
        label=int(found.label[0]),
        confidence=int(found.confidence[0]),
        nonce=str(nonce),
        number=prover.next_attestation(),
    )
    write_json(out, prover.attest(statement, prediction_inputs(committed.shape, rows, ATTESTATION)))
    return out


def _check_writable(out: Path) -> None:
    """Raise an error if the file cannot be written, before an attestation number is used up."""
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder; pass the path of a file.")
    with tempfile.TemporaryFile(dir=out.parent):
        pass


def _check_ledger(prover: Prover, out: Path) -> None:
    """Raise an error if `out` holds an attestation that the ledger does not contain."""
    with suppress(VerificationError):
        found = field(read_json(out), "statement", dict, out.name)
        if found.get("commitment_digest") == prover.committed.digest:
            prover.ledger.check("attestations", field(found, "number", int, out.name))
