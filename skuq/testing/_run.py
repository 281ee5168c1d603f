"""Selection of the checks that apply to an estimator, and the way to run them."""

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
from skuq.testing._data import FitOnce, generated_data, given_data


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
        It is cloned and never fitted itself. If it has a parameter `random_state`,
        the clones use a fixed one.
    X : array, sparse matrix, data frame or list of n_samples rows, default=None
        Inputs for an estimator that does not take a numeric table, such as node ids of
        a graph. It is used as it is, and the checks that need a table (columns, NaN,
        empty input, memory layout, data frames, pipelines, other instances, two classes,
        string labels) are left out. None generates a small table.
    y : array-like of shape (n_samples,), default=None
        Targets that belong to `X`.
    X_predict : array, sparse matrix, data frame or list of n_rows rows, default=None
        Inputs to predict on, for an estimator that predicts on a different kind of input from what
        it is fitted on, such as an agent that is fitted on seeds of environments and
        predicts on observations. Needs `X`. None takes rows of `X`.

    Raises
    ------
    AssertionError
        At the first check that fails, naming it, the fact it checks and what was found.
    TypeError
        If `estimator` is a class.
    ValueError
        If no data are given for an estimator that is neither classifier nor regressor, or
        `X_predict` is given without `X`.

    Notes
    -----
    Aleatoric and epistemic part must not be negative. A class whose parts are signed by
    definition declares it with the class attribute ``signed_uncertainty = True``, which
    lifts this one requirement.

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
    """Yield the checks that apply to an estimator, each to be called with it.

    Parameters
    ----------
    estimator, X, y, X_predict
        As in `check_uncertainty_estimator`.

    Yields
    ------
    callable
        Takes the estimator and raises if the check fails. Its ``__name__`` is that of
        the check. Checks from one call share a fitted clone where they only predict.

    Examples
    --------
    >>> from skuq import QUAMClassifier
    >>> from skuq.testing import uncertainty_checks
    >>> [check.__name__ for check in uncertainty_checks(QUAMClassifier())][:2]
    ['check_parameters', 'check_result']
    """
    if isinstance(estimator, type):
        raise TypeError(f"Give an instance to check, got the class {estimator.__name__}.")
    is_table = X is None
    if is_table and X_predict is not None:
        raise ValueError("`X_predict` needs `X`, the inputs to fit on.")
    data = generated_data(estimator) if is_table else given_data(X, y, X_predict)
    fit = FitOnce()
    for function in _applicable(estimator, is_table):
        # Checks that fit in their own way have no parameter for the shared clone.
        shared = {"fit": fit} if "fit" in signature(function).parameters else {}
        yield update_wrapper(partial(function, data=data, **shared), function)


def parametrize_with_uncertainty_checks(
    estimators: Iterable[Any],
    *,
    X: Any = None,
    y: ArrayLike | None = None,
    X_predict: Any = None,
) -> Any:
    """Parametrize a pytest function with every check of every estimator.

    Parameters
    ----------
    estimators : iterable of estimator instances
        What to check.
    X, y, X_predict
        As in `check_uncertainty_estimator`; used for all estimators.

    Returns
    -------
    decorator
        A `pytest.mark.parametrize` of the arguments `estimator` and `check`.

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
    """The checks in an order in which the first to fail names the defect best."""
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
    """Whether it bounds probabilities at inputs, not in regions around them as RobustGPC does."""
    method = getattr(estimator, "predict_proba_bounds", None)
    return method is not None and [*signature(method).parameters] == ["X"]


def _name(check: Callable[..., None]) -> str:
    return check.__name__


def _fact(check: Callable[..., None]) -> str:
    return (check.__doc__ or "").partition("\n")[0]
