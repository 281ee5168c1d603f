"""Proofs of audits and of single predictions, created by the provider of the committed model."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq._progress import progress
from skuq.base import IntArray
from skuq.files import write_atomically
from skuq.zk import _ezkl as backend
from skuq.zk import _files as files
from skuq.zk import _statements as statements
from skuq.zk._files import VerificationError
from skuq.zk._fixed_point import CONFIDENCE_BITS, integer_predictions
from skuq.zk._private_commitment import Prover, results_of
from skuq.zk._public_commitment import load_commitment
from skuq.zk._regions import load_regions
from skuq.zk._spot_check import CHALLENGE, CHANGED, DRAWN, chosen_rows


class Bundle(NamedTuple):
    """Files of an audit that `prove` writes for the auditor."""

    folder: Path
    n_proofs: int
    complete: bool  # False if the auditor's challenge is still needed


def prove(
    commitment: str | Path,
    X_ref: ArrayLike,
    y_ref: ArrayLike,
    out: str | Path,
    *,
    tolerance: float = 0.05,
    n_bins: int = 10,
    confidence_level: float | None = 0.95,
    level: statements.Level = "bins",
    challenge: str | Path | None = None,
    regions: str | Path | None = None,
    timeout: float = 600.0,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> Bundle:
    """Prove the calibration audit of a committed model (Algorithm 1).

    To resume an interrupted call, repeat it with the same arguments.

    Parameters
    ----------
    commitment : str or Path
        The provider's folder ``public``, which must be next to ``private``.
    X_ref : array-like of shape (n_samples, n_features)
        The auditor's reference data.
    y_ref : array-like of shape (n_samples,)
        True labels of the reference data.
    out : str or Path
        Output folder for the auditor.
    tolerance : float, default=0.05
        Tolerated distance between accuracy and confidence of a bin.
    n_bins : int, default=10
        Number of confidence bins, at most the committed number.
    confidence_level : float or None, default=0.95
        Minimum probability that a model within `tolerance` passes. None omits the margin for
        sampling error, as in Algorithm 1.
    level : {"bins", "verdict", "predictions"}, default="bins"
        Disclosure besides the verdict. "bins": the sums of every bin. "verdict": nothing.
        "predictions": the reported confidence of every reference sample, of which a random subset
        is proven.
    challenge : str or Path, default=None
        At level "predictions": the auditor's challenge for the reported confidences (see
        `skuq.zk.challenge`). Without a challenge, only the confidences are written, without proofs.
    regions : str or Path, default=None
        The auditor's file of regions (see `skuq.zk.choose_regions`), each of which receives a
        verdict too. At levels "bins" and "verdict", a proof covers rows of a single region.
    timeout : float, default=600.0
        Time limit per proof, in seconds.
    n_jobs : int, default=None
        Maximum number of simultaneous proofs, which share the cores; fewer run if they would exceed
        the free memory. None means 1, and -1 the number of cores.
    verbose : int, default=0
        If 1, show progress.

    Returns
    -------
    Bundle
        Named tuple of the `folder` to send to the auditor, the number `n_proofs` of its proofs, and
        `complete`, which is False if the challenge for the reported confidences is still needed.

    Raises
    ------
    ValueError
        If a value is out of range, a label is unknown, or `out` holds an audit with other settings.
    OSError
        If `out` is or contains a symbolic link.
    RuntimeError
        If all proofs or pads of this commitment are used up, or the proof system fails.
    """
    statements.check_level(level)
    files.check_unlinked(out)
    committed = load_commitment(commitment)
    prover = Prover(committed, timeout, n_jobs)
    chosen = None if regions is None else load_regions(regions, len(committed.encoding.columns))
    data = statements.encoded(committed.encoding, committed.classes, X_ref, y_ref, chosen)
    if len(data.rows) < max(2, n_bins):
        raise ValueError(
            f"n_bins={n_bins} needs {max(2, n_bins)} reference samples, got {len(data.rows)}."
        )
    statement = statements.AuditStatement(
        format=files.FORMAT,
        versions=backend.versions(),
        commitment_digest=committed.digest,
        level=level,
        alpha=float(tolerance),
        n_bins=int(n_bins),
        confidence_level=confidence_level,
        n_samples=len(data.rows),
        reference_digest=data.digest,
        regions=None if chosen is None else tuple(chosen.tree),
    )
    impossible = statement.impossible(committed)
    if impossible is not None:
        raise ValueError(f"The audit cannot be proven: {impossible} is impossible.")
    if level == "verdict":
        if not committed.shape.n_pads:
            raise ValueError('level="verdict" needs a commitment made with verdict_samples.')
        reason = statements.too_few_to_fail(len(data.rows), len(committed.classes), statement)
        if reason:
            raise ValueError(reason)
    run = _AuditRun(prover, Path(out), statement, bool(verbose))
    if level == "predictions":
        return _prove_predictions(run, data, challenge)
    return _prove_sums(run, data)


def reported_predictions(
    commitment: str | Path, X: ArrayLike
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Compute labels and confidences of the committed integer model, as stated in proofs.

    Parameters
    ----------
    commitment : str or Path
        As in `prove`.
    X : array-like of shape (n_samples, n_features)
        Inputs in the committed range.

    Returns
    -------
    labels : ndarray of shape (n_samples,)
    confidence : ndarray of shape (n_samples,), float64
        In (0, 1], multiples of 2 ** -14.
    """
    committed = load_commitment(commitment)
    found = integer_predictions(Prover(committed).network(), committed.encoding.encode(X))
    return committed.classes[found.label], found.confidence / 2.0**CONFIDENCE_BITS


class _AuditRun:
    """State of one audit; parts that are already proven are not proven again.

    The state is a subfolder of the private folder; its name is the hash of the statement. Nothing
    in the auditor's folder is used: a statement that somebody planted there could reuse pads.
    """

    def __init__(
        self, prover: Prover, out: Path, statement: statements.AuditStatement, verbose: bool
    ):
        self.committed, self.statement = prover.committed, statement
        self._prover, self.out, self._verbose = prover, out, verbose
        self._state = prover.private / "audits" / files.digest(statement.canonical())

    def check_out(self) -> None:
        """Raise if the auditor's folder contains files other than the files of this audit."""
        files.check_unlinked(self.out)
        for path in self.out.rglob("*"):
            name = path.relative_to(self.out)
            if name in (Path(files.CHUNKS), Path(files.VERDICTS), Path(files.MANIFEST)):
                continue
            made = self._state / name
            if (
                path.is_dir()
                or not made.is_file()
                or files.read_bytes(path, files.MAX_BYTES) != made.read_bytes()
            ):
                raise ValueError(
                    f"{self.out} holds another audit, with other settings; choose a new folder."
                )

    def begin(self, n_chunks: int, verdicts: Sequence[str] = ()) -> None:
        """Write the statement; at level "verdict", first reserve a pad for each chunk.

        If the audit needs more proofs than are left, this raises an error before any proof or pad
        is used up.
        """
        self.check_out()
        if n_chunks > files.MAX_CHUNKS:
            raise ValueError(
                f"{n_chunks} proofs are needed, but an audit has at most {files.MAX_CHUNKS}; use "
                "fewer rows, or a spot check (level='predictions')."
            )
        names = [*map(files.chunk_file, range(n_chunks)), *map(statements.verdict_file, verdicts)]
        missing = sum(not (self._state / name).exists() for name in names)
        self._prover.ledger.demand("audits", missing)
        record = self.file(files.STATEMENT, partial(self._complete_statement, n_chunks))
        kind = statements.VerdictStatement if "pads" in record else type(self.statement)
        self.statement = kind.of(record)

    def prove(self, name: str, circuit: str, values: dict[str, Any], part: str) -> dict[str, Any]:
        return self.file(name, lambda: self._prover.prove(self.statement, circuit, values, part))

    def file(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Create a file of the audit unless it exists, and copy it to the auditor's folder."""
        made = self._state / name
        if not made.exists():
            made.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(made, make())
        files.write_within(self.out, name, made.read_bytes())
        record: dict[str, Any] = files.read_json(made, files.MAX_BYTES)
        return record

    def chunks(self, circuit: str, values: list[dict[str, Any]]) -> list[list[int]]:
        calls = [
            partial(self.prove, files.chunk_file(k), circuit, value, f"{circuit} {k}")
            for k, value in enumerate(values)
        ]
        bar = partial(progress, desc="proofs", total=len(calls), verbose=self._verbose)
        records = results_of(calls, self._prover.n_jobs, bar)
        return [[int(v) for v in record["outputs"]] for record in records]

    def finish(self, n_proofs: int) -> Bundle:
        files.write_manifest(self.out)
        return Bundle(self.out, n_proofs, True)

    def reported(self, rows: IntArray) -> bytes:
        made = self._state / files.REPORTED
        if not made.exists():
            found = integer_predictions(self._prover.network(), rows)
            report = {"label": found.label.tolist(), "confidence": found.confidence.tolist()}
            report["reference_digest"] = self.statement.reference_digest
            made.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(made, report, files.MAX_BYTES)
        return made.read_bytes()

    def answer(self, reported: bytes, statement: statements.SpotCheckStatement) -> None:
        self.statement = statement
        self._state = self._state.with_name(files.digest(statement.canonical()))
        self._state.mkdir(parents=True, exist_ok=True)
        write_atomically(self._state / files.REPORTED, reported)

    def _complete_statement(self, n_chunks: int) -> dict[str, Any]:
        record = self.statement.record()
        if self.statement.level == "verdict":
            first = self._prover.ledger.take("pads", n_chunks)
            record["pads"] = list(range(first, first + n_chunks))
        return record


def _prove_sums(run: _AuditRun, data: statements.ReferenceData) -> Bundle:
    """Prove all reference data, chunk by chunk, at level "bins" or "verdict"."""
    shape = run.committed.shape
    if run.statement.level == "bins":
        values = statements.reference_chunks(shape, "bins", data, run.statement)
        run.begin(len(values))
        return run.finish(len(run.chunks("bins", values)))
    verdicts = statements.verdict_chunks(shape, run.statement, data)
    run.begin(len(verdicts[statements.VERDICT_PART]), list(verdicts))
    statement = run.statement
    assert isinstance(statement, statements.VerdictStatement)
    values = statements.reference_chunks(shape, "padded_bins", data, statement)
    outputs, error = run.chunks("padded_bins", values), run.committed.max_error
    for part, chunks in verdicts.items():
        padded = statements.verdict_inputs(shape, error, statement, outputs, chunks)
        run.prove(statements.verdict_file(part), "verdict", padded, part)
    return run.finish(len(outputs) + len(verdicts))


def _prove_predictions(
    run: _AuditRun, data: statements.ReferenceData, challenge: str | Path | None
) -> Bundle:
    """Report all confidences, then prove the rows selected by the challenge."""
    reported = run.reported(data.rows)
    if challenge is None:
        run.check_out()
        files.write_within(run.out, files.REPORTED, reported)
        return Bundle(run.out, 0, False)
    record = files.read_form(Path(challenge), CHALLENGE)
    n_proven = min(data.largest_region, record["n_proven"])
    entries = {"reported_digest": files.digest(reported), "nonce": record["nonce"]}
    stated = {**run.statement.record(), **entries, "n_proven": n_proven}
    statement = statements.SpotCheckStatement.of(stated)
    if any(record[name] != getattr(statement, name) for name in DRAWN):
        raise ValueError(CHANGED)
    run.answer(reported, statement)
    shape, chosen = run.committed.shape, data.rows[chosen_rows(statement, data.region, n_proven)]
    size = shape.rows_of("predictions")
    parts = [chosen[start : start + size] for start in range(0, len(chosen), size)]
    run.begin(len(parts))
    run.file(files.REPORTED, dict)  # the file exists already; it is only copied
    values = [statements.prediction_inputs(shape, part) for part in parts]
    return run.finish(len(run.chunks("predictions", values)))


def attest(
    commitment: str | Path, x: ArrayLike, out: str | Path, *, nonce: str, timeout: float = 600.0
) -> Path:
    """Prove a single prediction of the committed model and its confidence.

    Parameters
    ----------
    commitment, timeout
        As in `prove`.
    x : array-like of shape (n_features,)
        The client's input.
    out : str or Path
        JSON file to write.
    nonce : str
        Text chosen by the client, which prevents the replay of an older attestation.

    Raises
    ------
    ValueError
        If the input has a wrong shape or is out of the committed range, or the nonce is empty.
    OSError
        If `out` cannot be written, or is a symbolic link. Then no attestation is used up.
    RuntimeError
        If all attestations of this commitment are used up, or the proof system fails.
    """
    if not nonce:
        raise ValueError("`nonce` must be the text that the client chose, got an empty string.")
    out = Path(out)
    files.check_unlinked(out)
    committed = load_commitment(commitment)
    given = np.asarray(x, dtype=np.float64)
    if given.ndim != 1:
        raise ValueError(f"`x` must have shape (n_features,), got {given.shape}.")
    rows = committed.encoding.encode(given[None])
    prover = Prover(committed, timeout)
    with suppress(VerificationError, LookupError, TypeError):
        stated = files.read_json(out)["statement"]
        if stated["commitment_digest"] == committed.digest:
            prover.ledger.check("attestations", stated["number"])
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder; pass the path of a file.")
    with tempfile.TemporaryFile(dir=out.parent):  # raises if the folder cannot be written
        pass
    found = integer_predictions(prover.network(), rows)
    statement = statements.AttestationStatement(
        format=files.FORMAT,
        versions=backend.versions(),
        commitment_digest=committed.digest,
        level=statements.ATTESTATION,
        x=tuple(given.tolist()),
        label=int(found.label[0]),
        confidence=int(found.confidence[0]),
        nonce=str(nonce),
        number=prover.ledger.take("attestations") + 1,
    )
    part = statements.ATTESTATION
    values = statements.prediction_inputs(committed.shape, rows, part)
    proof = prover.prove(statement, part, values, part, counted=None)["proof"]
    files.write_json(out, {"statement": statement.record(), "proof": proof})
    return out
