"""Out-of-distribution decisions that keep a rate of false alarms, from held-out samples."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils._param_validation import Interval, validate_params
from sklearn.utils.validation import check_is_fitted

from skuq.base import BoolArray, FloatArray, Uncertainty
from skuq.calibration import conformal_p_values
from skuq.evidential._graphs import NodeGraph, checked_nodes
from skuq.labels import codes_of, labels_in_mask

NOT_CALIBRATED = (
    "This %(name)s has no level for out-of-distribution decisions yet: call `calibrate` with "
    "samples of the known classes that were not used for training."
)

CALIBRATION_ATTRIBUTES = ("calibration_scores_", "calibration_codes_")


class OODDecisionsMixin:
    """Conformal p-values of the epistemic uncertainty, and decisions by them.

    The estimator sets `graph_`, `classes_` and `labelled_nodes_`, and removes
    `CALIBRATION_ATTRIBUTES` when it is fitted.
    """

    graph_: NodeGraph | None
    classes_: NDArray[Any]
    labelled_nodes_: NDArray[np.int64] | None
    predict_uncertainty: Callable[[Any], Uncertainty]

    def calibrate(self, X: Any, y: Any = None) -> Self:
        """Set the level of out-of-distribution decisions, from held-out samples.

        Nothing is trained. The samples must be of the known classes, drawn like the
        in-distribution samples to be judged, and must have taken no part in the training of the
        estimator or the probe, early stopping included. Then both are exchangeable, on a graph
        too: training looks at the labels of neither, and at the features and edges of both, or
        of neither.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Held-out inputs, or node ids if there is a graph, each node once.
        y : array-like of shape (n_samples,), default=None
            Their classes, each of `classes_` at least once. Rates of false alarms then hold
            within each class, and so for samples with other proportions of the classes; fewer
            out-of-distribution samples are found.

        Returns
        -------
        EvidentialProbe
            The calibrated estimator.

        Raises
        ------
        ValueError
            If a node was used for training or early stopping, as far as is known, or occurs
            twice, or `y` lacks a class.
        """
        check_is_fitted(self)
        self._check_held_out(X)
        codes = None if y is None else self._checked_codes(X, y)
        scores = self.predict_uncertainty(X).epistemic
        if codes is not None:
            check_consistent_length(scores, codes)
        self.calibration_scores_, self.calibration_codes_ = scores, codes
        return self

    def conformal_p_values(self, X: Any) -> FloatArray:
        """Compute the share of calibration samples that are at least as uncertain.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Inputs, or node ids if there is a graph.

        Returns
        -------
        ndarray of shape (n_samples,), float64
            In (0, 1]. Of in-distribution samples, a share p at most is expected to have a
            p-value of p or less; with classes in `calibrate`, of each class. See
            `skuq.calibration.conformal_p_values`.

        Raises
        ------
        NotFittedError
            If `calibrate` was not called.
        """
        check_is_fitted(self, "calibration_scores_", msg=NOT_CALIBRATED)
        return conformal_p_values(
            self.predict_uncertainty(X).epistemic,
            self.calibration_scores_,
            y_held_out=self.calibration_codes_,
        )

    @validate_params(
        {"false_alarm_rate": [Interval(Real, 0, 1, closed="neither")]},
        prefer_skip_nested_validation=True,
    )
    def predict_out_of_distribution(self, X: Any, *, false_alarm_rate: float = 0.05) -> BoolArray:
        """Decide which samples are out of distribution, to be looked at by a person.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or of shape (n_samples,) and int
            Inputs, or node ids if there is a graph.
        false_alarm_rate : float, default=0.05
            Share of in-distribution samples that may be flagged, in expectation over the
            choice of the calibration samples.

        Returns
        -------
        ndarray of shape (n_samples,), bool
            Whether the p-value is at most `false_alarm_rate`.

        Raises
        ------
        NotFittedError
            If `calibrate` was not called.
        ValueError
            If the rate is smaller than the smallest p-value that the calibration samples allow,
            so that nothing could ever be flagged.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from skuq import EvidentialProbe
        >>> X, y = load_iris(return_X_y=True)
        >>> model = LogisticRegression(max_iter=1000).fit(X[::2], y[::2])
        >>> probe = EvidentialProbe(model, random_state=0).fit(X[::2], y[::2]).calibrate(X[1::2])
        >>> bool(probe.predict_out_of_distribution(X[1::2], false_alarm_rate=0.1).mean() <= 0.1)
        True
        """
        p_values = self.conformal_p_values(X)
        smallest = self._smallest_p_value()
        if false_alarm_rate < smallest:
            raise ValueError(
                f"`false_alarm_rate`={false_alarm_rate} needs more samples in `calibrate`: with "
                f"these no p-value is below {smallest:.3g}, so nothing could be flagged. At least "
                f"{int(np.ceil(1 / false_alarm_rate - 1e-9)) - 1} are needed"
                f"{'' if self.calibration_codes_ is None else ' of each class'}."
            )
        flagged: BoolArray = p_values <= false_alarm_rate
        return flagged

    def _smallest_p_value(self) -> float:
        codes = self.calibration_codes_
        sizes = [len(self.calibration_scores_)] if codes is None else np.bincount(codes)
        return 1 / (1 + int(np.min(sizes)))

    def _check_held_out(self, X: Any) -> None:
        if self.graph_ is None:
            return
        nodes, count = np.unique(checked_nodes(X, self.graph_.n_nodes), return_counts=True)
        repeated = nodes[count > 1]
        if len(repeated):
            raise ValueError(
                f"{len(repeated)} of the nodes to calibrate with occur more than once, the first "
                f"is {repeated[0]}: repetitions are no further samples. Give each node once."
            )
        if self.labelled_nodes_ is None:
            return
        used = np.intersect1d(nodes, self.labelled_nodes_)
        if len(used):
            raise ValueError(
                f"{len(used)} of the nodes to calibrate with were used for training or early "
                f"stopping, the first is {used[0]}: such nodes have less uncertainty than new "
                "ones. Keep some labelled nodes out of both."
            )

    def _checked_codes(self, X: Any, y: Any) -> NDArray[np.int64]:
        labels = labels_in_mask(X, column_or_1d(y, warn=True))
        codes = codes_of(labels, self.classes_, "y")
        missing = np.setdiff1d(np.arange(len(self.classes_)), codes)
        if len(missing):
            raise ValueError(
                f"`y` has no sample of class {self.classes_[missing[0]]}: a rate within each "
                "class needs samples of all classes; leave out `y` for a rate over all of them."
            )
        return codes
