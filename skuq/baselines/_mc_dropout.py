"""Uncertainty from dropout that goes on after training."""

from __future__ import annotations

from functools import partial
from numbers import Real
from typing import Any

import torch
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval
from torch import Tensor, nn

from skuq.baselines._dropout_masks import dropout_layers, thinned_outputs
from skuq.baselines._sampled import AT_LEAST_ONE, COMMON_CONSTRAINTS, SampledModelsClassifier
from skuq.models import AdoptedModel, fit_or_adopt, float64_mlp, resolve_device


class MCDropoutClassifier(SampledModelsClassifier):
    """Disagreement of the networks that dropout makes of one network (MC dropout).

    Parameters
    ----------
    estimator : object, default=None
        The model, as `QUAMClassifier` takes it. None trains a network with one hidden layer of
        100 units and dropout after it, of the same units for a whole batch. A skorch net is
        cloned and trained, and what `FrozenEstimator` holds is taken as it is; its module must
        contain `torch.nn.Dropout` (or `Dropout1d`, `Dropout2d`, `Dropout3d`). Dropout by other
        means is not active.
    n_samples : int, default=100
        Number of thinned networks. Can be changed without fitting again.
    dropout : float, default=0.2
        Rate in the default network; a given one keeps its own.
    setting : {"selected", "expected"}, default="selected"
        Whose uncertainty is meant. "selected": that of the network without dropout, which is
        also the one that predicts (Eq. 2). "expected": that of the average of the thinned
        networks (Eq. 1).
    batch_size : int, default=256
        Test points evaluated at once; no effect on the result.
    device : str, default="auto"
        Where to compute; "auto" is CUDA if present, else the CPU.
    random_state : int, RandomState instance or None, default=None
        Training, and which units are dropped when uncertainty is predicted: drawn once, in
        `fit`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.AdoptedModel
        The network.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Quantities are in nats. "selected": total = expected cross-entropy, aleatoric = entropy of
    the network without dropout, epistemic = expected KL divergence of thinned networks from
    it. "expected": total = entropy of their average, aleatoric = expected entropy, epistemic =
    mutual information. All test points see the same thinned networks.

    References
    ----------
    Gal and Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016; as compared with by
    Schweighofer et al., NeurIPS 2023, Appendix C.3.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.preprocessing import scale
    >>> from skuq.baselines import MCDropoutClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> dropout = MCDropoutClassifier(random_state=0).fit(scale(X), y)
    >>> u = dropout.predict_uncertainty([[0.0] * 4, [-1.0, 0.8, -1.3, -1.3]])
    >>> bool(u.epistemic[0] > u.epistemic[1])  # between two classes, and amid the third
    True
    """

    _parameter_constraints: dict[str, Any] = {
        **COMMON_CONSTRAINTS,
        "n_samples": AT_LEAST_ONE,
        "dropout": [Interval(Real, 0, 1, closed="neither")],
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_samples: int = 100,
        dropout: float = 0.2,
        setting: str = "selected",
        batch_size: int = 256,
        device: str = "auto",
        random_state: Any = None,
    ):
        self.estimator = estimator
        self.n_samples = n_samples
        self.dropout = dropout
        self.setting = setting
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state

    def _fit_model(
        self,
        X: Any,
        y: NDArray[Any],
        sample_weight: NDArray[Any] | None,
        seed: int,
        device: torch.device,
    ) -> AdoptedModel:
        model = fit_or_adopt(
            self.estimator,
            X,
            y,
            sample_weight=sample_weight,
            seed=seed,
            device=device,
            network=partial(_default_network, dropout=self.dropout),
        )
        dropout_layers(model.module)
        return model

    def _sampled_log_proba(self, X: Any) -> Tensor:
        logits = thinned_outputs(
            self.model_.module,
            self.model_.inputs(X),
            n_samples=self.n_samples,
            seed=self._sampling_seed,
            device=resolve_device(self.device),
        )
        return logits.double().log_softmax(-1)


class BatchDropout(nn.Dropout):
    """Dropout of the same units for a whole batch, as in prediction.

    Trained with it, a sample of weight 2 is the same as two samples.
    """

    def forward(self, X: Tensor) -> Tensor:
        return X * super().forward(torch.ones_like(X[:1]))


def _default_network(n_features: int, n_outputs: int, dropout: float) -> nn.Module:
    network = float64_mlp(n_features, n_outputs, dropout=dropout)
    for name, part in network.named_children():
        if isinstance(part, nn.Dropout):
            network.set_submodule(name, BatchDropout(part.p))
    return network
