"""skuq: honest uncertainty for scikit-learn users.

Every public name is loaded on first use, estimators through their plugins (see `skuq.imports`), so
``import skuq`` imports neither torch, nor scikit-learn, nor an optional dependency.
"""

from typing import TYPE_CHECKING, Any

from skuq._version import __version__ as __version__
from skuq.imports import lazy_names

if TYPE_CHECKING:
    from skuq.audit import CalibrationAuditor
    from skuq.base import (
        CredalInterval,
        PredictionInterval,
        Uncertainty,
        UncertaintyMixin,
        predict_uncertainty,
    )
    from skuq.baselines import (
        DeepEnsembleClassifier,
        FeatureDistanceClassifier,
        LaplaceClassifier,
        MCDropoutClassifier,
        ReferenceClassifier,
        SGMCMCClassifier,
    )
    from skuq.evidential import EvidentialProbe
    from skuq.explanations import Explanation, explain
    from skuq.gpc import RobustGPC, RobustGPRegressor
    from skuq.imports import PluginWarning, all_estimators
    from skuq.mirage import MirageFineTuner, MirageRegressor
    from skuq.ood import OODDetector
    from skuq.quam import QUAMClassifier, QUAMRegressor
    from skuq.sklearn_counterparts import Pipeline, cross_val_predict_uncertainty, make_pipeline
    from skuq.uadqn import UADQN, AnchoredQuantileRegressor

_PROTOCOL = {
    "skuq.base": (
        "CredalInterval",
        "PredictionInterval",
        "Uncertainty",
        "UncertaintyMixin",
        "predict_uncertainty",
    ),
    "skuq.explanations": ("Explanation", "explain"),
    "skuq.ood": ("OODDetector",),
    "skuq.sklearn_counterparts": ("Pipeline", "cross_val_predict_uncertainty", "make_pipeline"),
    "skuq.imports": ("PluginWarning", "all_estimators"),
}
_protocol_name = lazy_names(__name__, _PROTOCOL)

__all__ = [
    "UADQN",
    "AnchoredQuantileRegressor",
    "CalibrationAuditor",
    "CredalInterval",
    "DeepEnsembleClassifier",
    "EvidentialProbe",
    "Explanation",
    "FeatureDistanceClassifier",
    "LaplaceClassifier",
    "MCDropoutClassifier",
    "MirageFineTuner",
    "MirageRegressor",
    "OODDetector",
    "Pipeline",
    "PluginWarning",
    "PredictionInterval",
    "QUAMClassifier",
    "QUAMRegressor",
    "ReferenceClassifier",
    "RobustGPC",
    "RobustGPRegressor",
    "SGMCMCClassifier",
    "Uncertainty",
    "UncertaintyMixin",
    "all_estimators",
    "cross_val_predict_uncertainty",
    "explain",
    "make_pipeline",
    "predict_uncertainty",
]


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and all(name not in names for names in _PROTOCOL.values()):
        from skuq.imports import estimator_names, load

        if name in estimator_names():
            return globals().setdefault(name, load(name))  # cached
    return _protocol_name(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
