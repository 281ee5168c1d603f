"""Choice of the size of the circuits of a model, before any key is made."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from skuq.zk import _ezkl as backend
from skuq.zk._architecture import CIRCUITS, LOG_ROWS, MAX_COLUMNS, Architecture
from skuq.zk._circuits import build
from skuq.zk._encoding import Encoding
from skuq.zk._fixed_point import IntegerNetwork, digits_of, largest_value

SALT_BITS = 24  # what single precision holds exactly
REVEALED_BITS = 254  # of the committed numbers, by each proof: one evaluation of a polynomial
# Rows of data per proof below which a larger circuit is tried: what all rows share, such as tables,
# takes a good part of the smallest one; in larger ones a single prediction gets slow.
MANY_ROWS, FEW_ROWS = 6, 3
AUDIT_COLUMNS = MAX_COLUMNS  # which give most rows of data for the time
SINGLE = 2  # rows of an attestation: one alone is laid out in another way, which takes more room


def fit_shape(
    encoding: Encoding,
    network: IntegerNetwork,
    n_bins: int,
    n_proofs: int,
    verdict_samples: int,
    max_memory: float,
) -> Architecture:
    """Choose the size of the circuits: the smallest in which a proof covers several rows."""
    widths = (network.weights[0].shape[0], *(w.shape[1] for w in network.weights))
    largest = largest_value(network, encoding.limits())
    n_salts = -(-(REVEALED_BITS * n_proofs + 256) // SALT_BITS)
    found: Architecture | None = None
    for log_rows in LOG_ROWS:
        digits = digits_of(largest, log_rows)
        columns = dict.fromkeys(CIRCUITS, AUDIT_COLUMNS)
        shape = Architecture(
            widths, network.logit_bits, digits, n_salts, 0, n_bins, log_rows, {}, columns
        )
        if shape.n_committed > _room(shape):
            continue
        if backend.memory_estimate(shape) > max_memory:
            break
        shape, fitting = _with_pads(shape, _rows_per_proof(shape), verdict_samples)
        if min(fitting.values()) < 1:
            continue
        found = shape._replace(rows_per_proof={"attestation": SINGLE, **fitting})
        if min(fitting.values()) >= (MANY_ROWS if log_rows == LOG_ROWS[0] else FEW_ROWS):
            break
    if found is None:
        smallest = Architecture(widths, 0, digits, n_salts, 0, n_bins, LOG_ROWS[-1], {})
        need = max(2.0 ** np.ceil(np.log2(smallest.n_committed)), 2.0 ** LOG_ROWS[0])
        raise ValueError(
            f"The model is too large: {smallest.n_committed} numbers to commit to need at least "
            f"{need:.0f} rows, and max_memory={max_memory:g} GiB allows for no such circuit; "
            "give more memory, or commit to a smaller network, fewer proofs or fewer samples."
        )
    return _with_few_columns(found)


def _with_pads(
    shape: Architecture, fitting: dict[str, int], verdict_samples: int
) -> tuple[Architecture, dict[str, int]]:
    """Add a pad for each chunk of `verdict_samples` rows."""
    while verdict_samples and min(fitting.values()) > 0:
        needed = -(-verdict_samples // fitting.get("padded_bins", fitting["bins"]))
        if needed <= shape.n_pads:
            break
        shape = shape._replace(n_pads=needed)  # which take room, so that fewer rows fit
        fits = shape.n_committed <= _room(shape)
        fitting = _rows_per_proof(shape) if fits else {"padded_bins": 0}
    return shape, fitting


def _room(shape: Architecture) -> int:
    return int(2**shape.log_rows - backend.BLINDING_ROWS)


def _rows_per_proof(shape: Architecture) -> dict[str, int]:
    """Rows of data that fit into one proof of each circuit of an audit; 0 if two do not."""
    room, fitting = _room(shape), {}
    with tempfile.TemporaryDirectory() as temporary:
        for circuit in shape.circuits:
            if circuit in ("attestation", "verdict"):
                continue
            few, more = (_circuit_rows(Path(temporary), circuit, shape, n) for n in (4, 8))
            n = max(SINGLE, 4 + 4 * (room - few) // (more - few))
            while n >= SINGLE and _circuit_rows(Path(temporary), circuit, shape, n) > room:
                n -= 1
            fitting[circuit] = n if n >= SINGLE else 0
    return fitting


def _with_few_columns(shape: Architecture) -> Architecture:
    """Give attestations and the verdict, of which there is one proof each, the fewest columns."""
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
    """Rows of the circuit that `n` rows of data take."""
    shape = shape._replace(rows_per_proof={circuit: n})
    model = folder / "size.onnx"
    rng = np.random.default_rng(0)  # constants that are equal would be merged
    constants = [rng.integers(-99, 100, size=size) for size in shape.shapes]
    model.write_bytes(build(circuit, shape, constants))
    return int(backend.describe(model, folder / "size.settings", circuit, shape)["num_rows"])
