"""The scikit-learn interface of a table model: tags, probabilities, score, uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import r2_score
from sklearn.utils import ClassifierTags, RegressorTags, get_tags
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.metaestimators import available_if

from skuq.base import PARTS, FloatArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.labels import as_text, probability_columns
from skuq.tables._inputs import as_frame, true_values

NEW = "table to predict"
ESTIMATOR_TYPES = {"classification": "classifier", "regression": "regressor"}


def _may_classify(model: BaseEstimator) -> bool:
    return get_tags(model).estimator_type != "regressor"


class TableEstimator(UncertaintyMixin, BaseEstimator):
    """Interface of scikit-learn and skuq for a model whose inputs are tables."""

    # The parameters `table` and `target` are X and y under different names. They are not metadata
    # for scikit-learn's metadata routing.
    __metadata_request__fit: ClassVar[dict[str, str]] = {"train": UNUSED, "target": UNUSED}
    __metadata_request__predict: ClassVar[dict[str, str]] = {"table": UNUSED}
    __metadata_request__predict_proba: ClassVar[dict[str, str]] = {"table": UNUSED}
    __metadata_request__score: ClassVar[dict[str, str]] = {"table": UNUSED, "target": UNUSED}

    estimator: Any
    task: str
    classes_: Any  # None for regression
    predict: Callable[..., Any]

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

    def predict_uncertainty(self, table: Any) -> Uncertainty:
        """Predict the uncertainty of each row, as in the columns of `predict`."""
        rows = self.predict(as_frame(table, NEW), n_explained=0)
        found = Uncertainty(*(rows[name].to_numpy(dtype=np.float64) for name in PARTS))
        return with_index_of(table, found)

    @available_if(_may_classify)
    def predict_proba(self, table: Any) -> FloatArray:
        """Predict class probabilities, (n_rows, n_classes); not available for regression."""
        rows = self.predict(as_frame(table, NEW), n_explained=0)
        return rows[probability_columns(self.classes_)].to_numpy(dtype=np.float64)

    def score(self, table: Any, target: Any) -> float:
        """Return the accuracy of the predicted classes, or R² for regression.

        `target` is the name of the column with the true values, or these values.
        """
        frame = as_frame(table, NEW)
        truth = true_values(frame, target, NEW)
        predicted = self.predict(frame, n_explained=0)["prediction"]
        if self.classes_ is None:
            return float(r2_score(truth.to_numpy(dtype=float), predicted))
        # Compare as text: the same class may be stored with different types in the two tables.
        right = [as_text(a) == as_text(b) for a, b in zip(predicted, truth, strict=True)]
        return float(np.mean(right))
