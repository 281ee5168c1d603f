"""Verification of an attested prediction, by a client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from skuq.zk._certificate import checked_certificate
from skuq.zk._files import VerificationError, field, read_json
from skuq.zk._fixed_point import ONE, IntegerPredictions
from skuq.zk._public_commitment import load_commitment
from skuq.zk._reference_string import trust_in
from skuq.zk._results import Attestation
from skuq.zk._statement_entries import ATTESTATION, read_attestation
from skuq.zk._statements import prediction_inputs, prediction_outputs
from skuq.zk._verifier import Verifier


def check(
    attestation: str | Path,
    commitment: str | Path,
    *,
    x: ArrayLike,
    nonce: str,
    srs: str | Path | None = None,
    allow_test_string: bool = False,
    keys: str | Path | None = None,
    certificate: str | Path | None = None,
    auditor: str | Path | None = None,
    revoked: str | Path | None = None,
) -> Attestation:
    """Verify that a prediction comes from the committed model.

    Parameters
    ----------
    attestation : str or Path
        File that `attest` wrote.
    commitment : str or Path
        The public folder as it was published: the one that was audited.
    x : array-like of shape (n_features,)
        The client's own input.
    nonce : str
        The text that the client chose, without which an older attestation could be replayed.
    srs : str or Path, default=None
        The client's own copy of the structured reference string. Default: it must be that of the
        public ceremony.
    allow_test_string : bool, default=False
        Accept any reference string, with which whoever generated it could forge proofs.
    keys : str or Path, default=None
        The client's folder for verifying keys.
    certificate, auditor, revoked : str or Path, default=None
        The auditor's certificate, the auditor's public key, and a list of revoked certificates:
        the prediction is accepted only if `check_certificate` accepts them for this commitment.
        Default: nothing is demanded, and whether the commitment was ever audited is not known.

    Returns
    -------
    Attestation

    Raises
    ------
    VerificationError
        If anything does not hold; the message says what.
    """
    if not nonce:
        raise ValueError("`nonce` must be the text that you chose, got none.")
    if (certificate is None) != (auditor is None):
        raise ValueError("`certificate` and `auditor`, whose key it is, belong together.")
    committed = load_commitment(commitment)
    trust = trust_in(committed.srs_digest, committed.shape.log_rows, srs, allow_test_string)
    certified = None
    if certificate is not None and auditor is not None:
        found = checked_certificate(certificate, committed, auditor, revoked, allow_test_string)
        certified = found.record
    path = Path(attestation)
    record = read_json(path)
    stated = field(record, "statement", dict, path.name)
    statement = read_attestation(stated, committed, path.name)
    values = np.array(statement.x, dtype=np.float64)
    if not np.array_equal(np.asarray(x, np.float64), values):
        raise VerificationError("The attestation is about another input.")
    if statement.nonce != nonce:
        raise VerificationError("The attestation answers another nonce; it may be an older one.")
    label, confidence = statement.label, statement.confidence
    try:
        rows = committed.encoding.encode(values[None])
    except ValueError as error:
        raise VerificationError(str(error)) from error
    claimed = IntegerPredictions(np.array([label]), np.array([confidence]))
    Verifier(committed, statement, keys).verify(
        ATTESTATION,
        ATTESTATION,
        prediction_inputs(committed.shape, rows, ATTESTATION),
        prediction_outputs(committed.shape, claimed, ATTESTATION),
        field(record, "proof", str, path.name),
    )
    return Attestation(
        committed.classes[label].item(),
        confidence / ONE,
        values.tolist(),
        statement.record(),
        trust,
        committed.classes.tolist(),
        certified,
    )
