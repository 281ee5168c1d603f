"""Options of the commands of proven audits, the files that they name, and their messages."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
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
from skuq.cli._main import NO_VERDICT, one_line, say, visible
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
    """A probability, or a word that stands for something else."""

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
    """Several options as one decorator, in the order of the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def question_options(*, required: bool) -> Wrap:
    """The question of an audit: the provider's has defaults, the auditor's must be stated."""

    def option(*names: str, default: Any, **settings: Any) -> Wrap:
        if required:
            return click.option(*names, required=True, **settings)
        return click.option(*names, default=default, show_default=True, **settings)

    return together(
        option(
            "--alpha",
            default=0.05,
            type=click.FloatRange(0, 1),
            help="Tolerated distance between accuracy and confidence.",
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
            help="Least probability that a model within the tolerance passes; 'none' leaves "
            "nothing to chance.",
        ),
        option(
            "--level",
            default="bins",
            type=click.Choice(LEVELS),
            help="Disclosure besides the verdict: sums of each bin, nothing, or all reported "
            "confidences.",
        ),
    )


def commitment_option(text: str) -> Wrap:
    """Option for the folder of a commitment."""
    return click.option("--commitment", type=FOLDER, required=True, help=text)


own_commitment_option = commitment_option(
    "Folder 'public' of the commitment, with 'private' beside it."
)
published_commitment_option = commitment_option("Folder 'public' as it was published.")
audit_option = click.option(
    "--audit", "bundle", type=FOLDER, required=True, help="The provider's folder."
)
drop_option = click.option("--drop", multiple=True, help="Column to leave out; may be repeated.")
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
json_option = click.option("--json", "json_path", type=WRITABLE, help="JSON file to write.")
reference_options = together(
    click.option(
        "--data", type=READABLE, required=True, help="CSV file: reference data with their labels."
    ),
    click.option("--label", required=True, help="Its column with the true label."),
    drop_option,
)
prediction_options = together(
    click.option("--input", "row", type=READABLE, help="CSV file with a header and one row."),
    click.option("--values", help="Or its numbers, separated by commas."),
    drop_option,
    click.option(
        "--nonce", required=True, help="Text that the client chose for this one prediction."
    ),
)
regions_option = click.option(
    "--regions",
    type=READABLE,
    help="The auditor's file of regions, which are judged beside all samples.  [default: all "
    "samples together]",
)
spot_check_options = together(
    click.option(
        "--challenge", type=READABLE, help="The auditor's challenge, at level 'predictions'."
    ),
    click.option(
        "--false-share",
        type=SHARE,
        default=0.02,
        show_default=True,
        help="Fraction of false reports that must be found, at level 'predictions'.",
    ),
    click.option(
        "--error",
        type=SHARE,
        default=0.01,
        show_default=True,
        help="Largest probability to miss it, at level 'predictions'.",
    ),
)
verifier_options = together(
    click.option(
        "--srs",
        type=READABLE,
        help="A copy of the structured reference string that you generated, or have from whom you "
        "trust, never from the provider.  [default: it must be that of the public ceremony]",
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
        help="Your own folder for verifying keys, built once.  [default: built anew]",
    ),
    json_option,
)


# Messages and results


class VerificationFailed(click.ClickException):
    """Failed verification of another party's files: one line that says why."""

    exit_code = NO_VERDICT

    def show(self, file: IO[Any] | None = None) -> None:
        say(f"Verification failed: {self.message}", err=True)


@contextmanager
def errors_in_one_line(json_path: Path | None = None) -> Iterator[None]:
    """Turn what is wrong with files, arguments or the installation into one line.

    A result of an earlier call is removed first: whatever happens, it is not that of this one.
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
    """Refuse to work without the proof system."""
    from skuq.extras import import_optional

    try:
        for module in ("ezkl", "onnx"):
            import_optional(module, extra="zk")
    except ImportError as error:
        raise InputError(one_line(error)) from error


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file, or say in one line why not."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    with refusing_writes():
        write_atomically(path, text + "\n")


def names_of(committed: Commitment) -> dict[str, str]:
    """Both names of a commitment, as the JSON files of the commands have them."""
    return {"commitment_point": committed.point, "commitment_digest": committed.digest}


def check_files(outputs: list[Path | None], inputs: list[Path | None], folders: list[Path]) -> None:
    """Refuse to write over a file that is read, or into folders with a manifest of their files."""
    if "-" in map(str, outputs):
        raise InputError("Results are written to files; give a name and not '-'.")
    check_outputs(outputs, [path for path in inputs if path is not None])
    for path in outputs:
        check_outside("The output", path, folders)


def check_outside(what: str, path: Path | None, folders: list[Path]) -> None:
    """Refuse a path inside one of the folders."""
    for folder in folders:
        if path is not None and is_within(path, folder):
            raise InputError(f"{what} must not be in {folder}: its files are all accounted for.")


# Files that are read


def load_model(path: Path, *, trust: bool) -> Any:
    """Load the provider's own model."""
    from skuq.tables import TableError, read_estimator

    try:
        return read_estimator(path, trust=trust)
    except (TableError, ImportError) as error:
        raise InputError(f"--model: {one_line(error)}") from error


def load_commitment_folder(folder: Path) -> Commitment:
    """Load the public folder of a commitment, or name it where the one above it was given."""
    from skuq.zk import load_commitment

    if not (folder / "manifest.json").exists() and (folder / "public").is_dir():
        raise InputError(f"--commitment: name the folder {folder / 'public'}.")
    return load_commitment(folder)


def read_reference(
    path: Path, label: str, drop: tuple[str, ...], committed: Commitment
) -> tuple[pd.DataFrame, list[Any]]:
    """Features, and labels of the type of the committed classes."""
    import pandas as pd

    label = label.strip()
    if label in drop:
        raise InputError(f"--drop: {label!r} is the label, which is not a feature anyway.")
    text = pd.DataFrame({label: ["text"]}) if committed.classes.dtype.kind == "U" else None
    table = read_csv(path, like=text, needed=[label, *drop], label=label)
    features = numbers_of(path, table.drop(columns=[label, *drop]))
    check_width(path, len(features.columns), committed, list(features.columns))
    return features, labels_of(label, table[label], committed.classes)


def read_features(path: Path, drop: tuple[str, ...]) -> pd.DataFrame:
    """Read a table of features alone."""
    return numbers_of(path, read_csv(path, needed=list(drop)).drop(columns=list(drop)))


def numbers_of(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """The same table, whose columns all hold finite numbers."""
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
                f"Column {name!r} of {path} must hold finite numbers, got {got} in row {row + 1} "
                "(the header not counted); leave out columns that are not features with --drop."
            )
    # Once more as text: pandas may miss the last bit of a number, and parties must agree.
    inexact = [name for name in table if table[name].dtype.kind == "f"]
    like = pd.DataFrame({name: ["text"] for name in inexact})
    text = read_csv(path, like=like, needed=[])
    for name in inexact:
        table[name] = [float(value) for value in text[name]]
    return table.astype(float)


def labels_of(name: str, column: pd.Series, classes: np.ndarray) -> list[Any]:
    """Labels as some of the classes, converted only where nothing is lost."""
    import pandas as pd

    known, labels = classes.tolist(), []
    for row, value in enumerate(column.tolist(), start=1):
        converted = None if pd.isna(value) else _converted(value, classes.dtype.kind)
        if converted is None or converted not in known:
            got = "nothing" if pd.isna(value) else repr(str(value))
            raise InputError(
                f"Column {name!r} must hold the committed classes "
                f"{visible(', '.join(map(str, known)))}, got {got} in row {row} (the header not "
                "counted)."
            )
        labels.append(converted)
    return labels


def classes_of(text: str, committed: Commitment) -> list[Any]:
    """Classes that are given as one text, of the type of the committed ones where that is exact."""
    kind = committed.classes.dtype.kind
    # As in a CSV file, a name with a comma is in quotation marks.
    row = next(csv.reader([text], skipinitialspace=True), []) or [""]
    parts = [part.strip() for part in row]
    if kind == "b":
        return [{"True": True, "False": False}.get(part) for part in parts]
    return [_converted(part, kind) for part in parts]


def _converted(value: Any, kind: str) -> Any:
    """A value as boolean, integer, float or text, or None if that is not the same."""
    if kind == "b":
        return bool(value) if value in (False, True) else None
    if kind == "U":
        return str(value)
    if isinstance(value, bool):  # no number, although Python takes it for one
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
    """The input of one prediction, however it is given."""
    if row is not None and values is not None:
        raise InputError("Give --input or --values, not both.")
    if values is not None:
        if drop:
            raise InputError("--drop: there are no columns to leave out of --values.")
        try:
            numbers = [float(text) for text in values.split(",")]
        except ValueError as error:
            raise InputError(f"--values: {one_line(error)}") from error
        if not all(map(math.isfinite, numbers)):
            raise InputError("--values: all numbers must be finite.")
        check_width("--values", len(numbers), committed)
        return numbers
    if row is None:
        raise InputError("Give the input by --input or by --values.")
    table = read_features(row, drop)
    if len(table) != 1:
        raise InputError(f"--input: {row} must have one row, got {len(table)}.")
    check_width(row, table.shape[1], committed, list(table.columns))
    return [float(value) for value in table.iloc[0]]


def check_names(path: Path, columns: list[str], estimator: Any) -> None:
    """Compare columns with the model: what is proven identifies its inputs by position alone."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None:
        expected = [str(name).strip() for name in names]
        if columns != expected:
            raise InputError(
                f"{path} must have the columns the model was fitted on, in their order: "
                f"{', '.join(expected)}; got {', '.join(columns)}."
            )
    width = getattr(estimator, "n_features_in_", None)
    if width is not None and width != len(columns):
        raise InputError(
            f"{path} has {len(columns)} feature columns ({', '.join(columns)}), but the model was "
            f"fitted on {width}; leave out others with --drop."
        )


def check_width(
    source: object, width: int, committed: Commitment, names: list[str] | None = None
) -> None:
    """Compare the number of features, and their names if there are any, with the committed ones."""
    expected = len(committed.encoding.columns)
    if width != expected:
        shown = f" ({', '.join(names)})" if names else ""
        raise InputError(
            f"{source} has {width} features{shown}, but the commitment is about {expected}."
        )
    known = committed.encoding.names
    if names is not None and known is not None and names != list(known):
        raise InputError(
            f"{source} must have the committed columns in their order: {', '.join(known)}; got "
            f"{', '.join(names)}."
        )
