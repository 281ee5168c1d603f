"""Selection and execution of the checks that apply to an estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, update_wrapper
from inspect import signature
from typing import Any

from numpy.typing import ArrayLike
from sklearn.base import is_classifier
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter

from skuq.testing import _checks
from skuq.testing._support import FitOnce, generated_data, given_data


def check_uncertainty_estimator(
    estimator: Any,
    *,
    X: Any = None,
    y: ArrayLike | None = None,
    X_predict: Any = None,
) -> None:
    """Check that an estimator conforms to the protocol of `predict_uncertainty`.

    Parameters
    ----------
    estimator : estimator instance
        The estimator, which is cloned and not fitted itself. If it has a parameter `random_state`,
        the clones have a fixed value of this parameter.
    X : array, sparse matrix, data frame or list of n_samples rows, default=None
        Inputs, such as node ids of a graph, for an estimator whose input is not a numeric table.
        With `X`, checks that need a table are skipped: columns, NaN, empty input, memory layout,
        data frames, pipelines, other instances, two classes, string labels. None generates a small
        table.
    y : array-like of shape (n_samples,), default=None
        Targets of `X`.
    X_predict : array, sparse matrix, data frame or list of n_rows rows, default=None
        Inputs for prediction, if they are of a different kind from the inputs of `fit`. For
        example, an agent is fitted on environment seeds, and predicts for observations. Requires
        `X`. None uses rows of `X`.

    Raises
    ------
    AssertionError
        If a check fails. The message names the first check that failed, its requirement and the
        result.
    TypeError
        If `estimator` is a class.
    ValueError
        If `X` is missing for an estimator that is neither classifier nor regressor, or `X_predict`
        is passed without `X`.

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
            raise AssertionError(
                f"{type(estimator).__name__} fails {_name(check)}. "
                f"Expected: {_fact(check)} Found: {found}"
            ) from error


def uncertainty_checks(
    estimator: Any,
    *,
    X: Any = None,
    y: ArrayLike | None = None,
    X_predict: Any = None,
) -> Iterator[Callable[[Any], None]]:
    """Yield the checks that apply to an estimator.

    Parameters
    ----------
    estimator, X, y, X_predict
        As in `check_uncertainty_estimator`.

    Yields
    ------
    callable
        Function of the estimator that raises if the check fails. Its ``__name__`` is the name of
        the check. Checks that only predict share a fitted clone if the same call has yielded them.

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
    data = generated_data(estimator) if is_table else given_data(X, y, X_predict)
    fit = FitOnce()
    for function in _applicable(estimator, is_table):
        # Checks that fit the estimator themselves have no parameter `fit`.
        shared = {"fit": fit} if "fit" in signature(function).parameters else {}
        yield update_wrapper(partial(function, data=data, **shared), function)


def parametrize_with_uncertainty_checks(
    estimators: Iterable[Any],
    *,
    X: Any = None,
    y: ArrayLike | None = None,
    X_predict: Any = None,
) -> Any:
    """Parametrize a pytest function with all checks of all estimators.

    Parameters
    ----------
    estimators : iterable of estimator instances
        Estimators to check.
    X, y, X_predict
        As in `check_uncertainty_estimator`; used for all estimators.

    Returns
    -------
    decorator
        `pytest.mark.parametrize` with the arguments `estimator` and `check`.

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
        pytest.param(estimator, check, id=f"{''.join(str(estimator).split())}-{_name(check)}")
        for estimator in estimators
        for check in uncertainty_checks(estimator, X=X, y=y, X_predict=X_predict)
    ]
    return pytest.mark.parametrize(("estimator", "check"), cases)


def _applicable(estimator: Any, is_table: bool) -> Iterator[Callable[..., None]]:
    """Yield the checks in an order in which the first failure describes the defect best."""
    tags = get_tags(estimator)
    yield _checks.check_parameters
    yield _checks.check_result
    if not getattr(estimator, "signed_uncertainty", False):
        yield _checks.check_parts_not_negative
    yield _checks.check_parts_add_up
    if tags.requires_fit:
        yield _checks.check_unfitted
    yield from (_checks.check_clone, _checks.check_repeated_calls, _checks.check_pickle)
    yield from (_checks.check_fitting_changes_nothing, _checks.check_predicting_changes_nothing)
    yield _checks.check_global_random_state
    yield from (_checks.check_repeated_fits, _checks.check_single_row)
    yield from (_checks.check_row_order, _checks.check_batches, _checks.check_score_samples)
    if _has_credal_interval(estimator):
        yield _checks.check_proba_bounds
    if is_table:
        yield from _applicable_to_tables(estimator, tags.input_tags.allow_nan)
    if has_fit_parameter(estimator, "sample_weight"):
        yield _checks.check_unit_weights
    yield _checks.check_search


def _applicable_to_tables(estimator: Any, allow_nan: bool) -> Iterator[Callable[..., None]]:
    yield _checks.check_number_of_columns
    if not allow_nan:
        yield _checks.check_nan
    yield from (_checks.check_empty, _checks.check_memory_layout)
    yield from (_checks.check_data_frame, _checks.check_pipeline)
    yield _checks.check_other_instances
    if is_classifier(estimator):
        yield from (_checks.check_two_classes, _checks.check_string_labels)


def _has_credal_interval(estimator: Any) -> bool:
    """Whether `predict_proba_bounds` bounds values at inputs, not over regions as in RobustGPC."""
    method = getattr(estimator, "predict_proba_bounds", None)
    return method is not None and [*signature(method).parameters] == ["X"]


def _name(check: Callable[..., None]) -> str:
    return check.__name__


def _fact(check: Callable[..., None]) -> str:
    return (check.__doc__ or "").partition("\n")[0]
