"""Commitment to a model, by its provider."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from skuq.models import adopt
from skuq.zk import _ezkl as backend
from skuq.zk._architecture import MAX_BINS, PAD_BITS, Architecture
from skuq.zk._circuit_size import SALT_BITS, fit_shape
from skuq.zk._commitment_point import commitment_point
from skuq.zk._dense_network import DenseNetwork, dense_network
from skuq.zk._encoding import record_of
from skuq.zk._files import (
    COMMITMENT,
    FORMAT,
    REFERENCE_STRING,
    digest_file,
    write_json,
    write_manifest,
)
from skuq.zk._fixed_point import IntegerNetwork
from skuq.zk._keys import make_keys
from skuq.zk._ledger import start_ledger
from skuq.zk._names import check_classes, check_columns, columns_of
from skuq.zk._public_commitment import Commitment, load_commitment
from skuq.zk._quantisation import fit_fixed_point, probabilities
from skuq.zk._reference_string import check_form, needed_string

MAX_FOLDING_ERROR = 1e-4  # in probability: that of single precision is smaller


def commit(
    estimator: Any,
    X: ArrayLike,
    out: str | Path,
    *,
    tolerance: float = 0.005,
    srs: str | Path | None = None,
    n_bins: int = 10,
    n_proofs: int = 96,
    n_attestations: int = 32,
    verdict_samples: int = 0,
    max_memory: float = 8.0,
    verbose: int = 0,
) -> Commitment:
    """Commit to a model without disclosing its weights.

    Two folders are written: ``out/public`` is to be published; ``out/private`` holds weights,
    salt, one-time pads and proving keys, and must stay with the provider.

    The commitment is binding. That it hides the weights is argued by entropy, not proven: see
    `n_proofs` and the user guide.

    Parameters
    ----------
    estimator : object
        Fitted classifier that `skuq.models.adopt` takes over, of linear layers, ReLU, batch
        normalisation, embeddings and softmax.
    X : array-like of shape (n_samples, n_features)
        Calibration data. They set the accepted range and the scale of each feature, which are
        public, and the precision of the fixed-point numbers.
    out : str or Path
        Folder to make.
    tolerance : float, default=0.005
        Largest difference between a proven confidence and that of the model on `X`.
    srs : str or Path, default=None
        Structured reference string of the public ceremony, or the auditor's own: the trusted
        setup. If it is not the size that the circuits need, the message names the file that is.
        Default: one is generated here, which is for tests only, because whoever generates
        it could forge proofs; it is not accepted unless a verifier asks for a test.
    n_bins : int, default=10
        Largest number of confidence bins of an audit.
    n_proofs : int, default=96
        Proofs of audits that may be made under this commitment. Each reveals one linear
        combination of weights and salt; there is enough salt for that number.
    n_attestations : int, default=32
        Proofs of single predictions that may be made for clients, who cannot use up those of
        audits.
    verdict_samples : int, default=0
        Reference samples that can be audited at level "verdict", which discloses nothing but
        pass or fail. Each chunk of them needs a one-time pad, which is committed to here.
    max_memory : float, default=8.0
        Memory for keys and proofs, in GiB.
    verbose : int, default=0
        1 shows progress.

    Returns
    -------
    Commitment

    Raises
    ------
    TypeError
        If the model has a layer that a circuit does not support.
    ValueError
        If the tolerance cannot be kept, the model is too large for the memory, or `X` has other
        columns than those the model was fitted on, or another order of them.
    FileExistsError
        If ``out/private`` exists, or ``out/public`` is not empty.
    ImportError
        If the extra ``zk`` is not installed.

    References
    ----------
    Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse of Model
    Abstention", ICML 2025, Section 5.2 and Algorithm 1.
    """
    backend.version()
    _check_parameters(tolerance, n_bins, n_proofs, n_attestations, verdict_samples)
    out = Path(out)
    public, private = out / "public", out / "private"
    if private.exists() or (public.exists() and any(public.iterdir())):
        raise FileExistsError(f"{out} holds a commitment or other files; name another folder.")
    if isinstance(X, pd.DataFrame):
        X = X.astype(np.float64)  # of several types, such as numbers and booleans
    network, names = dense_network(estimator), _columns(estimator, X)
    _check_folded(estimator, network, X)
    check_classes(network.classes.tolist())
    encoding, integers, agreed = fit_fixed_point(network, X, tolerance)
    encoding = encoding._replace(names=names)
    all_proofs = n_proofs + n_attestations
    shape = fit_shape(encoding, integers, n_bins, all_proofs, verdict_samples, max_memory)
    try:
        _write(
            public,
            private,
            shape,
            integers,
            srs,
            bool(verbose),
            {
                "encoding": record_of(encoding),
                "classes": network.classes.tolist(),
                "tolerance": float(tolerance),
                "agreement": agreed._asdict(),
                "n_proofs": int(n_proofs),
                "n_attestations": int(n_attestations),
            },
        )
    except BaseException:
        # Part of a commitment is useless, and would be in the way of the next call.
        for folder in (public, private):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return load_commitment(public)


def _write(
    public: Path,
    private: Path,
    shape: Architecture,
    integers: IntegerNetwork,
    srs: str | Path | None,
    verbose: bool,
    about: dict[str, Any],
) -> None:
    """Generate keys, and write both folders."""
    public.mkdir(parents=True, exist_ok=True)
    private.mkdir(mode=0o700)
    _reference_string(public / REFERENCE_STRING, shape.log_rows, srs)
    constants = _constants(shape, integers)
    np.savez(private / "constants.npz", *constants)
    point, keys = commitment_point(shape, constants, public / REFERENCE_STRING), {}
    for circuit in tqdm(shape.circuits, desc="keys", disable=not verbose):
        make_keys(private, circuit, shape, constants, public / REFERENCE_STRING, point)
        keys[circuit] = digest_file(private / f"{circuit}.vk")
    record = {
        "format": FORMAT,
        "versions": backend.versions(),
        "architecture": {**shape._asdict(), "widths": list(shape.widths)},
        "commitment_point": point,
        "keys": keys,
        "reference_string": {"sha256": digest_file(public / REFERENCE_STRING)},
        **about,
    }
    start_ledger(private)
    write_json(public / COMMITMENT, record)
    write_manifest(public)


def _constants(shape: Architecture, network: IntegerNetwork) -> list[NDArray[Any]]:
    layers = zip(network.weights, network.biases, strict=True)
    constants = [part for weight, bias in layers for part in (weight, bias[None])]
    constants.append(_random(shape.shapes[2 * len(network.weights)], SALT_BITS))
    if shape.n_pads:
        constants.append(_random(shape.shapes[-1], PAD_BITS))
    return constants


def _random(size: tuple[int, ...], bits: int) -> NDArray[np.int64]:
    count = int(np.prod(size))
    values = np.frombuffer(secrets.token_bytes(8 * count), dtype="<u8") >> np.uint64(64 - bits)
    return values.astype(np.int64).reshape(size)


def _reference_string(target: Path, log_rows: int, source: str | Path | None) -> None:
    """Copy a reference string and check its form, or generate one."""
    if source is None:
        backend.make_reference_string(target, log_rows)
        return
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise ValueError(
            f"The structured reference string cannot be read: {error}; needed is "
            f"{needed_string(log_rows)}."
        ) from error
    check_form(target, log_rows)


def _columns(estimator: Any, X: ArrayLike) -> tuple[str, ...] | None:
    """Names of the input columns, from the data or from the estimator."""
    names, fitted = columns_of(X), getattr(estimator, "feature_names_in_", None)
    if fitted is not None:
        expected = tuple(str(name).strip() for name in fitted)
        if names not in (None, expected):
            raise ValueError(
                "`X` must have the columns the model was fitted on, in their order: "
                f"{', '.join(expected)}; got {', '.join(names or ())}."
            )
        names = expected
    return None if names is None else check_columns(names, len(names))


def _check_folded(estimator: Any, network: DenseNetwork, X: ArrayLike) -> None:
    """Compare the probabilities of the folded network with those of the estimator."""
    adopted = adopt(estimator)
    with torch.no_grad():
        proba = adopted.module(adopted.inputs(X)).double().softmax(dim=-1).numpy()
    found = probabilities(network, X)
    if proba.shape != found.shape or np.abs(proba - found).max() > MAX_FOLDING_ERROR:
        raise TypeError(
            "The model computes something else than its layers do; it cannot be put into a circuit."
        )


def _check_parameters(
    tolerance: float, n_bins: int, n_proofs: int, n_attestations: int, verdict_samples: int
) -> None:
    if not 0 < tolerance < 1:
        raise ValueError(f"`tolerance` must be in (0, 1), got {tolerance}.")
    for name, value, least in (
        ("n_bins", n_bins, 1),
        ("n_proofs", n_proofs, 1),
        ("n_attestations", n_attestations, 1),
        ("verdict_samples", verdict_samples, 0),
    ):
        if int(value) != value or value < least:
            raise ValueError(f"`{name}` must be an integer of at least {least}, got {value}.")
    if n_bins > MAX_BINS:
        raise ValueError(f"`n_bins` must be at most {MAX_BINS}, got {n_bins}.")
