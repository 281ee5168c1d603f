"""Models of tables in folders, and models of others in files, loaded without running their code."""

from __future__ import annotations

import json
import os
import sys
from copy import copy
from importlib.abc import MetaPathFinder
from pathlib import Path
from threading import get_ident
from typing import Any, Self
from zipfile import ZIP_DEFLATED

import joblib
import sklearn
from sklearn.utils.validation import check_is_fitted

from skuq import __version__
from skuq.extras import import_optional
from skuq.files import atomic_path
from skuq.loading import untrusted
from skuq.stored import StoredError, from_stored, to_stored
from skuq.tables._model_contents import check_archive, check_contents
from skuq.tables._validation import TableError

FORMAT = 9  # of the folder
ABOUT, MODEL, CODE = "about.json", "model.skops", "model.joblib"
# What skops does not list: parts of trees, which are arrays (forged ones may crash a process, but
# not tell it what to do), the preprocessing of a pipeline, and patterns and (in scikit-learn 1.6)
# lists of column names.
HARMLESS = frozenset(
    {
        "numpy.dtype",
        "sklearn.compose._column_transformer._RemainderColsList",
        "sklearn.compose._column_transformer.make_column_selector",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.pipeline.Pipeline",
        "sklearn.pipeline.Pipeline.transform",
        "sklearn.tree._tree.Tree",
    }
)


def _skops() -> Any:
    """Skops, which stores estimators without code; an error names the extra."""
    with _NotImported("torch", "dask", "pytest"):
        return import_optional("skops.io", extra="skops")


class _NotImported(MetaPathFinder):
    """A context in which this thread does not import certain packages for the first time.

    To list the estimators of scikit-learn, skops imports all its modules. Those that adapt arrays
    of other packages are not needed and take seconds; without these packages they are passed over.
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


def read_estimator(path: str | os.PathLike[str], *, trust: bool = False) -> Any:
    """Load a fitted estimator from a file, to be given to `TableModel`.

    Parameters
    ----------
    path : path-like
        File of skops; with `trust`, also of joblib or pickle.
    trust : bool, default=False
        Whether the file may run code.

    Returns
    -------
    estimator

    Raises
    ------
    TableError
        If the file is not such a file, or can only be loaded with `trust`.
    ImportError
        If skops is missing (extra ``skops``).
    """
    path = Path(path)
    if _is_zip(path):
        return _read_skops(path, trust=trust)
    if not trust:
        raise TableError(untrusted(path, "Files of skops need no trust: see skops.io.dump."))
    return _read_code(path)


class StorageMixin:
    """Mixin for `TableModel`: folders with a fitted model."""

    estimator_: Any

    def save(self, folder: str | os.PathLike[str], *, trust: bool = False) -> None:
        """Keep the fitted model in a new folder; see `load`.

        Parameters
        ----------
        folder : path-like
            New folder in an existing one.
        trust : bool, default=False
            Whether a model that cannot be written without code, such as one with classes of
            another package, may be pickled. Loading such a folder needs ``trust=True`` too.

        Raises
        ------
        TableError
            If the folder exists, or the model cannot be written without code.
        ImportError
            If skops is missing (extra ``skops``).
        sklearn.exceptions.NotFittedError
            If the model is not fitted.
        """
        check_is_fitted(self)
        _save(self, folder, trust=trust)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, trust: bool = False) -> Self:
        """Load a model that `save` has kept.

        Parameters
        ----------
        folder : path-like
            The folder.
        trust : bool, default=False
            Whether a folder is loaded that can run code of whoever made it.

        Returns
        -------
        TableModel
            Its predictions are those of the model that was saved.

        Raises
        ------
        TableError
            If the folder holds no model, was written by an incompatible version, or can only be
            loaded with `trust`.
        """
        model: Self = _load(cls, folder, trust=trust)
        return model


def _save(model: Any, folder: str | os.PathLike[str], *, trust: bool) -> None:
    """Write a fitted `TableModel`."""
    check_savable(folder)
    skops = _skops()
    with atomic_path(folder) as partial:
        partial.mkdir()
        try:
            skops.dump(to_stored(_kept(model)), partial / MODEL, compression=ZIP_DEFLATED)
            unknown = _unknown_types(skops, partial / MODEL)
        except (TypeError, AttributeError, ValueError, NotImplementedError) as error:
            unknown = [str(error)]
        if unknown and not trust:
            raise TableError(
                f"The model holds what cannot be stored without code: {', '.join(unknown)}. To "
                "store it as a pickle, which runs code when it is loaded, say so (`trust=True`)."
            )
        if unknown:
            (partial / MODEL).unlink(missing_ok=True)
            joblib.dump(_copied(model), partial / CODE)
        about = json.dumps(_about(model, runs_code=bool(unknown)), indent=1)
        (partial / ABOUT).write_text(about + "\n", encoding="utf-8")


def check_savable(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder that `TableModel.save` cannot write, before a model is trained for it.

    Parameters
    ----------
    folder : path-like
        Folder that is to be written.

    Raises
    ------
    TableError
        If it exists, or the folder around it does not. It is a `ValueError`.
    ImportError
        If skops is missing (extra ``skops``).
    """
    _skops()
    path = Path(folder)
    if path.exists():
        raise TableError(f"{path} exists already; choose a new folder for the model.")
    if not path.parent.is_dir():
        raise TableError(f"The folder {path.parent} does not exist; create it first.")


def _load(kind: type[StorageMixin], folder: str | os.PathLike[str], *, trust: bool) -> Any:
    """Read a `TableModel`."""
    folder = Path(folder)
    about = _read_about(folder)
    if about["runs_code"]:
        if not trust:
            raise TableError(untrusted(folder / CODE))
        return _read_code(folder / CODE)
    import skuq.quam  # noqa: F401  (which names the classes of the models found)

    try:
        kept = from_stored(_read_skops(folder / MODEL, trust=False))
    except StoredError as error:
        raise TableError(f"{folder / MODEL} holds no model that skuq has saved: {error}") from error
    if not isinstance(kept, StorageMixin) or not hasattr(kept.estimator_, "predict_uncertainty"):
        raise TableError(f"{folder / MODEL} holds no model of a table.")
    model = kind()
    vars(model).update(vars(kept))
    return model


def _about(model: Any, *, runs_code: bool) -> dict[str, Any]:
    """Facts that a reader of the folder should know, without loading the model."""
    return {
        "format": FORMAT,
        "skuq": __version__,
        "scikit-learn": sklearn.__version__,
        "runs_code": runs_code,
        "task": model.task_,
        "target": model.target_,
        "columns": model.feature_names_in_.tolist(),
        "model": model.name_,
    }


def _read_about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        found = {name: about[name] for name in ("format", "skuq", "scikit-learn", "runs_code")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TableError(
            f"{folder} holds no model that skuq has saved (`TableModel.save`)."
        ) from error
    here = {"format": FORMAT, "skuq": __version__, "scikit-learn": sklearn.__version__}
    for name, version in here.items():
        if _series(found[name]) != _series(version):
            raise TableError(
                f"The model in {folder} was saved with {name} {found[name]}, and this is {name} "
                f"{version}; load it with that version, or train it again."
            )
    return about


def _series(version: Any) -> list[str]:
    """The part of a version within which models can be exchanged."""
    return str(version).split(".")[:2]


def _kept(model: Any) -> Any:
    """A copy that holds what is saved, and nothing else."""
    kept = _copied(model)
    if not isinstance(kept.estimator, str):
        kept.estimator = kept.name_  # the fitted one is there
    if hasattr(kept.estimator_, "without_training_data"):
        kept.estimator_ = kept.estimator_.without_training_data()
    return kept


def _copied(model: Any) -> Any:
    """A copy without the callable that reports progress and the labels of held-out rows."""
    model = copy(model)
    model.progress = None
    model.held_out_ = model.held_out_.reset_index(drop=True)
    return model


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _unknown_types(skops: Any, path: Path) -> list[str]:
    return sorted(set(skops.get_untrusted_types(file=path)) - HARMLESS)


def _read_skops(path: Path, *, trust: bool) -> Any:
    skops = _skops()
    refused = import_optional("skops.io.exceptions", extra="skops").UntrustedTypesFoundException
    try:
        if not trust:
            check_archive(path)
        try:  # which looks at all types before it makes anything
            model = skops.load(path, trusted=sorted(HARMLESS))
            if not trust:
                check_contents(path, model)
            return model
        except refused as error:
            unknown = _unknown_types(skops, path)
            if not trust:
                raise TableError(
                    f"{path} holds types that are not of scikit-learn, numpy or scipy, and may run "
                    f"code: {', '.join(unknown)}. If you trust the file, say so (`trust=True`)."
                ) from error
            return skops.load(path, trusted=sorted({*HARMLESS, *unknown}))
    except TableError:
        raise
    except Exception as error:  # whatever a damaged file leads to
        raise TableError(f"{path} cannot be loaded ({type(error).__name__}: {error}).") from error


def _read_code(path: Path) -> Any:
    try:
        return joblib.load(path)
    except Exception as error:  # whatever the code in the file raises
        raise TableError(f"{path} cannot be loaded ({type(error).__name__}: {error}).") from error
