"""Public side of a commitment: the published folder, read and validated."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from skuq.zk import _ezkl as backend
from skuq.zk._architecture import LOG_ROWS, MAX_BINS, MAX_COLUMNS, Architecture
from skuq.zk._encoding import Encoding, encoding_of
from skuq.zk._files import (
    COMMITMENT,
    FORMAT,
    REFERENCE_STRING,
    VerificationError,
    check_manifest,
    digest,
    digest_file,
    field,
    integer,
    read_json,
)
from skuq.zk._fixed_point import (
    LARGEST_EXACT,
    MAX_SHIFT,
    ROUNDING,
    WEIGHT_BITS,
    digits_of,
    logit_shift,
)
from skuq.zk._names import check_classes
from skuq.zk._reference_string import check_ends

BUDGETS = ("n_proofs", "n_attestations")  # proofs that may be made of audits and of predictions
MAX_PROOFS = 2 ** max(LOG_ROWS)  # salt for more would not fit


class Commitment(NamedTuple):
    """The public side of a commitment.

    Attributes
    ----------
    folder : Path
        The published folder.
    shape : Architecture
        Public architecture; the verifying keys follow from it.
    encoding : Encoding
        Encoding of inputs as integers.
    classes : ndarray of shape (n_classes,)
        Labels, in the order of the logits.
    point : str
        The commitment to weights, salt and pads: a point of the curve, hexadecimal. It is called
        ``commitment_point`` in files.
    record : dict
        All entries of ``commitment.json``.
    """

    folder: Path
    shape: Architecture
    encoding: Encoding
    classes: NDArray[Any]
    point: str
    record: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of all entries: the ``commitment_digest`` by which statements refer to them."""
        return digest(self.record)

    @property
    def srs(self) -> Path:
        """Structured reference string."""
        return self.folder / REFERENCE_STRING

    @property
    def srs_digest(self) -> str:
        """SHA-256 of the reference string, with which the file was compared when it was read."""
        return str(self.record["reference_string"]["sha256"])

    @property
    def tolerance(self) -> float:
        """Tolerated difference between proven and floating-point confidences."""
        return float(self.record["tolerance"])


def load_commitment(folder: str | Path) -> Commitment:
    """Read and validate the public folder of a commitment.

    Parameters
    ----------
    folder : str or Path
        Folder ``public`` that `commit` wrote.

    Returns
    -------
    Commitment

    Raises
    ------
    VerificationError
        If a file is missing, damaged or changed, or was made by another version.
    """
    folder = Path(folder)
    check_manifest(folder)
    record = read_json(folder / COMMITMENT)
    where = COMMITMENT
    if field(record, "format", int, where) != FORMAT:
        raise VerificationError(f"{COMMITMENT} has format {record['format']}, expected {FORMAT}.")
    made = field(field(record, "versions", dict, where), "ezkl", str, where)
    if made != backend.version():
        raise VerificationError(
            f"The commitment was made with another version of ezkl than {backend.version()}, which "
            "is installed; proofs are valid for one version only."
        )
    try:
        shape = _architecture(field(record, "architecture", dict, where))
        encoding = encoding_of(field(record, "encoding", dict, where))
        classes = check_classes(field(record, "classes", list, where))
    except ValueError as error:
        raise VerificationError(f"{COMMITMENT}: {error}") from error
    # Any other precision could make a quotient ambiguous in the field.
    per_layer, rest = divmod(shape.logit_bits + 1 - encoding.bits, len(shape.widths) - 1)
    if rest or per_layer - 1 not in WEIGHT_BITS or encoding.bits not in WEIGHT_BITS:
        raise VerificationError(f"{COMMITMENT}: the precision is not one that `commit` chooses.")
    if len(classes) != shape.widths[-1] or encoding.width != shape.widths[0]:
        raise VerificationError(
            f"{COMMITMENT}: classes, encoding and architecture do not fit together."
        )
    _check_numbers(record)
    point = field(record, "commitment_point", str, where)
    string = field(record, "reference_string", dict, where)
    if digest_file(folder / REFERENCE_STRING) != field(string, "sha256", str, where):
        raise VerificationError(
            "The structured reference string is not the one that was committed to."
        )
    check_ends(folder / REFERENCE_STRING, shape.log_rows)
    return Commitment(folder, shape, encoding, classes, point, record)


def _check_numbers(record: dict[str, Any]) -> None:
    """Check the numbers that the provider states about the commitment without proof."""
    tolerance = field(record, "tolerance", float, COMMITMENT)
    if not ROUNDING <= tolerance < 1:
        raise VerificationError(
            f"{COMMITMENT}: a tolerance of {tolerance:g} is impossible; rounding alone takes "
            f"{ROUNDING:.2g}."
        )
    agreement = field(record, "agreement", dict, COMMITMENT)
    for name in ("maximum", "mean", "argmax"):
        if not 0 <= field(agreement, name, float, COMMITMENT) <= 1:
            raise VerificationError(f"{COMMITMENT}: the agreement {name!r} is impossible.")
    for name in BUDGETS:
        if not 1 <= field(record, name, int, COMMITMENT) <= MAX_PROOFS:
            raise VerificationError(f"{COMMITMENT}: {name} is impossible.")


def _architecture(record: dict[str, Any]) -> Architecture:
    try:
        values = {name: record[name] for name in Architecture._fields}
        numbers = {
            name: integer(value)
            for name, value in values.items()
            if name not in ("widths", "rows_per_proof", "columns")
        }
        shape = Architecture(
            widths=tuple(integer(width) for width in values["widths"]),
            rows_per_proof={name: integer(n) for name, n in values["rows_per_proof"].items()},
            columns={name: integer(n) for name, n in values["columns"].items()},
            **numbers,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the architecture is malformed ({error})") from error
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
        raise ValueError("the architecture is malformed (too many digits)")
    # A verifier must not be made to build a huge key. All constants must be in one column, since
    # only one commitment is compared.
    room = 2**shape.log_rows - backend.BLINDING_ROWS
    if max(shape.n_committed, max(shape.rows_per_proof.values()) * sum(shape.widths)) > room:
        raise ValueError("the architecture is malformed (more numbers than rows)")
    return shape
