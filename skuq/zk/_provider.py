"""The provider's side: proofs of an audit, and of single predictions."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from skuq import __version__
from skuq.base import IntArray
from skuq.zk import _ezkl as backend
from skuq.zk._commitment_files import Commitment, load_commitment, private_folder
from skuq.zk._files import FORMAT, digest, field, read_json, write_json, write_manifest
from skuq.zk._fixed_point import (
    CONFIDENCE_BITS,
    IntegerNetwork,
    Predictions,
    predictions,
)
from skuq.zk._statements import (
    LEVELS,
    chosen_rows,
    context,
    encoded,
    n_outputs,
    predict_inputs,
    public_inputs,
    reference_chunks,
    reference_digest,
    sample_size,
    verdict_inputs,
)

Level = Literal["verdict", "bins", "predictions"]
STATEMENT, REPORTED, CHUNKS, VERDICT = "statement.json", "reported.json", "chunks", "verdict.json"


class Bundle(NamedTuple):
    """What `prove` wrote.

    Attributes
    ----------
    folder : Path
        Folder to hand to the auditor.
    n_proofs : int
        Proofs in it.
    complete : bool
        False if reported confidences are fixed and the auditor's challenge is awaited.
    """

    folder: Path
    n_proofs: int
    complete: bool


def prove(
    commitment: str | Path,
    X_ref: ArrayLike,
    y_ref: ArrayLike,
    out: str | Path,
    *,
    alpha: float = 0.05,
    n_bins: int = 10,
    confidence_level: float | None = 0.95,
    disclose: Level = "bins",
    challenge: str | Path | None = None,
    false_share: float = 0.02,
    error: float = 0.01,
    timeout: float = 600.0,
    verbose: int = 0,
) -> Bundle:
    """Prove the calibration audit of a committed model (Algorithm 1).

    Proofs are made one at a time. An interrupted call goes on where it was when it is repeated
    with the same arguments.

    Parameters
    ----------
    commitment : str or Path
        The provider's folder ``public``, with ``private`` beside it.
    X_ref : array-like of shape (n_samples, n_features)
        The auditor's reference data.
    y_ref : array-like of shape (n_samples,)
        Their true labels.
    out : str or Path
        Folder for the auditor.
    alpha : float, default=0.05
        Tolerated distance between accuracy and confidence of a bin.
    n_bins : int, default=10
        Confidence bins, at most as many as were committed to.
    confidence_level : float or None, default=0.95
        Probability that a model within alpha passes. None leaves nothing to chance, as in
        Algorithm 1.
    disclose : {"bins", "verdict", "predictions"}, default="bins"
        What becomes public besides the verdict: the sums of every bin, nothing, or the reported
        confidence of every reference sample, of which a random part is proven.
    challenge : str or Path, default=None
        For "predictions": the auditor's answer to the reported confidences (`make_challenge`).
        Without it they are written down, and no proof is made yet.
    false_share, error : float, default=0.02 and 0.01
        For "predictions": a share of false reports that is found but with this error.
    timeout : float, default=600.0
        Longest time for one proof, in seconds.
    verbose : int, default=0
        1 shows progress.

    Returns
    -------
    Bundle

    Raises
    ------
    ValueError
        If an argument is out of range, inputs are outside the committed range, labels are
        unknown, or `out` holds another audit.
    RuntimeError
        If the proofs or pads of this commitment are used up, or the proof system fails.
    """
    if disclose not in LEVELS:
        raise ValueError(f"`disclose` must be one of {', '.join(LEVELS)}, got {disclose!r}.")
    committed = load_commitment(commitment)
    private = private_folder(committed)
    rows, codes = encoded(committed.encoding, committed.classes, X_ref, y_ref)
    _check(committed, alpha, n_bins, confidence_level, disclose, len(rows))
    statement = {
        "format": FORMAT,
        "versions": {"skuq": __version__, "ezkl": backend.version()},
        "commitment": committed.digest,
        "level": disclose,
        "alpha": float(alpha),
        "n_bins": int(n_bins),
        "confidence_level": confidence_level,
        "n_samples": len(rows),
        "reference": reference_digest(rows, codes),
    }
    out = Path(out)
    (out / CHUNKS).mkdir(parents=True, exist_ok=True)
    run = _Run(committed, private, out, timeout, bool(verbose))
    if disclose == "predictions":
        return _prove_predictions(run, statement, rows, challenge, false_share, error)
    return _prove_sums(run, statement, rows, codes)


class _Run:
    """Proofs under one commitment, kept in a folder one by one."""

    def __init__(
        self, committed: Commitment, private: Path, out: Path, timeout: float, verbose: bool
    ):
        self.committed, self.private, self.out = committed, private, out
        self._timeout, self._verbose = timeout, verbose
        self.network = _network(committed, private)

    def begin(self, statement: dict[str, Any]) -> dict[str, Any]:
        """Write the statement, or find it as an interrupted run left it."""
        path = self.out / STATEMENT
        if path.exists():
            before = read_json(path)
            if {**statement, "pads": None} != {**before, "pads": None}:
                raise ValueError(
                    f"{self.out} holds another audit; name another folder, or repeat the "
                    "interrupted call with the same arguments."
                )
            statement = before
        else:
            if statement["level"] == "verdict":
                n = -(-statement["n_samples"] // self.committed.shape.points["padded"])
                statement = {**statement, "pads": self._take_pads(n)}
            write_json(path, statement)
        return statement

    def chunks(
        self, statement: dict[str, Any], kind: str, values: list[dict[str, Any]]
    ) -> list[list[int]]:
        """Prove every chunk that is not proven yet; return the outputs of all."""
        outputs = []
        for k, value in enumerate(tqdm(values, desc="proofs", disable=not self._verbose)):
            path = self.out / CHUNKS / f"{k:05d}.json"
            if not path.exists():
                write_json(path, self.proof(statement, kind, value, f"{kind} {k}"))
            outputs.append([int(v) for v in read_json(path)["outputs"]])
        return outputs

    def proof(
        self, statement: dict[str, Any], kind: str, values: dict[str, Any], part: str
    ) -> dict[str, Any]:
        """One proof, with its outputs."""
        committed = self.committed
        circuit = self.private / f"{kind}.circuit"
        inputs = public_inputs(kind, committed.shape, values, context(statement, part))
        target = self.private / f"{kind}.witness"
        key = self.private / f"{kind}.vk"
        outputs, _ = backend.witness(inputs, circuit, target, key, committed.srs)
        outputs = outputs[: n_outputs(kind, committed.shape)]
        self._count_proof()
        proof = backend.prove(
            target, circuit, self.private / f"{kind}.pk", committed.srs, timeout=self._timeout
        )
        return {
            "part": part,
            "outputs": [str(v) for v in outputs],
            "proof": base64.b64encode(proof).decode(),
        }

    def _count_proof(self) -> None:
        most = self.committed.record["n_proofs"]
        with _ledger(self.private) as ledger:
            if ledger["proofs"] >= most:
                raise RuntimeError(
                    f"All n_proofs={most} proofs of this commitment are made; more would reveal "
                    "weights. Commit again, with a larger n_proofs."
                )
            ledger["proofs"] += 1

    def _take_pads(self, n: int) -> list[int]:
        with _ledger(self.private) as ledger:
            first, most = ledger["pads"], self.committed.shape.n_pads
            if first + n > most:
                raise RuntimeError(
                    f"The verdict needs {n} pads, and {most - first} of {most} are left; a pad "
                    "hides sums once only. Commit again, with a larger verdict_samples."
                )
            ledger["pads"] = first + n
        return list(range(first, first + n))


@contextmanager
def _ledger(private: Path) -> Iterator[dict[str, Any]]:
    """What was used up under a commitment; written back if nothing is wrong.

    Two calls at the same time must not take the same pad, hence the lock.
    """
    lock = private / "ledger.lock"
    for _ in range(100):
        with suppress(FileExistsError):
            lock.open("x").close()
            break
        time.sleep(0.1)
    else:
        raise RuntimeError(f"{lock} is held by another call; if there is none, remove it.")
    try:
        ledger = read_json(private / "ledger.json")
        yield ledger
        write_json(private / "ledger.json", ledger)
    finally:
        lock.unlink()


def _prove_sums(run: _Run, statement: dict[str, Any], rows: IntArray, codes: IntArray) -> Bundle:
    """Levels "bins" and "verdict": all reference data, chunk by chunk."""
    shape = run.committed.shape
    kind = "bins" if statement["level"] == "bins" else "padded"
    statement = run.begin(statement)
    values = reference_chunks(shape, kind, rows, codes, statement)
    outputs = run.chunks(statement, kind, values)
    if kind == "padded":
        path = run.out / VERDICT
        if not path.exists():
            hidden = verdict_inputs(shape, run.committed.tolerance, statement, outputs)
            write_json(path, run.proof(statement, "verdict", hidden, "verdict"))
    write_manifest(run.out)
    return Bundle(run.out, len(outputs) + (kind == "padded"), True)


def _prove_predictions(
    run: _Run,
    statement: dict[str, Any],
    rows: IntArray,
    challenge: str | Path | None,
    false_share: float,
    error: float,
) -> Bundle:
    """Level "predictions": all confidences are reported, a random part is proven."""
    path = run.out / REPORTED
    if (run.out / STATEMENT).exists() and not path.exists():
        raise ValueError(f"{run.out} holds another audit; name another folder.")
    if not path.exists():
        found = predictions(run.network, rows)
        report = {"label": found.label.tolist(), "confidence": found.confidence.tolist()}
        write_json(path, {"reference": statement["reference"], **report})
    elif read_json(path).get("reference") != statement["reference"]:
        raise ValueError(
            f"{run.out} holds another audit: it reports on other reference data; name another "
            "folder."
        )
    if challenge is None:
        return Bundle(run.out, 0, False)
    reported = digest(path.read_bytes())
    asked = read_json(Path(challenge))
    nonce = field(asked, "nonce", str, "The challenge")
    if field(asked, "reported", str, "The challenge") != reported:
        raise ValueError("The challenge answers other reported confidences than these.")
    n_proven = min(len(rows), sample_size(false_share, error))
    statement = run.begin({**statement, "reported": reported, "nonce": nonce, "n_proven": n_proven})
    chosen = rows[chosen_rows(statement, len(rows), n_proven)]
    size = run.committed.shape.rows_of("predict")
    values = [
        predict_inputs(run.committed.shape, chosen[start : start + size])
        for start in range(0, n_proven, size)
    ]
    outputs = run.chunks(statement, "predict", values)
    write_manifest(run.out)
    return Bundle(run.out, len(outputs), True)


def attest(
    commitment: str | Path,
    x: ArrayLike,
    out: str | Path,
    *,
    nonce: str = "",
    timeout: float = 600.0,
) -> Path:
    """Prove one prediction and its confidence, from the committed model.

    Parameters
    ----------
    commitment : str or Path
        The provider's folder ``public``, with ``private`` beside it.
    x : array-like of shape (n_features,)
        The client's input.
    out : str or Path
        JSON file to write.
    nonce : str, default=""
        Text that the client chose, so that no older attestation can be sent instead.
    timeout : float, default=600.0
        Longest time for the proof, in seconds.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        If the input has another shape or is outside the committed range.
    RuntimeError
        If the proofs of this commitment are used up, or the proof system fails.
    """
    committed = load_commitment(commitment)
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"`x` must have shape (n_features,), got {values.shape}.")
    rows = committed.encoding.encode(values[None])
    out = Path(out)
    run = _Run(committed, private_folder(committed), out.parent, timeout, False)
    found = predictions(run.network, rows)
    statement = {
        "format": FORMAT,
        "versions": {"skuq": __version__, "ezkl": backend.version()},
        "commitment": committed.digest,
        "level": "attestation",
        "x": values.tolist(),
        "label": int(found.label[0]),
        "confidence": int(found.confidence[0]),
        "nonce": str(nonce),
    }
    proof = run.proof(statement, "predict", predict_inputs(committed.shape, rows), "predict 0")
    write_json(out, {"statement": statement, "proof": proof["proof"]})
    return out


def reported_predictions(
    commitment: str | Path, X: ArrayLike
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Labels and confidences of the committed function, as proofs will state them.

    Parameters
    ----------
    commitment : str or Path
        The provider's folder ``public``, with ``private`` beside it.
    X : array-like of shape (n_samples, n_features)
        Inputs in the committed range.

    Returns
    -------
    labels : ndarray of shape (n_samples,)
    confidence : ndarray of shape (n_samples,), float64
        In (0, 1], multiples of 2 ** -14.
    """
    committed = load_commitment(commitment)
    network = _network(committed, private_folder(committed))
    found: Predictions = predictions(network, committed.encoding.encode(X))
    return committed.classes[found.label], found.confidence / 2.0**CONFIDENCE_BITS


def _network(committed: Commitment, private: Path) -> IntegerNetwork:
    with np.load(private / "constants.npz") as arrays:
        constants = [arrays[name] for name in arrays.files]
    n_layers = len(committed.shape.widths) - 1
    bits = committed.encoding.bits
    return IntegerNetwork(
        constants[: 2 * n_layers : 2],
        [bias[0] for bias in constants[1 : 2 * n_layers : 2]],
        bits,
        (committed.shape.logit_bits + 1 - bits) // n_layers - 1,
    )


def _check(
    committed: Commitment,
    alpha: float,
    n_bins: int,
    confidence_level: float | None,
    disclose: str,
    n_samples: int,
) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"`alpha` must be in [0, 1], got {alpha}.")
    if not 1 <= n_bins <= committed.shape.n_bins:
        raise ValueError(
            f"`n_bins` must be between 1 and the committed {committed.shape.n_bins}, got {n_bins}."
        )
    if confidence_level is not None and not 0 < confidence_level < 1:
        raise ValueError(f"`confidence_level` must be in (0, 1) or None, got {confidence_level}.")
    if n_samples < max(2, n_bins):
        raise ValueError(f"{n_samples} reference samples are too few for {n_bins} bins.")
    if disclose == "verdict":
        if not committed.shape.n_pads:
            raise ValueError(
                'disclose="verdict" needs a commitment with verdict_samples; commit again.'
            )
        if abs(1000 * alpha - round(1000 * alpha)) > 1e-9:
            raise ValueError(f'With disclose="verdict" alpha is a multiple of .001, got {alpha}.')
