"""Table model: trains on a table and predicts the rows of other tables with their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import is_classifier, is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray, PredictionInterval, predict_uncertainty
from skuq.explanations import TrainingValues, explained, marked_names, rows_to_explain
from skuq.labels import classes_of_columns, probability_columns
from skuq.ood import Combination
from skuq.quantities import checked_levels
from skuq.residuals import LEVELS, interpolated
from skuq.stored import stored
from skuq.tables import _notes as notes
from skuq.tables._columns import Cells, CleanColumns, Cleaned, format_note
from skuq.tables._estimator import NEW, TableEstimator
from skuq.tables._groups import groups_in
from skuq.tables._held_out import Parts, drop_overlap, hold_out_part, leaking_columns
from skuq.tables._held_out_quality import HeldOutMixin
from skuq.tables._inputs import as_frame, in_library_of, with_target
from skuq.tables._prediction_sets import prediction_sets
from skuq.tables._quantities import Quantities
from skuq.tables._storage import StorageMixin
from skuq.tables._target import (
    classes_as_given,
    is_regression,
    quantity_notes,
    rows_with_target,
    target_format,
    target_values,
)
from skuq.tables._target_scale import TargetScale
from skuq.tables._training import (
    LEARNERS,
    Comparison,
    Training,
    check_fitted,
    encoded,
    is_given,
    table_errors,
    trained_columns,
)
from skuq.tables._unscored_rows import (
    has_too_many_unread,
    refuse_many,
    refuse_unread_rows,
    sum_by_column,
    unread_rows,
    with_unscored,
    without_rows,
)
from skuq.tables._validation import (
    NewValuesWarning,
    TableError,
    check_names,
    check_share,
    feature_names,
    separator_hint,
)
from skuq.validation import warn_user

N_TYPICAL = 20  # number of training rows whose values are substituted to explain a row
OUTPUTS = (
    "prediction",
    "confidence",
    "total",
    "aleatoric",
    "epistemic",
    "std",
    "conformal_p_value",
    "prediction_set",
    "lower",
    "upper",
    "unseen",
    "out_of_range",
    "reasons",
)


@stored(
    "tables.table-model",
    fields={
        "estimator": str,
        "task": str,
        "missing": str,
        "random_state": int,
        "n_jobs": int | None,
        "progress": None,
        "task_": str,
        "target_": str,
        "id_": str | None,
        "feature_names_in_": NDArray[Any],
        "columns_": CleanColumns,
        "training_values_": TrainingValues,
        "encoder_": ColumnTransformer | None,
        "estimator_": Any,
        "name_": str,
        "comparison_": Comparison,
        "classes_": NDArray[Any] | None,
        "held_out_": pd.DataFrame,
        "combination_": Combination,
        "held_out_proba_": NDArray[Any] | None,
        "quantities_": Quantities | None,
        "_held_out_quantiles": NDArray[Any] | None,
        "_held_out_groups": pd.DataFrame,
        "notes_": list[str],
        "warnings_": list[str],
        "_typical_rows": pd.DataFrame,
    },
)
class TableModel(StorageMixin, HeldOutMixin, TableEstimator):
    """Model of a table, which quantifies the uncertainty of each of its predictions.

    `fit` encodes the columns, selects and trains a learner, and searches for adversarial models of
    this learner (`skuq.QUAMClassifier`, `skuq.QUAMRegressor`). A part of the training rows is held
    out to calibrate p-values, prediction sets and intervals, and to measure quality.

    `TableModel` is a scikit-learn estimator: it works with `clone`, ``GridSearchCV`` and
    ``cross_val_score``, with its own `score` or with a scorer of probabilities. A scorer of
    predictions, such as "accuracy", must be wrapped in a function that selects the column
    ``prediction``, because `predict` returns a table with several columns.

    Parameters
    ----------
    estimator : str or estimator, default="auto"
        Learner:

        - "auto" selects the best of boosted trees, a linear model and a network (for regression
          also a forest) by cross-validation;
        - "hgb", "logistic" (for regression: linear), "network" and "forest" select a learner;
        - a fitted scikit-learn classifier, regressor or pipeline is used without further training
          and receives the columns of the table by name; inside a `FrozenEstimator` it also stays
          fitted in a `clone`;
        - an estimator with `predict_uncertainty` is cloned and trained on scaled numbers and
          one-hot indicators of categories.
    task : {"auto", "classification", "regression"}, default="auto"
        Whether to predict classes or quantities. "auto" treats text, booleans, and integers with up
        to 20 distinct values as classes, and all other numbers as quantities.
    missing : {"impute", "refuse"}, default="impute"
        Whether missing values are imputed or raise an error.
    random_state : int, default=0
        Seed of the held-out split, training and search.
    n_jobs : int, default=None
        Number of processes for the search.
    progress : callable, default=None
        Called with a sentence at the start of each step.

    Attributes
    ----------
    task_ : {"classification", "regression"}
        Task that the model was trained for.
    target_ : str
        Name of the target.
    id_ : str or None
        Name of the column that identifies rows.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the feature columns.
    classes_ : ndarray of shape (n_classes,) or None
        Sorted labels; None for regression.
    name_ : str
        Name of the learner or of the estimator passed.
    comparison_ : Comparison
        Cross-validation losses of the compared learners.
    estimator_ : estimator
        The fitted estimator; its inputs are encoded columns.
    held_out_ : DataFrame
        Results of the held-out rows: prediction, confidence, parts of the uncertainty, and the true
        ``label``, with the row's index in the original table (after `load`: from 0).
    combination_ : skuq.ood.Combination
        Combined score of how unusual a row is, calibrated on the held-out rows.
    held_out_proba_ : ndarray of shape (n_held_out, n_classes) or None
        Predicted probabilities of the held-out rows; None for regression.
    notes_ : list of str
        Sentences on how the training table was processed; warnings come first.
    warnings_ : list of str
        The notes on columns that may reveal the target, and on data that may have been misread or
        were dropped.

    References
    ----------
    Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", Springer 2005
    (conformal p-values).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq.tables import TableModel
    >>> flowers = load_iris(as_frame=True).frame
    >>> model = TableModel("logistic").fit(flowers, "target")
    >>> rows = model.predict(flowers[:3].assign(**{"petal width (cm)": [0.2, 0.2, 20.0]}))
    >>> rows["out_of_range"].tolist()
    ['', '', 'petal width (cm)']
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": "no_validation",  # checked in `fit`; in a loaded model it is only a name
        "task": [StrOptions({"auto", "classification", "regression"})],
        "missing": [StrOptions({"impute", "refuse"})],
        "random_state": [Interval(Integral, 0, 2**32 - 1, closed="both")],
        "n_jobs": [Integral, None],
        "progress": [callable, None],
    }

    def __init__(
        self,
        estimator: Any = "auto",
        *,
        task: str = "auto",
        missing: str = "impute",
        random_state: int = 0,
        n_jobs: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.estimator = estimator
        self.task = task
        self.missing = missing
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.progress = progress

    def fit(
        self,
        train: Any,
        target: Any,
        *,
        drop: Sequence[str] = (),
        id_column: str | None = None,
        held_out: Any = None,
    ) -> Self:
        """Train on a table.

        Rows without a target are dropped. Uninformative columns are dropped too: columns without
        values, text columns whose values hardly repeat, and row numbers. ``notes_`` lists them.

        Parameters
        ----------
        train : DataFrame of pandas or Polars, pyarrow Table, or ndarray
            Training table, shape (n_rows, n_columns). Columns of an array are called x0, x1, ...
        target : str or array-like of shape (n_rows,)
            Name of the target column, or the target values in row order. If values are passed, the
            target has the name of their Series, or else the name "target".
        drop : sequence of str, default=()
            Columns not to use as features.
        id_column : str, default=None
            Column that identifies rows; not a feature, but included in the results.
        held_out : table as `train`, with the target as a column; default=None
            Labelled rows for calibration and measurement, instead of a part of `train`. Pass such
            rows if the estimator is already fitted and was trained on `train`: measured on its own
            training rows, its quality would be overstated. Rows that are also in `train` are
            dropped from `held_out`.

        Returns
        -------
        TableModel
            The fitted model.

        Raises
        ------
        TableError
            If a column is missing or has several values in a cell; if no feature column is left;
            if the target does not suit the task; if all held-out rows are in `train`; or if an
            estimator passed as fitted is not fitted. `TableError` is a `ValueError`.
        """
        self._validate_params()
        self._check_estimator()
        train = as_frame(train, "training table")
        held_out = None if held_out is None else as_frame(held_out, "held-out table")
        check_names(train, "training table")
        train, target = with_target(train, target, "training table")
        features = feature_names(train, target, drop, id_column)
        given = is_given(self.estimator)
        wanted = trained_columns(self.estimator, features)
        if id_column in OUTPUTS or classes_of_columns([id_column or ""]):
            raise TableError(
                f"The id column {id_column!r} has the same name as a column of the results; rename "
                "the id column."
            )
        words = notes.word_notes(train, [target, *features])
        train, held_out, found, warned = self._with_targets(train, held_out, target)
        regression = self._is_regression(train, target)
        y = target_values(train, target, regression, "training table")
        columns = CleanColumns(not given, wanted if given else None).fit(train[[*wanted]])
        if not len(columns.feature_names_in_):
            raise TableError("The training table has no feature column left.")
        cleaned = self._clean(columns, train, "training table")
        X = cleaned.X
        refuse_many(cleaned.cells, len(X), given)
        columns.accept(cleaned.cells)
        warned = [*words, *warned, *notes.cell_notes(cleaned.cells, train), *columns.warnings_]
        found += notes.missing_notes(X, "training table", self.missing)
        if given:  # a fitted estimator parses its raw columns itself
            check_fitted(self.estimator, columns.inverse_transform(X.head(1)))
        else:
            found += columns.notes_
            found += notes.date_notes(X[[n for n in X if n in wanted]], columns.numbers_)
        if regression and self.task == "auto" and isinstance(self.estimator, str):
            told, doubts = quantity_notes(y, target)
            found, warned = found + told, warned + doubts
        self.target_, self.id_ = target, id_column
        self.task_ = "regression" if regression else "classification"
        self.feature_names_in_ = columns.feature_names_in_
        self.columns_ = columns
        if held_out is None:
            table = train.drop(columns=[*drop])
            parts = hold_out_part(table, X, y, regression, self.random_state, id_column)
        else:
            parts, told = self._given_rows(train, X, y, held_out)
            warned += told
        found += parts.notes
        self.training_values_ = TrainingValues.of_rows(parts.X, columns.numbers_)
        typical = np.random.default_rng(self.random_state).permutation(len(parts.X))[:N_TYPICAL]
        self._typical_rows = parts.X.iloc[typical].reset_index(drop=True)
        training = Training(
            self.estimator, columns, regression, self.random_state, self.n_jobs, self.progress
        )
        trained = training.run(parts.X, parts.y)
        self.encoder_, self.estimator_, self.name_, self.comparison_, scale = trained
        self.classes_ = None
        if not regression:
            self.classes_ = classes_as_given(np.asarray(self.estimator_.classes_), train[target])
        found += notes.class_notes(self.classes_)
        found += notes.choice_notes(self.comparison_, self.name_, regression)
        if scale is not None and (note := scale.note(target)):
            found.append(note)
        if self.encoder_ is None and held_out is None:
            found.append(notes.HELD_OUT_MAY_HAVE_TRAINED)
        found += notes.unsupported_notes(self.training_values_.unsupported(parts.X_held))
        training.tell(3, "scoring the held-out rows.")
        held = parts.y_held if regression else classes_as_given(parts.y_held, train[target])
        self._held_out_groups = groups_in(parts.X_held, columns.numbers_)
        self._calibrate(parts.X_held, held, scale)
        self.held_out_.index = parts.labels
        # Put warnings about leaking columns first: a leak makes all other numbers meaningless.
        self.warnings_ = notes.leakage_warnings(self._leaking_columns(parts)) + warned
        self.notes_ = self.warnings_ + found
        return self

    def predict(
        self, table: Any, *, coverage: float = 0.9, n_explained: int = 100, strict: bool = False
    ) -> Any:
        """Predict each row of a table, with its uncertainty.

        The results for a row do not depend on the other rows in the table. Only the selection of
        rows to explain depends on other rows. A row with an unreadable cell, such as a word in a
        numeric column, is not scored: its outputs are missing, and its ``reasons`` are "not scored:
        ...".

        Parameters
        ----------
        table : DataFrame of pandas or Polars, pyarrow Table, or ndarray
            Rows, shape (n_rows, n_columns); columns that were not trained on are ignored. If a
            column was text in training, a number or boolean in it counts as the training text that
            a file reader converts to this value: 1067 counts as the code "01067".
        coverage : float, default=0.9
            Coverage of the prediction sets or intervals.
        n_explained : int, default=100
            Number of rows for which ``reasons`` are computed: the most unusual rows.
        strict : bool, default=False
            Whether to raise an error if any row cannot be scored.

        Returns
        -------
        DataFrame or pyarrow Table
            One row per input row, in the same order. The results are a table of the same library as
            `table` (pandas for an array); for a pandas table, they have its index. Lists in a cell
            are separated by "; ". Columns:

            - the id column, if there is one;
            - ``prediction``;
            - ``confidence``, the largest probability (classification);
            - ``total``, ``aleatoric`` and ``epistemic`` uncertainty. For regression, these are
              variances in squared units of the target, and ``std`` is the square root of the total;
            - ``conformal_p_value``, the share of rows that are at least as unusual as the row,
              counted among the held-out rows and the row itself. At most a share p of rows from the
              training distribution is expected to have a p-value of p or less;
            - ``prediction_set``, or ``lower`` and ``upper``;
            - ``unseen``, columns with a category that no training row has, or with a missing number
              if the column has a number in every training row;
            - ``out_of_range``, columns with numbers outside the range of the training rows;
            - ``reasons``, up to three columns with their values: columns with unseen values, and
              columns that contribute most to the epistemic uncertainty;
            - for classification, the probability of each class, in columns such as ``p(yes)``,
              which `skuq.audit.audit_files` recognises.

            To measure how unusual a row is, two scores are combined as in `skuq.OODDetector`: the
            epistemic uncertainty of the row, and the number of its unsupported columns. A column is
            unsupported if it has an unseen value, or a number outside the training range by more
            than half the range's width.

        Raises
        ------
        TableError
            If a column is missing; if there are several rows and none can be scored; if most rows
            cannot be scored and their unreadable cells are numbers with a different decimal mark;
            or, with `strict`, if any row cannot be scored.
        sklearn.exceptions.NotFittedError
            If the model is not fitted.

        Warns
        -----
        NewValuesWarning
            If a table has at least 10 rows, and nearly all of them have unseen values or numbers
            out of range in the same column. ``table_notes(model.count(table))`` describes all such
            values.
        """
        given, table = table, as_frame(table, NEW)
        check_share(coverage)
        X, unscored, cells = self._rows(table)
        if unscored and (strict or has_too_many_unread(unscored, cells, len(table))):
            refuse_unread_rows(unscored, cells, NEW, len(table))
        if X.empty:  # score a training row instead, to obtain the columns of the results
            X = self._typical_rows.head(1)
        scored, outputs, disagreement = self._scored(X)
        unsupported = self.training_values_.unsupported(X)
        scores = _scores(unsupported.sum(axis=1), disagreement)
        p_values = self.combination_.p_values(self.combination_.statistic(scores))
        scored["conformal_p_value"] = p_values
        scored = scored.assign(**self._regions(outputs, coverage))
        unseen = self.training_values_.unseen(X)
        out_of_range = self.training_values_.out_of_range(X)
        scored["unseen"], scored["out_of_range"] = marked_names(unseen), marked_names(out_of_range)
        n_new = (unseen | out_of_range).sum().reindex([*X.columns, *self.columns_.dates_])
        for note in notes.new_value_notes(n_new.fillna(0), len(X)):
            warn_user(note, NewValuesWarning)
        first = rows_to_explain(p_values, disagreement, n_explained)
        scored["reasons"] = ""
        scored.loc[first, "reasons"] = self._reasons(X.iloc[first], unsupported.iloc[first])
        if self.classes_ is not None:
            scored[probability_columns(self.classes_)] = outputs
        scored = with_unscored(scored[: len(table) - len(unscored)], unscored, len(table))
        if self.id_ is not None:
            scored.insert(0, self.id_, table[self.id_].to_numpy())
        same = [] if self.id_ is None else [self.id_]
        return in_library_of(given, scored.set_axis(table.index), same)

    def predict_quantiles(self, table: Any, levels: ArrayLike | None = None) -> FloatArray:
        """Predict quantiles of the target (regression only), without conformal calibration.

        Parameters
        ----------
        table : DataFrame of shape (n_rows, n_columns)
            Rows; columns that were not trained on are ignored.
        levels : array-like of shape (n_levels,), default=None
            Levels between 0 and 1; None means 25 levels from 0.005 to 0.995. Levels outside of this
            range return the outermost quantiles.

        Returns
        -------
        ndarray of shape (n_rows, n_levels), float64
            Quantiles, in units of the target; NaN in rows that cannot be scored.

        Raises
        ------
        ValueError
            If `task_` is "classification", or a level is not between 0 and 1.
        """
        if self.quantities_ is None:
            raise ValueError("A classification has no quantiles; use `predict`.")
        wanted = LEVELS if levels is None else checked_levels(levels)
        frame = as_frame(table, NEW)
        X, unread, _ = self._rows(frame)
        quantiles = np.full((len(frame), len(wanted)), np.nan)
        if len(X):
            scored = np.setdiff1d(np.arange(len(frame)), [*unread])
            quantiles[scored] = interpolated(self._scored(X)[1], LEVELS, wanted)
        return quantiles

    def predict_interval(self, table: Any, coverage: float = 0.9) -> PredictionInterval:
        """Predict intervals (regression only): the columns ``lower`` and ``upper`` of `predict`.

        Parameters
        ----------
        table : DataFrame of shape (n_rows, n_columns)
            Rows; columns that were not trained on are ignored.
        coverage : float, default=0.9
            Coverage of the intervals.

        Returns
        -------
        PredictionInterval
            Endpoints of the intervals, in units of the target; NaN in rows that cannot be scored.

        Raises
        ------
        ValueError
            If `task_` is "classification", or `coverage` is not between 0 and 1.
        """
        check_share(coverage)
        if self.quantities_ is None:
            raise ValueError("A classification has no intervals; use `predict`.")
        rows = self.predict(as_frame(table, NEW), coverage=coverage, n_explained=0)
        return PredictionInterval(rows["lower"].to_numpy(), rows["upper"].to_numpy())

    def count(self, table: Any) -> pd.DataFrame:
        """Count special values by column; the counts of parts of a table can be added up.

        Parameters
        ----------
        table : DataFrame of pandas or Polars, pyarrow Table, or ndarray
            Rows to predict.

        Returns
        -------
        pandas.DataFrame of int
            One row per column. ``rows`` is the number of rows that can be scored. ``missing``,
            ``unseen`` and ``out_of_range`` count values in these rows. ``ranges`` is the number of
            cells such as "10 - 20", which are read as their midpoint. ``unread`` is the number of
            cells because of which a row cannot be scored.
        """
        X, _, cells = self._rows(as_frame(table, NEW))
        counts = {
            "rows": pd.Series(len(X), index=X.columns),
            "missing": X.isna().sum(),
            "unseen": self.training_values_.unseen(X).sum(),
            "out_of_range": self.training_values_.out_of_range(X).sum(),
        }
        counts |= {
            name: sum_by_column(each for each in cells if each.read == read)
            for name, read in (("ranges", True), ("unread", False))
        }
        names = [*X.columns, *self.columns_.dates_]
        return pd.DataFrame(counts, index=names).fillna(0).astype(int)

    # --- training ----------------------------------------------------------------------------

    def _check_estimator(self) -> None:
        names = ("auto", *LEARNERS)
        if isinstance(self.estimator, str) and self.estimator not in names:
            raise ValueError(f"`estimator` must be one of {names}, got {self.estimator!r}.")

    def _is_regression(self, train: pd.DataFrame, target: str) -> bool:
        if isinstance(self.estimator, str):
            return is_regression(train, target, self.task)
        known = hasattr(self.estimator, "__sklearn_tags__")
        if not known or not (is_classifier(self.estimator) or is_regressor(self.estimator)):
            raise TableError(
                f"`estimator` must be a classifier or a regressor, got "
                f"{type(self.estimator).__name__}."
            )
        regression = bool(is_regressor(self.estimator))
        if self.task not in ("auto", "regression" if regression else "classification"):
            raise TableError(
                f"{type(self.estimator).__name__} does not support `task={self.task!r}`; leave "
                '`task` at "auto", or pass an estimator for this task.'
            )
        return regression

    def _with_targets(
        self, train: pd.DataFrame, held_out: pd.DataFrame | None, target: str
    ) -> tuple[pd.DataFrame, pd.DataFrame | None, list[str], list[str]]:
        """Training and held-out rows with a target (parsed if it is text); notes and warnings."""
        task = self.task
        if not isinstance(self.estimator, str):
            task = "regression" if self._is_regression(train, target) else "classification"
        format = target_format(train[target], task, train.attrs.get("decimal"))
        found = [] if format is None else [format_note(train[target], format)]
        own = train.attrs.get("decimal")
        train, warned = rows_with_target(train, target, format, "training table", own)
        if held_out is not None:
            held_out, told = rows_with_target(held_out, target, format, "held-out table", own)
            warned += told
        return train, held_out, found, warned

    def _given_rows(
        self, train: pd.DataFrame, X: pd.DataFrame, y: NDArray[Any], table: pd.DataFrame
    ) -> tuple[Parts, list[str]]:
        """Training rows; rows of a held-out table that are not training rows; and warnings."""
        which = "held-out table"
        check_names(table, which)
        cleaned = self._clean(self.columns_, table, which)
        unread = unread_rows(cleaned.cells, table)
        if len(unread) == len(table):
            refuse_unread_rows(unread, cleaned.cells, which, len(table))
        told = notes.unread_notes(unread, which)
        X_held = without_rows(cleaned, unread)
        table = table[[row not in unread for row in range(len(table))]]
        y_held = target_values(table, self.target_, self.task_ == "regression", which, known=y)
        ids = None
        if self.id_ is not None and self.id_ in table:
            ids = train[self.id_], table[self.id_]
        return drop_overlap(X, y, X_held, y_held, ids, table.index), told

    def _leaking_columns(self, parts: Parts) -> list[str]:
        """Columns of the training table that predict the class on their own."""
        if self.task_ == "regression":
            return []
        right = (self.held_out_["prediction"] == self.held_out_["label"]).to_numpy()
        columns = leaking_columns(
            (parts.X, parts.y),
            (parts.X_held, parts.y_held),
            self._set_scores(),
            right,
            self.columns_.numbers_,
        )
        return list(dict.fromkeys(self.columns_.original(name) for name in columns))

    def _calibrate(self, X: pd.DataFrame, y: NDArray[Any], scale: TargetScale | None) -> None:
        self.quantities_ = None
        if scale is not None:
            self.quantities_ = Quantities(scale)
            if self.encoder_ is None or not hasattr(self.estimator_, "predict_quantiles"):
                with table_errors(self.name_, X):
                    self.quantities_ = Quantities.of_held_out(
                        self.estimator_, self._encoded(X), y, scale, self.random_state
                    )
        scored, outputs, disagreement = self._scored(X, held_out=True)
        scored["n_unsupported"] = self.training_values_.unsupported(X).sum(axis=1).to_numpy()
        scored["label"] = y
        self.held_out_proba_ = None if self.task_ == "regression" else outputs
        self._held_out_quantiles = outputs if self.task_ == "regression" else None
        self.held_out_ = scored
        scores = _scores(scored["n_unsupported"], disagreement)
        self.combination_ = Combination.of(scores, {name: name for name in scores})

    # --- prediction --------------------------------------------------------------------------

    def _clean(self, columns: CleanColumns, table: pd.DataFrame, which: str) -> Cleaned:
        cleaned = columns.read(table, which)
        if len(cleaned.X) == 0:
            raise TableError(f"The {which} has no rows.")
        return cleaned

    def _rows(self, table: pd.DataFrame) -> tuple[pd.DataFrame, dict[int, str], list[Cells]]:
        """Clean rows to predict, reasons why other rows are unreadable, cells of the wrong type."""
        check_is_fitted(self)
        which = NEW
        check_names(table, which)
        if self.id_ is not None and self.id_ not in table.columns:
            raise TableError(
                f"The {which} has no column {self.id_!r} (`id_column`).{separator_hint(table)}"
            )
        cleaned = self.columns_.read(table, which)
        unread = unread_rows(cleaned.cells, table)
        X = without_rows(cleaned, unread)
        if self.missing == "refuse":
            notes.missing_notes(X, which, self.missing)
        return X, unread, cleaned.cells

    def _encoded(self, X: pd.DataFrame) -> Any:
        return encoded(self.encoder_, self.columns_, X)

    def _reasons(self, X: pd.DataFrame, unsupported: pd.DataFrame) -> list[str]:
        """Columns that contribute most to the uncertainty of each row, with their values."""
        if self.encoder_ is not None:
            encode = self.encoder_.transform
            return explained(X, unsupported, self._typical_rows, self._disagreement, encode)

        # The type of a column that an external estimator gets depends on all of its values.
        def disagreement(X: pd.DataFrame) -> FloatArray:
            return self._disagreement(self._encoded(X))

        return explained(X, unsupported, self._typical_rows, disagreement)

    def _disagreement(self, inputs: Any) -> FloatArray:
        """Uncertainty that `reasons` explain: the spread of the models, or the epistemic part.

        For regressors, the spread is used. The epistemic part increases with the spread, but its
        computation would need a quadrature for each row.
        """
        if hasattr(self.estimator_, "predict_model_std"):
            spread: FloatArray = self.estimator_.predict_model_std(inputs)
            return spread
        return predict_uncertainty(self.estimator_, inputs).part_or_total("epistemic")

    def _scored(
        self, X: pd.DataFrame, *, held_out: bool = False
    ) -> tuple[pd.DataFrame, FloatArray, FloatArray]:
        """Predictions with uncertainty; probabilities or quantiles; and disagreement by row."""
        inputs = self._encoded(X)
        with table_errors(self.name_, X):
            if self.quantities_ is not None:
                return self.quantities_.predict(self.estimator_, inputs, held_out=held_out)
            uncertainty = predict_uncertainty(self.estimator_, inputs)
            proba = self.estimator_.predict_proba(inputs)
        frame = uncertainty.to_frame()
        frame.insert(0, "prediction", self.classes_[proba.argmax(axis=1)])
        frame.insert(1, "confidence", proba.max(axis=1))
        return frame, proba, uncertainty.part_or_total("epistemic")

    def _regions(self, outputs: FloatArray, coverage: float) -> dict[str, Any]:
        """Result columns with prediction sets or intervals."""
        limit = self._limit(coverage)
        if self.quantities_ is not None:
            lower, upper = self.quantities_.interval(outputs, coverage, limit)
            return {"lower": lower, "upper": upper}
        # `pd.Index` makes the texts of the labels equal to those in written files.
        names = [str(label) for label in pd.Index(self.classes_)]
        sets = pd.DataFrame(prediction_sets(outputs, limit), columns=names)
        return {"prediction_set": marked_names(sets)}


def _scores(n_unsupported: pd.Series, disagreement: FloatArray) -> dict[str, FloatArray]:
    """Scores of each row by name, larger for more unusual rows; (n_rows,) each."""
    return {
        "support": n_unsupported.to_numpy(dtype=np.float64),
        "epistemic": np.asarray(disagreement, np.float64),
    }
