"""Public side of a commitment: the published folder, its classes, and the encoding of inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import FloatArray, IntArray
from skuq.zk import _ezkl as backend
from skuq.zk import _files as files
from skuq.zk import _fixed_point as fixed
from skuq.zk._files import COMMITMENT, DIGEST, REFERENCE_STRING, VerificationError, check_form
from skuq.zk._fixed_point import LOG_ROWS, WEIGHT_BITS, Architecture
from skuq.zk._names import check_classes, check_columns, columns_of
from skuq.zk._reference_string import CEREMONY, check_ends, needed_string

LARGEST_INTEGER = 2.0**62  # largest absolute value of an encoded input, which has 64 bits
MAX_PROOFS = 2 ** max(LOG_ROWS)  # the salt for more proofs would not fit into a circuit
SIZES = ("rows_per_proof", "columns")  # entries that map each circuit to a number
FORM = {  # form of commitment.json, see `check_form`
    "format": int,
    "versions": files.VERSIONS,
    "architecture": {
        **dict.fromkeys(Architecture._fields, int),
        "widths": [int],
        **dict.fromkeys(SIZES, dict),
    },
    "commitment_point": DIGEST,
    "keys": dict,
    "reference_string": {"sha256": DIGEST},
    "encoding": {"bits": int, "columns": [(int, float, float, float)], "names": list | None},
    "classes": list,
    "tolerance": float,
    "agreement": dict.fromkeys(("maximum", "mean", "argmax"), float),
    "n_proofs": int,
    "n_attestations": int,
}


class Commitment(NamedTuple):
    """The public side of a commitment.

    Attributes
    ----------
    folder : Path
        The published folder.
    shape : Architecture
        Public architecture, which determines the verifying keys.
    encoding : Encoding
        Encoding of inputs as integers.
    classes : ndarray of shape (n_classes,)
        Labels, in the order of the logits.
    point : str
        Commitment to weights, salt and pads: a curve point in hexadecimal, called
        ``commitment_point`` in files.
    record : dict
        Contents of ``commitment.json``.
    srs : Path
        Private copy of the checked reference string; deleted with this object.
    """

    folder: Path
    shape: Architecture
    encoding: Encoding
    classes: NDArray[Any]
    point: str
    record: dict[str, Any]
    copy: files.PrivateCopy

    @property
    def digest(self) -> str:
        """SHA-256 of the record, which statements reference as ``commitment_digest``."""
        return files.digest(self.record)

    @property
    def srs(self) -> Path:
        return self.copy.folder / REFERENCE_STRING

    @property
    def srs_digest(self) -> str:
        """SHA-256 of the reference string; `load_commitment` has compared it with the file."""
        return str(self.record["reference_string"]["sha256"])

    @property
    def ceremony_string(self) -> str:
        """Name, size and SHA-256 of the public ceremony's string for circuits of this size."""
        return needed_string(self.shape.log_rows)

    @property
    def uses_ceremony(self) -> bool:
        """Whether the SHA-256 of the reference string is that of the public ceremony."""
        return self.srs_digest == CEREMONY[self.shape.log_rows]

    @property
    def max_error(self) -> float:
        return float(self.record["tolerance"])


def load_commitment(folder: str | Path | Commitment) -> Commitment:
    """Read and validate the public folder of a commitment.

    Parameters
    ----------
    folder : str, Path or Commitment
        Folder ``public`` that was written by `commit`; a loaded commitment is returned as it is.

    Raises
    ------
    VerificationError
        If a file is missing, damaged or changed, or was written by a different version.
    """
    if isinstance(folder, Commitment):
        return folder
    copy = files.PrivateCopy(Path(folder))
    files.check_content(copy.names, files.PUBLISHED)
    record = files.read_json(copy.folder / COMMITMENT)
    check_record(record, FORM, COMMITMENT)
    try:
        shape, encoding = _architecture(record), encoding_of(record["encoding"])
        classes = check_classes(record["classes"])
    except (ValueError, OverflowError) as error:
        raise VerificationError(f"{COMMITMENT}: {error}") from error
    # With other precisions, a quotient could be ambiguous in the finite field of the proofs.
    per_layer, rest = divmod(shape.logit_bits + 1 - encoding.bits, len(shape.widths) - 1)
    if rest or per_layer - 1 not in WEIGHT_BITS or encoding.bits not in WEIGHT_BITS:
        raise VerificationError(f"{COMMITMENT}: `commit` does not produce this precision.")
    if len(classes) != shape.widths[-1] or encoding.width != shape.widths[0]:
        raise VerificationError(f"{COMMITMENT}: numbers of classes and inputs are inconsistent.")
    # Check the ranges of numbers that the provider states without proof.
    limits = [(name, value, 0.0, 1.0) for name, value in record["agreement"].items()]
    limits += [(name, record[name], 1, MAX_PROOFS) for name in ("n_proofs", "n_attestations")]
    limits.append(("tolerance", record["tolerance"], fixed.ROUNDING, float(np.nextafter(1, 0))))
    for name, value, least, most in limits:
        if not least <= value <= most:
            raise VerificationError(
                f"{COMMITMENT}: {name!r} must be from {least:.4g} to {most:.7g}, got {value}."
            )
    point, string = record["commitment_point"], copy.folder / REFERENCE_STRING
    if files.digest_file(string) != record["reference_string"]["sha256"]:
        raise VerificationError("The structured reference string is not the committed one.")
    check_ends(string, shape.log_rows)
    return Commitment(Path(folder), shape, encoding, classes, point, record, copy)


def folder_of(commitment: str | Path | Commitment) -> str | Path:
    return commitment.folder if isinstance(commitment, Commitment) else commitment


def check_record(record: Any, form: Mapping[str, Any], where: str) -> None:
    """Check the format, the entries and the versions of a record of another party."""
    files.check_format(record, where)
    check_form(record, form, where)
    if record["versions"]["ezkl"] != backend.version():
        raise VerificationError(
            f"{where} was not made with ezkl {backend.version()}, the version installed here."
        )


def _architecture(record: dict[str, Any]) -> Architecture:
    """Read and check the architecture in a record, and check that each circuit has a key."""
    shape = Architecture(**record["architecture"])
    shape = shape._replace(widths=tuple(shape.widths))
    of_circuits = dict.fromkeys(shape.circuits, int)
    check_form(record["keys"], dict.fromkeys(shape.circuits, DIGEST), COMMITMENT, "keys.")
    check_form(shape.columns, of_circuits, COMMITMENT, "columns.")
    of_circuits.pop("verdict", None)  # this circuit has no data rows
    check_form(shape.rows_per_proof, of_circuits, COMMITMENT, "rows_per_proof.")
    counts = [*shape.widths, shape.digits, shape.n_salts, shape.n_bins]
    counts += [*shape.rows_per_proof.values(), *shape.columns.values()]
    faults = {
        "a size is not positive": len(shape.widths) < 2 or min(counts) < 1 or shape.n_pads < 0,
        "too many bins": shape.n_bins > fixed.MAX_BINS,
        "size of circuits": shape.log_rows not in LOG_ROWS
        or max(shape.columns.values()) > fixed.MAX_COLUMNS,
    }
    for fault, found in faults.items():
        if found:
            raise ValueError(f"the architecture is malformed ({fault})")
    if fixed.logit_shift(shape.logit_bits, shape.widths[-1]) > fixed.MAX_SHIFT:
        raise ValueError("the network has too many layers for its precision")
    if shape.digits > fixed.digits_of(fixed.LARGEST_EXACT, shape.log_rows):
        raise ValueError("the architecture is malformed (its numbers have too many digits)")
    # Limit the size, or a provider could make a verifier build a huge key. The committed numbers
    # must also fit into one column, because each column has a separate commitment, and the verifier
    # compares only the commitment to a single column.
    room = 2**shape.log_rows - backend.BLINDING_ROWS
    if max(shape.n_committed, max(shape.rows_per_proof.values()) * sum(shape.widths)) > room:
        raise ValueError("the architecture is malformed (more numbers than rows)")
    return shape


class Encoding(NamedTuple):
    """Public encoding of inputs as integers."""

    columns: tuple[Column, ...]  # encoding of each input column
    bits: int  # number of binary digits of a scaled number after the point
    names: tuple[str, ...] | None = None  # column names, if the provider's data had any

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def limits(self) -> IntArray:
        """Return the maximum absolute value of each integer of an encoded row, shape (width,)."""
        largest = [1 if c.levels else math.ceil(c.limit * 2**self.bits) for c in self.columns]
        return np.repeat(np.array(largest, np.int64), [c.width for c in self.columns])

    def encode(self, X: ArrayLike) -> IntArray:
        """Encode rows, shape (n_samples, n_features), as integers, shape (n_samples, width)."""
        values = np.asarray(X, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != len(self.columns):
            raise ValueError(f"Inputs must have {len(self.columns)} columns, got {values.shape}.")
        names = columns_of(X)
        if self.names is not None and names not in (None, self.names):
            raise ValueError(
                f"Inputs must have the committed columns in this order: {', '.join(self.names)}; "
                f"got {', '.join(names or ())}."
            )
        if len(values) == 0:
            raise ValueError("At least one row is needed, got none.")
        if not np.isfinite(values).all():
            row = int((~np.isfinite(values)).any(axis=1).argmax())
            raise ValueError(f"Inputs must be finite numbers; row {row} has NaN or infinity.")
        blocks = []
        for j, column in enumerate(self.columns):
            x = values[:, j]
            if column.levels:
                blocks.append(indicators(x, column.levels))
                continue
            scaled = (x - column.center) / column.scale
            outside = np.abs(scaled) > column.limit
            if outside.any():
                row = int(outside.argmax())
                reach = column.limit * column.scale
                raise ValueError(
                    f"Feature {j} is {x[row]:.6g} in row {row}, outside the committed range "
                    f"[{column.center - reach:.6g}, {column.center + reach:.6g}]; commit again "
                    "with calibration data that cover such values, or omit the row."
                )
            blocks.append(np.rint(scaled * 2**self.bits).astype(np.int64)[:, None])
        return np.concatenate(blocks, axis=1)


def indicators(x: FloatArray, levels: int) -> IntArray:
    """One-hot encode category codes below `levels`; the last column marks all other values."""
    code = x.astype(np.int64)
    place = np.where((code >= 0) & (code < levels), code, levels)
    return (place[:, None] == np.arange(levels + 1)).astype(np.int64)


class Column(NamedTuple):
    """Encoding of one input column: ``round((x - center) / scale * 2**bits)`` for a number x."""

    levels: int  # 0 for a numeric column, else the number of category codes
    center: float = 0.0
    scale: float = 1.0
    limit: float = 1.0  # maximum accepted value of abs(x - center) / scale

    @property
    def width(self) -> int:
        """Number of integers per value: 1, or an indicator per category and one for all others."""
        return self.levels + 1 if self.levels else 1


def encoding_of(record: dict[str, Any]) -> Encoding:
    """Read an encoding from JSON; raise ValueError if its values are impossible."""
    columns, names = tuple(Column(*column) for column in record["columns"]), record["names"]
    if names is not None:
        names = check_columns(names, len(columns))
    encoding = Encoding(columns, record["bits"], names)
    numbers = np.array([column[1:] for column in columns])
    if not columns or (numbers[:, 1:] <= 0).any() or min(column.levels for column in columns) < 0:
        raise ValueError("The encoding of inputs is malformed: scales and limits must be > 0.")
    if encoding.bits >= 64 or (numbers[:, 2] * 2.0**encoding.bits > LARGEST_INTEGER).any():
        raise ValueError("The encoding of inputs is malformed: limits must fit into integers.")
    return encoding
