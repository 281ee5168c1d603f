"""From whatever the user passed as ``estimator`` to a fitted regressor, and its noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import skorch
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import _safe_indexing
from skorch.callbacks import LRScheduler
from torch import Tensor, nn

from skuq.base import FloatArray
from skuq.models import MLP, AdoptedModel, BatchLoader, adopt, evaluate, fit_net, seeded
from skuq.models._classifier import _fit_sklearn

_MAX_EPOCHS = 100


def fit_regressor(
    estimator: Any,
    X: Any,
    y: FloatArray,
    *,
    sample_weight: FloatArray | None,
    n_outputs: int,
    seed: int,
    device: torch.device,
) -> AdoptedModel:
    """Take over a frozen regressor as it is; clone and train any other.

    Parameters
    ----------
    estimator : object
        None (the default network is trained), a `FrozenEstimator` of anything that `adopt`
        takes, or a skorch net or scikit-learn model to be cloned and trained.
    X : array of shape (n_samples, ...) or DataFrame
        Inputs.
    y : ndarray of shape (n_samples,), float64
        Targets.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights for the training.
    n_outputs : int
        1 for the mean, 2 for mean and log variance.
    seed : int
        Randomness of the training.
    device : torch.device
        Where the default network is trained.

    Returns
    -------
    AdoptedModel
        Its module returns shape (n_samples, n_outputs).

    Raises
    ------
    TypeError
        If the estimator is none of these.
    ValueError
        If it is a classifier, or has another number of outputs.
    """
    if isinstance(estimator, FrozenEstimator):
        model = adopt(estimator)
    else:
        model = _train(estimator, X, y, sample_weight, n_outputs, seed, device)
    if model.classes is not None:
        raise ValueError("`estimator` is a classifier; QUAMClassifier questions those.")
    shape = tuple(evaluate(model.module, model.inputs(_safe_indexing(X, [0]))).shape)
    if shape != (1, n_outputs):
        wanted = "the mean" if n_outputs == 1 else "mean and log variance"
        noise = "homoscedastic" if n_outputs == 1 else "learned"
        raise ValueError(
            f"With noise={noise!r} the network must return {wanted}, shape (n_samples, "
            f"{n_outputs}), got shape {shape} for one sample."
        )
    return model


def _train(
    estimator: Any,
    X: Any,
    y: FloatArray,
    sample_weight: FloatArray | None,
    n_outputs: int,
    seed: int,
    device: torch.device,
) -> AdoptedModel:
    if estimator is None:
        return _train_default(X, y, sample_weight, n_outputs, seed, device)
    if isinstance(estimator, nn.Module):
        raise TypeError(
            f"`estimator` is a bare {type(estimator).__name__}. To use its weights as they are, "
            "wrap it: FrozenEstimator(module). To train it, wrap it in a "
            "skorch.NeuralNetRegressor."
        )
    if not hasattr(estimator, "fit"):
        raise TypeError(f"`estimator` must have a method `fit` or be None, got {estimator!r}.")
    if isinstance(estimator, skorch.NeuralNet):
        if sample_weight is not None:
            raise ValueError(
                "`sample_weight` cannot be used to train a skorch net; pass estimator=None, or "
                "a net that is trained already, wrapped in FrozenEstimator."
            )
        targets = y[:, None].astype(np.float32)
        return adopt(fit_net(clone(estimator), X.astype(np.float32), targets, seed=seed))
    if hasattr(estimator, "steps") and isinstance(estimator.steps[-1][1], skorch.NeuralNet):
        raise TypeError(
            "`estimator` is a pipeline that ends in a skorch net; put the transformers outside: "
            "make_pipeline(..., QUAMRegressor(net))."
        )
    with seeded(seed):
        return adopt(_fit_sklearn(clone(estimator), X, y, sample_weight, seed))


def _train_default(
    X: NDArray[Any],
    y: FloatArray,
    sample_weight: FloatArray | None,
    n_outputs: int,
    seed: int,
    device: torch.device,
) -> AdoptedModel:
    """Train the default network on the standardised target; undo that in a further layer."""
    weight = np.ones_like(y) if sample_weight is None else sample_weight
    centre = np.average(y, weights=weight)
    scale = np.sqrt(np.average((y - centre) ** 2, weights=weight)) or 1.0
    net = skorch.NeuralNet(
        _float64_mlp,
        module__n_features=X.shape[1],
        module__n_outputs=n_outputs,
        criterion=WeightedGaussianLoss,
        optimizer=torch.optim.Adam,
        optimizer__weight_decay=1e-4,
        lr=1e-2,
        max_epochs=_MAX_EPOCHS,
        batch_size=64,
        train_split=None,
        iterator_train=BatchLoader,
        iterator_train__shuffle=True,
        # Steps of constant length would end at random near the optimum, from where searches
        # find models of smaller loss everywhere.
        callbacks=[LRScheduler("CosineAnnealingLR", T_max=_MAX_EPOCHS)],
        device=str(device),
        verbose=0,
    )
    # The loss sees the weights as a second column of the targets.
    targets = np.column_stack([(y - centre) / scale, weight])
    module = adopt(fit_net(net, X.astype(np.float64), targets, seed=seed)).module
    assert isinstance(module, nn.Sequential)
    restore = Affine([scale, 1.0][:n_outputs], [centre, 2 * np.log(scale)][:n_outputs])
    return AdoptedModel(nn.Sequential(*module, restore).eval())


def _float64_mlp(n_features: int, n_outputs: int) -> nn.Module:
    return MLP(n_features, n_outputs).double()


class WeightedGaussianLoss(nn.Module):
    """Mean negative log-likelihood, or half the squared error if there is no log variance."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        y, weight = targets.T
        losses = (y - outputs[:, 0]).square() / 2
        if outputs.shape[1] == 2:
            losses = losses / outputs[:, 1].exp() + outputs[:, 1] / 2
        return (weight * losses).sum() / weight.sum()


class Affine(nn.Module):
    """Each output times a factor plus a shift, neither of which moves."""

    factor: Tensor
    shift: Tensor

    def __init__(self, factor: list[float], shift: list[float]):
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor, dtype=torch.float64))
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float64))

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs * self.factor + self.shift


def estimate_noise(
    estimator: Any,
    X: Any,
    y: FloatArray,
    *,
    sample_weight: FloatArray | None,
    fraction: float,
    seed: int,
    device: torch.device,
) -> float:
    """Noise variance of a regressor, Eq. 28: its mean squared error on held-out samples.

    A frozen model has seen all of them: then it is the error on the samples themselves. Any
    other is trained once more, without those held out. Parameters are those of
    `fit_regressor`; `fraction` is the share that is held out.

    Returns
    -------
    float
        In squared units of the target.

    Raises
    ------
    ValueError
        If there are too few samples to hold some out, or the error is 0.
    """
    rows = held_out = np.arange(len(y))
    if not isinstance(estimator, FrozenEstimator):
        rows, held_out = train_test_split(rows, test_size=fraction, random_state=seed)
    weight = np.ones_like(y) if sample_weight is None else sample_weight
    model = fit_regressor(
        estimator,
        _safe_indexing(X, rows),
        y[rows],
        sample_weight=None if sample_weight is None else weight[rows],
        n_outputs=1,
        seed=seed,
        device=device,
    )
    inputs = model.inputs(_safe_indexing(X, held_out))
    predicted = evaluate(model.module, inputs, device=device).double()[:, 0].numpy()
    variance = float(np.average((y[held_out] - predicted) ** 2, weights=weight[held_out]))
    if variance == 0:
        raise ValueError(
            "The model errs nowhere on the samples that the variance of the noise is estimated "
            "on; give `noise_variance`."
        )
    return variance
