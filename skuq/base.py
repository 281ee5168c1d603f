"""The protocol all estimators share: what uncertainty is and how it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import pipeline as sklearn_pipeline
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_selection import RFE
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.pipeline import make_pipeline as _sklearn_make_pipeline
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# What hands its input on to the one model that it holds as ``estimator``.
_WRAPPERS = (
    CalibratedClassifierCV,
    FixedThresholdClassifier,
    FrozenEstimator,
    RFE,
    SelfTrainingClassifier,
    TunedThresholdClassifierCV,
)


class Uncertainty(NamedTuple):
    """Predictive uncertainty of a batch of inputs, split by its source.

    Attributes
    ----------
    total, aleatoric, epistemic : ndarray of shape (n_samples,), float64
        ``total == aleatoric + epistemic`` within 1e-8 relative. Quantity and unit
        (nats, probability, squared return) are stated by the estimator.

    Examples
    --------
    >>> from skuq import Uncertainty
    >>> u = Uncertainty.from_parts(aleatoric=[0.5, 0.25], epistemic=[0.0, 0.5])
    >>> u.total
    array([0.5 , 0.75])
    """

    total: FloatArray
    aleatoric: FloatArray
    epistemic: FloatArray

    @classmethod
    def from_parts(cls, aleatoric: ArrayLike, epistemic: ArrayLike) -> Uncertainty:
        """Build from the two parts; their sum is the total, so the parts always add up."""
        parts = (np.asarray(aleatoric, np.float64), np.asarray(epistemic, np.float64))
        return cls(parts[0] + parts[1], *parts)

    def to_frame(self, index: Any = None) -> pd.DataFrame:
        """Return a pandas DataFrame with columns total, aleatoric, epistemic."""
        import pandas as pd

        return pd.DataFrame(self._asdict(), index=index)


class SupportsUncertainty(Protocol):
    """What makes an estimator a plugin: this one method."""

    def predict_uncertainty(self, X: Any) -> Uncertainty: ...


class UncertaintyMixin:
    """Mixin for estimators that implement ``predict_uncertainty(X) -> Uncertainty``.

    It adds ``score_samples``, through which detection of foreign inputs works in
    a plain scikit-learn ``Pipeline`` and with scikit-learn's scorers.
    """

    def score_samples(self: SupportsUncertainty, X: Any) -> FloatArray:
        """Score how familiar each input is: minus its epistemic uncertainty.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples,), float64
            In the unit of the estimator's epistemic part; lower is more foreign.
        """
        return -self.predict_uncertainty(X).epistemic


def predict_uncertainty(estimator: Any, X: Any) -> Uncertainty:
    """Predict uncertainty with any fitted estimator that holds a plugin inside.

    Walks down to the estimator that implements ``predict_uncertainty``, applying
    the transformers on its way. It sees through scikit-learn's `Pipeline`, search
    objects (`GridSearchCV` and its kin, with ``refit``), `FrozenEstimator`,
    `FixedThresholdClassifier`, `TunedThresholdClassifierCV`,
    `SelfTrainingClassifier`, `RFE`/`RFECV`, and `CalibratedClassifierCV` around a
    single model. In the last case the result is that of the model before its
    probabilities were recalibrated.

    Parameters
    ----------
    estimator : object
        Fitted estimator.
    X : array-like of shape (n_samples, n_features)
        Inputs, as `estimator.predict` takes them.

    Returns
    -------
    Uncertainty
        Total, aleatoric and epistemic part, each of shape (n_samples,).

    Raises
    ------
    TypeError
        If the walk ends at an estimator without the method, or at one that mixes
        several models, whose joint uncertainty none of the parts can state.
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.

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
    if isinstance(estimator, type):
        raise TypeError(f"Expected a fitted estimator, got the class {estimator.__name__} itself.")
    path = [type(estimator).__name__]
    while not hasattr(estimator, "predict_uncertainty"):
        estimator, X = _step_down(estimator, X, path)
        path.append(type(estimator).__name__)
    result: Uncertainty = estimator.predict_uncertainty(X)
    return result


def _step_down(estimator: Any, X: Any, path: list[str]) -> tuple[Any, Any]:
    """The estimator one level further in, and the input as that level sees it."""
    if isinstance(estimator, sklearn_pipeline.Pipeline):
        return _final_step(estimator, X)
    if isinstance(estimator, RFE):
        check_is_fitted(estimator)
        return estimator.estimator_, estimator.transform(X)
    if isinstance(estimator, FrozenEstimator):
        return estimator.estimator, X
    if isinstance(estimator, FixedThresholdClassifier):
        # It predicts with a fitted model inside even if it was never fitted itself.
        return getattr(estimator, "estimator_", estimator.estimator), X
    if isinstance(estimator, TunedThresholdClassifierCV | SelfTrainingClassifier):
        check_is_fitted(estimator)
        return estimator.estimator_, X
    if isinstance(estimator, CalibratedClassifierCV):
        check_is_fitted(estimator)
        if len(estimator.calibrated_classifiers_) > 1:
            raise TypeError(
                f"{' -> '.join(path)} averages {len(estimator.calibrated_classifiers_)} models, "
                "and the uncertainty of one is not that of their average. Use "
                "`ensemble=False`, or calibrate one fitted model wrapped in FrozenEstimator."
            )
        return estimator.calibrated_classifiers_[0].estimator, X
    if hasattr(estimator, "best_estimator_"):
        return estimator.best_estimator_, X
    if is_search(estimator):
        check_is_fitted(estimator)
        raise TypeError(
            f"{' -> '.join(path)} was run with refit=False and holds no fitted estimator; "
            "set refit=True."
        )
    raise TypeError(_no_method_message(path))


def _no_method_message(path: list[str]) -> str:
    return (
        f"{' -> '.join(path)}: {path[-1]} has no method `predict_uncertainty` and does not "
        "hand its input on to a single fitted estimator that has it. Use an estimator of "
        "`skuq.all_estimators()`, alone or inside a Pipeline or a search; an existing neural "
        "network or logistic regression keeps its weights in "
        "QUAMClassifier(FrozenEstimator(model)).fit(X_train, y_train)."
    )


def _final_step(pipeline: sklearn_pipeline.Pipeline, X: Any) -> tuple[Any, Any]:
    check_is_fitted(pipeline)
    for _, step in pipeline.steps[:-1]:
        if step is not None and step != "passthrough":
            X = step.transform(X)
    return pipeline.steps[-1][1], X


def is_search(estimator: Any) -> bool:
    """Whether this is `GridSearchCV` or its kin; `LogisticRegressionCV` wraps none."""
    return all(hasattr(estimator, name) for name in ("estimator", "refit", "cv"))


def _leads_to_method(estimator: Any) -> bool:
    """Whether `_step_down` leads from here, fitted or not, to an estimator with the method."""
    while not hasattr(estimator, "predict_uncertainty"):
        if isinstance(estimator, sklearn_pipeline.Pipeline):
            estimator = estimator.steps[-1][1]
        elif isinstance(estimator, _WRAPPERS) or is_search(estimator):
            estimator = estimator.estimator
        else:
            return False
    return True


class Pipeline(sklearn_pipeline.Pipeline):
    """scikit-learn's `Pipeline` with `predict_uncertainty` as a method.

    A plain `sklearn.pipeline.Pipeline` works with the function
    `skuq.predict_uncertainty` just as well; this class is for those who want to
    write ``pipe.predict_uncertainty(X)``. Parameters are those of the parent.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skuq import QUAMClassifier, make_pipeline
    >>> X, y = load_iris(return_X_y=True)
    >>> pipe = make_pipeline(StandardScaler(), QUAMClassifier(random_state=0)).fit(X, y)
    >>> pipe.predict_uncertainty(X[:2]).total.shape
    (2,)
    """

    @available_if(lambda self: _leads_to_method(self.steps[-1][1]))
    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Transform the data and predict uncertainty with the final estimator.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs of the first step.

        Returns
        -------
        Uncertainty
            Total, aleatoric and epistemic part, each of shape (n_samples,).
        """
        return predict_uncertainty(*_final_step(self, X))


def make_pipeline(
    *steps: Any, memory: Any = None, transform_input: Any = None, verbose: bool = False
) -> Pipeline:
    """Build a `skuq.Pipeline` from estimators, naming the steps after their classes.

    Parameters
    ----------
    *steps : estimators
        Transformers and a final estimator.
    memory, transform_input, verbose
        As in `sklearn.pipeline.make_pipeline`.

    Returns
    -------
    Pipeline
        Unfitted pipeline with the method `predict_uncertainty`.
    """
    named = _sklearn_make_pipeline(*steps).steps
    return Pipeline(named, memory=memory, transform_input=transform_input, verbose=verbose)
