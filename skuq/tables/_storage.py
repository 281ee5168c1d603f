"""Saving and loading of table models (folders); loading of other packages' estimators (files).

Without `trust`, loading a file creates only objects of listed types; skops checks all types before
it creates the first object. No code in the file is run. A forged file can still crash the process,
fill its memory, or read files whose names are cells of your table. Therefore open models only from
people whose programs you would run.
"""

import io
import json
import os
import sys
from copy import copy
from importlib.abc import MetaPathFinder
from pathlib import Path
from threading import get_ident
from typing import Any, Self
from zipfile import ZIP_DEFLATED, ZipFile

import joblib
import sklearn
from sklearn.utils.validation import check_is_fitted

from skuq import __version__
from skuq.files import StoredError, atomic_path, from_stored, to_stored, untrusted
from skuq.imports import import_optional
from skuq.tables._columns import TableError

FORMAT = 13  # version of the folder format
VERSIONS = {"format": FORMAT, "skuq": __version__, "scikit-learn": sklearn.__version__}
ABOUT, MODEL, CODE = "about.json", "model.skops", "model.joblib"
# Types that skops does not trust by itself: the arrays of trees, bound `transform` methods of
# pipelines, folds, column selectors, and (in scikit-learn 1.6) lists of column names.
TRUSTED = (
    "numpy.dtype",
    "sklearn.compose._column_transformer._RemainderColsList",
    "sklearn.compose._column_transformer.make_column_selector",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.model_selection._split.KFold",
    "sklearn.pipeline.Pipeline",
    "sklearn.pipeline.Pipeline.transform",
    "sklearn.tree._tree.Tree",
)
# A model may take up to SMALL_MODEL bytes of memory, or LARGEST_EXPANSION times its size on disk.
LARGEST_EXPANSION, SMALL_MODEL = 100, 2**28
# Largest accepted `schema.json`, in bytes. Its objects need about twenty times as much memory.
LARGEST_SCHEMA = 2**26


def read_estimator(path: str | os.PathLike[str], *, trust: bool = False) -> Any:
    """Load a fitted estimator, for use as `TableModel(estimator)`; with `trust`, also a pickle."""
    path = Path(path)
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if is_zip:
        return _read_skops(path, trust=trust)
    instead = "A file written by skops.io.dump can be loaded without `trust=True`."
    return _read_code(path, trust=trust, instead=instead)


class StorageMixin:
    """Mixin for `TableModel`: saves and loads a fitted model."""

    estimator_: Any

    def save(self, folder: str | os.PathLike[str], *, trust: bool = False) -> None:
        """Save the fitted model in a new folder; see `load`.

        Parameters
        ----------
        folder : path-like
            Folder to create; its parent must exist.
        trust : bool, default=False
            Whether a model that skops cannot store, such as one with classes of another package,
            may be pickled. Loading such a folder then requires ``trust=True``.

        Raises
        ------
        TableError
            If the folder exists, or the model can only be stored as a pickle.
        """
        check_is_fitted(self)
        check_savable(folder)
        skops, model = _skops(), _kept(self, only_predicts=False)
        with atomic_path(folder) as partial:
            partial.mkdir()
            try:
                kept = to_stored(_kept(self, only_predicts=True))
                skops.dump(kept, partial / MODEL, compression=ZIP_DEFLATED)
                unknown = _unknown_types((partial / MODEL).read_bytes())
            except (TypeError, AttributeError, ValueError, NotImplementedError) as error:
                unknown = [str(error)]
            if unknown and not trust:
                raise TableError(
                    f"The model has parts that skops cannot store: {', '.join(unknown)}. Pass "
                    "`trust=True` to store it as a pickle, which can run code when it is loaded."
                )
            if unknown:
                (partial / MODEL).unlink(missing_ok=True)
                joblib.dump(model, partial / CODE)
            columns = model.feature_names_in_.tolist()
            about = {**VERSIONS, "runs_code": bool(unknown), "task": model.task_}
            about |= {"target": model.target_, "columns": columns, "model": model.name_}
            about |= {"measured_rows": model.measured_rows_ or "a random part of the rows"}
            text = json.dumps(about, indent=1) + "\n"
            (partial / ABOUT).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, trust: bool = False) -> Self:
        """Load a model written by `save`.

        Parameters
        ----------
        folder : path-like
            Folder that `save` has written.
        trust : bool, default=False
            Whether to load a pickled model, which can run arbitrary code.

        Raises
        ------
        TableError
            If the folder does not contain a model, was written by an incompatible version, or can
            only be loaded with `trust`.
        """
        folder = Path(folder)
        if _read_about(folder)["runs_code"]:
            return _read_code(folder / CODE, trust=trust)
        import skuq.quam  # noqa: F401  (registers the stored classes)

        try:
            kept = from_stored(_read_skops(folder / MODEL, trust=trust))
            if not isinstance(kept, cls) or not hasattr(kept.estimator_, "predict_uncertainty"):
                raise StoredError("it contains no TableModel.")
        except StoredError as error:
            raise TableError(f"{folder / MODEL} is not a model saved by skuq: {error}") from error
        model = cls()
        vars(model).update(vars(kept))
        return model


def check_savable(folder: str | os.PathLike[str]) -> None:
    """Check before training that `TableModel.save` can create a folder."""
    _skops()
    path = Path(folder)
    if path.exists():
        raise TableError(f"{path} already exists; choose a new folder for the model.")
    if not path.parent.is_dir():
        raise TableError(f"The folder {path.parent} does not exist; create it first.")


def _skops() -> Any:
    with _NotImported("torch", "dask", "pytest"):
        return import_optional("skops.io", extra="skops")


class _NotImported(MetaPathFinder):
    """Context manager that makes the import of certain packages fail in this thread.

    skops imports modules of scikit-learn that use these packages if present, which takes seconds.
    """

    def __init__(self, *packages: str) -> None:
        self._packages, self._thread = packages, get_ident()

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *error: object) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in self._packages and get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def _kept(model: Any, *, only_predicts: bool) -> Any:
    """Copy a model without its callback, held-out index and (if `only_predicts`) training data."""
    model = copy(model)
    model.progress, model.held_out_ = None, model.held_out_.reset_index(drop=True)
    if only_predicts:
        if not isinstance(model.estimator, str):
            model.estimator = model.name_  # the fitted estimator is in estimator_
        if hasattr(model.estimator_, "without_training_data"):
            model.estimator_ = model.estimator_.without_training_data()
    return model


def _read_about(folder: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        found = {name: about[name] for name in (*VERSIONS, "runs_code")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TableError(
            f"{folder} does not contain a model saved by skuq (`TableModel.save`)."
        ) from error
    for name, version in VERSIONS.items():
        # Versions are compatible if they agree in the major and the minor number.
        if str(found[name]).split(".")[:2] != str(version).split(".")[:2]:
            raise TableError(
                f"The model in {folder} was saved with {name} {found[name]}, but {version} is "
                f"installed; install {name} {found[name]}, or train the model again."
            )
    return about


def _unknown_types(content: bytes) -> list[str]:
    return sorted({*_skops().get_untrusted_types(data=content)}.difference(TRUSTED))


def _read_skops(path: Path, *, trust: bool) -> Any:
    skops, content = _skops(), b""
    refused = import_optional("skops.io.exceptions", extra="skops").UntrustedTypesFoundException
    try:
        content = path.read_bytes()  # read once, so the checked bytes are the loaded bytes
        if not trust:
            _check_size(path, content)
        return skops.loads(content, trusted=[*TRUSTED, *(_unknown_types(content) if trust else ())])
    except TableError:
        raise
    except refused as error:
        raise TableError(
            f"{path} contains types from outside scikit-learn, numpy and scipy, which may run "
            f"code: {', '.join(_unknown_types(content))}. If you trust the file, pass `trust=True`."
        ) from error
    except Exception as error:  # a damaged file can raise any exception
        raise TableError(f"{path} cannot be loaded ({type(error).__name__}: {error}).") from error


def _check_size(path: Path, content: bytes) -> None:
    largest = max(SMALL_MODEL, LARGEST_EXPANSION * len(content))
    with ZipFile(io.BytesIO(content)) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        n_bytes = sum(sizes.values())
        if n_bytes <= largest:  # also count the contents of inner archives, which are sparse arrays
            for inner in (name for name in sizes if name.endswith(".npz")):
                with ZipFile(io.BytesIO(archive.read(inner))) as arrays:
                    n_bytes += sum(info.file_size for info in arrays.infolist())
    if n_bytes > largest or sizes.get("schema.json", 0) > LARGEST_SCHEMA:
        raise TableError(
            f"{path} would take at least {n_bytes / 2**20:,.0f} MiB of memory, far more than its "
            "size. If you trust the file, pass `trust=True`."
        )


def _read_code(path: Path, *, trust: bool, instead: str = "") -> Any:
    if not trust:
        path.stat()  # raises FileNotFoundError, which is more helpful, for a missing file
        raise TableError(untrusted(path, instead))
    try:
        return joblib.load(path)
    except Exception as error:  # code in the file can raise any exception
        raise TableError(f"{path} cannot be loaded ({type(error).__name__}: {error}).") from error
