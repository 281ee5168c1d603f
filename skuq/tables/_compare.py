"""Paired comparison of two table models on the same labelled rows, overall and by subgroup.

The comparison uses the difference of losses on each row, first model minus second model. Most of
the difficulty of a row is the same for both models and cancels in this difference. The tests are:

- for mean differences: a paired t test against 0;
- for binary outcomes: McNemar's exact test ("Note on the Sampling Error of the Difference between
  Correlated Proportions or Percentages", Psychometrika 12, 1947);
- for areas under risk-coverage curves: a bootstrap of rows.

P-values of subgroups are corrected for multiple testing (Holm, "A Simple Sequentially Rejective
Multiple Test Procedure", Scandinavian Journal of Statistics 6, 1979).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from skuq.base import FloatArray, IntArray
from skuq.labels import as_text, probability_columns
from skuq.metrics import area_under_risk_coverage
from skuq.tables._inputs import as_frame
from skuq.tables._model import TableModel
from skuq.tables._target import rows_with_target, target_format, target_values
from skuq.tables._validation import TableError, check_share, separator_hint

LEVEL = 0.05  # significance level
INTERVAL = 0.95  # confidence level of the intervals for differences
N_RESAMPLES = 400
FEWEST = 10  # minimum number of rows in the table and in each subgroup
# Maximum number of subgroups by the values of a column. If a numeric column has more distinct
# values, its subgroups are quarters.
MOST_VALUES = 20
MOST_NAMED = 5  # maximum number of subgroups named in a sentence
QUARTERS = ("lowest quarter", "second quarter", "third quarter", "highest quarter")


class ModelComparison(NamedTuple):
    """Comparison of two models on the same labelled rows.

    Attributes
    ----------
    n_rows : int
        Labelled rows.
    measures : DataFrame
        One row per measure, the primary measure first. Columns: ``a`` and ``b``, the values of the
        measure for both models; ``difference``, a minus b; ``low`` and ``high``, a 95 % confidence
        interval for the difference; ``p_value`` of the hypothesis of no difference; and ``better``:
        "A", "B", or "" if the difference is not significant.
    parts : DataFrame
        The same columns for the primary measure on subgroups of the rows. In addition, ``by`` is
        the criterion, ``part`` the subgroup, and ``rows`` its size. P-values are corrected for the
        number of subgroups.
    notes : list of str
        Sentences on dropped rows, with the reason.
    """

    n_rows: int
    measures: pd.DataFrame
    parts: pd.DataFrame
    notes: list[str]

    @property
    def sentences(self) -> list[str]:
        """The result in sentences; the first sentence states which model is better."""
        name, first = self.measures.index[0], self.measures.iloc[0]
        better = first["better"]
        verdict = f"{better} is better" if better else "Neither is significantly better"
        told = [
            f"{verdict} on {self.n_rows} rows: {name} {_number(first['a'])} for A and "
            f"{_number(first['b'])} for B (p {_p(first['p_value'])})."
        ]
        for better in ("A", "B"):
            where = self.parts[self.parts["better"] == better].sort_values("p_value", kind="stable")
            if len(where):
                shown = [
                    f"{by} {part}" for by, part in where[["by", "part"]].to_numpy()[:MOST_NAMED]
                ]
                more = len(where) - len(shown)
                shown += [f"and {more} more of {len(self.parts)} subgroups"] if more else []
                told.append(f"{better} is better for: {', '.join(shown)}.")
        if not self.parts["better"].any():
            told.append("They do not differ significantly on any subgroup of the rows.")
        return [*told, *self.notes]


class _Outcome(NamedTuple):
    """Losses and outcomes of one model, (n_rows,) each."""

    loss: FloatArray  # loss of the primary measure
    hit: NDArray[np.bool_]  # correct predictions, or covered targets
    uncertainty: FloatArray
    prediction: NDArray[Any]
    interval_score: FloatArray | None


def compare_models(
    a: TableModel,
    b: TableModel,
    table: Any,
    *,
    coverage: float = 0.9,
    groups: Sequence[str] = (),
) -> ModelComparison:
    """Compare two models on the same labelled rows.

    Classifiers are compared by log loss, accuracy and the area under the risk-coverage curve of the
    total uncertainty; regressors by squared error, interval score and coverage. The primary
    measure (log loss or squared error) decides which model is better. Neither model may have been
    trained on these rows.

    Parameters
    ----------
    a, b : TableModel
        Fitted models of the same target.
    table : DataFrame of pandas or Polars, pyarrow Table, or ndarray
        Rows with the target, shape (n_rows, n_columns). Rows whose target is missing are dropped.
    coverage : float, default=0.9
        Coverage of the prediction intervals.
    groups : sequence of str, default=()
        Columns whose values define further subgroups. Subgroups are always formed by uncertainty
        and by true class (classification) or predicted value (regression).

    Returns
    -------
    ModelComparison
        ``measures``, ``parts``, ``n_rows`` and ``sentences``.

    Raises
    ------
    TableError
        If the models predict different targets, or the table lacks a column, a class or enough
        rows.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq.tables import TableModel, compare_models
    >>> flowers = load_iris(as_frame=True).frame.sample(frac=1, random_state=0)
    >>> a = TableModel("logistic").fit(flowers[:100], "target")
    >>> b = TableModel("logistic").fit(flowers[["sepal width (cm)", "target"]][:100], "target")
    >>> compare_models(a, b, flowers[100:]).measures["better"].tolist()[0]
    'A'
    """
    check_share(coverage)
    table = as_frame(table, "labelled table")
    if (a.target_, a.task_) != (b.target_, b.task_):
        raise TableError(
            f"The models predict different targets, {a.target_!r} ({a.task_}) and {b.target_!r} "
            f"({b.task_}); compare two models of the same target."
        )
    absent = [name for name in (a.target_, *groups) if name not in table]
    if absent:
        raise TableError(f"The labelled table has no column {absent[0]!r}.{separator_hint(table)}")
    decimal, regression = table.attrs.get("decimal"), a.task_ == "regression"
    format = target_format(table[a.target_], a.task_, decimal) if regression else None
    table, notes = rows_with_target(table, a.target_, format, "labelled table", decimal)
    table = table.reset_index(drop=True)
    if len(table) < FEWEST:
        raise TableError(
            f"The labelled table has {len(table)} rows with a value of {a.target_!r}; at least "
            f"{FEWEST} are needed."
        )
    predicted = [model.predict(table, coverage=coverage, n_explained=0) for model in (a, b)]
    scored = np.logical_and(*(rows["prediction"].notna().to_numpy() for rows in predicted))
    if not scored.all():
        notes.append(f"{(~scored).sum()} rows that cannot be scored were dropped.")
    table, *predicted = (each[scored].reset_index(drop=True) for each in (table, *predicted))
    if regression:
        y = target_values(table, a.target_, True, "labelled table")
        first, second = (_of_quantities(rows, y, coverage) for rows in predicted)
        measures, truth = _measures_of_quantities(first, second), y
    else:
        models = zip((a, b), predicted, strict=True)
        first, second = (_of_classes(model, table, rows) for model, rows in models)
        truth = np.array([as_text(v) for v in _labels(a, table)], dtype=object)
        measures = _measures_of_classes(first, second, truth)
    parts = _parts(first, second, dict(_divisions(first, second, truth, table[[*groups]])))
    return ModelComparison(len(table), measures, parts, notes)


def _labels(model: TableModel, table: pd.DataFrame) -> NDArray[Any]:
    which = "labelled table"
    return target_values(table, model.target_, False, which, known=model.classes_)


def _of_classes(model: TableModel, table: pd.DataFrame, rows: pd.DataFrame) -> _Outcome:
    labels = _labels(model, table)
    proba = rows[probability_columns(model.classes_)].to_numpy(dtype=np.float64)
    likelihood = proba[np.arange(len(rows)), np.searchsorted(model.classes_, labels)]
    return _Outcome(
        loss=-np.log(np.clip(likelihood, np.finfo(float).eps, 1)),
        hit=rows["prediction"].to_numpy() == labels,
        uncertainty=rows["total"].to_numpy(),
        prediction=rows["prediction"].to_numpy(),
        interval_score=None,
    )


def _of_quantities(rows: pd.DataFrame, truth: FloatArray, coverage: float) -> _Outcome:
    low, high = rows["lower"].to_numpy(), rows["upper"].to_numpy()
    return _Outcome(
        loss=(truth - rows["prediction"].to_numpy()) ** 2,
        hit=(low <= truth) & (truth <= high),
        uncertainty=rows["total"].to_numpy(),
        prediction=rows["prediction"].to_numpy(),
        interval_score=interval_scores_of_rows(truth, low, high, coverage),
    )


def interval_scores_of_rows(
    y: FloatArray, low: FloatArray, high: FloatArray, coverage: float
) -> FloatArray:
    """Interval width plus a penalty for targets outside the interval; (n_rows,).

    Gneiting, Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", Journal of the
    American Statistical Association 102, 2007, Eq. 43.
    """
    outside = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    score: FloatArray = high - low + 2 / (1 - coverage) * outside
    return score


# --- differences and significance tests ----------------------------------------------------------


def _row(a: float, b: float, low: float, high: float, p: float, *, small: bool) -> dict[str, Any]:
    """One row of the measures; `small` tells whether smaller values are better."""
    better = ""
    if p <= LEVEL and a != b:
        better = "A" if (a < b) == small else "B"
    return {
        "a": a,
        "b": b,
        "difference": a - b,
        "low": low,
        "high": high,
        "p_value": p,
        "better": better,
    }


def _paired(a: FloatArray, b: FloatArray) -> dict[str, Any]:
    """Compare mean losses by a paired t test; NaN if a loss is infinite."""
    mean = float((a - b).mean())
    if not np.isfinite(mean):
        return _row(float(a.mean()), float(b.mean()), np.nan, np.nan, np.nan, small=True)
    error = float((a - b).std(ddof=1) / np.sqrt(len(a)))
    half = error * stats.t.ppf((1 + INTERVAL) / 2, len(a) - 1)
    p = 1.0 if mean == 0 else float(2 * stats.t.sf(abs(mean) / error, len(a) - 1)) if error else 0.0
    return _row(float(a.mean()), float(b.mean()), mean - half, mean + half, p, small=True)


def _mcnemar(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> dict[str, Any]:
    """Compare shares of hits by McNemar's exact test on the rows where the models differ."""
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    differ = only_a + only_b
    p = float(stats.binomtest(only_a, differ).pvalue) if differ else 1.0
    mean = float(a.mean() - b.mean())
    half = stats.norm.ppf((1 + INTERVAL) / 2) * np.sqrt((differ / len(a) - mean**2) / len(a))
    return _row(float(a.mean()), float(b.mean()), mean - half, mean + half, p, small=False)


def _areas(a: _Outcome, b: _Outcome) -> dict[str, Any]:
    """Compare areas under the risk-coverage curves by a bootstrap of rows."""
    rng, n = np.random.default_rng(0), len(a.hit)

    def area(outcome: _Outcome, rows: IntArray) -> float:
        right = outcome.hit[rows]
        return area_under_risk_coverage(np.ones(n, bool), right, outcome.uncertainty[rows])

    every = np.arange(n)
    values = [area(outcome, every) for outcome in (a, b)]
    draws = rng.integers(n, size=(N_RESAMPLES, n))
    differences = np.array([area(a, rows) - area(b, rows) for rows in draws])
    low, high = np.quantile(differences, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    tail = min((differences <= 0).sum(), (differences >= 0).sum())
    p = min(1.0, 2 * (1 + tail) / (1 + N_RESAMPLES))
    return _row(values[0], values[1], float(low), float(high), float(p), small=True)


def _measures_of_classes(a: _Outcome, b: _Outcome, truth: NDArray[Any]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(
        {
            "log loss": _paired(a.loss, b.loss),
            "accuracy": _mcnemar(a.hit, b.hit),
            "area under the risk-coverage curve": _areas(a, b),
        },
        orient="index",
    )


def _measures_of_quantities(a: _Outcome, b: _Outcome) -> pd.DataFrame:
    assert a.interval_score is not None
    assert b.interval_score is not None
    # The model with the higher coverage is not called better, because its intervals may only be
    # wider; the interval score penalises wide intervals.
    covered = _mcnemar(a.hit, b.hit) | {"better": ""}
    return pd.DataFrame.from_dict(
        {
            "mean squared error": _paired(a.loss, b.loss),
            "interval score": _paired(a.interval_score, b.interval_score),
            "coverage": covered,
        },
        orient="index",
    )


# --- subgroups of the rows -----------------------------------------------------------------------


def _divisions(
    a: _Outcome, b: _Outcome, truth: NDArray[Any], groups: pd.DataFrame
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield each criterion and the subgroup of every row, (n_rows,), under that criterion."""
    if a.interval_score is None:
        yield "true class", truth
    else:
        yield "prediction", _quarters(np.asarray(a.prediction + b.prediction, dtype=float))
    # Add the ranks of the uncertainties, since the two models may estimate uncertainty on different
    # scales.
    ranks = stats.rankdata(a.uncertainty) + stats.rankdata(b.uncertainty)
    yield "uncertainty", _quarters(ranks)
    for name, column in groups.items():
        values = column.map(as_text, na_action="ignore").fillna("missing").to_numpy(dtype=object)
        is_quantity = len(set(values)) > MOST_VALUES and pd.api.types.is_numeric_dtype(column)
        yield str(name), _quarters(column.to_numpy(dtype=float)) if is_quantity else values


def _quarters(values: FloatArray) -> NDArray[Any]:
    """Name of the quartile group of each value; (n_rows,)."""
    edges = np.nanquantile(values, [0.25, 0.5, 0.75])
    names = np.array([*QUARTERS, "missing"], dtype=object)
    quarter = np.where(np.isnan(values), len(QUARTERS), np.searchsorted(edges, values))
    found: NDArray[Any] = names[quarter]
    return found


def _parts(a: _Outcome, b: _Outcome, divisions: dict[str, NDArray[Any]]) -> pd.DataFrame:
    found = []
    for by, part_of in divisions.items():
        names, counts = np.unique(part_of, return_counts=True)
        large = sorted(zip(-counts, names, strict=True))[:MOST_VALUES]
        for name in (name for count, name in large if -count >= FEWEST):
            rows = part_of == name
            line = {"by": by, "part": name, "rows": int(rows.sum())}
            found.append(line | _paired(a.loss[rows], b.loss[rows]))
    table = pd.DataFrame(found)
    table["p_value"] = _holm(table["p_value"].to_numpy(dtype=float))
    table["better"] = table["better"].where(table["p_value"] <= LEVEL, "")
    order = {name: position for position, name in enumerate(QUARTERS)}
    division = {name: position for position, name in enumerate(divisions)}
    return table.sort_values(
        ["by", "part"],
        key=lambda column: column.map(lambda v: (division | order).get(v, -1)),
        kind="stable",
    ).reset_index(drop=True)


def _holm(p_values: FloatArray) -> FloatArray:
    """P-values corrected for multiple testing by Holm's procedure; (n_tests,)."""
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1, np.maximum.accumulate(factors * p_values[order]))
    return corrected


def _number(value: float) -> str:
    return f"{value:.4g}"


def _p(value: float) -> str:
    return "not known" if np.isnan(value) else "below 0.0001" if value < 1e-4 else f"= {value:.2g}"
