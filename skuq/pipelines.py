"""scikit-learn's `Pipeline` with a method `predict_uncertainty`."""

from __future__ import annotations

from typing import Any

from sklearn import pipeline as sklearn_pipeline
from sklearn.utils.metaestimators import available_if

from skuq.base import Uncertainty, leads_to_method, predict_uncertainty, with_index_of
from skuq.wrappers import unwrap


class Pipeline(sklearn_pipeline.Pipeline):
    """scikit-learn's `Pipeline` with `predict_uncertainty` as a method.

    Use it to write ``pipe.predict_uncertainty(X)``. The function
    `skuq.predict_uncertainty` also accepts a plain `sklearn.pipeline.Pipeline`.
    Parameters are those of the parent class.

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

    @available_if(lambda self: leads_to_method(self.steps[-1][1]))
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
        inside = unwrap(self)
        assert inside is not None
        inputs = X if inside.transform is None else inside.transform(X)
        return with_index_of(X, predict_uncertainty(inside.estimator, inputs))


def make_pipeline(
    *steps: Any, memory: Any = None, transform_input: Any = None, verbose: bool = False
) -> Pipeline:
    """Build a `skuq.Pipeline` from estimators; steps are named after their classes.

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
    named = sklearn_pipeline.make_pipeline(*steps).steps
    return Pipeline(named, memory=memory, transform_input=transform_input, verbose=verbose)
