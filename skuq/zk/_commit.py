"""The provider's first step: to commit to a model."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from skuq import __version__
from skuq.models import adopt
from skuq.zk import _ezkl as backend
from skuq.zk._circuit_size import SALT_BITS, fit_shape
from skuq.zk._circuits import PAD_BITS, Architecture
from skuq.zk._commitment_files import COMMITMENT, REFERENCE_STRING, Commitment, load_commitment
from skuq.zk._dense_network import DenseNetwork, dense_network
from skuq.zk._files import FORMAT, digest_file, write_json, write_manifest
from skuq.zk._fixed_point import (
    IntegerNetwork,
    fit_fixed_point,
    probabilities,
    record_of,
)
from skuq.zk._keys import constants_point, make_keys

FOLDING_ERROR = 1e-4  # in probability: networks in single precision differ by less


def commit(
    model: Any,
    X: ArrayLike,
    out: str | Path,
    *,
    tolerance: float = 0.005,
    srs: str | Path | None = None,
    n_bins: int = 10,
    n_proofs: int = 128,
    verdict_samples: int = 0,
    max_memory: float = 8.0,
    verbose: int = 0,
) -> Commitment:
    """Commit to a model without showing it.

    Two folders are written: ``out/public`` for everybody, and ``out/private``, which holds
    weights, salt and proving keys and must stay with the provider.

    Parameters
    ----------
    model : object
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
        Structured reference string of a public ceremony, or the auditor's own. Default: one is
        generated here, which is for tests only: its maker could forge proofs, and every artefact
        says so.
    n_bins : int, default=10
        Largest number of confidence bins of an audit.
    n_proofs : int, default=128
        Proofs that may be made under this commitment. Each reveals one linear combination
        of weights and salt; the salt is as long as that takes.
    verdict_samples : int, default=0
        Reference samples for which verdicts can be proven that reveal nothing but pass or
        fail. Each chunk needs a pad that is committed to here, and that is used once.
    max_memory : float, default=8.0
        Memory for making keys and proofs, in GiB.
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
        If the tolerance cannot be kept or the model is too large for the memory.
    FileExistsError
        If `out` holds a commitment already.
    ImportError
        If the extra ``zk`` is not installed.

    References
    ----------
    Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse of Model
    Abstention", ICML 2025, Section 5.2 and Algorithm 1.
    """
    backend.version()
    _check_parameters(tolerance, n_bins, n_proofs, verdict_samples)
    out = Path(out)
    public, private = out / "public", out / "private"
    if (public / COMMITMENT).exists() or private.exists():
        raise FileExistsError(f"{out} holds a commitment already; name another folder.")
    network = dense_network(model)
    _check_folded(model, network, X)
    encoding, integers, agreed = fit_fixed_point(network, X, tolerance)
    shape = fit_shape(encoding, integers, n_bins, n_proofs, verdict_samples, max_memory)
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
            },
        )
    except BaseException:
        # Half a commitment is none, and would be in the way of the next try.
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
    """Make keys, and write both folders."""
    public.mkdir(parents=True, exist_ok=True)
    private.mkdir(mode=0o700)
    source = _reference_string(public / REFERENCE_STRING, shape.rows, srs)
    constants = _constants(shape, integers)
    np.savez(private / "constants.npz", *constants)
    keys, points = {}, set()
    for kind in tqdm(shape.kinds, desc="keys", disable=not verbose):
        make_keys(private, kind, shape, constants, public / REFERENCE_STRING)
        keys[kind] = digest_file(private / f"{kind}.vk")
        points.add(constants_point(private, kind, shape, public / REFERENCE_STRING))
    if len(points) != 1:
        raise backend.ProofSystemError(
            "The circuits do not share one commitment; this version of the proof system orders "
            "constants in another way."
        )
    record = {
        "format": FORMAT,
        "versions": {"skuq": __version__, "ezkl": backend.version()},
        "architecture": {**shape._asdict(), "widths": list(shape.widths)},
        "commitment": points.pop(),
        "keys": keys,
        "reference_string": {"sha256": digest_file(public / REFERENCE_STRING), "source": source},
        **about,
    }
    write_json(private / "ledger.json", {"proofs": 0, "pads": 0})
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


def _reference_string(target: Path, rows: int, source: str | Path | None) -> str:
    if source is None:
        backend.make_reference_string(target, rows)
        return "generated locally by the provider: for tests only, its maker could forge proofs"
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise ValueError(f"The structured reference string cannot be read: {error}") from error
    return f"given as a file ({Path(source).name}); whoever verifies must know where it is from"


def _check_folded(model: Any, network: DenseNetwork, X: ArrayLike) -> None:
    """Compare the network that was folded with the model, as it is used."""
    adopted = adopt(model)
    with torch.no_grad():
        proba = adopted.module(adopted.inputs(X)).double().softmax(dim=-1).numpy()
    found = probabilities(network, X)
    if proba.shape != found.shape or np.abs(proba - found).max() > FOLDING_ERROR:
        raise TypeError(
            "The model does not compute what its layers say; it cannot be put into a circuit."
        )


def _check_parameters(tolerance: float, n_bins: int, n_proofs: int, verdict_samples: int) -> None:
    if not 0 < tolerance < 1:
        raise ValueError(f"`tolerance` must be in (0, 1), got {tolerance}.")
    for name, value, least in (
        ("n_bins", n_bins, 1),
        ("n_proofs", n_proofs, 1),
        ("verdict_samples", verdict_samples, 0),
    ):
        if int(value) != value or value < least:
            raise ValueError(f"`{name}` must be an integer of at least {least}, got {value}.")
