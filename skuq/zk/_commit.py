"""Commitment of a provider to a model, and the choice of the circuits' sizes."""

import secrets
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from skuq._progress import progress
from skuq.zk import _ezkl as backend
from skuq.zk import _files as files
from skuq.zk import _fixed_point as fixed
from skuq.zk._circuits import build
from skuq.zk._files import COMMITMENT, REFERENCE_STRING, digest_file, write_json
from skuq.zk._fixed_point import Architecture, IntegerNetwork
from skuq.zk._keys import make_keys
from skuq.zk._names import check_classes, check_columns, columns_of
from skuq.zk._private_commitment import KINDS, LEDGER
from skuq.zk._public_commitment import Commitment, Encoding, load_commitment
from skuq.zk._reference_string import check_string, commitment_point

SALT_BITS = 24  # bits of a random salt number; such integers are exact in single precision
REVEALED_BITS = 254  # bits about the committed numbers that a proof reveals: one polynomial value
# An audit's circuit gets more blocks of columns until one proof covers MANY_ROWS data rows. This
# is faster than more proofs, because all blocks share a proof's tables, quotient and opening.
MANY_ROWS = 16
AUDIT_COLUMNS = fixed.MAX_COLUMNS  # columns per block with which audits are fastest
SINGLE = 2  # data rows in a circuit that proves one prediction; 1 would need more cells


def commit(
    estimator: Any,
    X: ArrayLike,
    out: str | Path,
    *,
    max_error: float = 0.005,
    srs: str | Path | None = None,
    n_bins: int = 10,
    n_proofs: int = 96,
    n_attestations: int = 32,
    verdict_samples: int = 0,
    max_memory: float = 8.0,
    verbose: int = 0,
) -> Commitment:
    """Commit to a model without disclosing its weights.

    Publish the folder ``out/public``. Keep ``out/private`` secret: it contains weights, salt,
    one-time pads and proving keys. The commitment is binding. That it also hides the weights is
    supported by an entropy argument, but not proved: see `n_proofs` and the user guide.

    Parameters
    ----------
    estimator : object
        Fitted classifier that `skuq.models.adopt` accepts, made of linear layers, ReLU, batch
        normalisation, embeddings and softmax.
    X : array-like of shape (n_samples, n_features)
        Calibration data. They determine the accepted range and the scale of each feature (both are
        public), and the precision of the fixed-point numbers.
    out : str or Path
        Folder to create.
    max_error : float, default=0.005
        Maximum difference between a proven confidence and the model's confidence on `X`.
    srs : str or Path, default=None
        Structured reference string (trusted setup) from the public ceremony or from the auditor. If
        its size is wrong, the error names the right file. Default: generate a string for tests, but
        verifiers reject it by default, because whoever generates a string could forge proofs.
    n_bins : int, default=10
        Maximum number of confidence bins of an audit.
    n_proofs : int, default=96
        Number of proofs of audits that this commitment allows. Each proof reveals one linear
        combination of weights and salt, so more proofs need more committed salt.
    n_attestations : int, default=32
        Number of single predictions that can be proven for clients, in addition to `n_proofs`.
    verdict_samples : int, default=0
        Number of reference samples that can be audited at level "verdict". Each chunk of samples
        needs a one-time pad, which is part of the commitment.
    max_memory : float, default=8.0
        Maximum memory for keys and proofs, in GiB.
    verbose : int, default=0
        If 1, show progress.

    Raises
    ------
    TypeError
        If the model has a layer that a circuit does not support.
    ValueError
        If `max_error` cannot be met, the model is too large for the memory, or `X` does not have
        the columns of the model in their order.
    FileExistsError
        If ``out/private`` exists, or ``out/public`` is not empty.
    OSError
        If `out` is or contains a symbolic link.

    References
    ----------
    Rabanser et al., "Confidential Guardian", ICML 2025, Section 5.2 and Algorithm 1.
    """
    # Imported here because only providers need torch.
    from skuq.zk._quantisation import check_folded, dense_network, fit_fixed_point

    backend.version()
    if not 0 < max_error < 1:
        raise ValueError(f"`max_error` must be in (0, 1), got {max_error}.")
    for name, value, least, most in (
        ("n_bins", n_bins, 1, fixed.MAX_BINS),
        ("n_proofs", n_proofs, 1, np.inf),
        ("n_attestations", n_attestations, 1, np.inf),
        ("verdict_samples", verdict_samples, 0, np.inf),
    ):
        if int(value) != value or not least <= value <= most:
            raise ValueError(f"`{name}` must be an integer from {least} to {most}, got {value}.")
    out = Path(out)
    files.check_unlinked(out)
    public, private = out / "public", out / "private"
    if private.exists() or (public.exists() and any(public.iterdir())):
        raise FileExistsError(f"{out} is not empty; choose a different folder.")
    if isinstance(X, pd.DataFrame):
        X = X.astype(np.float64)  # convert columns of different dtypes, such as int64 and bool
    network, names = dense_network(estimator), _columns(estimator, X)
    check_classes(network.classes.tolist())
    check_folded(estimator, network, X)
    encoding, integers, agreed = fit_fixed_point(network, X, max_error)
    encoding = encoding._replace(names=names)
    all_proofs = n_proofs + n_attestations
    shape = fit_shape(encoding, integers, n_bins, all_proofs, verdict_samples, max_memory)
    try:
        public.mkdir(parents=True, exist_ok=True)
        private.mkdir(mode=0o700)
        string = private / REFERENCE_STRING  # moved to the public folder below
        if srs is None:
            backend.make_reference_string(string, shape.log_rows)
        else:
            shutil.copyfile(srs, string)
            check_string(string, shape.log_rows)
        constants = _constants(shape, integers)
        np.savez(private / "constants.npz", *constants)
        point, keys = commitment_point(shape, constants, string), {}
        for circuit in progress(shape.circuits, desc="keys", verbose=verbose):
            make_keys(private, circuit, shape, constants, string, point)
            keys[circuit] = digest_file(private / f"{circuit}.vk")
        record = {
            "format": files.FORMAT,
            "versions": backend.versions(),
            "architecture": {**shape._asdict(), "widths": list(shape.widths)},
            "commitment_point": point,
            "keys": keys,
            "reference_string": {"sha256": digest_file(string)},
            "encoding": {**encoding._asdict(), "names": names and list(names)},
            "classes": network.classes.tolist(),
            "tolerance": float(max_error),
            "agreement": agreed._asdict(),
            "n_proofs": int(n_proofs),
            "n_attestations": int(n_attestations),
        }
        write_json(private / LEDGER, dict.fromkeys(KINDS, 0))
        shutil.move(string, public)
        for path in private.iterdir():  # also files, since a copied folder may be open to others
            path.chmod(0o600)
        write_json(public / COMMITMENT, record)
        files.write_manifest(public)
    except BaseException:
        # Remove the incomplete commitment; otherwise, the next call would refuse the folder.
        for folder in (public, private):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return load_commitment(public)


def _constants(shape: Architecture, network: IntegerNetwork) -> list[NDArray[Any]]:
    layers = zip(network.weights, network.biases, strict=True)
    constants = [part for weight, bias in layers for part in (weight, bias[None])]
    constants.append(_random(shape.shapes[2 * len(network.weights)], SALT_BITS))
    if shape.n_pads:
        constants.append(_random(shape.shapes[-1], fixed.PAD_BITS))
    return constants


def _random(size: tuple[int, ...], bits: int) -> NDArray[np.int64]:
    count = int(np.prod(size))
    values = np.frombuffer(secrets.token_bytes(8 * count), dtype="<u8") >> np.uint64(64 - bits)
    return values.astype(np.int64).reshape(size)


def _columns(estimator: Any, X: ArrayLike) -> tuple[str, ...] | None:
    names, fitted = columns_of(X), getattr(estimator, "feature_names_in_", None)
    if fitted is not None:
        expected = tuple(str(name).strip() for name in fitted)
        if names not in (None, expected):
            raise ValueError(
                "`X` must have the columns that the model was fitted on, in the same order: "
                f"{', '.join(expected)}; got {', '.join(names or ())}."
            )
        names = expected
    return None if names is None else check_columns(names, len(names))


def fit_shape(
    encoding: Encoding,
    network: IntegerNetwork,
    n_bins: int,
    n_proofs: int,
    verdict_samples: int,
    max_memory: float,
) -> Architecture:
    """Choose the fewest circuit rows with which a block of columns holds `SINGLE` data rows."""
    widths = (network.weights[0].shape[0], *(w.shape[1] for w in network.weights))
    largest = fixed.largest_value(network, encoding.limits())
    n_salts = -(-(REVEALED_BITS * n_proofs + 256) // SALT_BITS)
    for log_rows in fixed.LOG_ROWS:
        digits = fixed.digits_of(largest, log_rows)
        columns = dict.fromkeys(fixed.CIRCUITS, AUDIT_COLUMNS)
        shape = Architecture(
            widths, network.logit_bits, digits, n_salts, 0, n_bins, log_rows, {}, columns
        )
        if shape.n_committed > _room(shape):
            continue
        sizes = range(1, fixed.MAX_BLOCKS + 1)
        blocks = sum(backend.memory_estimate(log_rows, n) <= max_memory for n in sizes)
        if not blocks:
            break
        shape, fitting = _with_pads(shape, blocks, verdict_samples)
        if min(fitting.values()) >= SINGLE:
            found = shape._replace(rows_per_proof={"attestation": SINGLE, **fitting})
            return _with_few_columns(found)
    smallest = Architecture(widths, 0, digits, n_salts, 0, n_bins, fixed.LOG_ROWS[-1], {})
    need = max(2.0 ** np.ceil(np.log2(smallest.n_committed)), 2.0 ** fixed.LOG_ROWS[0])
    raise ValueError(
        f"The model is too large: {smallest.n_committed} committed numbers need a circuit "
        f"of at least {need:.0f} rows, for which max_memory={max_memory:g} GiB is not enough; "
        "allow more memory, or use a smaller network, fewer proofs (`n_proofs`) or fewer samples "
        "(`verdict_samples`)."
    )


def _with_pads(
    shape: Architecture, blocks: int, verdict_samples: int
) -> tuple[Architecture, dict[str, int]]:
    """Add one pad per chunk of the `verdict_samples` rows; also return data rows per proof."""
    fitting = _rows_per_proof(shape, blocks)
    while verdict_samples and min(fitting.values()) > 0:
        needed = -(-verdict_samples // fitting.get("padded_bins", fitting["bins"]))
        if needed <= shape.n_pads:
            break
        shape = shape._replace(n_pads=needed)  # pads occupy cells, so fewer data rows may fit
        fits = shape.n_committed <= _room(shape)
        fitting = _rows_per_proof(shape, blocks) if fits else {"padded_bins": 0}
    return shape, fitting


def _room(shape: Architecture) -> int:
    return int(2**shape.log_rows - backend.BLINDING_ROWS)


def _rows_per_proof(shape: Architecture, most_blocks: int) -> dict[str, int]:
    """Compute the number of data rows per proof of each audit circuit; 0 if not even two fit."""
    fitting = {}
    with tempfile.TemporaryDirectory() as temporary:
        for circuit in shape.circuits:
            if circuit in ("attestation", "verdict"):
                continue
            rows = partial(_circuit_rows, Path(temporary), circuit, shape)
            n = _fitting(rows, _room(shape))
            blocks = min(most_blocks, -(-MANY_ROWS // n)) if n else 1
            fitting[circuit] = n if blocks == 1 else _fitting(rows, blocks * _room(shape))
    return fitting


def _fitting(rows: Callable[[int], int], room: int) -> int:
    """Return the largest n >= 2 with ``rows(n) <= room``, or 0; n is a number of data rows."""
    few, more = rows(4), rows(8)
    n = max(SINGLE, 4 + 4 * (room - few) // (more - few))
    while n >= SINGLE and rows(n) > room:
        n -= 1
    return n if n >= SINGLE else 0


def _with_few_columns(shape: Architecture) -> Architecture:
    """Minimise the columns of the circuits that prove a single attestation or a single verdict."""
    columns = {circuit: shape.columns_of(circuit) for circuit in shape.circuits}
    with tempfile.TemporaryDirectory() as temporary:
        for circuit in {"attestation", "verdict"} & set(columns):
            for few in range(1, columns[circuit]):
                trial = shape._replace(columns={circuit: few})
                if _circuit_rows(Path(temporary), circuit, trial, SINGLE) <= _room(shape):
                    columns[circuit] = few
                    break
    return shape._replace(columns=columns)


def _circuit_rows(folder: Path, circuit: str, shape: Architecture, n: int) -> int:
    shape = shape._replace(rows_per_proof={circuit: n})
    model = folder / "size.onnx"
    rng = np.random.default_rng(0)  # random, because the proof system would merge equal constants
    constants = [rng.integers(-99, 100, size=size) for size in shape.shapes]
    model.write_bytes(build(circuit, shape, constants))
    return int(backend.describe(model, folder / "size.settings", circuit, shape)["num_rows"])
