"""Gaussians around given models, in the shape of the posterior: Laplace approximations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import vmap

from skuq.baselines._curvature import diagonal_curvature, last_layer_curvature
from skuq.models import BinaryLogits, stacked_forward

# A full curvature of more weights would outweigh the searches: 8 MiB for each of them.
_FULL_LIMIT = 1024
# Slopes that may be held at once: 64 MiB in double precision.
_SLOPES = 2**23


@dataclass(frozen=True)
class GaussianMixtures:
    """A mixture of Gaussians, in equal shares, for each test point.

    Attributes
    ----------
    mean : Tensor of shape (n_points, n_components, n_weights), float64
        Locations.
    root : Tensor of shape (n_points, n_components, n_weights[, n_weights]), float64
        Lower Cholesky factors of the precision matrices, or the square roots of their
        diagonals if they are diagonal.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Eq. 6.

    Examples
    --------
    >>> zero, one = torch.zeros(1, 1, 1).double(), torch.ones(1, 1, 1).double()
    >>> pair = GaussianMixtures(torch.cat([zero, one], 1), torch.cat([one, one], 1))
    >>> pair.draw(torch.tensor([[0.0], [2.0]]).double())
    tensor([[[0.],
             [3.]]], dtype=torch.float64)
    >>> round(float(pair.log_density(zero).exp()), 4)
    0.3205
    """

    mean: Tensor
    root: Tensor

    @property
    def _diagonal(self) -> Tensor:
        full = self.root.ndim > self.mean.ndim
        return self.root.diagonal(dim1=-2, dim2=-1) if full else self.root

    def draw(self, noise: Tensor) -> Tensor:
        """Turn standard normal noise into one model of each component.

        Parameters
        ----------
        noise : Tensor of shape (n_components, n_weights), float64
            The same for all points.

        Returns
        -------
        Tensor of shape (n_points, n_components, n_weights), float64
            Models.
        """
        if self.root.ndim == self.mean.ndim:
            return self.mean + noise / self.root
        columns = noise.expand_as(self.mean)[..., None]
        return self.mean + torch.linalg.solve_triangular(self.root.mT, columns, upper=True)[..., 0]

    def log_density(self, models: Tensor) -> Tensor:
        """Logarithm of the mixture's density.

        Parameters
        ----------
        models : Tensor of shape (n_points, n_models, n_weights), float64
            Where.

        Returns
        -------
        Tensor of shape (n_points, n_models), float64
            In nats.
        """
        # Relative to one of the components, which spares digits in the products.
        mean, models = self.mean - self.mean[:, :1], models - self.mean[:, :1]
        if self.root.ndim == self.mean.ndim:
            # (m - w)**2 multiplied out: no array has an axis for both models and components.
            precision = self.root.square()
            squares = precision @ models.square().mT - 2 * (precision * mean) @ models.mT
            squares = squares + (precision * mean.square()).sum(-1, keepdim=True)
        else:
            at_models = self.root.mT @ models.mT[:, None]
            squares = (at_models - self.root.mT @ mean[..., None]).square().sum(-2)
        volume = self._diagonal.log().sum(-1, keepdim=True)
        constant = mean.shape[-1] / 2 * math.log(2 * math.pi) + math.log(mean.shape[1])
        return torch.logsumexp(volume - squares.clamp_min(0) / 2, dim=1) - constant


def flatten(models: Mapping[str, Tensor]) -> Tensor:
    """All weights of each model in one row.

    Parameters
    ----------
    models : mapping of str to Tensor of shape (n_models, \\*parameter.shape)
        Models.

    Returns
    -------
    Tensor of shape (n_models, n_weights), float64
        Tensor by tensor.
    """
    return torch.cat([w.detach().double().flatten(1) for w in models.values()], dim=1)


def unflatten(rows: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo `flatten`.

    Parameters
    ----------
    rows : Tensor of shape (n_models, n_weights)
        Weights.
    like : mapping of str to Tensor of shape (n, \\*parameter.shape)
        Supplies names, shapes and dtypes.

    Returns
    -------
    dict of str to Tensor of shape (n_models, \\*parameter.shape)
        Models.

    Examples
    --------
    >>> models = {"weight": torch.ones(2, 3, 4), "bias": torch.zeros(2, 3)}
    >>> unflatten(flatten(models), models)["bias"]
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    parts = torch.split(rows, [w[0].numel() for w in like.values()], dim=1)
    return {
        name: part.reshape(-1, *w.shape[1:]).to(w.dtype)
        for (name, w), part in zip(like.items(), parts, strict=True)
    }


def laplace_precision(
    module: nn.Module,
    models: Mapping[str, Tensor],
    X: Tensor,
    weight: Tensor,
    *,
    temperature: float,
    prior_precision: Tensor,
) -> Tensor:
    """Root of the precision of Laplace approximations: ``curvature / T + prior``.

    The curvature is the Gauss-Newton matrix of the cross-entropy: all of it, where nothing but
    a linear last layer moves and has at most 1024 weights, else its diagonal.

    Parameters
    ----------
    module : torch.nn.Module
        Network in evaluation mode that returns logits.
    models : mapping of str to Tensor of shape (n_models, \\*parameter.shape)
        The parameters that move, at the models in question.
    X : Tensor of shape (n_samples, ...)
        Training inputs.
    weight : Tensor of shape (n_samples,)
        Weights of the samples, which sum to 1 if the loss is a mean.
    temperature : float
        T of the posterior ``exp(-loss / T)``.
    prior_precision : Tensor of shape (n_weights,), float64
        Added to the diagonal.

    Returns
    -------
    Tensor of shape (n_models, n_weights[, n_weights]), float64
        As the `root` of `GaussianMixtures`; columns as in `flatten`.

    Raises
    ------
    ValueError
        If a precision matrix is not positive definite to rounding.

    Examples
    --------
    >>> net, X = nn.Linear(1, 2), torch.ones(4, 1)
    >>> models = {"bias": net.bias.detach()[None] * 0, "weight": net.weight.detach()[None] * 0}
    >>> prior = torch.full((4,), 2.0).double()
    >>> root = laplace_precision(
    ...     net, models, X, torch.ones(4), temperature=0.5, prior_precision=prior
    ... )
    >>> (root @ root.mT)[0, 0]
    tensor([ 4., -2.,  2., -2.], dtype=torch.float64)
    """
    full = _last_layer(module, models, X, weight)
    if full is None:
        scaled = _diagonal(module, models, X, weight) / temperature
        return (scaled + prior_precision).sqrt()
    root, failed = torch.linalg.cholesky_ex(full / temperature + torch.diag(prior_precision))
    if bool(failed.any()):
        raise ValueError(
            "The curvature of the training loss is not positive definite to rounding; use a "
            "larger `weight_decay`."
        )
    return root


def _diagonal(module: nn.Module, models: Mapping[str, Tensor], X: Tensor, weight: Tensor) -> Tensor:
    with torch.no_grad():
        n_outputs = module(X[:1].clone()).shape[-1]
    slopes = len(X) * n_outputs * sum(w[0].numel() for w in models.values())
    curvature = vmap(
        partial(diagonal_curvature, module, X=X, weight=weight),
        chunk_size=max(1, _SLOPES // slopes),
    )
    return flatten(curvature(dict(models)))


def _last_layer(
    module: nn.Module, models: Mapping[str, Tensor], X: Tensor, weight: Tensor
) -> Tensor | None:
    """Full curvature, columns as in `flatten`; None where there is no formula for it."""
    layer, *tail = module if isinstance(module, nn.Sequential) else [module]
    binary = len(tail) == 1 and isinstance(tail[0], BinaryLogits)
    names = [name.rpartition(".")[2] for name in models]
    n_weights = sum(w[0].numel() for w in models.values())
    if (
        not isinstance(layer, nn.Linear)
        or (tail and not binary)
        or "weight" not in names
        or n_weights > _FULL_LIMIT
        or X.ndim != 2
    ):
        return None
    log_proba = stacked_forward(module, models, X.clone(), shared_input=True).double()
    bias = "bias" in names
    curvature = last_layer_curvature(X, log_proba.log_softmax(-1), weight, bias=bias)
    # From one class after another, each with its bias, to one tensor after another. The only
    # output of a binary classifier is the logit of the second class, the first has none.
    position = torch.arange(curvature.shape[-1], device=X.device)[-n_weights:]
    position = position.reshape(layer.out_features, -1)
    columns = {"weight": position[:, : layer.in_features], "bias": position[:, -1]}
    order = torch.cat([columns[name].flatten() for name in names])
    return curvature[:, order[:, None], order]
