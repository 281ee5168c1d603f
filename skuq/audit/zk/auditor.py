"""The side of those who check: an auditor, a client. Neither weights nor proving keys."""

from __future__ import annotations

import base64
import binascii
import secrets
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from skuq.audit.judgement import Judgement, judge
from skuq.audit.sums import BinSums
from skuq.audit.zk import backend
from skuq.audit.zk.commitments import Commitment, load_commitment, verifying_key
from skuq.audit.zk.files import (
    FORMAT,
    Refused,
    check_manifest,
    digest,
    digest_file,
    field,
    read_json,
    write_json,
)
from skuq.audit.zk.fixed_point import CONFIDENCE_BITS, Predictions
from skuq.audit.zk.provider import CHUNKS, REPORTED, STATEMENT, VERDICT, verdict_inputs
from skuq.audit.zk.statements import (
    LEVELS,
    ONE,
    bins_inputs,
    chosen_rows,
    context,
    encoded,
    predict_inputs,
    predict_outputs,
    public_inputs,
    read_predictions,
    read_sums,
    reference_digest,
    signed_sums,
)
from skuq.metrics._validation import IntArray


class VerifiedAudit(NamedTuple):
    """An audit whose proofs all hold.

    Attributes
    ----------
    passed : bool
        Verdict at alpha.
    robust : bool
        Whether the verdict is the same at alpha less and plus the tolerance, by which proven
        confidences may differ from those of the model.
    level : str
        "verdict", "bins" or "predictions".
    statement : dict
        What was proven: commitment, reference data, alpha, bins.
    sums : BinSums or None
        Sums per bin; None at level "verdict".
    judgement : Judgement or None
        Findings per bin, as of `CalibrationAuditor`; None at level "verdict" or without a
        confidence level.
    n_proofs : int
        Proofs that were verified.
    notes : list of str
        What the verdict does and does not say, in sentences.
    """

    passed: bool
    robust: bool
    level: str
    statement: dict[str, Any]
    sums: BinSums | None
    judgement: Judgement | None
    n_proofs: int
    notes: list[str]

    def as_record(self) -> dict[str, Any]:
        """The result as JSON."""
        record: dict[str, Any] = {
            "passed": self.passed,
            "robust": self.robust,
            "level": self.level,
            "statement": self.statement,
            "n_proofs": self.n_proofs,
            "notes": self.notes,
        }
        if self.sums is not None:
            record["bins"] = {
                "edges": (self.sums.edges / self.sums.scale).tolist(),
                "count": self.sums.count.tolist(),
                "correct": self.sums.correct.tolist(),
                "confidence_sum": (self.sums.confidence / self.sums.scale).tolist(),
            }
            record["expected_calibration_error"] = self.sums.expected_calibration_error
        return record


class Attestation(NamedTuple):
    """A prediction whose proof holds.

    Attributes
    ----------
    label : object
        Predicted class.
    confidence : float
        Its probability.
    x : list of float
        The input that it is about.
    statement : dict
        All that was proven.
    """

    label: Any
    confidence: float
    x: list[float]
    statement: dict[str, Any]


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
    challenge: str | Path | None = None,
    keys: str | Path | None = None,
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
    alpha, n_bins : optional
        What was asked for. Default: what the bundle states; look at it in the result.
    challenge : str or Path, default=None
        The auditor's own challenge; needed at level "predictions".
    keys : str or Path, default=None
        The auditor's folder for verifying keys, which are built from the public architecture
        once. Default: built anew and thrown away.

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
    for name, asked in (("alpha", alpha), ("n_bins", n_bins)):
        if asked is not None and statement[name] != asked:
            raise Refused(f"The audit is about {name}={statement[name]}, asked was {asked}.")
    rows, codes = encoded(committed.encoding, committed.classes, X_ref, y_ref)
    if statement["reference"] != reference_digest(rows, codes):
        raise Refused("The audit is about other reference data than these.")
    checker = _Checker(committed, statement, Path(keys) if keys is not None else None)
    level = statement["level"]
    if level == "verdict":
        return _verify_verdict(checker, bundle, rows, codes)
    if level == "bins":
        outputs = checker.sums(bundle, "bins", rows, codes)
        totals = [int(v) for v in np.array(outputs, dtype=object).sum(axis=0)]
        n_proofs, extra = len(outputs), list[str]()
    else:
        found, n_proofs, extra = _verify_predictions(checker, bundle, rows, challenge)
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
    values = np.array(field(statement, "x", list, path.name), dtype=np.float64)
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
    checker = _Checker(committed, statement, Path(keys) if keys is not None else None)
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


class _Checker:
    """Verification of proofs that belong to one statement under one commitment."""

    def __init__(self, committed: Commitment, statement: dict[str, Any], keys: Path | None):
        self.committed, self.statement = committed, statement
        self._keys = keys

    def proof(
        self, kind: str, part: str, values: dict[str, Any], outputs: list[int], text: str
    ) -> None:
        """Verify a single proof."""
        with (
            tempfile.TemporaryDirectory() as temporary,
            verifying_key(self.committed, kind, self._keys) as (settings, key),
        ):
            self._verify(kind, part, values, outputs, text, settings, key, Path(temporary))

    def chunks(self, bundle: Path, kind: str, values: list[dict[str, Any]]) -> list[list[int]]:
        """Verify the proofs of all chunks, and return their outputs."""
        names = {path.name for path in (bundle / CHUNKS).iterdir()}
        expected = [f"{k:05d}.json" for k in range(len(values))]
        if names != set(expected):
            raise Refused(
                f"The audit has {len(names)} proofs of chunks where {len(expected)} are needed."
            )
        found = []
        with (
            tempfile.TemporaryDirectory() as temporary,
            verifying_key(self.committed, kind, self._keys) as (settings, key),
        ):
            for k, (name, value) in enumerate(zip(expected, values, strict=True)):
                record = read_json(bundle / CHUNKS / name)
                outputs = _integers(record, name)
                text = field(record, "proof", str, name)
                part = f"{kind} {k}"
                self._verify(kind, part, value, outputs, text, settings, key, Path(temporary))
                found.append(outputs)
        return found

    def sums(self, bundle: Path, kind: str, rows: IntArray, codes: IntArray) -> list[list[int]]:
        """Verify the sums of all chunks of reference data, and return them."""
        shape, size = self.committed.shape, self.committed.shape.rows_of(kind)
        values = []
        for k, start in enumerate(range(0, len(rows), size)):
            part = slice(start, start + size)
            value = bins_inputs(shape, kind, rows[part], codes[part], self.statement["n_bins"])
            if kind == "padded":
                value["chunk"] = np.eye(shape.n_pads, dtype=np.int64)[self.statement["pads"][k]]
            values.append(value)
        return self.chunks(bundle, kind, values)

    def _verify(
        self,
        kind: str,
        part: str,
        values: dict[str, Any],
        outputs: list[int],
        text: str,
        settings: Path,
        key: Path,
        work: Path,
    ) -> None:
        try:
            proof = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Refused(f"The proof of {part!r} is damaged.") from error
        if backend.commitment_of(proof) != self.committed.point:
            raise Refused(
                f"The proof of {part!r} is one of other weights: its commitment is not the "
                "published one."
            )
        tied = context(self.statement, part)
        inputs = public_inputs(kind, self.committed.shape, values, tied)
        instances = [v for numbers in inputs for v in numbers] + [*outputs, tied]
        if not backend.verify(proof, instances, settings, key, self.committed.srs, work):
            raise Refused(
                f"The proof of {part!r} does not hold for this statement, these data and these "
                "results."
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
    if not (0 <= alpha <= 1 and 1 <= n_bins <= committed.shape.n_bins):
        raise Refused(f"{STATEMENT}: alpha={alpha} or n_bins={n_bins} is impossible.")
    if level is not None and not 0 < level < 1:
        raise Refused(f"{STATEMENT}: confidence_level={level} is impossible.")
    return statement


def _check_commitment(statement: dict[str, Any], committed: Commitment) -> None:
    if statement.get("commitment") != committed.digest:
        raise Refused("This is about another commitment than the published one.")
    if statement.get("versions", {}).get("ezkl") != backend.version():
        raise Refused(f"This was made with another version of ezkl than {backend.version()}.")


def _verify_verdict(
    checker: _Checker, bundle: Path, rows: IntArray, codes: IntArray
) -> VerifiedAudit:
    committed, statement = checker.committed, checker.statement
    pads = field(statement, "pads", list, STATEMENT)
    n_chunks = -(-len(rows) // max(1, committed.shape.rows_of("padded")))
    valid = all(isinstance(p, int) and 0 <= p < committed.shape.n_pads for p in pads)
    if (
        not committed.shape.n_pads
        or len(pads) != n_chunks
        or not valid
        or len(set(pads)) != n_chunks
    ):
        raise Refused(f"{STATEMENT}: the pads do not fit the reference data.")
    outputs = checker.sums(bundle, "padded", rows, codes)
    record = read_json(bundle / VERDICT)
    flags = _integers(record, VERDICT)
    if len(flags) != 3 or not set(flags) <= {-1, 1}:
        raise Refused(f"{VERDICT} holds no verdict.")
    values = verdict_inputs(committed, statement, outputs)
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
        _notes(committed, statement, len(set(flags)) == 1, []),
    )


def _verify_predictions(
    checker: _Checker, bundle: Path, rows: IntArray, challenge: str | Path | None
) -> tuple[Predictions, int, list[str]]:
    statement, shape = checker.statement, checker.committed.shape
    if challenge is None:
        raise Refused("An audit of reported confidences needs the auditor's own challenge.")
    asked = read_json(Path(challenge))
    reported = digest((bundle / REPORTED).read_bytes())
    if statement.get("reported") != reported or asked.get("reported") != reported:
        raise Refused("The reported confidences are not those that the challenge answered.")
    if statement.get("nonce") != asked.get("nonce"):
        raise Refused("The audit answers another challenge; it may be an older one.")
    n, k = len(rows), field(statement, "n_proven", int, STATEMENT)
    record = read_json(bundle / REPORTED)
    found = Predictions(
        np.array(field(record, "label", list, REPORTED), np.int64),
        np.array(field(record, "confidence", list, REPORTED), np.int64),
    )
    if len(found.label) != n or len(found.confidence) != n or not 0 < k <= n:
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
    judgement = None if level is None else judge(sums, alpha=alpha, confidence_level=level)
    robust = len(set(verdicts)) == 1
    return VerifiedAudit(
        verdicts[1],
        robust,
        statement["level"],
        statement,
        sums,
        judgement,
        n_proofs,
        _notes(committed, statement, robust, extra),
    )


def _passes(sums: BinSums, alpha: float, level: float | None) -> bool:
    if level is not None:
        return judge(sums, alpha=alpha, confidence_level=level).passed
    return bool((np.abs(sums.deviation) <= alpha * sums.count * sums.scale * (1 + 1e-12)).all())


def _notes(
    committed: Commitment, statement: dict[str, Any], robust: bool, extra: list[str]
) -> list[str]:
    agreed = committed.record["agreement"]
    notes = [
        "All proofs hold, and all belong to the published commitment.",
        *extra,
        f"Proven confidences are multiples of 2 ** -{CONFIDENCE_BITS}; on the provider's "
        f"calibration data they were within {agreed['maximum']:.4f} of the model's (by its own "
        f"account; tolerance {committed.tolerance:g}).",
    ]
    if not robust:
        notes.append("The verdict would be another at alpha less or plus that tolerance.")
    notes.append(f"Structured reference string: {committed.record['reference_string']['source']}.")
    notes.append("An audit says nothing about inputs that the reference data do not cover.")
    return notes


def _integers(record: Any, where: str) -> list[int]:
    values = field(record, "outputs", list, where)
    try:
        numbers = [int(value) for value in values]
    except (TypeError, ValueError) as error:
        raise Refused(f"The outputs in {where} are no integers.") from error
    if any(abs(number) >= 1 << 128 for number in numbers):
        raise Refused(f"The outputs in {where} are out of range.")
    return numbers
