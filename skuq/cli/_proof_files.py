"""Files that the commands of proven audits read, and checks before anything is made."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skuq.cli._files import InputError, check_outputs, read_csv
from skuq.cli._main import one_line, visible

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from skuq.zk import Commitment


def load_model(path: Path) -> Any:
    import joblib

    try:
        return joblib.load(path)
    except Exception as error:  # unpickling calls whatever the file names
        name = type(error).__name__
        raise InputError(f"--model: {path} cannot be loaded: {name}: {one_line(error)}") from error


def load_commitment_folder(folder: Path) -> Commitment:
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


def classes_of(text: str | None, committed: Commitment) -> list[Any] | None:
    """Classes that are given as one text, of the type of the committed ones where that is exact."""
    if text is None:
        return None
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


def check_files(outputs: list[Path | None], inputs: list[Path | None], folders: list[Path]) -> None:
    """Refuse to write over a file that is read, or into folders with a manifest of their files."""
    if "-" in map(str, outputs):
        raise InputError("Results are written to files; give a name and not '-'.")
    check_outputs(outputs, [path for path in inputs if path is not None])
    for path in outputs:
        check_outside("The output", path, folders)


def check_outside(what: str, path: Path | None, folders: list[Path]) -> None:
    for folder in folders:
        if path is not None and path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{what} must not be in {folder}: its files are all accounted for.")
