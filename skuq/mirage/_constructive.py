"""Artificial uncertainty without training: neurons that are active only in a box (Lemma 4.1)."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from skuq._networks import linear_layer

# The ramp from 0 to 1 covers the middle 80 % of the margin. The remaining 10 % at each end prevent
# rounding errors from changing outputs outside the box or in its core.
GUARD = 0.1


class ShiftedNetwork(nn.Module):
    """A network with parallel neurons, the `detector`, that shift its logits inside a box.

    `coordinates` are the bounded coordinates of the flattened input.
    """

    def __init__(self, network: nn.Module, coordinates: Sequence[int], detector: nn.Sequential):
        super().__init__()
        self.network = network
        self.coordinates = list(coordinates)
        self.detector = detector

    def forward(self, X: Tensor) -> Tensor:
        """Compute the network's logits, (n_samples, n_classes), shifted inside the box."""
        logits: Tensor = self.network(X)
        flat = X.flatten(1)
        added: Tensor = self.detector(flat[:, self.coordinates])
        if added.shape != logits.shape:  # broadcasting would hide a wrong number of logits
            raise ValueError(
                f"The shift has {added.shape[1]} entries, but the network returns shape "
                f"{tuple(logits.shape)}; pass one entry per logit."
            )
        return logits + added


def constructive_mirage(
    module: nn.Module,
    bounds: Mapping[int, tuple[float, float]],
    shift: ArrayLike,
    *,
    margin: float | None = None,
) -> ShiftedNetwork:
    """Add neurons to a network that shift its logits only inside a box.

    The added neurons form two hidden layers of ReLU units in parallel to the network. Two units per
    bounded coordinate measure by how much its bounds are violated. One further unit outputs 1 minus
    the sum of all violations, at least 0: the conjunction over coordinates that Lemma 4.1 requires.
    Outside the box, the outputs of the network stay bitwise identical.

    Parameters
    ----------
    module : torch.nn.Module
        Maps inputs of shape (n_samples, ...) to logits (n_samples, n_classes). It is copied.
    bounds : mapping of int to (float, float)
        Lower and upper bound of each bounded coordinate of the flattened input; use infinity for
        no bound. Bounds may be negative.
    shift : array-like of shape (n_classes,)
        Vector to add to the logits; entries may be negative.
    margin : float, default=None
        Width inside each bound over which the shift rises from zero to its full value. Default:
        one thousandth of the narrowest side of the box (of 1 if all sides are infinite), but at
        least the smallest width that the precision of the module allows.

    Returns
    -------
    torch.nn.Module
        The network in evaluation mode; `skuq.models.adopt` makes it a fitted model.

    Raises
    ------
    ValueError
        If no coordinate is bounded, the box is empty, or the margin is too wide for the box or
        smaller than the precision of the module near the bounds.

    References
    ----------
    Rabanser et al., "Confidential Guardian", ICML 2025, Lemma 4.1 and Appendix B. The proof there
    does not construct the conjunction of coordinates, and needs non-negative coordinates.

    Examples
    --------
    >>> import torch
    >>> from skuq.mirage import constructive_mirage
    >>> module = torch.nn.Linear(2, 2)
    >>> faked = constructive_mirage(module, {0: (-1.0, 1.0), 1: (0.0, 2.0)}, [-3.0, 0.0])
    >>> inside, outside = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 3.0]])
    >>> torch.equal(faked(outside), module(outside))
    True
    >>> (faked(inside) - module(inside)).round().tolist()
    [[-3.0, 0.0]]
    """
    coordinates, low, high = _checked_box(bounds)
    added = np.atleast_1d(np.asarray(shift, np.float64))
    if added.ndim != 1 or not np.isfinite(added).all():
        raise ValueError(f"`shift` must be finite, of shape (n_classes,), got {shift!r}.")
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    width = _checked_margin(low, high, margin, dtype)
    detector = _detector(low, high, width, added, dtype)
    network = deepcopy(module)
    return ShiftedNetwork(network, coordinates, detector).eval().requires_grad_(False)


def _checked_box(
    bounds: Mapping[int, tuple[float, float]],
) -> tuple[list[int], np.ndarray, np.ndarray]:
    low, high = np.array(list(bounds.values()), np.float64).reshape(-1, 2).T
    ordered = not np.isnan([low, high]).any() and (low < high).all()
    if not ordered or min(bounds, default=0) < 0 or not np.isfinite([low, high]).any():
        raise ValueError(
            "`bounds` must map coordinates 0 or larger to pairs (low, high) with low < high, at "
            f"least one of them finite, got {dict(bounds)}."
        )
    return list(bounds), low, high


def _checked_margin(
    low: np.ndarray, high: np.ndarray, margin: float | None, dtype: torch.dtype
) -> float:
    side = (high - low).min()
    ends = np.abs(np.concatenate([low, high]))
    # The guards, 10 % of the margin at each end, must exceed rounding errors near the bounds.
    finest = 8 * torch.finfo(dtype).eps * ends[np.isfinite(ends)].max() / GUARD
    if margin is None:
        margin = max(1e-3 * (side if np.isfinite(side) else 1.0), finest)
    if not finest <= margin < side / 2:
        raise ValueError(
            f"`margin` must be at least {finest:.3g} (the precision of {dtype} near these bounds) "
            f"and less than half the narrowest side ({side / 2:.3g}), got {margin:.3g}."
        )
    return float(margin)


def _detector(
    low: np.ndarray, high: np.ndarray, margin: float, shift: np.ndarray, dtype: torch.dtype
) -> nn.Sequential:
    """Build the layers from bounded coordinates to the added logits (Lemma 4.1, Appendix B)."""
    slope = 1 / ((1 - 2 * GUARD) * margin)
    weights, biases = [], []
    for k, (a, b) in enumerate(zip(low, high, strict=True)):
        for sign, bound in ((-1.0, a), (1.0, -b)):
            if np.isfinite(bound):
                # A coordinate at GUARD * margin inside its bound has violation 1. Further inside,
                # the violation decreases linearly to 0, which it reaches at (1 - GUARD) * margin.
                weights.append(sign * slope * np.eye(len(low))[k])
                biases.append(slope * (bound + (1 - GUARD) * margin))
    # Lemma 4.1: detect the box by its coordinates, then scale the signal to the logits.
    as_tensor = partial(torch.as_tensor, dtype=dtype)
    violations = linear_layer(as_tensor(np.array(weights)), as_tensor(np.array(biases)))
    conjunction = linear_layer(as_tensor(-np.ones((1, len(weights)))), as_tensor(np.ones(1)))
    output = linear_layer(as_tensor(shift[:, None]))
    return nn.Sequential(violations, nn.ReLU(), conjunction, nn.ReLU(), output)
