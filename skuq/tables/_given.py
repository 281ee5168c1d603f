"""Models of somebody else, which were trained on the columns of a table as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
from sklearn.exceptions import NotFittedError

from skuq.tables._errors import TableError
from skuq.tables._learners import LEARNERS

GIVEN = "the given "  # before the name of such a model


def is_given(estimator: Any) -> bool:
    """Whether a model is somebody else's, who gave it the columns as they are."""
    return not (isinstance(estimator, str) or hasattr(estimator, "predict_uncertainty"))


def wanted_columns(estimator: Any, features: list[str]) -> dict[str, str]:
    """The columns that a given model was trained on, else all, and the names it knows them by.

    Spaces around its names do not count: they are not in those of tables read from files.

    Raises
    ------
    TableError
        If there are not all of them.
    """
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return dict(zip(features, features, strict=True))
    known = {name if name in features else name.strip(): name for name in names}
    lacking = [name for name in known if name not in features]
    if lacking:
        raise TableError(
            f"The given {type(estimator).__name__} needs the columns "
            f"{', '.join(lacking)}, which the training table lacks."
        )
    return known


def check_fitted(estimator: Any, row: pd.DataFrame) -> None:
    """Refuse a given model that was not fitted, before anything takes long."""
    try:
        estimator.predict(row)
    except NotFittedError as error:
        raise TableError(
            f"{type(estimator).__name__} cannot serve this table: it is not fitted. Fit "
            "it before you save or give it."
        ) from error
    except Exception:  # told when all rows are predicted
        return


@contextmanager
def asked(name: str, X: pd.DataFrame) -> Iterator[None]:
    """Errors of an estimator of somebody else about rows, as errors of the table.

    A kept model has the name of the estimator in the place of what was given.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, TableError) or name in LEARNERS:
            raise
        holes = [str(column) for column in X.columns[X.isna().any()]]
        raise TableError(
            f"{name.removeprefix(GIVEN)} cannot serve this table: {error}"
            + (f" (Columns with missing values: {', '.join(holes)}.)" if holes else "")
        ) from error
