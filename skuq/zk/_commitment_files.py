"""Committing to a model, and what others can check of a commitment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skuq.zk import _ezkl as backend
from skuq.zk._circuit_size import ROWS
from skuq.zk._circuits import (
    KINDS,
    Architecture,
)
from skuq.zk._files import (
    FORMAT,
    Refused,
    check_manifest,
    digest,
    digest_file,
    field,
    read_json,
)
from skuq.zk._fixed_point import (
    BASE_BITS,
    EXACT_BITS,
    WEIGHT_BITS,
    Encoding,
    encoding_of,
)

COMMITMENT, REFERENCE_STRING = "commitment.json", "srs"


class Commitment(NamedTuple):
    """The public side of a commitment.

    Attributes
    ----------
    folder : Path
        Where it lies.
    shape : Architecture
        Public architecture; the verifying keys follow from it.
    encoding : Encoding
        How inputs become integers.
    classes : ndarray of shape (n_classes,)
        Labels.
    point : str
        The commitment itself: a point of the curve, hexadecimal.
    record : dict
        All entries of the file.
    """

    folder: Path
    shape: Architecture
    encoding: Encoding
    classes: NDArray[Any]
    point: str
    record: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of all entries; statements name their commitment by it."""
        return digest(self.record)

    @property
    def srs(self) -> Path:
        """Structured reference string."""
        return self.folder / REFERENCE_STRING

    @property
    def tolerance(self) -> float:
        """Tolerated difference between proven and floating-point confidences."""
        return float(self.record["tolerance"])


def load_commitment(folder: str | Path) -> Commitment:
    """Read and check the public folder of a commitment.

    Parameters
    ----------
    folder : str or Path
        Folder ``public`` that `commit` wrote.

    Returns
    -------
    Commitment

    Raises
    ------
    Refused
        If a file is missing, damaged or changed, or was made by another version.
    """
    folder = Path(folder)
    check_manifest(folder)
    record = read_json(folder / COMMITMENT)
    where = COMMITMENT
    if field(record, "format", int, where) != FORMAT:
        raise Refused(f"{COMMITMENT} has format {record['format']}, expected {FORMAT}.")
    made = field(field(record, "versions", dict, where), "ezkl", str, where)
    if made != backend.version():
        raise Refused(
            f"The commitment was made with ezkl {made}, but {backend.version()} is installed; "
            f"proofs are valid for one version only: pip install ezkl=={made}."
        )
    try:
        shape = _architecture(field(record, "architecture", dict, where))
        encoding = encoding_of(field(record, "encoding", dict, where))
    except ValueError as error:
        raise Refused(f"{COMMITMENT}: {error}") from error
    labels = field(record, "classes", list, where)
    if not all(isinstance(v, str | int | float) for v in labels) or len(set(labels)) < len(labels):
        raise Refused(f"{COMMITMENT}: the classes must be different texts or numbers.")
    classes = np.array(labels)
    # Other precisions than `commit` chooses could make a quotient ambiguous in the field.
    per_layer, rest = divmod(shape.logit_bits + 1 - encoding.bits, len(shape.widths) - 1)
    if rest or per_layer - 1 not in WEIGHT_BITS or encoding.bits not in WEIGHT_BITS:
        raise Refused(f"{COMMITMENT}: the precision is none that this package uses.")
    if len(classes) != shape.widths[-1] or encoding.width != shape.widths[0]:
        raise Refused(f"{COMMITMENT}: classes, encoding and architecture do not fit together.")
    field(record, "tolerance", float, where)
    point = field(record, "commitment", str, where)
    string = field(record, "reference_string", dict, where)
    if digest_file(folder / REFERENCE_STRING) != field(string, "sha256", str, where):
        raise Refused("The structured reference string is not the one that was committed to.")
    return Commitment(folder, shape, encoding, classes, point, record)


def _architecture(record: dict[str, Any]) -> Architecture:
    try:
        values = {name: record[name] for name in Architecture._fields}
        numbers = {
            name: int(value) for name, value in values.items() if name not in ("widths", "points")
        }
        shape = Architecture(
            widths=tuple(int(width) for width in values["widths"]),
            points={str(kind): int(n) for kind, n in values["points"].items()},
            **numbers,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the architecture is malformed ({error})") from error
    counts = [*shape.widths, shape.digits, shape.n_salts, shape.n_bins, *shape.points.values()]
    if shape.digits * BASE_BITS > EXACT_BITS + BASE_BITS:
        raise ValueError("the architecture is malformed (too many digits)")
    if len(shape.widths) < 2 or min(counts) < 1 or shape.n_pads < 0:
        raise ValueError("the architecture is malformed (a size is not positive)")
    if shape.rows not in ROWS or not set(shape.points) <= set(KINDS):
        raise ValueError("the architecture is malformed (rows or kinds of circuits)")
    # Whoever builds the keys must not be made to build something huge.
    # And all constants must stand in one column, since one commitment is compared.
    room = 2**shape.rows - backend.BLINDING_ROWS
    if max(shape.n_committed, max(shape.points.values()) * sum(shape.widths)) > room:
        raise ValueError("the architecture is malformed (more numbers than rows)")
    return shape


def private_folder(commitment: Commitment) -> Path:
    """The provider's folder beside the public one."""
    folder = commitment.folder.parent / "private"
    if not (folder / "constants.npz").exists():
        raise FileNotFoundError(
            f"{folder} does not hold the provider's keys; proofs can only be made where the "
            "commitment was made."
        )
    return folder
