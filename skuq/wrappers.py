"""Detection and removal of the wrappers that scikit-learn and torch put around one model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

from sklearn import get_config
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

# Wrappers that delegate to their parameter ``estimator``, by name: importing them would be slow.
CALIBRATED = ("sklearn.calibration", "CalibratedClassifierCV")
FIXED = ("sklearn.model_selection", "FixedThresholdClassifier")
TUNED = ("sklearn.model_selection", "TunedThresholdClassifierCV")
_PIPELINE = ("sklearn.pipeline", "Pipeline")
_RFE = ("sklearn.feature_selection", "RFE")
_WRAPPERS = (
    CALIBRATED,
    FIXED,
    _RFE,
    ("sklearn.frozen", "FrozenEstimator"),
    TUNED,
    ("sklearn.semi_supervised", "SelfTrainingClassifier"),
)

# Wrappers of torch modules: Python module, name of the class, attribute with the wrapped module.
_MODULES = (
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.nn", "DataParallel", "module"),
    ("torch.nn.parallel", "DistributedDataParallel", "module"),
)


class Unwrapped(NamedTuple):
    """Estimator inside a wrapper, after removing one level."""

    estimator: Any
    transform: Callable[[Any], Any] | None = None  # applied to X first; None if X stays as it is


def unwrap(estimator: Any, *, fitted: bool = True) -> Unwrapped | None:
    """Remove one level of a wrapper that delegates to a single model; None for other estimators.

    If `fitted` is False, return the estimator that was passed as a parameter to the wrapper, and no
    transformation; the wrapper need not be fitted.
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
    estimator: Any, X: Any, has: Callable[[Any], bool], missing: Callable[[list[str]], str]
) -> tuple[Any, Any]:
    """Unwrap a fitted estimator until `has` is true of the estimator inside, and transform `X`.

    `missing` returns an error message that names the classes of the visited estimators.
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
        return Unwrapped(estimator.steps[-1][1], transform_of(estimator.steps[:-1]))
    if isinstance(estimator, FrozenEstimator):
        return Unwrapped(estimator.estimator)
    if is_instance_of(estimator, *FIXED):
        # `fit` sets `estimator_`, but is optional if the wrapped `estimator` is already fitted.
        return Unwrapped(getattr(estimator, "estimator_", estimator.estimator))
    if _is_wrapper(estimator):
        check_is_fitted(estimator)
        if is_instance_of(estimator, *_RFE):
            return Unwrapped(estimator.estimator_, estimator.transform)
        if not is_instance_of(estimator, *CALIBRATED):
            return Unwrapped(estimator.estimator_)
        model, *others = estimator.calibrated_classifiers_
        if others:
            raise TypeError(
                f"CalibratedClassifierCV averages {len(others) + 1} models, whose joint "
                "uncertainty cannot be predicted. Use `ensemble=False`, or calibrate one fitted "
                "model wrapped in FrozenEstimator."
            )
        return Unwrapped(model.estimator)
    if hasattr(estimator, "best_estimator_"):
        return Unwrapped(estimator.best_estimator_)
    if is_search(estimator):
        check_is_fitted(estimator)
        raise TypeError(
            f"{type(estimator).__name__} was run with refit=False and holds no fitted estimator; "
            "set refit=True."
        )
    return None


def has_threshold(estimator: Any) -> bool:
    """Return whether this is a meta-estimator that selects one of two classes by a threshold."""
    return is_instance_of(estimator, *FIXED) or is_instance_of(estimator, *TUNED)


def first_sampler(estimator: Any) -> int | None:
    """Find the position of a pipeline's first step that resamples rows, as in imbalanced-learn."""
    steps = estimator.steps if is_instance_of(estimator, *_PIPELINE) else []
    return next((k for k, (_, step) in enumerate(steps) if hasattr(step, "fit_resample")), None)


def transform_of(steps: list[tuple[str, Any]]) -> Callable[[Any], Any] | None:
    """Join fitted pipeline steps, except samplers, to one function; None if no step is left."""
    none = None, "passthrough"
    steps = [s for s in steps if s[1] not in none and not hasattr(s[1], "fit_resample")]
    if not steps:
        return None
    try:
        check_is_fitted(steps[-1][1])
    except NotFittedError:
        from sklearn.preprocessing import FunctionTransformer  # slow import

        # Pipelines check that the last step is fitted, which fails if it has no fitted attributes.
        steps.append(("_unchanged", FunctionTransformer()))
    from sklearn.pipeline import Pipeline

    return Pipeline(steps).transform


def is_target_transformer(estimator: Any) -> bool:
    """Return whether an estimator is a `TransformedTargetRegressor`."""
    return is_instance_of(estimator, "sklearn.compose", "TransformedTargetRegressor")


def is_search(estimator: Any) -> bool:
    """Return whether this is a search such as `GridSearchCV` (not `LogisticRegressionCV`)."""
    has_all = all(hasattr(estimator, name) for name in ("estimator", "refit", "cv"))
    return has_all and not is_instance_of(estimator, *TUNED)  # TUNED tunes only a threshold


def is_fitted(estimator: Any) -> bool:
    """Return whether an estimator is fitted; a torch module always counts as fitted."""
    try:
        inside = unwrap(estimator)
    except NotFittedError:
        return False
    except TypeError:  # a fitted wrapper around several models
        return True
    if inside is not None:
        return is_fitted(inside.estimator)
    if is_instance_of(estimator, "skorch", "NeuralNet"):
        return bool(estimator.initialized_)
    if is_module(estimator):
        return True
    if not hasattr(estimator, "fit"):  # for example, a client of a remote model
        return hasattr(estimator, "predict_proba")
    try:
        check_is_fitted(estimator)
    except AttributeError:  # not a scikit-learn estimator
        return hasattr(estimator, "classes_")
    except (NotFittedError, TypeError):
        return False
    # Some estimators can predict before `fit`. A Gaussian process, for example, predicts its prior.
    return get_tags(estimator).requires_fit or any(
        name.endswith("_") and not name.startswith("_") for name in vars(estimator)
    )


def is_prefit(estimator: Any, *, after_the_fact: bool = False) -> bool:
    """Return whether a model is used as it is; any other model is cloned and trained.

    A `FrozenEstimator` and a `torch.nn.Module` are used as they are. Methods that work on fitted
    models by definition pass `after_the_fact`; all fitted estimators are then used as they are.
    """
    frozen = isinstance(estimator, FrozenEstimator) or is_module(estimator)
    return frozen or (after_the_fact and estimator is not None and is_fitted(estimator))


def copied(estimator: Any) -> Any:
    """Copy deeply; return the object itself if that fails, for example due to a connection."""
    try:
        return deepcopy(estimator)
    except Exception:  # objects that cannot be copied may raise any error
        return estimator


def module_inside(module: Any) -> Any:
    """Return the module inside a wrapper of `torch.compile`, data parallelism or PEFT, or None."""
    for library, name, attribute in _MODULES:
        if is_instance_of(module, library, name):
            return getattr(module, attribute)
    return module.get_base_model() if is_peft_model(module) else None


def is_peft_model(module: Any) -> bool:
    """Return whether a module has adapters of the library PEFT."""
    return callable(getattr(module, "get_base_model", None))


def is_module(estimator: Any) -> bool:
    """Return whether an object is a `torch.nn.Module`, without importing torch."""
    return is_instance_of(estimator, "torch.nn", "Module")


def is_instance_of(estimator: Any, module: str, name: str) -> bool:
    """Return whether an object is an instance of class `name` of `module`, without importing it."""
    library = sys.modules.get(module)
    return library is not None and isinstance(estimator, getattr(library, name))


def weight_params(estimator: Any, sample_weight: Any) -> dict[str, Any]:
    """Return weights as an argument of `fit`, named with step prefixes without metadata routing."""
    routes = get_config()["enable_metadata_routing"]
    return {f"{'' if routes else _path_to_learner(estimator)}sample_weight": sample_weight}


def _path_to_learner(estimator: Any) -> str:
    if is_instance_of(estimator, *_PIPELINE):
        name, last = estimator.steps[-1]
        return f"{name}__{_path_to_learner(last)}"
    return _path_to_learner(estimator.estimator) if is_search(estimator) else ""
