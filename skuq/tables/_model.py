"""Table model: trains on a table and predicts the rows of other tables with their uncertainty."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.api.types import is_bool_dtype, is_integer_dtype
from sklearn.base import BaseEstimator
from sklearn.metrics import r2_score
from sklearn.utils import ClassifierTags, RegressorTags, get_tags
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skuq import base, labels
from skuq.base import BoolArray, FloatArray, Uncertainty, predict_uncertainty, with_index_of
from skuq.explanations import SEPARATOR, TrainingValues, explained, marked_names, rows_to_explain
from skuq.files import stored
from skuq.imports import shown
from skuq.labels import as_text, classes_of_columns, positions_of, probability_columns
from skuq.ood import Combination
from skuq.quantities import check_coverage, checked_levels
from skuq.residuals import LEVELS, interpolated
from skuq.tables import _columns, _held_out, _target, _training
from skuq.tables import _notes as notes
from skuq.tables._columns import CleanColumns, Cleaned, NewValuesWarning, TableError, as_frame
from skuq.tables._held_out import HeldOutMixin, Marks, Parts
from skuq.tables._storage import StorageMixin
from skuq.tables._target import Quantities, TargetScale
from skuq.tables._training import LABELS, Comparison, Encoder, table_errors
from skuq.validation import as_table_of, warn_user
from skuq.written_numbers import FEW

TRAINING, HELD_OUT, NEW = "training table", "held-out table", "table to predict"
ESTIMATOR_TYPES = {"classification": "classifier", "regression": "regressor"}
N_TYPICAL = 20  # number of training rows whose values are substituted to explain a row
# A table is refused if at least this many rows, and more than half of all, are unreadable.
FEWEST_UNREAD = 5
OUTPUTS = (
    *("prediction", "confidence", "total", "aleatoric", "epistemic", "std", "conformal_p_value"),
    *("prediction_set", "lower", "upper", "unseen", "out_of_range", "review", "reasons"),
)
TEXTS = ("prediction_set", "unseen", "out_of_range", "reasons")  # columns with "" in unscored rows


@stored(
    "tables.table-model",
    fields={
        **dict.fromkeys(("estimator", "task", "task_", "target_", "name_"), str),
        "random_state": int,
        "n_jobs": int | None,
        "progress": None,
        "id_": str | None,
        "measured_rows_": str,
        "feature_names_in_": NDArray[Any],
        "columns_": CleanColumns,
        "training_values_": TrainingValues,
        "encoder_": Encoder | None,
        "estimator_": Any,
        "comparison_": Comparison,
        "combination_": Combination,
        "quantities_": Quantities | None,
        "classes_": NDArray[Any] | None,
        **dict.fromkeys(("held_out_proba_", "_held_out_quantiles"), NDArray[Any] | None),
        **dict.fromkeys(("held_out_", "_held_out_groups", "_typical_rows"), pd.DataFrame),
        **dict.fromkeys(("notes_", "warnings_"), list[str]),
    },
)
class TableModel(StorageMixin, HeldOutMixin, base.UncertaintyMixin, BaseEstimator):
    """Model of a table, which quantifies the uncertainty of each of its predictions.

    `fit` encodes the columns, selects and trains a learner, and searches for adversarial models of
    this learner (`skuq.QUAMClassifier`, `skuq.QUAMRegressor`). A part of the training rows is held
    out to calibrate p-values, prediction sets and intervals, and to measure quality.

    ``GridSearchCV`` and ``cross_val_score`` use the `score` of the model, or a scorer.

    Parameters
    ----------
    estimator : str or estimator, default="auto"
        Learner:

        - "auto" selects the best of boosted trees, a linear model and a network (for regression
          also a forest) by cross-validation;
        - "hgb", "logistic" (for regression: linear), "network" and "forest" select a learner;
        - a fitted scikit-learn classifier, regressor or pipeline is not trained again, and receives
          the columns by name; inside a `FrozenEstimator` it also stays fitted in a `clone`;
        - an estimator with `predict_uncertainty` is cloned and trained on scaled numbers and
          one-hot indicators of categories.
    task : {"auto", "classification", "regression"}, default="auto"
        Whether to predict classes or quantities. "auto" treats text, booleans, and integers with up
        to 20 distinct values as classes, and all other numbers as quantities.
    random_state : int, default=0
        Seed of the held-out split, training and search.
    n_jobs : int, default=None
        Number of processes for the search.
    progress : callable, default=None
        Called with a sentence at the start of each step.

    Attributes
    ----------
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the feature columns.
    classes_ : ndarray of shape (n_classes,) or None
        Sorted labels; None for regression.
    comparison_ : object
        Cross-validation ``losses`` of the compared learners, and the loss of ``guessing``.
    estimator_ : estimator
        The fitted estimator; its inputs are encoded columns.
    held_out_ : DataFrame
        Predictions, uncertainty and true ``label`` of the held-out rows, with their original index
        (after `load`, the index is 0, 1, ...).
    measured_rows_ : str
        Which rows are held out, if they are not a random part of the table.
    notes_, warnings_ : list of str
        Sentences on how the training table was processed. Warnings, which come first in ``notes_``,
        concern columns that may reveal the target, and data that were misread or dropped.

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

    # The parameters `train`, `table` and `target` correspond to scikit-learn's X and y. Therefore
    # they are not metadata for metadata routing.
    __metadata_request__fit: ClassVar[dict[str, str]] = {"train": UNUSED, "target": UNUSED}
    __metadata_request__predict: ClassVar[dict[str, str]] = {"table": UNUSED}
    __metadata_request__predict_proba: ClassVar[dict[str, str]] = {"table": UNUSED}
    __metadata_request__score: ClassVar[dict[str, str]] = {"table": UNUSED, "target": UNUSED}

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": "no_validation",  # checked in `fit`; in a loaded model it is only a name
        "task": [StrOptions({"auto", "classification", "regression"})],
        "random_state": [Interval(Integral, 0, 2**32 - 1, closed="both")],
        "n_jobs": [Integral, None],
        "progress": [callable, None],
    }

    def __init__(
        self,
        estimator: Any = "auto",
        *,
        task: str = "auto",
        random_state: int = 0,
        n_jobs: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.estimator = estimator
        self.task = task
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
        groups: Any = None,
        time: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Train on a table.

        Rows without a target and uninformative columns (without values, with text that hardly
        repeats, or with row numbers) are dropped; ``notes_`` lists them.

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
            rows if the estimator was trained on `train`: on its own training rows, its quality
            would be overstated. Rows that are also in `train` are dropped.
        groups : str or array-like of shape (n_rows,), default=None
            Name of a column (not a feature) or values, equal for rows of the same person, shop, ...
            No split separates the rows of a group, and a held-out group counts as one row. Coverage
            and p-values therefore hold for rows of new groups. An `id_column` is used as `groups`
            if one of its ids occurs in several different rows.
        time : str or array-like of shape (n_rows,), default=None
            Numbers or dates, passed as values or as the name of a column, which remains a feature.
            The latest fifth of the rows is held out, to measure how well later rows are predicted.
        sample_weight : str or array-like of shape (n_rows,), default=None
            Name of a column (not a feature) or weights >= 0, for training, calibration and metrics.
            Only ratios matter: a row of weight 2 stands for twice as many rows as one of weight 1.

        Raises
        ------
        TableError
            If the tables, the target or the estimator cannot be used. It is a `ValueError`.
        """
        from skuq.models import RESAMPLED, look_at

        self._validate_params()
        train, target = _target.with_target(as_frame(train, TRAINING), target, TRAINING)
        marked = {"groups": groups, "time": time, "sample_weight": sample_weight}
        marked = {name: values for name, values in marked.items() if values is not None}
        if held_out is not None and (
            time is not None or not all(isinstance(values, str) for values in marked.values())
        ):
            raise TableError(
                "With `held_out`, pass `groups` and `sample_weight` as names of columns of both "
                "tables, and no `time`, which determines the rows to hold out."
            )
        train, apart = _held_out.with_marks(train, marked, TRAINING)
        features = _target.feature_names(train, target, [*drop, *apart], id_column)
        if id_column in OUTPUTS + (labels.true_name(target),) or classes_of_columns(
            [str(id_column)]
        ):
            raise TableError(
                f"The id column {id_column!r} has the same name as a column of the results; rename "
                "the id column."
            )
        known = isinstance(self.estimator, str)
        regression = _training.checked_task(self.estimator, self.task, train[target])
        task = self.task if known else "regression" if regression else "classification"
        train = train.copy(deep=False)
        own = train.attrs["decimal"] = _columns.decimal_mark(train)
        format = _target.target_format(train[target], task, own)
        found = [] if format is None else [_columns.format_note(train[target], format)]
        train, warned = _target.rows_with_target(train, target, format, TRAINING, own)
        if held_out is not None:
            held_out = _held_out.with_marks(as_frame(held_out, HELD_OUT), marked, HELD_OUT)[0]
            held_out, told = _target.rows_with_target(held_out, target, format, HELD_OUT, own)
            warned += told
        regression = _training.checked_task(self.estimator, self.task, train[target])
        if not regression:
            train, told = _target.without_lone_rows(train, target)
            warned += told
        y = _target.target_values(train[target], regression, TRAINING)
        # Clean the rows. For a fitted estimator, text is not parsed and no column is dropped.
        given = not (known or hasattr(self.estimator, "predict_uncertainty"))
        wanted = _training.trained_columns(self.estimator, features)
        columns = CleanColumns(not given, wanted if given else None).fit(train[[*wanted]])
        if not len(columns.feature_names_in_):
            raise TableError("The training table has no feature column left.")
        cleaned = columns.read(train, TRAINING)
        X = cleaned.X
        _refuse_large(cleaned, given)
        columns.accept(cleaned.cells)
        warned += _target.target_warnings(train, target, regression)
        warned += notes.cell_notes(cleaned.cells, train) + columns.warnings_
        for name, column in X.items():
            warned += _columns.doubts(str(name), column, is_number=name in columns.numbers_)
        found += notes.missing_notes(X.isna().sum(), TRAINING)
        found += [] if given else columns.notes_
        if regression and self.task == "auto" and known:
            told, doubts = _target.quantity_notes(y, target)
            found, warned = found + told, warned + doubts
        ids = [] if id_column is None or groups is not None else [id_column]
        if ids and _held_out.ids_are_groups(train[[*ids, target, *features]]):
            train = train.assign(**{_held_out.MARKS["groups"]: train[id_column]})
            found.append(notes.IDS_ARE_GROUPS.format(shown(id_column)))
        elif groups is None:
            warned += notes.panel_notes(train[features], {*columns.dates_}, time)
        self.target_, self.id_ = target, id_column
        self.task_ = "regression" if regression else "classification"
        self.feature_names_in_, self.columns_ = columns.feature_names_in_, columns
        if held_out is None:
            marks = _held_out.marks_of(train)
            table = train.drop(columns=[*drop, *_held_out.MARKS.values()], errors="ignore")
            parts = _held_out.hold_out_part(table, X, y, regression, self.random_state, marks)
        else:
            parts, told = self._given_rows(train, X, y, held_out)
            warned += told
        found += parts.notes
        self.training_values_ = TrainingValues.of_rows(parts.X, columns.numbers_)
        typical = np.random.default_rng(self.random_state).permutation(len(parts.X))[:N_TYPICAL]
        self._typical_rows = parts.X.iloc[typical].reset_index(drop=True)
        self.encoder_, self.estimator_, self.name_, self.comparison_, scale = _training.trained(
            *(self.estimator, columns, parts.X, parts.y),
            regression=regression,
            seed=self.random_state,
            n_jobs=self.n_jobs,
            tell=self._tell,
            groups=parts.marks.folds,
            weight=parts.marks.weight,
        )
        self.measured_rows_ = parts.measured_rows
        self.classes_ = None
        if not regression:
            self.classes_ = _target.classes_as_given(
                np.asarray(self.estimator_.classes_), train[target]
            )
        if not known and look_at(self.estimator).resamples:
            warned.append(RESAMPLED)
        found += notes.class_notes(self.classes_)
        found += notes.choice_notes(self.comparison_, self.name_, regression)
        found += [] if scale is None else scale.notes(target)
        if self.encoder_ is None and held_out is None:
            found.append(notes.HELD_OUT_MAY_HAVE_TRAINED)
        found += notes.unsupported_notes(self.training_values_.marks(parts.X_held), parts.X_held)
        self._tell(3, "scoring the held-out rows.")
        held = parts.y_held if regression else _target.classes_as_given(parts.y_held, train[target])
        texts = parts.X_held.drop(columns=columns.numbers_, errors="ignore")
        n_values = texts.nunique(dropna=False)
        texts = texts.loc[:, (n_values > 1) & (n_values <= _held_out.MOST_GROUPS)]
        self._held_out_groups = texts.fillna("(missing)").reset_index(drop=True)
        self._calibrate(parts.X_held, held, scale, parts.marks_held)
        self.held_out_.index = parts.labels
        # Put warnings about leaking columns first: a leak makes all other numbers meaningless.
        right = None if regression else self.held_out_["prediction"] == self.held_out_["label"]
        leaking = _held_out.leaking_columns(parts, self.measured_loss(), right, columns.numbers_)
        leaking = list(dict.fromkeys(map(columns.original, leaking)))
        self.warnings_ = notes.leakage_warnings(leaking) + warned
        self.notes_ = self.warnings_ + found
        return self

    def predict(
        self, table: Any, *, coverage: float = 0.9, n_explained: int = 100, strict: bool = False
    ) -> Any:
        """Predict each row of a table, with its uncertainty.

        A row's results do not depend on other rows, except that only the most unusual rows get
        ``reasons``. A row with an unreadable cell, such as a word in a numeric column, is not
        scored: its outputs are missing, and its ``reasons`` are "not scored: ...". A table with
        many such rows, as with a wrong decimal mark, is refused.

        Parameters
        ----------
        table : DataFrame of pandas or Polars, pyarrow Table, or ndarray
            Rows, shape (n_rows, n_columns); columns that were not trained on are ignored.
        coverage : float, default=0.9
            Coverage of the prediction sets or intervals.
        n_explained : int, default=100
            Number of rows for which ``reasons`` are computed: the most unusual rows.
        strict : bool, default=False
            Whether to raise an error if any row cannot be scored.

        Returns
        -------
        DataFrame or pyarrow Table
            One row per input row, in the same order, in a table of the same library as `table`
            (pandas for an array), with its index. Lists in a cell are separated by "; ". Columns:

            - the id column, if there is one;
            - ``prediction`` and, for classification, its probability ``confidence`` (0 if a model
              passed as `estimator` rejects the row);
            - ``total``, ``aleatoric`` and ``epistemic`` uncertainty. For regression, these are
              variances in squared units of the target, and ``std`` is the square root of the total;
            - ``conformal_p_value``: share of rows that are at least as unusual, among the held-out
              rows and the row itself. A row is unusual if many columns have an unseen value or a
              number far out of range, or if its epistemic uncertainty is high (`skuq.OODDetector`).
              Among rows like the training rows, a share p is expected to have a p-value up to p;
            - ``prediction_set``, or ``lower`` and ``upper``;
            - ``unseen``, columns with a category that no training row has, or with a missing number
              if the column has a number in every training row;
            - ``out_of_range``, columns with numbers outside the range of the training rows;
            - ``review``, why a person should look at the row, if at all: "unusual" (a p-value of at
              most 0.05), "undecided" (several classes in the set), "out of range" and "unseen" with
              their columns, or "not scored";
            - ``reasons``, up to three columns with their values: columns with unseen values, and
              columns that contribute most to the epistemic uncertainty;
            - for classification, the probability of each class, in columns such as ``p(yes)``.

        Raises
        ------
        TableError
            If a column is missing or has the wrong type.

        Warns
        -----
        NewValuesWarning
            If nearly all of at least 10 rows have new values in the same column.
        """
        return self._predicted(table, coverage, n_explained, strict)[0]

    def predict_and_count(
        self, table: Any, *, coverage: float = 0.9, n_explained: int = 100, strict: bool = False
    ) -> tuple[Any, pd.DataFrame]:
        """Return the results of `predict` and of `count`, but convert the table only once."""
        rows, *counted = self._predicted(table, coverage, n_explained, strict)
        return rows, self._counted(*counted)

    def _predicted(self, table: Any, coverage: float, n_explained: int, strict: bool) -> Any:
        given, table = table, as_frame(table, NEW)
        check_coverage(coverage)
        cleaned, unscored = self._rows(table)
        if unscored and (strict or FEWEST_UNREAD <= len(unscored) > len(table) / 2):
            _refuse_unread(unscored, NEW, len(table))
        X = cleaned.without(unscored)
        if X.empty:  # score a training row instead, to obtain the columns of the results
            X = self._typical_rows.head(1)
        found, outputs, disagreement = self._scored(X)
        marks = self.training_values_.marks(X)
        p_values = self.combination_.p_values(_scores(marks.unsupported, disagreement))
        found |= {"conformal_p_value": p_values, **self._regions(outputs, found, coverage)}
        found |= {n: marked_names(getattr(marks, n), X.columns) for n in ("unseen", "out_of_range")}
        found["review"] = _reviews(found)
        n_new = pd.Series((marks.unseen | marks.out_of_range).sum(axis=0), X.columns)
        n_new = n_new.reindex([*X.columns, *self.columns_.dates_], fill_value=0)
        later = "time" in self.held_out_
        for note in notes.new_value_notes(n_new, len(X), measured_later=later):
            warn_user(note, NewValuesWarning)
        first = rows_to_explain(p_values, disagreement, n_explained)
        texts = self._reasons(X.iloc[first], marks.unsupported[first]) if len(first) else []
        reasons = dict(zip(first.tolist(), texts, strict=True))
        found["reasons"] = [reasons.get(row, "") for row in range(len(X))]
        if self.classes_ is not None:
            found |= zip(probability_columns(self.classes_), outputs.T, strict=True)
        scored = pd.DataFrame(found)
        X = X[: len(table) - len(unscored)]
        scored = _with_unscored(scored[: len(X)], unscored, len(table))
        if self.id_ is not None:
            scored.insert(0, self.id_, table[self.id_].to_numpy())
        scored = scored.set_axis(table.index)
        if _columns.is_other_table(given):
            given = given.select([] if self.id_ is None else [self.id_])
            scored = as_table_of(given, scored)
        return scored, cleaned, X, marks

    def predict_uncertainty(self, table: Any) -> Uncertainty:
        """Predict the uncertainty of each row, as in the columns of `predict`."""
        rows = self.predict(as_frame(table, NEW), n_explained=0)
        found = Uncertainty(*(rows[name].to_numpy(dtype=np.float64) for name in base.PARTS))
        return with_index_of(table, found)

    @available_if(lambda model: get_tags(model).estimator_type != "regressor")
    def predict_proba(self, table: Any) -> FloatArray:
        """Predict class probabilities, (n_rows, n_classes); not available for regression."""
        rows = self.predict(as_frame(table, NEW), n_explained=0)
        return rows[probability_columns(self.classes_)].to_numpy(dtype=np.float64)

    def score(self, table: Any, target: Any) -> float:
        """Return the accuracy of the predicted classes, or R² for regression.

        `target` is the name of the column with the true values, or these values.
        """
        frame = as_frame(table, NEW)
        truth = _target.true_values(frame, target, NEW)
        predicted = self.predict(frame, n_explained=0)["prediction"]
        if self.classes_ is None:
            return float(r2_score(truth.to_numpy(dtype=float), predicted))
        # Compare as text: the same class may be stored with different types in the two tables.
        right = [as_text(a) == as_text(b) for a, b in zip(predicted, truth, strict=True)]
        return float(np.mean(right))

    def predict_quantiles(self, table: Any, levels: ArrayLike | None = None) -> FloatArray:
        """Predict quantiles of the target (regression only), without conformal calibration.

        None means 25 levels from 0.005 to 0.995; other levels are clipped to this range. Returns
        quantiles in units of the target, (n_rows, n_levels); NaN in rows that cannot be scored.
        """
        self._require("regression", "quantiles")
        wanted = LEVELS if levels is None else checked_levels(levels)
        frame = as_frame(table, NEW)
        cleaned, unread = self._rows(frame)
        X, quantiles = cleaned.without(unread), np.full((len(frame), len(wanted)), np.nan)
        if len(X):
            scored = np.setdiff1d(np.arange(len(frame)), [*unread])
            quantiles[scored] = interpolated(self._scored(X)[1], LEVELS, wanted)
        return quantiles

    def predict_interval(self, table: Any, coverage: float = 0.9) -> base.PredictionInterval:
        """Predict intervals (regression only): the columns ``lower`` and ``upper`` of `predict`."""
        self._require("regression", "intervals")
        rows = self.predict(as_frame(table, NEW), coverage=coverage, n_explained=0)
        return base.PredictionInterval(rows["lower"].to_numpy(), rows["upper"].to_numpy())

    def count(self, table: Any) -> pd.DataFrame:
        """Count special values by column; the counts of parts of a table can be added up.

        Returns one row per column with these numbers: ``rows`` that can be scored; their
        ``missing``, ``unseen`` and ``out_of_range`` values; ``ranges``, such as "10 - 20", read as
        their midpoint; and ``unread`` cells, because of which rows cannot be scored.
        """
        cleaned, unread = self._rows(as_frame(table, NEW))
        X = cleaned.without(unread)
        return self._counted(cleaned, X, self.training_values_.marks(X))

    def _counted(self, cleaned: Cleaned, X: pd.DataFrame, marks: Any) -> pd.DataFrame:
        counts = {
            "rows": pd.Series(len(X), index=X.columns),
            "missing": X.isna().sum(),
            "unseen": pd.Series(marks.unseen[: len(X)].sum(axis=0), X.columns),
            "out_of_range": pd.Series(marks.out_of_range[: len(X)].sum(axis=0), X.columns),
            "ranges": cleaned.n_cells(read=True),
            "unread": cleaned.n_cells(read=False),
        }
        names = [*X.columns, *self.columns_.dates_]
        return pd.DataFrame(counts, index=names).fillna(0).astype(int)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        task = getattr(self, "task_", self.task)
        tags.estimator_type = ESTIMATOR_TYPES.get(task)
        if task == "auto" and hasattr(self.estimator, "__sklearn_tags__"):
            tags.estimator_type = get_tags(self.estimator).estimator_type
        kind = tags.estimator_type
        tags.classifier_tags = ClassifierTags() if kind == "classifier" else None
        tags.regressor_tags = RegressorTags() if kind == "regressor" else None
        tags.target_tags.required = True
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = True
        return tags

    def _tell(self, step: int, text: str) -> None:
        """Report the start of a step (1 to 3); step 1, the comparison, only exists for "auto"."""
        if self.progress is not None:
            skipped = int(not isinstance(self.estimator, str) or self.estimator != "auto")
            self.progress(f"{step - skipped} of {3 - skipped}: {text}")

    def _given_rows(
        self, train: pd.DataFrame, X: pd.DataFrame, y: NDArray[Any], table: pd.DataFrame
    ) -> tuple[Parts, list[str]]:
        cleaned = self.columns_.read(table, HELD_OUT)
        unread = cleaned.unread(table)
        if len(unread) == len(table):
            _refuse_unread(unread, HELD_OUT, len(table))
        table = table[[row not in unread for row in range(len(table))]]
        y_held = _target.target_values(table[self.target_], self.task_ == "regression", HELD_OUT, y)
        marked = _held_out.MARKS["groups"]
        name = marked if marked in table else self.id_
        ids = (train[name], table[name]) if name in table else None
        if name == self.id_ and marked in train:
            table = table.assign(**{marked: table[name]})
        marks = _held_out.marks_of(train), _held_out.marks_of(table)
        parts = Parts(X, y, cleaned.without(unread), y_held, [], table.index, *marks)
        return _held_out.drop_overlap(parts, ids), notes.unread_notes(unread, HELD_OUT)

    def _calibrate(
        self, X: pd.DataFrame, y: NDArray[Any], scale: TargetScale | None, marks: Marks
    ) -> None:
        self.quantities_ = None if scale is None else Quantities(scale)
        if scale is not None and (
            self.encoder_ is None or not hasattr(self.estimator_, "predict_quantiles")
        ):
            with table_errors(self.name_, X):
                self.quantities_ = Quantities.of_held_out(
                    *(self.estimator_, self._encoded(X), y, scale, self.random_state),
                    (marks.weight, marks.groups),
                )
        found, outputs, disagreement = self._scored(X, held_out=True)
        unsupported = self.training_values_.marks(X).unsupported
        found |= {"n_unsupported": unsupported.sum(axis=1), "label": y}
        self.held_out_proba_ = None if self.task_ == "regression" else outputs
        self._held_out_quantiles = outputs if self.task_ == "regression" else None
        self.held_out_ = pd.DataFrame(found | marks.of_results())
        scores = _scores(unsupported, disagreement)
        kinds = {name: name for name in scores}
        self.combination_ = Combination.of(scores, kinds, None, marks.weight, marks.groups)

    def _rows(self, table: pd.DataFrame) -> tuple[Cleaned, dict[int, str]]:
        check_is_fitted(self)
        if self.id_ is not None:
            _columns.require(table, self.id_, NEW)
        cleaned = self.columns_.read(table, NEW)
        return cleaned, cleaned.unread(table)

    def _encoded(self, X: pd.DataFrame) -> Any:
        if self.encoder_ is not None:
            return self.encoder_.transform(X)
        # An external estimator expects the types and names of the user's table.
        return self.columns_.inverse_transform(X)

    def _reasons(self, X: pd.DataFrame, unsupported: BoolArray) -> list[str]:
        if self.encoder_ is not None:
            rows, typical = map(self.encoder_.transform, (X, self._typical_rows))
            inputs, epistemic = self.encoder_.inputs_of([*X]), self._disagreement
            return explained(X, unsupported, typical, epistemic, rows=rows, inputs=inputs)
        # Convert complete tables, because the type of a converted column depends on all its values.
        return explained(
            *(X, unsupported, self._typical_rows),
            lambda table: self._disagreement(self._encoded(table)),
        )

    def _disagreement(self, inputs: Any) -> FloatArray:
        """Compute the quantity that ``reasons`` explain: model spread or epistemic uncertainty."""
        # Regressors: use the spread of the models, which is cheaper than the epistemic part.
        if hasattr(self.estimator_, "predict_model_std"):
            return self.estimator_.predict_model_std(inputs)
        return predict_uncertainty(self.estimator_, inputs).part_or_total("epistemic")

    def _scored(
        self, X: pd.DataFrame, *, held_out: bool = False
    ) -> tuple[dict[str, Any], FloatArray, FloatArray]:
        inputs = self._encoded(X)
        with table_errors(self.name_, X):
            if self.quantities_ is not None:
                return self.quantities_.predict(self.estimator_, inputs, held_out=held_out)
            uncertainty = predict_uncertainty(self.estimator_, inputs)
            proba = self.estimator_.predict_proba(inputs)
            codes = proba.argmax(axis=1)
            predicted = self.classes_[codes]
            if self.name_ not in LABELS:  # a given model may not choose the likeliest class
                answer = np.asarray(self.estimator_.predict(inputs))
                codes = positions_of(answer, np.asarray(self.estimator_.classes_))
                predicted = answer if (codes < 0).any() else self.classes_[codes]
        found = {"prediction": predicted, "confidence": labels.confidence_at(codes, proba)}
        found |= zip(base.PARTS, uncertainty.parts, strict=True)
        return found, proba, uncertainty.part_or_total("epistemic")

    def _regions(
        self, outputs: FloatArray, found: dict[str, Any], coverage: float
    ) -> dict[str, Any]:
        limit = self._limit(coverage)
        if self.quantities_ is not None:
            lower, upper = self.quantities_.interval(outputs, coverage, limit)
            return {"lower": lower, "upper": upper}
        codes = positions_of(found["prediction"], self.classes_)
        # With `pd.Index`, the names of the classes are the same as in files that pandas writes.
        names = [str(label) for label in pd.Index(self.classes_)]
        sets = _held_out.prediction_sets(outputs, limit, codes)
        return {"prediction_set": marked_names(sets, names)}


def _scores(unsupported: BoolArray, disagreement: FloatArray) -> dict[str, FloatArray]:
    """Return scores of each row by name, larger for more unusual rows; (n_rows,) each."""
    return {"support": unsupported.sum(axis=1).astype(np.float64), "epistemic": disagreement}


def _reviews(found: dict[str, Any]) -> list[str]:
    """State why a person should look at each row; "" for ordinary rows."""
    parts = [["unusual" if p <= notes.UNUSUAL else "" for p in found["conformal_p_value"]]]
    sets = found.get("prediction_set", ())
    parts += [["undecided" if SEPARATOR in names else "" for names in sets]] if sets else []
    for name in ("out_of_range", "unseen"):
        columns = [names.replace(SEPARATOR, ", ") for names in found[name]]
        parts.append([f"{name.replace('_', ' ')} ({each})" if each else "" for each in columns])
    return [SEPARATOR.join(filter(None, row)) for row in zip(*parts, strict=True)]


def _refuse_large(cleaned: Cleaned, given: bool) -> None:
    """Raise if more than a few numbers of a column are infinite (or any, if `given` a model)."""
    for each in cleaned.cells:
        if not each.read and len(each.rows) > (0 if given else FEW * len(cleaned.X)):
            raise TableError(
                f"Column {each.column!r} of the training table has numbers that are infinite or "
                f"beyond {_columns.TOO_LARGE:g}, such as {each.texts[0]}; correct them or leave "
                "them empty."
            )


def _refuse_unread(rows: dict[int, str], which: str, n_rows: int) -> None:
    raise TableError(
        f"{len(rows)} of the {n_rows} rows of the {which} cannot be scored; the first is in "
        f"{next(iter(rows.values()))}. Correct these cells, or leave them empty; if these are "
        "numbers, state their decimal mark when the table is read (`decimal`)."
    )


def _with_unscored(scored: pd.DataFrame, rows: dict[int, str], n_rows: int) -> pd.DataFrame:
    if not rows:
        return scored
    if is_integer_dtype(scored["prediction"]):  # numpy's integers cannot represent missing values
        scored = scored.astype({"prediction": "Int64"})
    elif is_bool_dtype(scored["prediction"]):
        scored = scored.astype({"prediction": "boolean"})
    positions = [row for row in range(n_rows) if row not in rows]
    scored = scored.set_axis(positions).reindex(range(n_rows))
    texts = [name for name in TEXTS if name in scored]
    scored[texts] = scored[texts].fillna("")
    scored.loc[[*rows], "review"] = "not scored"
    scored.loc[[*rows], "reasons"] = [f"not scored: {reason}" for reason in rows.values()]
    return scored
