"""Ensembles of models that differ in their seeds, or in the rows that they are trained on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import _safe_indexing, resample
from sklearn.utils.parallel import Parallel, delayed
from torch import Tensor, nn

from skuq._networks import on_device
from skuq.base import FloatArray
from skuq.baselines._sampled import AT_LEAST_ONE, SampledModelsClassifier, log_proba_there
from skuq.models import Given, Model, fit_model, look_at
from skuq.validation import refuse_ineffective, warn_user
from skuq.wrappers import unwrap

_N_COMPARED = 256  # number of training rows on which members are compared
_SAME = 1e-6  # members count as equal if their probabilities differ by less than this


@dataclass(repr=False, eq=False, kw_only=True)
class DeepEnsembleClassifier(SampledModelsClassifier):
    """Disagreement of models trained with different seeds, or on different rows.

    Parameters
    ----------
    estimator : object, default=None
        The model that is cloned for each member: any classifier with `predict_proba`, or a node
        classifier. None is the default network. Every `random_state` in the model is replaced. The
        module of a skorch net should be a class: clones of an instance start from equal weights. If
        training is not random and a clone predicts exactly like an earlier member, the clone is
        trained again on a bootstrap resample of the rows of each class. A fitted model in a
        `FrozenEstimator` is the first member; the other members are trained clones of this model.
    n_members : int, default=10
        Number of members to train; cannot be set together with `members`.
    members : list of fitted models or torch.nn.ModuleList, default=None
        Trained members, which are used without retraining: fitted classifiers or modules. `fit`
        then reads only the class labels from `y`; `estimator` must be None. `clone` returns
        unfitted copies of models that are not in a `FrozenEstimator`.
    setting : {"expected", "selected", "pairwise", "max-score"}, default="expected"
        Definition of the uncertainty and of the prediction. "expected": uncertainty of the average
        of all members (Schweighofer et al., NeurIPS 2023, Eq. 1). "selected": uncertainty of the
        given model (Eq. 2), here the first member, whose prediction is used. "pairwise": mean
        uncertainty over pairs of members; the prediction is the average. "max-score": the total is
        1 minus the largest probability of the average; the parts are NaN.
    batch_size : int, default=256
        Number of test points evaluated at once; it does not affect the result.
    device : str, default="auto"
        Device of networks; "auto" is CUDA if available, otherwise the CPU.
    n_jobs : int, default=None
        Number of members that are trained at once, in processes (joblib).
    random_state : int, RandomState instance or None, default=None
        Seed of initial weights, shuffling and mini-batches of all members.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    members_ : list of skuq.models.Model
        The members, of which the first is also `model_`.

    Notes
    -----
    Quantities are in nats. "selected": total = expected cross-entropy, aleatoric = entropy of the
    given model, epistemic = mean KL divergence between the given model and all members (itself
    included). "expected": total = entropy of the average, aleatoric = mean entropy,
    epistemic = mutual information. "pairwise": total = mean cross-entropy of all pairs of members,
    aleatoric = mean entropy, epistemic = mean KL divergence of all pairs, including each member
    with itself. "max-score" is a probability. Members on bootstrap resamples form a bagging
    ensemble (Breiman 1996), not a deep ensemble.

    References
    ----------
    Lakshminarayanan, Pritzel, Blundell, NeurIPS 2017; as a baseline: Schweighofer et al., NeurIPS
    2023 ("selected", "expected"), Schweighofer et al., UAI 2025 ("pairwise"), Yu et al., AISTATS
    2025, Appendix C.3 ("max-score").

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

    n_members: int = 10
    members: Sequence[Any] | nn.ModuleList | None = None
    n_jobs: int | None = None

    _supports_ids = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **SampledModelsClassifier._parameter_constraints,
        "n_members": AT_LEAST_ONE,
        "members": [list, tuple, nn.ModuleList, None],
        "n_jobs": [Integral, None],
    }

    @property
    def _given(self) -> Any:
        return self.members[0] if self.members else self.estimator

    def _training_options(self) -> dict[str, Any]:
        if self.members is None:
            return {"form": "natural", "fit": self._fit_members}
        if self.estimator is not None or not self.members:
            raise ValueError(
                "Pass either `estimator` or `members`, which must contain at least one model; got "
                f"estimator={self.estimator!r} and {len(self.members)} members."
            )
        context = "on `members`, which are already trained."
        refuse_ineffective(self, ["n_members", "n_jobs"], context)
        return {"form": "natural", "fit": self._take_members}

    def _take_members(self, given: Given, X: Any, y: NDArray[Any], **training: Any) -> Model:
        self.members_: list[Model] = []
        for each in self.members or ():
            frozen = each if isinstance(each, FrozenEstimator) else FrozenEstimator(each)
            as_learner = not look_at(frozen).is_naturally_network
            self.members_.append(fit_model(frozen, X, y, seed=0, as_learner=as_learner))
        _check_same_classes(self.members_, X, y)
        return self.members_[0]

    def _fit_members(
        self, given: Given, X: Any, y: NDArray[Any], *, seed: int, **training: Any
    ) -> Model:
        more = np.random.RandomState(self._sampling_seed)
        seeds = [seed, *map(int, more.randint(2**31 - 1, size=self.n_members - 1))]
        unfitted = _unfitted(given, seeds)
        whole = X, y, training.pop("sample_weight")
        jobs = [(each, whole, k) for each, k in zip(unfitted, seeds, strict=True)]
        members = self._trained(jobs, training)
        if repeated := _repeated(members, X):
            jobs = [(unfitted[k], _resampled(*whole, seeds[k]), seeds[k]) for k in repeated]
            again = self._trained(jobs, training)
            for k, member in zip(repeated, again, strict=True):
                members[k] = member
            if same := _repeated(members, X):
                warn_user(
                    f"{len(same)} of {len(members)} members make the same predictions on the "
                    "training rows as an earlier member, even after training on resampled rows. An "
                    f"ensemble of {type(given.estimator).__name__} underestimates uncertainty."
                )
        # Each process returned its own copy of the graph of a node classifier; keep a single copy.
        shared = {"graph": members[0].graph} if hasattr(members[0], "graph") else {}
        self.members_ = [replace(member, **shared) for member in members]
        _check_same_classes(self.members_, X, y)
        return self.members_[0]

    def _trained(self, jobs: Sequence[Any], training: dict[str, Any]) -> list[Model]:
        # Train members in processes, because each seed sets the global random state, which threads
        # share. scikit-learn's `Parallel` passes on scikit-learn's configuration, such as metadata
        # routing.
        members: list[Model] = Parallel(n_jobs=self.n_jobs)(
            delayed(fit_model)(each, X, y, sample_weight=weight, seed=seed, **training)
            for each, (X, y, weight), seed in jobs
        )
        return members

    def _sampler(self, device: torch.device) -> Callable[[Any], Tensor]:
        held: list[Any] = self.members_
        members = [each if each.network is None else each.to(device) for each in held]

        def sample(X: Any) -> Tensor:
            inputs: dict[Any, Any] = {}  # shared by members with equal transform and dtype
            log_proba = []
            for member in members:
                form = id(member.transform), getattr(member, "dtype", None)
                if form not in inputs:
                    there = member.inputs(X)
                    inputs[form] = on_device(there, device) if member.network else there
                log_proba.append(log_proba_there(member, inputs[form]))
            return torch.stack(log_proba, dim=1)

        return sample


def _resampled(X: Any, y: NDArray[Any], weight: FloatArray | None, seed: int) -> tuple[Any, ...]:
    rows = resample(np.arange(len(y)), stratify=y, random_state=seed)
    return _safe_indexing(X, rows), y[rows], None if weight is None else weight[rows]


def _repeated(members: Sequence[Model], X: Any) -> list[int]:
    """Return indices of members that predict the first training rows like an earlier member."""
    if members[0].at_once:  # node classifiers are not compared
        return []
    X = _safe_indexing(X, slice(0, _N_COMPARED))
    proba = [np.exp(np.asarray(each.log_proba(each.inputs(X)))) for each in members]

    def same(a: FloatArray, b: FloatArray) -> bool:
        return a.shape == b.shape and bool(np.abs(a - b).max() < _SAME)

    return [k for k, own in enumerate(proba) if any(same(own, each) for each in proba[:k])]


def _unfitted(given: Given, seeds: Sequence[int]) -> list[Any]:
    """Return estimators to train as members; the first is the given model if it is prefit."""
    estimator = given.estimator
    if estimator is None:
        return [None] * len(seeds)
    inner = estimator
    while isinstance(inner, FrozenEstimator) and (inside := unwrap(inner)):
        inner = inside.estimator
    if len(seeds) > 1 and (fixed := _fixed_inside(inner)):
        raise TypeError(
            f"{fixed} is used without retraining, so no further members can be trained; pass "
            "fitted models as `members`."
        )
    if len(seeds) > 1 and isinstance(getattr(inner, "module", None), nn.Module):
        warn_user(
            f"The module of this {type(inner).__name__} is an instance, so all members "
            "start from its weights. Pass the class of the module instead, with `module__...` "
            "parameters; members then start from different weights."
        )
    if not given.is_prefit:
        given.check_trainable()
        estimator = _reseeded(estimator, seeds[0])
    return [estimator, *(_reseeded(inner, seed) for seed in seeds[1:])]


def _fixed_inside(estimator: Any) -> str:
    """Name the model in an estimator that clones would share, not retrain; "" if none exists."""
    learner, where = estimator, ""
    # The transformers of a pipeline are not checked, because clones may share them.
    while not isinstance(learner, FrozenEstimator | nn.Module):
        inside = unwrap(learner, fitted=False)
        # `EvidentialProbe` cannot be unwrapped, but has an attribute `estimator` as well.
        held = inside.estimator if inside else getattr(learner, "estimator", None)
        if held is None:
            return ""
        learner, where = held, f" in a {type(estimator).__name__}"
    return f"{type(learner).__name__}{where}"


def _reseeded(estimator: Any, seed: int) -> Any:
    if not hasattr(estimator, "get_params"):  # cannot be trained; `fit_model` raises an error
        return estimator
    copy = clone(estimator)
    names = [name for name in copy.get_params() if name.split("__")[-1] == "random_state"]
    return copy.set_params(**dict.fromkeys(names, seed))


def _check_same_classes(members: Sequence[Model], X: Any, y: NDArray[Any]) -> None:
    if not members[0].at_once:  # one row is enough, but a mask of nodes must stay complete
        X = _safe_indexing(X, slice(0, 1))
    known: list[Any] = [each.with_classes(y, each.inputs(X))[0].classes for each in members]
    for number, classes in enumerate(known):
        if not np.array_equal(classes, known[0]):
            raise ValueError(
                f"All members must have the same classes, but member 0 has {known[0]} and member "
                f"{number} has {classes}."
            )
