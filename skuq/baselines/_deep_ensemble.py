"""Ensembles of networks that differ in their seeds only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import _safe_indexing
from torch import Tensor, nn

from skuq.baselines._sampled import AT_LEAST_ONE, COMMON_CONSTRAINTS, SampledModelsClassifier
from skuq.models import NetworkModel, fit_model, is_prefit, look_at
from skuq.networks import as_double, on_device
from skuq.validation import refuse_ineffective, warn_user
from skuq.wrappers import unwrap


class DeepEnsembleClassifier(SampledModelsClassifier):
    """Disagreement of networks trained from different initial weights.

    Parameters
    ----------
    estimator : object, default=None
        The model that members are clones of, as `QUAMClassifier` takes it, or a classifier of
        nodes such as `skuq.evidential.GraphClassifier`. None is the default network; any other
        is cloned, and every `random_state` in it replaced. A fitted model in a
        `FrozenEstimator` is the first member as it is, and the others are clones of it that are
        trained; one that holds a frozen network itself, such as a pipeline that ends in a
        `FrozenEstimator`, is refused. The module of a skorch net should be a class, with
        ``module__...`` parameters: clones of an instance all start from its weights, which is a
        warning.
    n_members : int, default=10
        Number of members to train; no effect if `members` is given.
    members : list of fitted models, default=None
        Members as they are, each anything that `skuq.models.adopt` takes; `estimator` must then
        be None. `clone` unfits scikit-learn and skorch models that are not in a
        `FrozenEstimator`.
    setting : {"expected", "selected", "pairwise", "max-score"}, default="expected"
        Whose uncertainty is meant, and who predicts. "expected": the average of all members
        (Eq. 1). "selected": the first member (Eq. 2). "pairwise": any one member, against each of
        them; the average predicts. "max-score": the average, with 1 minus its largest
        probability as the total, half of it in each part.
    batch_size : int, default=256
        Test points evaluated at once; no effect on the result.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    n_jobs : int, default=None
        Members trained at once, in processes (joblib).
    random_state : int, RandomState instance or None, default=None
        Initial weights, shuffling and mini-batches of all members.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    members_ : list of skuq.models.NetworkModel
        The networks.
    model_ : skuq.models.NetworkModel
        The first of them.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Quantities are in nats. "selected": total = expected cross-entropy, aleatoric = entropy of
    the first member, epistemic = mean KL divergence of all members from it, its own zero
    included. "expected": total = entropy of the average, aleatoric = mean entropy, epistemic
    = mutual information. "pairwise": total = mean cross-entropy of all pairs of members, aleatoric
    = mean entropy, epistemic = mean KL divergence of all pairs, zeros of members with themselves
    included. "max-score" is a probability. A model whose training has no
    randomness, such as logistic regression, has members that agree.

    References
    ----------
    Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation
    using Deep Ensembles", NeurIPS 2017; as compared with by Schweighofer et al., NeurIPS 2023
    ("selected", "expected"), by Schweighofer et al., "On Information-Theoretic Measures of
    Predictive Uncertainty", UAI 2025 ("pairwise"), and by Yu et al., AISTATS 2025, Appendix C.3
    ("max-score").

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from skuq.baselines import DeepEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> members = [MLPClassifier((8,), max_iter=999, random_state=i).fit(X, y) for i in range(3)]
    >>> ensemble = DeepEnsembleClassifier(members=members).fit(X, y)
    >>> u = ensemble.predict_uncertainty([X[0], [50.0, 0.0, 0.0, 30.0]])
    >>> bool(u.epistemic[0] < u.epistemic[1])
    True
    """

    _supports_ids = True
    _parameter_constraints: dict[str, Any] = {
        **COMMON_CONSTRAINTS,
        "n_members": AT_LEAST_ONE,
        "members": [list, tuple, None],
        "n_jobs": [Integral, None],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_members: int = 10,
        members: Sequence[Any] | None = None,
        setting: str = "expected",
        batch_size: int = 256,
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
    ):
        super().__init__(estimator, setting, batch_size, device, random_state)
        self.n_members = n_members
        self.members = members
        self.n_jobs = n_jobs

    @property
    def _given(self) -> Any:
        """The model that decides on the inputs of `fit`."""
        return self.members[0] if self.members else self.estimator

    def _training_options(self) -> dict[str, Any]:
        if self.members is None:
            return {"fit": self._fit_members}
        if self.estimator is not None:
            raise ValueError("`estimator` and `members` are both given; give one of them.")
        if not self.members:
            raise ValueError("`members` is empty; an ensemble needs at least one model.")
        refuse_ineffective(self, ["n_members", "n_jobs"], "on `members`, which are trained.")
        return {"fit": self._adopt_members}

    def _adopt_members(
        self, estimator: Any, X: Any, y: NDArray[Any], **training: Any
    ) -> NetworkModel:
        frozen = map(FrozenEstimator, self.members or ())
        members: list[Any] = [fit_model(member, X, y, **training) for member in frozen]
        _check_same_classes(members, X, y)
        self.members_: list[NetworkModel] = members
        return self.members_[0]

    def _fit_members(
        self, estimator: Any, X: Any, y: NDArray[Any], *, seed: int, **training: Any
    ) -> NetworkModel:
        more = np.random.RandomState(self._sampling_seed)
        seeds = [seed, *map(int, more.randint(2**31 - 1, size=self.n_members - 1))]
        # Processes, because seeds govern the one random state that threads share.
        members = Parallel(n_jobs=self.n_jobs)(
            delayed(fit_model)(each, X, y, seed=own, **training)
            for each, own in zip(_unfitted(estimator, seeds), seeds, strict=True)
        )
        self.members_ = _on_one_graph(members)
        _check_same_classes(self.members_, X, y)
        return self.members_[0]

    def _sampler(self, device: torch.device) -> Callable[[Any], Tensor]:
        members = [member.to(device) for member in self.members_]

        def sample(X: Any) -> Tensor:
            inputs: dict[Any, Tensor] = {}  # members may share them
            log_proba = []
            for member in members:
                form = id(member.transform), member.dtype
                if form not in inputs:
                    inputs[form] = on_device(member.inputs(X), device)
                logits = member.outputs_there(inputs[form])
                log_proba.append(as_double(logits).log_softmax(-1))
            return torch.stack(log_proba, dim=1)

        return sample


def _unfitted(estimator: Any, seeds: Sequence[int]) -> list[Any]:
    """Estimators to train as members; the first is the given model if it is taken as it is."""
    if estimator is None:
        return [None] * len(seeds)
    inner = estimator
    while isinstance(inner, FrozenEstimator) and (inside := unwrap(inner)):
        inner = inside.estimator
    if len(seeds) > 1 and (fixed := _fixed_inside(inner)):
        raise TypeError(
            f"{fixed} is taken as it is and cannot be trained again to get further members; give "
            "fitted models in `members`."
        )
    _warn_of_equal_starts(inner, len(seeds))
    if is_prefit(estimator):
        first = estimator
    else:
        look_at(estimator).warn_of_retraining()
        first = _reseeded(estimator, seeds[0])
    return [first, *(_reseeded(inner, seed) for seed in seeds[1:])]


def _fixed_inside(estimator: Any) -> str:
    """Name of the model that clones of an estimator would share; empty if they are trained."""
    learner, where = estimator, ""
    # Not the transformers of a pipeline, which may well be shared.
    while not isinstance(learner, FrozenEstimator | nn.Module):
        inside = unwrap(learner, fitted=False)
        # Estimators that read a model, such as `skuq.evidential.LogitUncertainty`, have one too.
        held = inside.estimator if inside else getattr(learner, "estimator", None)
        if held is None:
            return ""
        learner, where = held, f" in a {type(estimator).__name__}"
    return f"{type(learner).__name__}{where}"


def _warn_of_equal_starts(estimator: Any, n_members: int) -> None:
    if n_members > 1 and isinstance(getattr(estimator, "module", None), nn.Module):
        warn_user(
            f"The module of this {type(estimator).__name__} is an instance, so that all members "
            "start from its weights. Pass the class, with `module__...` parameters, to have them "
            "start from different ones."
        )


def _reseeded(estimator: Any, seed: int) -> Any:
    if not hasattr(estimator, "get_params"):
        return estimator  # it cannot be trained, which is an error of `fit_model`
    copy = clone(estimator)
    names = [name for name in copy.get_params() if name.split("__")[-1] == "random_state"]
    return copy.set_params(**dict.fromkeys(names, seed))


def _on_one_graph(members: list[NetworkModel]) -> list[NetworkModel]:
    """Models of nodes share a graph, of which each process returns a copy."""
    shared = {"graph": members[0].graph} if hasattr(members[0], "graph") else {}
    return [replace(member, **shared) for member in members]


def _check_same_classes(members: Sequence[NetworkModel], X: Any, y: NDArray[Any]) -> None:
    if not members[0].at_once:  # one row shows the outputs, but a mask of nodes cannot be cut
        X = _safe_indexing(X, slice(0, 1))
    known: list[Any] = [each.with_classes(y, each.inputs(X))[0].classes for each in members]
    for number, classes in enumerate(known):
        if not np.array_equal(classes, known[0]):
            raise ValueError(
                f"Members know different classes: number 0 {known[0]}, number {number} {classes}."
            )
