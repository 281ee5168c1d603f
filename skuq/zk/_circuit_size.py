"""How large the circuits of a model must be, before any key is made."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from skuq.zk import _ezkl as backend
from skuq.zk._circuits import Architecture, build
from skuq.zk._fixed_point import BASE_BITS, Encoding, IntegerNetwork, value_bits

SALT_BITS = 24  # what single precision holds exactly
REVEALED_BITS = 254  # of the committed numbers, by each proof: one evaluation of a polynomial
ROWS = range(13, 19)
# Rows of data per proof below which a larger circuit is tried: in the smallest one, salt takes a
# good part of the room; in larger ones a single prediction gets slow.
MANY_POINTS, FEW_POINTS = 8, 3


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
    digits = -(-value_bits(network, encoding.limits()) // BASE_BITS)
    n_salts = -(-(REVEALED_BITS * n_proofs + 256) // SALT_BITS)
    found: Architecture | None = None
    for rows in ROWS:
        shape = Architecture(widths, network.logit_bits, digits, n_salts, 0, n_bins, rows, {})
        if shape.n_committed > 2**rows - backend.BLINDING_ROWS:
            continue
        if backend.memory_estimate(shape) > max_memory:
            break
        points = _points(shape)
        while verdict_samples and min(points.values()) > 0:
            needed = -(-verdict_samples // points.get("padded", points["bins"]))
            if needed <= shape.n_pads:
                break
            shape = shape._replace(n_pads=needed)  # which take room, so that points get fewer
            fits = shape.n_committed <= 2**rows - backend.BLINDING_ROWS
            points = _points(shape) if fits else {"padded": 0}
        if min(points.values()) < 1:
            continue
        found = shape._replace(points=points)
        if min(points.values()) >= (MANY_POINTS if rows == ROWS[0] else FEW_POINTS):
            break
    if found is None:
        smallest = Architecture(widths, 0, digits, n_salts, 0, n_bins, ROWS[-1], {})
        need = max(2.0 ** np.ceil(np.log2(smallest.n_committed)), 2.0 ** ROWS[0])
        raise ValueError(
            f"The model is too large: {smallest.n_committed} numbers to commit to need at least "
            f"{need:.0f} rows, and max_memory={max_memory:g} GiB allows for no such circuit; "
            "give more memory, or commit to a smaller network, fewer proofs or fewer samples."
        )
    return found


def _points(shape: Architecture) -> dict[str, int]:
    """Rows of data that fit into one proof of each kind; 0 if none does."""
    room = 2**shape.rows - backend.BLINDING_ROWS
    points = {}
    with tempfile.TemporaryDirectory() as temporary:
        for kind in shape.kinds:
            if kind == "verdict":
                continue
            few, more = (_size(Path(temporary), kind, shape, n) for n in (4, 8))
            n = max(1, 4 + 4 * (room - few) // (more - few))
            while n and _size(Path(temporary), kind, shape, n) > room:
                n -= 1
            points[kind] = n
    return points


def _size(folder: Path, kind: str, shape: Architecture, n: int) -> int:
    """Rows of the circuit that `n` rows of data take."""
    shape = shape._replace(points={kind: n})
    model = folder / "size.onnx"
    rng = np.random.default_rng(0)  # constants that are equal would be merged
    constants = [rng.integers(-99, 100, size=size) for size in shape.shapes]
    model.write_bytes(build(kind, shape, constants))
    return int(backend.describe(model, folder / "size.settings", kind, shape)["num_rows"])
