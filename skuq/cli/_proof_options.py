"""Shared options, file readers and messages of the commands for audits with proofs."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import IO, TYPE_CHECKING, Any

import click

from skuq.cli._files import (
    READABLE,
    WRITABLE,
    InputError,
    check_outputs,
    read_csv,
    refusing_writes,
)
from skuq.cli._main import NO_VERDICT
from skuq.cli._printing import one_line, say, visible
from skuq.files import is_within, write_atomically

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from skuq.zk import Commitment

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)
SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
LEVELS = ("bins", "verdict", "predictions")


# Options


class Probability(click.ParamType):  # type: ignore[type-arg]  # click < 8.4 has no argument
    """A probability, or a word with a special meaning, such as 'none'."""

    name = "float range"

    def __init__(self, **words: str | None):
        self._words = words

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str | None:
        if value in self._words:
            return self._words[value]
        return SHARE.convert(value, param, ctx)


def together(*options: Wrap) -> Wrap:
    """Combine options into one decorator; the help page lists the options in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def question_options(*, required: bool) -> Wrap:
    """Options for the parameters of an audit; if `required`, they have no defaults."""

    def option(*names: str, default: Any, **settings: Any) -> Wrap:
        if required:
            return click.option(*names, required=True, **settings)
        return click.option(*names, default=default, show_default=True, **settings)

    return together(
        option(
            "--alpha",
            default=0.05,
            type=click.FloatRange(0, 1),
            help="Tolerated difference between accuracy and confidence.",
        ),
        option(
            "--bins",
            "n_bins",
            default=10,
            type=click.IntRange(1),
            help="Number of confidence bins.",
        ),
        option(
            "--confidence-level",
            default=0.95,
            type=Probability(none=None),
            help="A model whose confidence is right within --alpha passes with at least this "
            "probability; 'none' leaves no margin for sampling error.",
        ),
        option(
            "--level",
            default="bins",
            type=click.Choice(LEVELS),
            help="What is disclosed besides the verdict: the sums of each bin ('bins'), nothing "
            "('verdict'), or all reported confidences ('predictions').",
        ),
    )


def commitment_option(text: str) -> Wrap:
    """Option for the folder of a commitment; `text` is its help."""
    return click.option("--commitment", type=FOLDER, required=True, help=text)


own_commitment_option = commitment_option(
    "Folder 'public' of the commitment, next to its folder 'private'."
)
published_commitment_option = commitment_option("Published folder 'public' of the commitment.")
audit_option = click.option(
    "--audit", "bundle", type=FOLDER, required=True, help="The provider's folder with the proofs."
)
drop_option = click.option(
    "--drop", multiple=True, help="Column that is not a feature; may be repeated."
)
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
json_option = click.option("--json", "json_path", type=WRITABLE, help="JSON file to write.")
reference_options = together(
    click.option(
        "--data", type=READABLE, required=True, help="CSV file with the labelled reference data."
    ),
    click.option("--label", required=True, help="Column with the true label."),
    drop_option,
)
prediction_options = together(
    click.option("--input", "row", type=READABLE, help="CSV file with a header and one row."),
    click.option("--values", help="The input's numbers, separated by commas, instead of --input."),
    drop_option,
    click.option(
        "--nonce", required=True, help="Text that the client chose for this prediction only."
    ),
)
regions_option = click.option(
    "--regions",
    type=READABLE,
    help="The auditor's file of regions to audit in addition to all samples.  [default: none]",
)
spot_check_options = together(
    click.option(
        "--challenge", type=READABLE, help="The auditor's challenge; for level 'predictions'."
    ),
    click.option(
        "--false-share",
        type=SHARE,
        default=0.02,
        show_default=True,
        help="Fraction of false reports that must be detected; for level 'predictions'.",
    ),
    click.option(
        "--error",
        type=SHARE,
        default=0.01,
        show_default=True,
        help="Largest probability that the fraction --false-share goes unnoticed; for level "
        "'predictions'.",
    ),
)
verifier_options = together(
    click.option(
        "--srs",
        type=READABLE,
        help="Your own copy of the structured reference string, generated by you or by a trusted "
        "party other than the provider.  [default: only the public ceremony's is accepted]",
    ),
    click.option(
        "--test-string",
        "allow_test_string",
        is_flag=True,
        help="Accept any reference string, for tests: whoever generated it could forge proofs.",
    ),
    click.option(
        "--keys",
        type=NEW_FOLDER,
        help="Your own folder that caches verifying keys.  [default: keys are rebuilt]",
    ),
    json_option,
)


# Messages and results


class VerificationFailed(click.ClickException):
    """Failed verification of another party's files; the message gives the reason in one line."""

    exit_code = NO_VERDICT

    def show(self, file: IO[Any] | None = None) -> None:
        say(f"Verification failed: {self.message}", err=True)


@contextmanager
def errors_in_one_line(json_path: Path | None = None) -> Iterator[None]:
    """Convert errors of files, arguments or the installation to one-line errors.

    An existing result is removed first, so that nobody mistakes it for the result of this call.
    """
    try:
        if json_path is not None:
            json_path.unlink(missing_ok=True)
        from skuq.zk import VerificationError

        try:
            yield
        except VerificationError as failure:
            reason = one_line(failure)
            if json_path is not None:
                write_json(json_path, {"verification_error": reason})
            raise VerificationFailed(reason) from failure
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        raise InputError(visible(one_line(error))) from error


def require_zk() -> None:
    """Raise an error if the packages of the proof system are not installed."""
    from skuq.extras import import_optional

    try:
        for module in ("ezkl", "onnx"):
            import_optional(module, extra="zk")
    except ImportError as error:
        raise InputError(one_line(error)) from error


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file; an `InputError` gives the reason if it cannot be written."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    with refusing_writes():
        write_atomically(path, text + "\n")


def names_of(committed: Commitment) -> dict[str, str]:
    """Commitment point and digest, with the keys that they have in the commands' JSON files."""
    return {"commitment_point": committed.point, "commitment_digest": committed.digest}


def check_files(outputs: list[Path | None], inputs: list[Path | None], folders: list[Path]) -> None:
    """Refuse to overwrite an input, or to write into a folder whose manifest lists its files."""
    if "-" in map(str, outputs):
        raise InputError("Results cannot be written to '-'; pass the name of a file.")
    check_outputs(outputs, [path for path in inputs if path is not None])
    for path in outputs:
        check_outside("The output", path, folders)


def check_outside(what: str, path: Path | None, folders: list[Path]) -> None:
    """Refuse a path inside one of the folders."""
    for folder in folders:
        if path is not None and is_within(path, folder):
            raise InputError(
                f"{what} must not be in {folder}, because the manifest of this folder lists all "
                "files in it; choose a different folder."
            )


# Files that are read


def load_model(path: Path, *, trust: bool) -> Any:
    """Load the provider's own model."""
    from skuq.tables import TableError, read_estimator

    try:
        return read_estimator(path, trust=trust)
    except (TableError, ImportError) as error:
        raise InputError(f"--model: {one_line(error)}") from error


def load_commitment_folder(folder: Path) -> Commitment:
    """Load the public folder of a commitment; the error says if the parent folder was passed."""
    from skuq.zk import load_commitment

    if not (folder / "manifest.json").exists() and (folder / "public").is_dir():
        raise InputError(f"--commitment: pass the folder {folder / 'public'}.")
    return load_commitment(folder)


def read_reference(
    path: Path, label: str, drop: tuple[str, ...], committed: Commitment
) -> tuple[pd.DataFrame, list[Any]]:
    """Read the features, and the labels converted to the type of the committed classes."""
    import pandas as pd

    label = label.strip()
    if label in drop:
        raise InputError(
            f"--drop: {label!r} is the label, which is never a feature; omit this --drop."
        )
    text = pd.DataFrame({label: ["text"]}) if committed.classes.dtype.kind == "U" else None
    table = read_csv(path, like=text, needed=[label, *drop], label=label)
    features = numbers_of(path, table.drop(columns=[label, *drop]))
    check_width(path, len(features.columns), committed, list(features.columns))
    return features, labels_of(label, table[label], committed.classes)


def read_features(path: Path, drop: tuple[str, ...]) -> pd.DataFrame:
    """Read a table that contains only features."""
    return numbers_of(path, read_csv(path, needed=list(drop)).drop(columns=list(drop)))


def numbers_of(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Check that all columns contain finite numbers, and convert the numbers to floats exactly."""
    import numpy as np
    import pandas as pd

    if table.shape[1] == 0:
        raise InputError(f"{path} has no feature column left.")
    for name in table:
        numbers = pd.to_numeric(table[name], errors="coerce")
        bad = ~np.isfinite(numbers.to_numpy(dtype=np.float64, na_value=np.nan))
        if bad.any():
            row = int(bad.argmax())
            value = table[name].iloc[row]
            got = "nothing" if pd.isna(value) else repr(str(value))
            raise InputError(
                f"Column {name!r} of {path} must contain finite numbers, got {got} in row "
                f"{row + 1} (not counting the header); exclude columns that are not features with "
                "--drop."
            )
    # Parse again from text: pandas may err in the last bit, and all parties need equal numbers.
    inexact = [name for name in table if table[name].dtype.kind == "f"]
    like = pd.DataFrame({name: ["text"] for name in inexact})
    text = read_csv(path, like=like, needed=[])
    for name in inexact:
        table[name] = [float(value) for value in text[name]]
    return table.astype(float)


def labels_of(name: str, column: pd.Series, classes: np.ndarray) -> list[Any]:
    """Convert labels to the committed classes, if the conversion is exact."""
    import pandas as pd

    known, labels = classes.tolist(), []
    for row, value in enumerate(column.tolist(), start=1):
        converted = None if pd.isna(value) else _converted(value, classes.dtype.kind)
        if converted is None or converted not in known:
            got = "nothing" if pd.isna(value) else repr(str(value))
            raise InputError(
                f"Column {name!r} must contain the committed classes "
                f"{visible(', '.join(map(str, known)))}, got {got} in row {row} (not counting the "
                "header)."
            )
        labels.append(converted)
    return labels


def classes_of(text: str, committed: Commitment) -> list[Any]:
    """Parse comma-separated classes of the committed type; None where conversion is inexact."""
    kind = committed.classes.dtype.kind
    # A name with a comma is in quotation marks, as in a CSV file.
    row = next(csv.reader([text], skipinitialspace=True), []) or [""]
    parts = [part.strip() for part in row]
    if kind == "b":
        return [{"True": True, "False": False}.get(part) for part in parts]
    return [_converted(part, kind) for part in parts]


def _converted(value: Any, kind: str) -> Any:
    """Convert to boolean, integer, float or text; None if the conversion would change the value."""
    if kind == "b":
        return bool(value) if value in (False, True) else None
    if kind == "U":
        return str(value)
    if isinstance(value, bool):  # bool is a subclass of int, but is not treated as a number here
        return None
    try:
        number = float(value)
        whole = int(value) if isinstance(value, str | int) else int(number)
    except (ValueError, OverflowError):
        return None
    if kind == "f":
        return number
    return whole if whole == number or isinstance(value, int) else None


def one_row(
    row: Path | None, values: str | None, drop: tuple[str, ...], committed: Commitment
) -> list[float]:
    """Read the input of one prediction from a file or from the command line."""
    if row is not None and values is not None:
        raise InputError("Pass --input or --values, not both.")
    if values is not None:
        if drop:
            raise InputError("--drop applies to --input only; omit it with --values.")
        try:
            numbers = [float(text) for text in values.split(",")]
        except ValueError as error:
            raise InputError(f"--values: {one_line(error)}") from error
        if not all(map(math.isfinite, numbers)):
            raise InputError("--values: all numbers must be finite.")
        check_width("--values", len(numbers), committed)
        return numbers
    if row is None:
        raise InputError("Pass the input with --input or --values.")
    table = read_features(row, drop)
    if len(table) != 1:
        raise InputError(f"--input: {row} must have one row, got {len(table)}.")
    check_width(row, table.shape[1], committed, list(table.columns))
    return [float(value) for value in table.iloc[0]]


def check_names(path: Path, columns: list[str], estimator: Any) -> None:
    """Compare column names and order with the model: proofs identify features only by position."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None:
        expected = [str(name).strip() for name in names]
        if columns != expected:
            raise InputError(
                f"{path} must have the columns the model was fitted on, in their order: "
                f"{', '.join(expected)}; got {', '.join(columns)}.{_drop_advice(columns, expected)}"
            )
    width = getattr(estimator, "n_features_in_", None)
    if width is not None and width != len(columns):
        raise InputError(
            f"{path} has {len(columns)} feature columns ({', '.join(columns)}), but the model was "
            f"fitted on {width}; exclude columns that are not features with --drop."
        )


def _drop_advice(columns: Sequence[str], known: Sequence[str] | None) -> str:
    """Sentence on columns that are not features of the model, if there are any."""
    if known is None:
        return " Exclude columns that are not features with --drop." * bool(columns)
    extra = [name for name in columns if name not in known]
    options = " ".join(f"--drop {quote(name)}" for name in extra)
    return f" Exclude columns that are not features: {options}." if extra else ""


def check_width(
    source: object, width: int, committed: Commitment, names: list[str] | None = None
) -> None:
    """Compare the number of features, and their names if known, with the commitment."""
    expected, known = len(committed.encoding.columns), committed.encoding.names
    if width != expected:
        shown = f" ({', '.join(names)})" if names else ""
        raise InputError(
            f"{source} has {width} features{shown}, but the committed model has {expected}."
            f"{_drop_advice(names or [], known) if width > expected else ''}"
        )
    if names is not None and known is not None and names != list(known):
        raise InputError(
            f"{source} must have the committed columns in their order: {', '.join(known)}; got "
            f"{', '.join(names)}."
        )
