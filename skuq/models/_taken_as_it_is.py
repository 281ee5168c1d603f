"""Decision between taking a model as it is, and cloning and training it."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted
from torch import nn

from skuq.models._skorch_types import is_skorch_net
from skuq.wrappers import unwrap

_LIBRARIES = ("skuq", "sklearn", "joblib")


def taken_as_it_is(estimator: Any, *, after_the_fact: bool = False) -> bool:
    """Decide whether a model is taken as it is; if not, it is to be cloned and trained.

    The one rule for models that exist already: what `FrozenEstimator` holds and a bare
    `torch.nn.Module` are taken as they are, anything else is cloned and trained.

    Parameters
    ----------
    estimator : object
        What the user passed; None stands for a default network.
    after_the_fact : bool, default=False
        Whether the caller works on a model that exists already, by its nature: then every
        fitted estimator is taken as it is.

    Returns
    -------
    bool

    Warns
    -----
    UserWarning
        If the estimator is fitted and will nevertheless be trained again.

    Examples
    --------
    >>> from sklearn.frozen import FrozenEstimator
    >>> from sklearn.linear_model import LogisticRegression
    >>> model = LogisticRegression()
    >>> taken_as_it_is(model)
    False
    >>> fitted = model.fit([[0.0], [1.0]], [0, 1])
    >>> taken_as_it_is(FrozenEstimator(fitted)), taken_as_it_is(fitted, after_the_fact=True)
    (True, True)
    """
    if isinstance(estimator, FrozenEstimator | nn.Module):
        return True
    if estimator is None or not is_fitted(estimator):
        return False
    if not after_the_fact and hasattr(estimator, "fit"):
        warnings.warn(
            f"This {type(estimator).__name__} is fitted already; a clone of it is trained again. "
            "To use it as it is, wrap it: FrozenEstimator(estimator).",
            UserWarning,
            stacklevel=level_of_the_user(),
        )
    return after_the_fact


def level_of_the_user() -> int:
    """Level, above the caller, of the first frame outside the libraries: a warning's `stacklevel`.

    Returns
    -------
    int
        1 for the caller itself.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    return level


def is_fitted(estimator: Any) -> bool:
    """Whether an estimator holds trained weights; a bare torch module always does."""
    try:
        inside = unwrap(estimator)
    except NotFittedError:
        return False
    except TypeError:  # fitted, around several models
        return True
    if inside is not None:
        return is_fitted(inside.estimator)
    if is_skorch_net(estimator):
        return bool(estimator.initialized_)
    if isinstance(estimator, nn.Module):
        return True
    if not hasattr(estimator, "fit"):  # such as a client of a model that is served elsewhere
        return hasattr(estimator, "predict_proba")
    try:
        check_is_fitted(estimator)
    except AttributeError:  # not a scikit-learn estimator
        return hasattr(estimator, "classes_")
    except (NotFittedError, TypeError):
        return False
    return True
