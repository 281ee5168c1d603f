"""Wrappers that delegate to one model inside, of scikit-learn and of torch, and fitted models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sklearn import get_config
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

# Wrappers whose parameter ``estimator`` is the one estimator that they delegate to. An object of
# theirs exists only where their module was imported, which takes a while.
_CALIBRATED = ("sklearn.calibration", "CalibratedClassifierCV")
_FIXED = ("sklearn.model_selection", "FixedThresholdClassifier")
_PIPELINE = ("sklearn.pipeline", "Pipeline")
_RFE = ("sklearn.feature_selection", "RFE")
_WRAPPERS = (
    _CALIBRATED,
    _FIXED,
    _RFE,
    ("sklearn.frozen", "FrozenEstimator"),
    ("sklearn.model_selection", "TunedThresholdClassifierCV"),
    ("sklearn.semi_supervised", "SelfTrainingClassifier"),
)

# Wrappers of torch modules, and where they keep the module.
_MODULES = (
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.nn", "DataParallel", "module"),
    ("torch.nn.parallel", "DistributedDataParallel", "module"),
)


class Unwrapped(NamedTuple):
    """The estimator one level inside a wrapper.

    Attributes
    ----------
    estimator : object
        The estimator.
    transform : callable or None
        Transformation that the wrapper applies to its input before the estimator sees it;
        None if the estimator sees the input itself.
    """

    estimator: Any
    transform: Callable[[Any], Any] | None = None


def unwrap(estimator: Any, *, fitted: bool = True) -> Unwrapped | None:
    """Step into a wrapper that delegates to a single model.

    It knows `Pipeline`, `FrozenEstimator`, search objects such as `GridSearchCV`,
    `CalibratedClassifierCV`, `FixedThresholdClassifier`, `TunedThresholdClassifierCV`,
    `SelfTrainingClassifier`, `RFE` and `RFECV` of scikit-learn, and modules of torch that
    `module_inside` knows.

    Parameters
    ----------
    estimator : object
        Any estimator.
    fitted : bool, default=True
        Whether the fitted estimator inside is wanted. False returns the one that was given as
        a parameter, with no transformation, whether or not the wrapper is fitted.

    Returns
    -------
    Unwrapped or None
        The estimator inside and the transformation before it; None if `estimator` is not one of
        these wrappers.

    Raises
    ------
    TypeError
        If a fitted wrapper averages several models, or has kept none.
    sklearn.exceptions.NotFittedError
        If `fitted` is set and the wrapper is not fitted. `FrozenEstimator` and
        `FixedThresholdClassifier` need no fit of their own.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from skuq.wrappers import unwrap
    >>> model = make_pipeline(StandardScaler(), LogisticRegression()).fit([[0], [4]], [0, 1])
    >>> inside = unwrap(model)
    >>> inside.estimator, inside.transform([[2]])
    (LogisticRegression(), array([[0.]]))
    >>> unwrap(inside.estimator) is None
    True
    """
    if is_module(estimator):
        module = module_inside(estimator)
        return None if module is None else Unwrapped(module)
    if fitted:
        return _fitted_inside(estimator)
    if is_instance_of(estimator, *_PIPELINE):
        return Unwrapped(estimator.steps[-1][1])
    if _is_wrapper(estimator) or is_search(estimator):
        return Unwrapped(estimator.estimator)
    return None


def walk_to(
    estimator: Any,
    X: Any,
    has: Callable[[Any], bool],
    missing: Callable[[list[str]], str],
) -> tuple[Any, Any]:
    """Walk down fitted wrappers to the first estimator that has a method.

    Parameters
    ----------
    estimator : object
        Fitted estimator.
    X : array-like of shape (n_samples, n_features)
        Inputs, as `estimator.predict` takes them.
    has : callable
        Whether an estimator has what is wanted.
    missing : callable
        Message for a walk that ends without, given the names of the classes on its way.

    Returns
    -------
    tuple
        The estimator, and the inputs as it takes them.

    Raises
    ------
    TypeError
        If the walk ends at an estimator without the method, or at one that mixes several models.
    sklearn.exceptions.NotFittedError
        If a wrapper is not fitted.
    """
    if isinstance(estimator, type):
        raise TypeError(f"Expected a fitted estimator, got the class {estimator.__name__} itself.")
    path: list[str] = []
    while not has(estimator):
        path.append(type(estimator).__name__)
        try:
            inside = unwrap(estimator)
        except TypeError as error:
            raise TypeError(" -> ".join([*path[:-1], str(error)])) from None
        if inside is None:
            raise TypeError(missing(path))
        estimator = inside.estimator
        if inside.transform is not None:
            X = inside.transform(X)
    return estimator, X


def _is_wrapper(estimator: Any) -> bool:
    return any(is_instance_of(estimator, *wrapper) for wrapper in _WRAPPERS)


def _fitted_inside(estimator: Any) -> Unwrapped | None:
    if is_instance_of(estimator, *_PIPELINE):
        check_is_fitted(estimator)
        return Unwrapped(estimator.steps[-1][1], _transform_before_last_step(estimator))
    if isinstance(estimator, FrozenEstimator):
        return Unwrapped(estimator.estimator)
    if is_instance_of(estimator, *_FIXED):
        # It predicts with a fitted model inside even if it was never fitted itself.
        return Unwrapped(getattr(estimator, "estimator_", estimator.estimator))
    if _is_wrapper(estimator):
        check_is_fitted(estimator)
        return _fitted_wrapper(estimator)
    if hasattr(estimator, "best_estimator_"):
        return Unwrapped(estimator.best_estimator_)
    if is_search(estimator):
        check_is_fitted(estimator)
        raise TypeError(
            f"{type(estimator).__name__} was run with refit=False and holds no fitted estimator; "
            "set refit=True."
        )
    return None


def _fitted_wrapper(estimator: Any) -> Unwrapped:
    if is_instance_of(estimator, *_RFE):
        return Unwrapped(estimator.estimator_, estimator.transform)
    if not is_instance_of(estimator, *_CALIBRATED):
        return Unwrapped(estimator.estimator_)
    n_models = len(estimator.calibrated_classifiers_)
    if n_models > 1:
        raise TypeError(
            f"CalibratedClassifierCV averages {n_models} models, and the uncertainty of one is "
            "not that of their average. Use `ensemble=False`, or calibrate one fitted model "
            "wrapped in FrozenEstimator."
        )
    return Unwrapped(estimator.calibrated_classifiers_[0].estimator)


def _transform_before_last_step(pipeline: Pipeline) -> Callable[[Any], Any] | None:
    steps = [
        (name, step)
        for name, step in pipeline.steps[:-1]
        if step is not None and step != "passthrough"
    ]
    if not steps:
        return None
    try:
        check_is_fitted(steps[-1][1])
    except NotFittedError:
        from sklearn.preprocessing import FunctionTransformer  # which takes long

        # A pipeline refuses a last step that has nothing to fit, but not this one.
        steps.append(("_unchanged", FunctionTransformer()))
    from sklearn.pipeline import Pipeline

    return Pipeline(steps).transform


def is_target_transformer(estimator: Any) -> bool:
    """Whether this is a `TransformedTargetRegressor`, around a model of another target."""
    return is_instance_of(estimator, "sklearn.compose", "TransformedTargetRegressor")


def is_search(estimator: Any) -> bool:
    """Whether this is a search such as `GridSearchCV`; `LogisticRegressionCV` wraps nothing."""
    return all(hasattr(estimator, name) for name in ("estimator", "refit", "cv"))


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
    if is_instance_of(estimator, "skorch", "NeuralNet"):
        return bool(estimator.initialized_)
    if is_module(estimator):
        return True
    if not hasattr(estimator, "fit"):  # such as a client of a model that is served elsewhere
        return hasattr(estimator, "predict_proba")
    try:
        check_is_fitted(estimator)
    except AttributeError:  # not a scikit-learn estimator
        return hasattr(estimator, "classes_")
    except (NotFittedError, TypeError):
        return False
    # Some predict before they are fitted, such as Gaussian processes their prior.
    return get_tags(estimator).requires_fit or any(
        name.endswith("_") and not name.startswith("_") for name in vars(estimator)
    )


def module_inside(module: Any) -> Any:
    """The module inside what `torch.compile`, data parallelism or PEFT put around it, or None."""
    for library, name, attribute in _MODULES:
        if is_instance_of(module, library, name):
            return getattr(module, attribute)
    return module.get_base_model() if is_peft_model(module) else None


def is_peft_model(module: Any) -> bool:
    """Whether this is a module with adapters of the library PEFT around its layers."""
    return callable(getattr(module, "get_base_model", None))


def is_module(estimator: Any) -> bool:
    """Whether this is a `torch.nn.Module`, without importing torch."""
    return is_instance_of(estimator, "torch.nn", "Module")


def is_instance_of(estimator: Any, module: str, name: str) -> bool:
    """Whether this is an instance of a class of a library that may not have been imported."""
    library = sys.modules.get(module)
    return library is not None and isinstance(estimator, getattr(library, name))


def weight_params(estimator: Any, sample_weight: Any) -> dict[str, Any]:
    """Arguments of `fit` with which weights of samples reach the learner inside.

    With metadata routing it is `sample_weight`, which the parts of the model request; without, it
    has the path to the learner in its name, such as "svc__sample_weight".
    """
    routes = get_config()["enable_metadata_routing"]
    return {f"{'' if routes else _path_to_learner(estimator)}sample_weight": sample_weight}


def _path_to_learner(estimator: Any) -> str:
    if is_instance_of(estimator, *_PIPELINE):
        name, last = estimator.steps[-1]
        return f"{name}__{_path_to_learner(last)}"
    return _path_to_learner(estimator.estimator) if is_search(estimator) else ""
