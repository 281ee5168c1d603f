"""Verification of an audit by the auditor, and of a prediction by a client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skuq.zk import _files as files
from skuq.zk import _statements as statements
from skuq.zk._files import VerificationError
from skuq.zk._fixed_point import N_ALPHAS, ONE, IntegerPredictions
from skuq.zk._keys import ProofChecker, read_proof
from skuq.zk._names import check_present, shown_classes
from skuq.zk._public_commitment import Commitment, folder_of, load_commitment
from skuq.zk._reference_string import trust_in
from skuq.zk._regions import load_regions
from skuq.zk._results import Attestation, Judgement, VerifiedAudit, audited, judged
from skuq.zk._spot_check import check_challenge, chosen_rows, read_reports, spot_check_notes


def verify(
    bundle: str | Path,
    X_ref: ArrayLike,
    y_ref: ArrayLike,
    commitment: str | Path | Commitment,
    *,
    tolerance: float,
    n_bins: int,
    confidence_level: float | None,
    level: str,
    classes: Sequence[Any],
    absent_classes: Sequence[Any] = (),
    challenge: str | Path | None = None,
    regions: str | Path | None = None,
    srs: str | Path | None = None,
    allow_test_string: bool = False,
    keys: str | Path | None = None,
) -> VerifiedAudit:
    """Verify an audit: all files, all proofs, and the verdict.

    Parameters
    ----------
    bundle : str or Path
        Folder written by `prove`.
    X_ref, y_ref : array-like
        The auditor's own reference data. Column names of a data frame are compared with the
        committed names.
    commitment : str, Path or Commitment
        The public folder as it was published, not a copy that the provider sent together with the
        bundle; or the result of `load_commitment` for this folder.
    tolerance, n_bins, confidence_level : float, int, float or None
        The settings that the auditor requested.
    level : {"bins", "verdict", "predictions"}
        The agreed level of disclosure.
    classes : sequence
        The classes that the auditor expects. They must be the committed classes, in the same order.
    absent_classes : sequence, default=()
        Classes for which the auditor expects no labels in `y_ref`. Other classes without labels are
        rejected: a model could divide the probability of a class between it and a lookalike.
    challenge : str or Path, default=None
        The auditor's own challenge; required at level "predictions". Like `regions`, `srs` and
        `keys`, it must not be in `bundle` or `commitment`.
    regions : str or Path, default=None
        The auditor's own file of regions, which the provider also received (see `choose_regions`).
        The audit passes if all samples together and each region pass, at a joint confidence level.
    srs : str or Path, default=None
        A copy of the structured reference string from a trusted source, never from the provider.
        Default: require the string of the public ceremony.
    allow_test_string : bool, default=False
        Accept any reference string, although whoever generated it could forge proofs.
    keys : str or Path, default=None
        The auditor's folder of verifying keys, kept for later calls. Default: a temporary folder.

    Returns
    -------
    VerifiedAudit
        The verdict, which may be "failed". If a proof is invalid, an error is raised instead.

    Raises
    ------
    VerificationError
        If any check fails; the message names the check.
    ValueError
        If an argument is out of range, `absent_classes` contains a class that has labels, or a path
        of the auditor lies inside, or contains, a folder of the provider.
    """
    own = {"challenge": challenge, "regions": regions, "srs": srs, "keys": keys}
    for name, path in own.items():
        files.check_outside(path, name, bundle, folder_of(commitment))
    committed = load_commitment(commitment)
    trust = trust_in(committed.srs_digest, committed.shape.log_rows, srs, allow_test_string)
    if list(classes) != committed.classes.tolist():
        raise VerificationError(
            "`classes` must be the classes of the commitment, in the same order: "
            f"{shown_classes(committed.classes.tolist())}; got {shown_classes(list(classes))}."
        )
    copy = files.PrivateCopy(Path(bundle))  # its folder is deleted when this object is deleted
    bundle = copy.folder
    statements.check_level(level)
    record = files.read_json(bundle / files.STATEMENT)
    statement = statements.read_statement(record, committed, level, files.STATEMENT)
    assert isinstance(statement, statements.AuditStatement)
    asked = {"confidence_level": confidence_level, "alpha": tolerance, "n_bins": n_bins}
    for name, value in asked.items():
        statements.check_asked(name, getattr(statement, name), value)
    files.check_content(copy.names, files.BUNDLES[level])
    chosen = None if regions is None else load_regions(regions, len(committed.encoding.columns))
    tree = None if chosen is None else chosen.tree
    if files.canonical(statement.record()["regions"]) != files.canonical(tree):
        raise VerificationError("The audit is based on different regions from yours.")
    data = statements.encoded(committed.encoding, committed.classes, X_ref, y_ref, chosen)
    if statement.reference_digest != data.digest:
        raise VerificationError("The audit is based on different reference data from yours.")
    if statement.n_samples != len(data.rows):
        raise VerificationError("The audit states a wrong number of reference samples.")
    absent = check_present(data.codes, committed.classes, absent_classes)
    checker = ProofChecker(committed, statement, keys)
    extra: list[str] = []
    if isinstance(statement, statements.VerdictStatement):
        judgements, n_proofs = _verify_verdict(checker, statement, bundle, data)
    else:
        shape, numbers = committed.shape, range(statement.n_regions)
        if isinstance(statement, statements.SpotCheckStatement):
            found, n_proofs, extra = _verify_predictions(
                checker, statement, bundle, data, challenge
            )
            bins, inside = (statement.n_bins, shape.n_bins), [data.region == k for k in numbers]
            totals = [statements.signed_sums(found.of(i), data.codes[i], *bins) for i in inside]
        else:
            values = statements.reference_chunks(shape, "bins", data, statement)
            outputs = np.array(checker.chunks(bundle, "bins", values), dtype=object)
            n_proofs, where = len(outputs), data.region_of_chunks(shape.rows_of("bins"))
            totals = [outputs[where == k].sum(axis=0).tolist() for k in numbers]
        sums = [statements.read_sums(total, statement.n_bins, shape.n_bins) for total in totals]
        judgements = judged(sums, statement, committed.max_error)
    return audited(committed, statement, judgements, data.region, n_proofs, extra, absent, trust)


def check(
    attestation: str | Path,
    commitment: str | Path | Commitment,
    *,
    x: ArrayLike,
    nonce: str,
    srs: str | Path | None = None,
    allow_test_string: bool = False,
    keys: str | Path | None = None,
) -> Attestation:
    """Verify that a prediction comes from the committed model.

    Parameters
    ----------
    attestation : str or Path
        File written by `attest`.
    commitment : str, Path or Commitment
        The public folder of the audited model, as published; or the result of `load_commitment`.
    x : array-like of shape (n_features,)
        The client's own input.
    nonce : str
        The text that the client chose, which prevents the replay of an older attestation.
    srs, allow_test_string, keys
        As in `verify`, but supplied by the client.

    Raises
    ------
    VerificationError
        If any check fails; the message names the check.
    ValueError
        If a path of the client lies inside, or contains, the provider's folder, or the nonce is
        empty.
    """
    if not nonce:
        raise ValueError("`nonce` must be the text that you chose, got an empty string.")
    for name, given in {"srs": srs, "keys": keys}.items():
        files.check_outside(given, name, folder_of(commitment), attestation)
    committed = load_commitment(commitment)
    trust = trust_in(committed.srs_digest, committed.shape.log_rows, srs, allow_test_string)
    path = Path(attestation)
    record = files.read_form(path, {"statement": dict, "proof": str})
    part = statements.ATTESTATION
    statement = statements.read_statement(record["statement"], committed, part, path.name)
    assert isinstance(statement, statements.AttestationStatement)
    values = np.array(statement.x, dtype=np.float64)
    if not np.array_equal(np.asarray(x, np.float64), values):
        raise VerificationError("The attestation is for a different input.")
    if statement.nonce != nonce:
        raise VerificationError("The attestation answers a different nonce from yours.")
    label, confidence = statement.label, statement.confidence
    try:
        rows = committed.encoding.encode(values[None])
    except ValueError as error:
        raise VerificationError(str(error)) from error
    claimed = IntegerPredictions(np.array([label]), np.array([confidence]))
    inputs = statements.prediction_inputs(committed.shape, rows, part)
    outputs = statements.prediction_outputs(committed.shape, claimed, part)
    ProofChecker(committed, statement, keys).check(part, part, inputs, outputs, record["proof"])
    answer, classes = committed.classes[label].item(), committed.classes.tolist()
    stated = statement.record()
    return Attestation(answer, confidence / ONE, values.tolist(), stated, trust, classes)


def _verify_verdict(
    checker: ProofChecker,
    statement: statements.VerdictStatement,
    bundle: Path,
    data: statements.ReferenceData,
) -> tuple[list[Judgement], int]:
    committed = checker.committed
    shape, n_classes = committed.shape, len(committed.classes)
    reason = statements.too_few_to_fail(len(data.rows), n_classes, statement)
    if reason:
        raise VerificationError(reason)
    values = statements.reference_chunks(shape, "padded_bins", data, statement)
    outputs = checker.chunks(bundle, "padded_bins", values)
    verdicts = statements.verdict_chunks(shape, statement, data)
    folder = bundle / files.VERDICTS
    names = {f"{files.VERDICTS}/{path.name}" for path in folder.glob("*")}
    if names != {statements.verdict_file(part) for part in verdicts} - {files.VERDICT}:
        raise VerificationError(f"The audit must have a verdict for {len(verdicts)} parts.")
    verified = {}
    for part, chunks in verdicts.items():
        flags, proof = read_proof(bundle / statements.verdict_file(part), part)
        if len(flags) != N_ALPHAS or not set(flags) <= {-1, 1}:
            raise VerificationError(f"{statements.verdict_file(part)} does not hold a verdict.")
        about = statements.verdict_inputs(shape, committed.max_error, statement, outputs, chunks)
        checker.check("verdict", part, about, flags, proof)
        verified[part] = Judgement(flags[1] == 1, len(set(flags)) == 1, True)
    judgements = [verified[statements.VERDICT_PART]]
    for k in range(statement.n_audits - 1):
        found = verified.get(f"{statements.VERDICT_PART} {k}", Judgement(True, True, False))
        n = int((data.region == k).sum())
        could_fail = not found.passed or not statements.too_few_to_fail(n, n_classes, statement)
        judgements.append(found._replace(could_fail=could_fail))
    return judgements, len(outputs) + len(verdicts)


def _verify_predictions(
    checker: ProofChecker,
    statement: statements.SpotCheckStatement,
    bundle: Path,
    data: statements.ReferenceData,
    challenge: str | Path | None,
) -> tuple[IntegerPredictions, int, list[str]]:
    shape, n, k = checker.committed.shape, len(data.rows), statement.n_proven
    check_challenge(bundle, statement, challenge, data.largest_region)
    found = read_reports(bundle, statement, shape.widths[-1])
    chosen = chosen_rows(statement, data.region, k)
    size = shape.rows_of("predictions")
    parts = [chosen[start : start + size] for start in range(0, len(chosen), size)]
    inputs = [statements.prediction_inputs(shape, data.rows[part]) for part in parts]
    outputs = checker.chunks(bundle, "predictions", inputs)
    for part, proven in zip(parts, outputs, strict=True):
        truth = statements.read_predictions(shape, proven, len(part))
        same = (truth.label == found.label[part]) & (truth.confidence == found.confidence[part])
        if not same.all():
            row = int(part[int((~same).argmax())])
            raise VerificationError(f"The reported confidence of row {row} is not the model's.")
    return found, len(outputs), spot_check_notes(n, len(chosen), k, statement.regions is not None)
