"""Several networks that differ in nothing but their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import _safe_indexing
from torch import Tensor

from skuq.baselines._sampled import AT_LEAST_ONE, COMMON_CONSTRAINTS, SampledModelsClassifier
from skuq.models import (
    AdoptedModel,
    adopt,
    encode_labels,
    evaluate,
    fit_or_adopt,
    resolve_device,
    taken_as_it_is,
)
from skuq.wrappers import unwrap


class DeepEnsembleClassifier(SampledModelsClassifier):
    """Disagreement of networks trained from different initial weights.

    Parameters
    ----------
    estimator : object, default=None
        What each member is trained as, as `QUAMClassifier` takes it: None is the default
        network; a skorch net or scikit-learn model is cloned, and every `random_state` in it
        replaced. A fitted model in a `FrozenEstimator` is the first member as it is, and the
        others are clones of it that are trained. A skorch net whose module is an instance,
        not a class, has the same initial weights in all members.
    n_models : int, default=10
        Number of members to train; no effect if `members` is given.
    members : list of fitted models, default=None
        Members as they are, each anything that `skuq.models.adopt` takes; `estimator` must then
        be None. `clone` unfits scikit-learn and skorch models that are not in a
        `FrozenEstimator`.
    setting : {"selected", "expected"}, default="selected"
        Whose uncertainty is meant. "selected": that of the first member, which is also the one
        that predicts (Eq. 2). "expected": that of the average of all members (Eq. 1).
    batch_size : int, default=256
        Test points evaluated at once; no effect on the result.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    n_jobs : int, default=None
        Members trained at once, in processes, as joblib has it.
    random_state : int, RandomState instance or None, default=None
        Initial weights, shuffling and mini-batches of all members.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    members_ : list of skuq.models.AdoptedModel
        The networks.
    model_ : skuq.models.AdoptedModel
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
    = mutual information. A model whose training has no randomness, such as logistic
    regression, has members that agree.

    References
    ----------
    Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation
    using Deep Ensembles", NeurIPS 2017; as compared with by Schweighofer et al., NeurIPS 2023.

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

    _model_parameter = "_given"
    _parameter_constraints: dict[str, Any] = {
        **COMMON_CONSTRAINTS,
        "n_models": AT_LEAST_ONE,
        "members": [list, tuple, None],
        "n_jobs": [Integral, None],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_models: int = 10,
        members: Sequence[Any] | None = None,
        setting: str = "selected",
        batch_size: int = 256,
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
    ):
        self.estimator = estimator
        self.n_models = n_models
        self.members = members
        self.setting = setting
        self.batch_size = batch_size
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state

    @property
    def _given(self) -> Any:
        """What decides which inputs `fit` takes."""
        return self.members[0] if self.members else self.estimator

    def _fit_model(
        self,
        X: Any,
        y: NDArray[Any],
        sample_weight: NDArray[Any] | None,
        seed: int,
        device: torch.device,
    ) -> AdoptedModel:
        if self.members is not None:
            self.members_ = self._adopt_members()
        else:
            more = np.random.RandomState(self._sampling_seed)
            seeds = [seed, *map(int, more.randint(2**31 - 1, size=self.n_models - 1))]
            # Processes, because seeds govern the one random state that threads share.
            self.members_ = Parallel(n_jobs=self.n_jobs)(
                delayed(fit_or_adopt)(
                    member, X, y, sample_weight=sample_weight, seed=own, device=device
                )
                for member, own in zip(_differing(self.estimator, seeds), seeds, strict=True)
            )
        _check_same_classes(self.members_, X, y)
        return self.members_[0]

    def _adopt_members(self) -> list[AdoptedModel]:
        if self.estimator is not None:
            raise ValueError("`estimator` and `members` are both given; give one of them.")
        if not self.members:
            raise ValueError("`members` is empty; an ensemble needs at least one model.")
        return [adopt(member) for member in self.members]

    def _sampled_log_proba(self, X: Any) -> Tensor:
        device = resolve_device(self.device)
        logits = [evaluate(m.module, m.inputs(X), device=device) for m in self.members_]
        return torch.stack([each.double().log_softmax(-1) for each in logits], dim=1)


def _differing(estimator: Any, seeds: Sequence[int]) -> list[Any]:
    """What each member is trained as; the first is the model itself if it is taken as it is."""
    if estimator is None:
        return [None] * len(seeds)
    if not taken_as_it_is(estimator):
        return [_reseeded(estimator, seed) for seed in seeds]
    inner = estimator
    while isinstance(inner, FrozenEstimator) and (inside := unwrap(inner)):
        inner = inside.estimator
    if len(seeds) > 1 and not hasattr(inner, "get_params"):
        raise TypeError(
            f"{type(inner).__name__} is taken as it is and cannot be trained again to get further "
            "members; give fitted models in `members`."
        )
    return [estimator, *(_reseeded(inner, seed) for seed in seeds[1:])]


def _reseeded(estimator: Any, seed: int) -> Any:
    if not hasattr(estimator, "get_params"):
        return estimator  # none that can be trained: `fit_or_adopt` says so
    copy = clone(estimator)
    names = [name for name in copy.get_params() if name.split("__")[-1] == "random_state"]
    return copy.set_params(**dict.fromkeys(names, seed))


def _check_same_classes(members: Sequence[AdoptedModel], X: Any, y: NDArray[Any]) -> None:
    first_row = _safe_indexing(X, slice(0, 1))
    known = [encode_labels(y, member, member.inputs(first_row))[0] for member in members]
    for number, classes in enumerate(known):
        if not np.array_equal(classes, known[0]):
            raise ValueError(
                f"Members know different classes: number 0 {known[0]}, number {number} {classes}."
            )
