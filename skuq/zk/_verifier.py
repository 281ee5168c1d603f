"""The side of those who check: an auditor, a client. Neither weights nor proving keys."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import IntArray
from skuq.calibration._result import audit_sums
from skuq.calibration._sums import BinSums
from skuq.zk import _ezkl as backend
from skuq.zk._checker import Checker, integers
from skuq.zk._commitment_files import Commitment, load_commitment
from skuq.zk._files import (
    FORMAT,
    Refused,
    check_manifest,
    digest_file,
    field,
    read_json,
    write_json,
)
from skuq.zk._fixed_point import Predictions
from skuq.zk._provider import REPORTED, STATEMENT, VERDICT
from skuq.zk._results import Attestation, VerifiedAudit, notes_of
from skuq.zk._statements import (
    LEVELS,
    ONE,
    chosen_rows,
    encoded,
    predict_inputs,
    predict_outputs,
    read_predictions,
    read_sums,
    reference_digest,
    sample_size,
    signed_sums,
    verdict_inputs,
)


def make_challenge(bundle: str | Path, out: str | Path) -> Path:
    """Answer reported confidences with a random number that decides which ones are proven.

    Parameters
    ----------
    bundle : str or Path
        Folder with the reported confidences, as `prove` wrote them at level "predictions".
    out : str or Path
        JSON file to write. The auditor keeps it: `verify` accepts no other challenge.

    Returns
    -------
    Path
        The file.
    """
    path = Path(bundle) / REPORTED
    if not path.exists():
        raise Refused(f"The file {REPORTED} is missing.")
    write_json(Path(out), {"reported": digest_file(path), "nonce": secrets.token_hex(16)})
    return Path(out)


def verify(
    bundle: str | Path,
    X_ref: ArrayLike,
    y_ref: ArrayLike,
    commitment: str | Path,
    *,
    alpha: float | None = None,
    n_bins: int | None = None,
    confidence_level: float | Literal["stated"] | None = "stated",
    challenge: str | Path | None = None,
    false_share: float = 0.02,
    error: float = 0.01,
    keys: str | Path | None = None,
    level: str | None = None,
    srs: str | Path | None = None,
) -> VerifiedAudit:
    """Check an audit: every file, every proof, and the verdict.

    Parameters
    ----------
    bundle : str or Path
        Folder that `prove` wrote.
    X_ref, y_ref : array-like
        The auditor's own reference data.
    commitment : str or Path
        The public folder as it was published, not as the bundle may bring it.
    alpha, n_bins, confidence_level : optional
        What was asked for. Default: what the bundle states; look at it in the result.
    challenge : str or Path, default=None
        The auditor's own challenge; needed at level "predictions".
    false_share, error : float, default=0.02 and 0.01
        At level "predictions": fewer proofs than this needs are refused.
    keys : str or Path, default=None
        The auditor's folder for verifying keys, which are built from the public architecture
        once. Default: built anew and thrown away.
    level : {"bins", "verdict", "predictions"}, default=None
        What was asked for. Default: what the bundle states.
    srs : str or Path, default=None
        The structured reference string as the auditor knows it. Default: the provider's word
        for where it is from.

    Returns
    -------
    VerifiedAudit
        With a verdict that may be "failed". What does not hold is refused instead.

    Raises
    ------
    Refused
        If anything does not hold; the message says what.

    References
    ----------
    Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse of Model
    Abstention", ICML 2025, Algorithm 1.
    """
    bundle = Path(bundle)
    committed = load_commitment(commitment)
    check_manifest(bundle)
    statement = _statement(bundle, committed)
    asked: dict[str, Any] = {}
    if confidence_level != "stated":
        asked["confidence_level"] = confidence_level
    asked |= {name: v for name, v in (("alpha", alpha), ("n_bins", n_bins)) if v is not None}
    asked |= {"level": level} if level is not None else {}
    for name, value in asked.items():
        if statement[name] != value:
            raise Refused(f"The audit is about {name}={statement[name]}, asked was {value}.")
    rows, codes = encoded(committed.encoding, committed.classes, X_ref, y_ref)
    if statement["reference"] != reference_digest(rows, codes):
        raise Refused("The audit is about other reference data than these.")
    if statement["n_samples"] != len(rows):
        raise Refused("The audit states another number of reference samples.")
    checker = Checker(committed, statement, Path(keys) if keys is not None else None)
    if srs is not None and digest_file(Path(srs)) != digest_file(committed.srs):
        raise Refused("The structured reference string is another one than yours.")
    if statement["level"] == "verdict":
        return _verify_verdict(checker, bundle, rows, codes)
    extra: list[str] = []
    if statement["level"] == "bins":
        outputs = checker.sums(bundle, "bins", rows, codes)
        totals = [int(v) for v in np.array(outputs, dtype=object).sum(axis=0)]
        n_proofs = len(outputs)
    else:
        needed = min(len(rows), sample_size(false_share, error))
        found, n_proofs, extra = _verify_predictions(checker, bundle, rows, challenge, needed)
        totals = signed_sums(found, codes, statement["n_bins"], committed.shape.n_bins)
    sums = read_sums(totals, statement["n_bins"], committed.shape.n_bins)
    return _judged(committed, statement, sums, n_proofs, extra)


def check(
    attestation: str | Path,
    commitment: str | Path,
    *,
    x: ArrayLike | None = None,
    nonce: str | None = None,
    keys: str | Path | None = None,
) -> Attestation:
    """Check that a prediction comes from the committed model.

    Parameters
    ----------
    attestation : str or Path
        File that `attest` wrote.
    commitment : str or Path
        The public folder as it was published: the same as of the audit.
    x : array-like of shape (n_features,), default=None
        The client's own input, to compare with. Default: look at it in the result.
    nonce : str, default=None
        The text that the client chose.
    keys : str or Path, default=None
        The client's folder for verifying keys.

    Returns
    -------
    Attestation

    Raises
    ------
    Refused
        If anything does not hold; the message says what.
    """
    committed = load_commitment(commitment)
    path = Path(attestation)
    record = read_json(path)
    statement = field(record, "statement", dict, path.name)
    if statement.get("level") != "attestation" or statement.get("format") != FORMAT:
        raise Refused(f"{path.name} is no attestation of format {FORMAT}.")
    _check_commitment(statement, committed)
    numbers = field(statement, "x", list, path.name)
    if not all(isinstance(value, float) for value in numbers):
        raise Refused(f"The input in {path.name} does not consist of numbers.")
    values = np.array(numbers, dtype=np.float64)
    if x is not None and not np.array_equal(np.asarray(x, np.float64), values):
        raise Refused("The attestation is about another input.")
    if nonce is not None and statement.get("nonce") != nonce:
        raise Refused("The attestation answers another nonce; it may be an older one.")
    label = field(statement, "label", int, path.name)
    confidence = field(statement, "confidence", int, path.name)
    if not (0 <= label < len(committed.classes) and 0 < confidence <= ONE):
        raise Refused("Label or confidence of the attestation is impossible.")
    try:
        rows = committed.encoding.encode(values[None])
    except ValueError as error:
        raise Refused(str(error)) from error
    found = Predictions(np.array([label]), np.array([confidence]))
    checker = Checker(committed, statement, Path(keys) if keys is not None else None)
    checker.proof(
        "predict",
        "predict 0",
        predict_inputs(committed.shape, rows),
        predict_outputs(committed.shape, found),
        field(record, "proof", str, path.name),
    )
    return Attestation(
        committed.classes[label].item(),
        confidence / ONE,
        values.tolist(),
        statement,
    )


def _statement(bundle: Path, committed: Commitment) -> dict[str, Any]:
    statement = read_json(bundle / STATEMENT)
    where = STATEMENT
    if field(statement, "format", int, where) != FORMAT:
        raise Refused(f"{STATEMENT} has format {statement['format']}, expected {FORMAT}.")
    if field(statement, "level", str, where) not in LEVELS:
        raise Refused(f"{STATEMENT} is about an unknown level {statement['level']!r}.")
    _check_commitment(statement, committed)
    alpha = field(statement, "alpha", float, where)
    n_bins = field(statement, "n_bins", int, where)
    level = field(statement, "confidence_level", (float, type(None)), where)
    field(statement, "reference", str, where)
    field(statement, "n_samples", int, where)
    if not (0 <= alpha <= 1 and 1 <= n_bins <= committed.shape.n_bins):
        raise Refused(f"{STATEMENT}: alpha={alpha} or n_bins={n_bins} is impossible.")
    if level is not None and not 0 < level < 1:
        raise Refused(f"{STATEMENT}: confidence_level={level} is impossible.")
    if statement["level"] == "verdict" and abs(1000 * alpha - round(1000 * alpha)) > 1e-9:
        raise Refused(f"{STATEMENT}: alpha={alpha} of a verdict is no multiple of .001.")
    return statement


def _check_commitment(statement: dict[str, Any], committed: Commitment) -> None:
    if statement.get("commitment") != committed.digest:
        raise Refused("This is about another commitment than the published one.")
    versions = field(statement, "versions", dict, "The statement")
    if versions.get("ezkl") != backend.version():
        raise Refused(f"This was made with another version of ezkl than {backend.version()}.")


def _verify_verdict(
    checker: Checker, bundle: Path, rows: IntArray, codes: IntArray
) -> VerifiedAudit:
    committed, statement = checker.committed, checker.statement
    pads = field(statement, "pads", list, STATEMENT)
    n_chunks = -(-len(rows) // max(1, committed.shape.rows_of("padded")))
    valid = all(type(p) is int and 0 <= p < committed.shape.n_pads for p in pads)
    if (
        not committed.shape.n_pads
        or len(pads) != n_chunks
        or not valid
        or len(set(pads)) != n_chunks
    ):
        raise Refused(f"{STATEMENT}: the pads do not fit the reference data.")
    outputs = checker.sums(bundle, "padded", rows, codes)
    record = read_json(bundle / VERDICT)
    flags = integers(record, VERDICT)
    if len(flags) != 3 or not set(flags) <= {-1, 1}:
        raise Refused(f"{VERDICT} holds no verdict.")
    values = verdict_inputs(committed.shape, committed.tolerance, statement, outputs)
    checker.proof("verdict", "verdict", values, flags, field(record, "proof", str, VERDICT))
    passed = flags[1] == 1
    return VerifiedAudit(
        passed,
        len(set(flags)) == 1,
        "verdict",
        statement,
        None,
        None,
        len(outputs) + 1,
        notes_of(committed, statement, len(set(flags)) == 1, []),
    )


def _verify_predictions(
    checker: Checker, bundle: Path, rows: IntArray, challenge: str | Path | None, needed: int
) -> tuple[Predictions, int, list[str]]:
    statement, shape = checker.statement, checker.committed.shape
    if challenge is None:
        raise Refused("An audit of reported confidences needs the auditor's own challenge.")
    asked = read_json(Path(challenge))
    reported = digest_file(bundle / REPORTED)
    nonce = field(asked, "nonce", str, "The challenge")
    answered = field(asked, "reported", str, "The challenge")
    if statement.get("reported") != reported or answered != reported:
        raise Refused("The reported confidences are not those that the challenge answered.")
    if statement.get("nonce") != nonce:
        raise Refused("The audit answers another challenge; it may be an older one.")
    n, k = len(rows), field(statement, "n_proven", int, STATEMENT)
    if not needed <= k <= n:
        raise Refused(f"{k} predictions were proven, {needed} of {n} are needed.")
    record = read_json(bundle / REPORTED)
    label, confidence = (integers(record, REPORTED, name, 32) for name in ("label", "confidence"))
    found = Predictions(np.array(label, np.int64), np.array(confidence, np.int64))
    if len(found.label) != n or len(found.confidence) != n:
        raise Refused(f"{REPORTED} does not hold one prediction per reference sample.")
    if not (
        ((found.label >= 0) & (found.label < shape.widths[-1])).all()
        and ((found.confidence > 0) & (found.confidence <= ONE)).all()
    ):
        raise Refused(f"{REPORTED} holds an impossible label or confidence.")
    chosen = chosen_rows(statement, n, k)
    size = shape.rows_of("predict")
    parts = [chosen[start : start + size] for start in range(0, k, size)]
    outputs = checker.chunks(bundle, "predict", [predict_inputs(shape, rows[p]) for p in parts])
    for part, proven in zip(parts, outputs, strict=True):
        truth = read_predictions(shape, proven, len(part))
        same = (truth.label == found.label[part]) & (truth.confidence == found.confidence[part])
        if not same.all():
            row = int(part[int((~same).argmax())])
            raise Refused(f"The reported confidence of row {row} is not the model's.")
    if k == n:
        return found, len(outputs), ["Every reported prediction was proven."]
    bound = ", ".join(
        f"{100 * share:g} % but with probability {(1 - share) ** k:.2g}"
        for share in (0.01, 0.02, 0.05)
    )
    notes = [
        f"{k} of {n} reported predictions were proven, chosen after all were fixed. If a share of "
        f"the others were false, this would be found: {bound}.",
        "False reports below such a share may hide: an expected calibration error of up to twice "
        "the share, or a whole bin that holds fewer predictions.",
    ]
    return found, len(outputs), notes


def _judged(
    committed: Commitment,
    statement: dict[str, Any],
    sums: BinSums,
    n_proofs: int,
    extra: list[str],
) -> VerifiedAudit:
    """The verdict at alpha, and whether the tolerance could change it."""
    if int(sums.count.sum()) != statement["n_samples"]:
        raise Refused("The proven sums do not add up to the number of reference samples.")
    alpha, level = statement["alpha"], statement["confidence_level"]
    step = committed.tolerance
    verdicts = [
        _passes(sums, value, level)
        for value in (max(0.0, alpha - step), alpha, min(1.0, alpha + step))
    ]
    judgement = None if level is None else audit_sums(sums, alpha=alpha, confidence_level=level)
    robust = len(set(verdicts)) == 1
    return VerifiedAudit(
        verdicts[1],
        robust,
        statement["level"],
        statement,
        sums,
        judgement,
        n_proofs,
        notes_of(committed, statement, robust, extra),
    )


def _passes(sums: BinSums, alpha: float, level: float | None) -> bool:
    if level is not None:
        return audit_sums(sums, alpha=alpha, confidence_level=level).passed
    return bool((np.abs(sums.deviation) <= alpha * sums.count * sums.scale * (1 + 1e-12)).all())
