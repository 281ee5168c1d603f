"""Public side of a commitment: the published folder, its classes, and the encoding of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import FloatArray, IntArray
from skuq.zk import _ezkl as backend
from skuq.zk._files import (
    COMMITMENT,
    FORMAT,
    PUBLISHED,
    REFERENCE_STRING,
    VerificationError,
    array,
    check_content,
    check_entries,
    check_manifest,
    check_versions,
    digest,
    digest_file,
    field,
    integer,
    is_digest,
    number,
    read_json,
)
from skuq.zk._fixed_point import (
    LARGEST_EXACT,
    LOG_ROWS,
    MAX_BINS,
    MAX_COLUMNS,
    MAX_SHIFT,
    ROUNDING,
    WEIGHT_BITS,
    Architecture,
    digits_of,
    logit_shift,
)
from skuq.zk._names import check_classes, check_columns, columns_of
from skuq.zk._reference_string import CEREMONY, check_ends, needed_string

LARGEST_INTEGER = 2.0**62  # largest encoded input; encoded inputs have 64 bits
BUDGETS = ("n_proofs", "n_attestations")  # entries that limit the numbers of proofs
MAX_PROOFS = 2 ** max(LOG_ROWS)  # the salt for more proofs would not fit into a circuit
AGREEMENT = ("maximum", "mean", "argmax")
ENTRIES: dict[str, type] = {
    "format": int,
    "versions": dict,
    "architecture": dict,
    "commitment_point": str,
    "keys": dict,
    "reference_string": dict,
    "encoding": dict,
    "classes": list,
    "tolerance": float,
    "agreement": dict,
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
    """

    folder: Path
    shape: Architecture
    encoding: Encoding
    classes: NDArray[Any]
    point: str
    record: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of the record, which statements reference as ``commitment_digest``."""
        return digest(self.record)

    @property
    def srs(self) -> Path:
        """Path of the structured reference string."""
        return self.folder / REFERENCE_STRING

    @property
    def srs_digest(self) -> str:
        """SHA-256 of the reference string, which was compared with the file on loading."""
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
    def tolerance(self) -> float:
        """Tolerance for differences between proven and floating-point confidences."""
        return float(self.record["tolerance"])


def load_commitment(folder: str | Path) -> Commitment:
    """Read and validate the public folder of a commitment.

    Parameters
    ----------
    folder : str or Path
        Folder ``public`` that was written by `commit`.

    Returns
    -------
    Commitment

    Raises
    ------
    VerificationError
        If a file is missing, damaged or changed, or was written by a different version.
    """
    folder = Path(folder)
    check_content(check_manifest(folder), PUBLISHED)
    record = read_json(folder / COMMITMENT)
    check_record(record, ENTRIES, COMMITMENT)
    try:
        shape, encoding = _architecture(record["architecture"]), encoding_of(record["encoding"])
        classes = check_classes(record["classes"])
    except ValueError as error:
        raise VerificationError(f"{COMMITMENT}: {error}") from error
    # Other precisions could make a quotient ambiguous in the field.
    per_layer, rest = divmod(shape.logit_bits + 1 - encoding.bits, len(shape.widths) - 1)
    if rest or per_layer - 1 not in WEIGHT_BITS or encoding.bits not in WEIGHT_BITS:
        raise VerificationError(f"{COMMITMENT}: `commit` does not produce this precision.")
    if len(classes) != shape.widths[-1] or encoding.width != shape.widths[0]:
        raise VerificationError(
            f"{COMMITMENT}: the numbers of classes, inputs and neurons are inconsistent."
        )
    _check_numbers(record)
    _check_digests(record, shape)
    if digest_file(folder / REFERENCE_STRING) != record["reference_string"]["sha256"]:
        raise VerificationError(
            "The structured reference string is not the one that was committed to."
        )
    check_ends(folder / REFERENCE_STRING, shape.log_rows)
    return Commitment(folder, shape, encoding, classes, record["commitment_point"], record)


def check_record(record: Any, types: Mapping[str, Any], where: str) -> None:
    """Check the format, the entries and the versions of a record of another party."""
    if field(record, "format", int, where) != FORMAT:
        raise VerificationError(f"{where} has format {record['format']}, expected {FORMAT}.")
    for name, kind in types.items():
        field(record, name, kind, where)
    check_entries(record, types, where)
    if check_versions(record["versions"], where) != backend.version():
        raise VerificationError(
            f"{where} was not made with ezkl {backend.version()}, which is installed here; proofs "
            "are valid for one version only."
        )


def _check_numbers(record: dict[str, Any]) -> None:
    """Check the numbers that the provider states about the commitment without proof."""
    agreement, tolerance = record["agreement"], record["tolerance"]
    stated: dict[str, tuple[Any, float, float]] = {
        name: (field(agreement, name, float, COMMITMENT), 0, 1) for name in AGREEMENT
    }
    check_entries(agreement, AGREEMENT, COMMITMENT)
    stated |= {name: (record[name], 1, MAX_PROOFS) for name in BUDGETS}
    stated["tolerance"] = tolerance, ROUNDING, float(np.nextafter(1, 0))
    for name, (value, least, most) in stated.items():
        if not least <= value <= most:
            raise VerificationError(
                f"{COMMITMENT}: the value of {name!r} is impossible; it must be from {least:.4g} "
                f"to {most:.7g}, got {value}."
            )


def _check_digests(record: dict[str, Any], shape: Architecture) -> None:
    """Check that the commitment point and the digests of keys and string are well-formed."""
    string, keys = record["reference_string"], record["keys"]
    found = {"reference_string": field(string, "sha256", str, COMMITMENT)}
    found |= {name: field(keys, name, str, COMMITMENT) for name in shape.circuits}
    found["commitment_point"] = record["commitment_point"]
    check_entries(string, ("sha256",), COMMITMENT)
    check_entries(keys, shape.circuits, COMMITMENT)
    for name, text in found.items():
        if not is_digest(text):
            raise VerificationError(f"{COMMITMENT}: {name!r} must have 64 hexadecimal digits.")


def _architecture(record: dict[str, Any]) -> Architecture:
    try:
        values = {name: record[name] for name in Architecture._fields}
        values["widths"] = tuple(map(integer, array(values["widths"])))
        for name in ("rows_per_proof", "columns"):
            values[name] = {circuit: integer(n) for circuit, n in values[name].items()}
        for name in set(values) - {"widths", "rows_per_proof", "columns"}:
            integer(values[name])
        shape = Architecture(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the architecture is malformed ({error})") from error
    check_entries(record, Architecture._fields, "The architecture")
    counts = [*shape.widths, shape.digits, shape.n_salts, shape.n_bins]
    counts += shape.rows_per_proof.values()
    if len(shape.widths) < 2 or min(counts) < 1 or shape.n_pads < 0:
        raise ValueError("the architecture is malformed (a size is not positive)")
    if shape.n_bins > MAX_BINS:
        raise ValueError("the architecture is malformed (too many bins)")
    if logit_shift(shape.logit_bits, shape.widths[-1]) > MAX_SHIFT:
        raise ValueError("the network has too many layers for its precision")
    if (
        shape.log_rows not in LOG_ROWS
        or set(shape.rows_per_proof) != set(shape.circuits) - {"verdict"}
        or set(shape.columns) != set(shape.circuits)
        or not set(shape.columns.values()) <= set(range(1, MAX_COLUMNS + 1))
    ):
        raise ValueError("the architecture is malformed (size or names of circuits)")
    if shape.digits > digits_of(LARGEST_EXACT, shape.log_rows):
        raise ValueError("the architecture is malformed (its numbers have too many digits)")
    # Limit the size, or a provider could make a verifier build a huge key. The committed numbers
    # must also fit into one column, because each column has its own commitment, and the verifier
    # compares the commitment to a single column.
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
        """Number of integers per row."""
        return sum(column.width for column in self.columns)

    def limits(self) -> IntArray:
        """Maximum absolute value of each integer, shape (width,)."""
        return np.concatenate(
            [
                np.ones(c.width, np.int64)
                if c.levels
                else np.array([int(np.ceil(c.limit * 2**self.bits))], np.int64)
                for c in self.columns
            ]
        )

    def encode(self, X: ArrayLike) -> IntArray:
        """Encode rows, shape (n_samples, n_features), as integers, shape (n_samples, width)."""
        values = self._checked(X)
        blocks = []
        for j, column in enumerate(self.columns):
            x = values[:, j]
            if column.levels:
                code = x.astype(np.int64)
                known = (code >= 0) & (code < column.levels)
                place = np.where(known, code, column.levels)
                blocks.append((place[:, None] == np.arange(column.width)).astype(np.int64))
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

    def _checked(self, X: ArrayLike) -> FloatArray:
        values = np.asarray(X, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != len(self.columns):
            raise ValueError(
                f"Inputs must have shape (n_samples, {len(self.columns)}), got {values.shape}."
            )
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
        return values


class Column(NamedTuple):
    """Encoding of one input column: ``round((x - center) / scale * 2**bits)`` for a number x."""

    levels: int  # 0 for a numeric column, else the number of category codes
    center: float = 0.0
    scale: float = 1.0
    limit: float = 1.0  # maximum accepted value of abs(x - center) / scale

    @property
    def width(self) -> int:
        """Number of integers: 1, or an indicator per level and an indicator of all other values."""
        return self.levels + 1 if self.levels else 1


def record_of(encoding: Encoding) -> dict[str, Any]:
    """Convert an encoding to JSON."""
    names = None if encoding.names is None else list(encoding.names)
    columns = [list(column) for column in encoding.columns]
    return {"bits": encoding.bits, "columns": columns, "names": names}


def encoding_of(record: dict[str, Any]) -> Encoding:
    """Read an encoding from JSON; raise ValueError if it is malformed."""
    try:
        columns = tuple(
            Column(integer(levels), number(center), number(scale), number(limit))
            for levels, center, scale, limit in map(array, array(record["columns"]))
        )
        names = record["names"]
        if names is not None:
            names = check_columns(array(names), len(columns))
        encoding = Encoding(columns, integer(record["bits"]), names)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"The encoding of inputs is malformed: {error}") from error
    check_entries(record, Encoding._fields, "The encoding of inputs")
    numbers = np.array([column[1:] for column in columns])
    if not columns or not np.isfinite(numbers).all() or (numbers[:, 1:] <= 0).any():
        raise ValueError("The encoding of inputs is malformed: scales and limits must be > 0.")
    if min(column.levels for column in columns) < 0:
        raise ValueError("The encoding of inputs is malformed: levels must be >= 0.")
    if encoding.bits >= 64 or (numbers[:, 2] * 2.0**encoding.bits > LARGEST_INTEGER).any():
        raise ValueError("The encoding of inputs is malformed: limits must fit into integers.")
    return encoding
