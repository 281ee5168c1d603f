"""Conformance tests for estimators with `predict_uncertainty`, built-in or third-party.

Such an estimator also has to pass scikit-learn's `sklearn.utils.estimator_checks`. Each check is a
function that raises an `AssertionError` if the estimator violates a requirement. The first line of
the function's docstring states the requirement.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial, update_wrapper
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_classifier
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter

from skuq.testing import _checks
from skuq.testing._checks import Data, fit_once, generated_data

__all__ = [
    "check_uncertainty_estimator",
    "parametrize_with_uncertainty_checks",
    "uncertainty_checks",
]


def check_uncertainty_estimator(
    estimator: Any, *, X: Any = None, y: ArrayLike | None = None, X_predict: Any = None
) -> None:
    """Check that an estimator conforms to the protocol of `predict_uncertainty`.

    Parameters
    ----------
    estimator : estimator instance
        The estimator; its clones are fitted, with a fixed `random_state`.
    X : array, sparse matrix, data frame or list of n_samples rows, default=None
        Inputs, such as node ids of a graph, for an estimator whose input is not a numeric table.
        With `X`, checks that need a table are skipped: columns, NaN, empty input, memory layout,
        data frames, pipelines, other instances, two classes, string labels. None generates a small
        table.
    y : array-like of shape (n_samples,), default=None
        Targets of `X`.
    X_predict : array, sparse matrix, data frame or list of n_rows rows, default=None
        Inputs for prediction, if their kind differs from `X`: for example, an agent is fitted on
        environment seeds and predicts for observations. Requires `X`. None uses rows of `X`.

    Raises
    ------
    AssertionError
        If a check fails. The message names the first check that failed, its requirement and the
        result.

    Notes
    -----
    The aleatoric and epistemic parts must not be negative. If the parts are signed by definition,
    set the class attribute ``signed_uncertainty = True``, which disables the check of their signs.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import CalibrationAuditor
    >>> from skuq.testing import check_uncertainty_estimator
    >>> check_uncertainty_estimator(CalibrationAuditor(LogisticRegression()))
    """
    for check in uncertainty_checks(estimator, X=X, y=y, X_predict=X_predict):
        try:
            check(estimator)
        except Exception as error:
            found = str(error)
            if not isinstance(error, AssertionError):
                found = f"{type(error).__name__}: {error}"
            expected = (check.__doc__ or "").partition("\n")[0]
            raise AssertionError(
                f"{type(estimator).__name__} fails {check.__name__}. "
                f"Expected: {expected} Found: {found}"
            ) from error


def uncertainty_checks(
    estimator: Any, *, X: Any = None, y: ArrayLike | None = None, X_predict: Any = None
) -> Iterator[Callable[[Any], None]]:
    """Yield the checks that apply to an estimator.

    Arguments are as in `check_uncertainty_estimator`. A check is a function of the estimator that
    raises an error on failure; its ``__name__`` is the name of the check. Checks that only predict
    share one fitted clone, which belongs to this call of `uncertainty_checks`.

    Examples
    --------
    >>> from skuq import QUAMClassifier
    >>> from skuq.testing import uncertainty_checks
    >>> [check.__name__ for check in uncertainty_checks(QUAMClassifier())][:2]
    ['check_parameters', 'check_result']
    """
    if isinstance(estimator, type):
        raise TypeError(f"`estimator` must be an instance, got the class {estimator.__name__}.")
    is_table = X is None
    if is_table and X_predict is not None:
        raise ValueError("`X_predict` needs `X`; pass the inputs of `fit` too.")
    if is_table:
        data = generated_data(estimator)
    else:
        data = Data(X, None if y is None else np.asarray(y), X if X_predict is None else X_predict)
    fit = fit_once()
    for function in _applicable(estimator, is_table):
        # Checks that fit the estimator themselves have no parameter `fit`.
        shared = {"fit": fit} if "fit" in signature(function).parameters else {}
        yield update_wrapper(partial(function, data=data, **shared), function)


def parametrize_with_uncertainty_checks(
    estimators: Iterable[Any], *, X: Any = None, y: ArrayLike | None = None, X_predict: Any = None
) -> Any:
    """Parametrize a pytest function with all checks of all estimators.

    `X`, `y` and `X_predict` are as in `check_uncertainty_estimator`, for all estimators. The
    decorator is `pytest.mark.parametrize` with the arguments `estimator` and `check`.

    Examples
    --------
    >>> from skuq import QUAMClassifier
    >>> from skuq.testing import parametrize_with_uncertainty_checks
    >>> @parametrize_with_uncertainty_checks([QUAMClassifier(random_state=0)])
    ... def test_uncertainty(estimator, check):
    ...     check(estimator)
    """
    import pytest

    cases = [
        pytest.param(estimator, check, id=f"{''.join(str(estimator).split())}-{check.__name__}")
        for estimator in estimators
        for check in uncertainty_checks(estimator, X=X, y=y, X_predict=X_predict)
    ]
    return pytest.mark.parametrize(("estimator", "check"), cases)


def _applicable(estimator: Any, is_table: bool) -> Iterator[Callable[..., None]]:
    tags = get_tags(estimator)
    conditions = {
        _checks.check_parts_not_negative: not getattr(estimator, "signed_uncertainty", False),
        _checks.check_unfitted: tags.requires_fit,
        _checks.check_proba_bounds: _has_credal_interval(estimator),
        _checks.check_nan: not tags.input_tags.allow_nan,
        _checks.check_two_classes: is_classifier(estimator),
        _checks.check_string_labels: is_classifier(estimator),
        _checks.check_unit_weights: has_fit_parameter(estimator, "sample_weight"),
    }
    for name, check in vars(_checks).items():
        if not name.startswith("check_") or not conditions.get(check, True):
            continue
        if is_table or check not in _checks.OF_TABLES:
            yield check


def _has_credal_interval(estimator: Any) -> bool:
    """Return whether `predict_proba_bounds` bounds probabilities at inputs, not over regions."""
    method = getattr(estimator, "predict_proba_bounds", None)
    return method is not None and [*signature(method).parameters] == ["X"]
