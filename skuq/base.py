"""Protocol that all estimators implement: `predict_uncertainty`, which returns `Uncertainty`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import is_regressor
from sklearn.utils.validation import check_is_fitted

from skuq._information import decompose_expected
from skuq._version import __version__
from skuq.devices import DeviceMixin
from skuq.wrappers import is_target_transformer, unwrap, walk_to

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Result = TypeVar("Result")

_STAMP = "_skuq_version"  # key under which pickles store the version of skuq
_N_SHOWN = 10  # number of rows of a result that a notebook shows
#: Names of the parts of `Uncertainty`, in the order of its attribute `parts`.
PARTS = ("total", "aleatoric", "epistemic")


class UncertaintyRow(NamedTuple):
    """Uncertainty of one input: an item of `Uncertainty`."""

    total: float
    aleatoric: float
    epistemic: float


@dataclass(frozen=True, eq=False, slots=True)
class Uncertainty:
    """Predictive uncertainty of a batch of inputs, split by its source.

    A sequence with one row per input: iteration and ``u[3]`` return a row as a named tuple of three
    numbers; a mask, an array of positions or a slice selects rows as a new `Uncertainty`. Two
    results are equal if their parts are equal.

    Attributes
    ----------
    total, aleatoric, epistemic : ndarray of shape (n_samples,), float64
        ``total == aleatoric + epistemic`` up to a relative error of 1e-8. The documentation of the
        estimator states the quantity and its unit (nats, probability, squared return). A part that
        the estimator does not measure is NaN. The total is then the measured part or, if neither
        part is measured, a score that does not distinguish the two parts.
    parts : tuple of three ndarrays of shape (n_samples,), float64
        The three arrays above, for unpacking: ``total, aleatoric, epistemic = u.parts``.
    index : pandas.Index of length n_samples or None
        Labels of the rows; None unless the inputs were a pandas object.

    Examples
    --------
    >>> from skuq import Uncertainty
    >>> u = Uncertainty.from_parts(aleatoric=[0.5, 0.25], epistemic=[0.0, 0.5])
    >>> u.total
    array([0.5 , 0.75])
    >>> u[u.epistemic > 0.1].total
    array([0.75])
    """

    total: FloatArray
    aleatoric: FloatArray
    epistemic: FloatArray
    index: pd.Index[Any] | None = field(default=None, repr=False, kw_only=True)

    @classmethod
    def from_parts(cls, aleatoric: ArrayLike | None, epistemic: ArrayLike | None) -> Uncertainty:
        """Build from the two parts; the total is their sum.

        Pass None for a part that is not measured. It becomes NaN; the total equals the other part.
        """
        measured = [np.asarray(p, np.float64) for p in (aleatoric, epistemic) if p is not None]
        if not measured:
            raise ValueError(
                "`aleatoric` and `epistemic` must not both be None; for a total without parts use "
                "`Uncertainty.from_total`."
            )
        if len(measured) == 1:
            nothing = np.full_like(measured[0], np.nan)
            both = [nothing, *measured] if aleatoric is None else [*measured, nothing]
            return cls(*measured, *both)
        one, two = measured
        if one.shape != two.shape:
            raise ValueError(
                "`aleatoric` and `epistemic` must have one value for each input, got shapes "
                f"{one.shape} and {two.shape}."
            )
        return cls(one + two, one, two)

    @classmethod
    def from_total(cls, total: ArrayLike) -> Uncertainty:
        """Build from a score that does not distinguish the two parts; both parts are NaN."""
        score = np.asarray(total, np.float64)
        return cls(score, np.full_like(score, np.nan), np.full_like(score, np.nan))

    @classmethod
    def from_models(cls, proba: ArrayLike) -> Uncertainty:
        """Build from probabilities that several models predict, (n_samples, n_models, n_classes).

        The models are equally plausible. The aleatoric part is their mean entropy, the epistemic
        part is the mutual information of class and model, both in nats.
        """
        with np.errstate(divide="ignore"):  # log 0 = -inf is intended
            log_proba = np.log(np.asarray(proba, np.float64))
        weights = np.full(log_proba.shape[:-1], 1 / log_proba.shape[-2])
        return cls.from_parts(*decompose_expected(log_proba, weights))

    def part_or_total(self, part: str) -> FloatArray:
        """Return one part by name, (n_samples,); the total replaces NaN.

        Use it to rank inputs, as `UncertaintyMixin.score_samples` does.
        """
        values: FloatArray = getattr(self, part)
        return np.where(np.isnan(values), self.total, values)

    @property
    def parts(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Total, aleatoric and epistemic uncertainty of all rows."""
        return self.total, self.aleatoric, self.epistemic

    def __len__(self) -> int:
        return len(self.total)

    def __iter__(self) -> Iterator[UncertaintyRow]:
        return map(UncertaintyRow, *(part.tolist() for part in self.parts))

    @overload
    def __getitem__(self, rows: int) -> UncertaintyRow: ...

    @overload
    def __getitem__(self, rows: Any) -> Uncertainty: ...

    def __getitem__(self, rows: Any) -> Uncertainty | UncertaintyRow:
        """Return one row for an integer, or an `Uncertainty` with several rows."""
        positions = np.arange(len(self))[rows]
        if isinstance(rows, int | np.integer):
            return next(iter(self[[positions]]))
        if positions.ndim != 1:
            raise IndexError(
                f"Rows must be selected by an integer, a slice, or a one-dimensional array of "
                f"integers or booleans, got an index whose result has {positions.ndim} dimensions."
            )
        index = None if self.index is None else self.index[positions]
        return Uncertainty(*(part[positions] for part in self.parts), index=index)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Uncertainty):
            return NotImplemented
        pairs = zip(self.parts, other.parts, strict=True)
        return all(np.array_equal(*pair, equal_nan=True) for pair in pairs)

    __hash__ = None  # type: ignore[assignment]  # arrays are mutable

    def to_frame(self, index: Any = None) -> pd.DataFrame:
        """Return a DataFrame with columns total, aleatoric, epistemic; one row per input.

        `index` are the labels of the rows, by default the attribute `index` (None: 0, 1, ...).
        """
        import pandas as pd

        index = self.index if index is None else index
        return pd.DataFrame(dict(zip(PARTS, self.parts, strict=True)), index=index)

    def _repr_html_(self) -> str | None:
        """Return an HTML table of the first rows; None if the parts are not one-dimensional."""
        if np.ndim(self.total) != 1:
            return None
        shown = self[:_N_SHOWN].to_frame().to_html()  # escapes labels
        first = f" (the first {_N_SHOWN} are shown)" if len(self) > _N_SHOWN else ""
        return f"<p>Uncertainty of {len(self)} rows{first}:</p>{shown}"


class CredalInterval(NamedTuple):
    """Range of the class probabilities that several models predict, for a batch of inputs.

    The range is not a guarantee: other models may predict probabilities outside it.

    Attributes
    ----------
    lower, upper : ndarray of shape (n_samples, n_classes), float64
        Smallest and largest probability of each class; columns in the order of `classes_`.

    References
    ----------
    Wang et al., "Credal Wrapper of Model Averaging for Uncertainty Estimation in
    Classification", ICLR 2025.
    """

    lower: FloatArray
    upper: FloatArray


class PredictionInterval(NamedTuple):
    """Interval that is expected to contain the target, for each input of a batch.

    Attributes
    ----------
    lower, upper : ndarray of shape (n_samples,), float64
        Endpoints of the intervals, in the unit of the target.
    """

    lower: FloatArray
    upper: FloatArray


class UncertaintyMixin(DeviceMixin):
    """Mixin for estimators that implement ``predict_uncertainty(X) -> Uncertainty``.

    It adds ``score_samples``, so that out-of-distribution detection works in a plain scikit-learn
    ``Pipeline`` and with scikit-learn's scorers. Loading a pickle raises a `ValueError` if
    another major or minor version of skuq saved it, because attributes may have changed meaning.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), _STAMP: __version__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        version = state.get(_STAMP, "0.0")
        if version.split(".")[:2] != __version__.split(".")[:2]:
            raise ValueError(
                f"This {type(self).__name__} was pickled by skuq {version}, and skuq {__version__} "
                f"may misread its attributes. Fit it again, or install skuq {version}."
            )
        super().__setstate__({name: value for name, value in state.items() if name != _STAMP})

    def score_samples(self: Any, X: Any) -> FloatArray:
        """Score inputs for out-of-distribution detection: minus the epistemic uncertainty.

        If the epistemic part is not measured, the score is minus the total. Inputs with lower
        scores, (n_samples,), are more likely out-of-distribution.
        """
        scores: FloatArray = -self.predict_uncertainty(X).part_or_total("epistemic")
        return scores


def with_index_of(X: Any, result: Result) -> Result:
    """Return an `Uncertainty` or a DataFrame with the index of `X` if `X` is a pandas object."""
    pandas = sys.modules.get("pandas")  # if pandas was not imported, X is not a pandas object
    if pandas is None or not isinstance(X, pandas.DataFrame | pandas.Series):
        return result
    if isinstance(result, pandas.DataFrame):
        return result.set_index(X.index)
    if isinstance(result, Uncertainty) and np.shape(result.total) == (len(X),):
        return replace(result, index=X.index)
    return result


def predict_uncertainty(estimator: Any, X: Any) -> Uncertainty:
    """Predict uncertainty with any fitted estimator that wraps an estimator of skuq.

    Wrappers are removed, and the transformers of pipelines are applied to `X`. The supported
    wrappers are scikit-learn's `Pipeline`, search objects (`GridSearchCV` etc., with ``refit``),
    `FrozenEstimator`, `FixedThresholdClassifier`, `TunedThresholdClassifierCV`,
    `SelfTrainingClassifier`, `RFE`/`RFECV`, `CalibratedClassifierCV` around a single model (the
    result ignores the recalibration), and `TransformedTargetRegressor` if it scales its target
    (the result is in the unit of the original target).

    Parameters
    ----------
    estimator : object
        Fitted estimator.
    X : array-like of shape (n_samples, n_features)
        Inputs in the form that `estimator.predict` accepts.

    Returns
    -------
    Uncertainty
        Total, aleatoric and epistemic part, with the index of `X` if `X` is a pandas object.

    Raises
    ------
    TypeError
        If unwrapping ends at several models, at a `TransformedTargetRegressor` that does not scale,
        or at an estimator without ``predict_uncertainty``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skuq import QUAMClassifier, predict_uncertainty
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = make_pipeline(StandardScaler(), QUAMClassifier(random_state=0)).fit(X, y)
    >>> predict_uncertainty(clf, X[:3]).epistemic.shape
    (3,)
    """

    def missing(path: list[str]) -> str:
        name = "QUAMRegressor" if is_regressor(estimator) else "QUAMClassifier"
        return (
            f"{' -> '.join(path)}: {path[-1]} has no method `predict_uncertainty` and does not "
            "delegate to a single fitted estimator that has it. Use an estimator of "
            "`skuq.all_estimators()`, alone or inside a Pipeline or a search; to keep the weights "
            f"of an existing model, use {name}(FrozenEstimator(model)).fit(X_train, y_train)."
        )

    model, inputs = walk_to(
        estimator, X, lambda inside: _has_method(inside) or is_target_transformer(inside), missing
    )
    if not is_target_transformer(model):
        return with_index_of(X, model.predict_uncertainty(inputs))
    check_is_fitted(model)
    inner, inputs = walk_to(model.regressor_, inputs, _has_method, missing)
    return with_index_of(X, _of_original_target(inner, inputs, model.transformer_))


# Transformers that map a target y to a * y + b.
_AFFINE = ("MaxAbsScaler", "MinMaxScaler", "RobustScaler", "StandardScaler")


def _has_method(estimator: Any) -> bool:
    return hasattr(estimator, "predict_uncertainty")


def _of_original_target(model: Any, X: Any, transformer: Any) -> Uncertainty:
    """Predict the uncertainty of a model of transformed targets in the original target's unit."""
    unit = getattr(model, "_unit_of_uncertainty", None)
    name, kind = type(model).__name__, type(transformer).__name__
    is_identity = kind == "FunctionTransformer" and transformer.inverse_func is None
    if unit is None or not (kind in _AFFINE or is_identity):
        raise TypeError(
            f"TransformedTargetRegressor: the uncertainty of {name} refers to the target as "
            f"transformed by {kind} and cannot be converted to the unit of the original target. "
            f"Put the transformation inside: {name}(TransformedTargetRegressor(learner, ...))."
        )
    zero, one = transformer.inverse_transform(np.array([[0.0], [1.0]])).ravel()
    found, factor = model.predict_uncertainty(X), abs(one - zero)
    if unit == "squared target":
        return Uncertainty(*(part * factor**2 for part in found.parts))
    shift = np.log(factor)  # scaling a variable shifts its differential entropy
    return Uncertainty(found.total + shift, found.aleatoric + shift, found.epistemic)


def leads_to_method(estimator: Any) -> bool:
    """Return whether an estimator, fitted or not, has or wraps a method `predict_uncertainty`."""
    while not _has_method(estimator):
        inside = unwrap(estimator, fitted=False)
        if inside is not None:
            estimator = inside.estimator
        elif is_target_transformer(estimator):
            estimator = estimator.regressor
        else:
            return False
    return True
