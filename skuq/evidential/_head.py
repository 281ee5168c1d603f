"""Heads of the evidential probe, which compute class evidence from representations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar, Literal

import torch
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from skuq._information import centred as centred_logits
from skuq._information import has_conventional_offset
from skuq._networks import seeded
from skuq.evidential._network_outputs import Layer
from skuq.validation import checked_widths

Activation = Literal["exp", "softplus"]

# Upper limit of the log-evidence of a class. It is far above useful levels of evidence, and the
# squared evidence in the losses is still finite in float32.
LOG_CAP = 16.0

_ACTIVATION = [StrOptions({"exp", "softplus"})]


@dataclass(repr=False, eq=False)
class LogitHead(BaseEstimator):
    """Head of a probe that computes evidence from the classifier's own logits.

    Class evidence is ``q = exp(a z + b)`` for logits z; only the scale a and the offset b are
    learned. If the offset of the logits is only a convention, as in log-probabilities, the mean of
    each sample's logits is subtracted first.

    Parameters
    ----------
    activation : {"exp", "softplus"}, default="exp"
        Function that makes evidence positive.

    Examples
    --------
    >>> from skuq import EvidentialProbe
    >>> from skuq.evidential import LogitHead
    >>> EvidentialProbe(head=LogitHead(activation="softplus")).get_params()["head__activation"]
    'softplus'
    """

    activation: Activation = "exp"

    layer: ClassVar[Layer] = -1
    _parameter_constraints: ClassVar[dict[str, Any]] = {"activation": _ACTIVATION}

    def _new(self, z: Tensor, inputs: dict[str, Tensor], n_classes: int, level: float) -> nn.Module:
        """Build the module; the log of the total evidence is initially log(level) on average."""
        centred = has_conventional_offset(z)
        log_evidence = (centred_logits(z) if centred else z).logsumexp(dim=1)
        weight = inputs["label_weight"]
        mean = (weight * log_evidence).sum() / weight.sum()
        return LogitEvidence(float(math.log(level) - mean), centred, self.activation)


@dataclass(repr=False, eq=False)
class NetworkHead(BaseEstimator):
    """Head of a probe: a separate network on a representation of the classifier.

    Parameters
    ----------
    layer : int or str, default=-1
        Representation on which the network operates: -1 for the logits, -2 for the input of the
        last layer, and so on. The name of a module selects the output of the module.
    hidden_sizes : sequence of int, default=()
        Widths of hidden layers, with ReLU activations, before the layer of class evidence.
    activation : {"exp", "softplus"}, default="exp"
        Function that makes evidence positive.

    References
    ----------
    Yu et al., AISTATS 2025, Eq. 18.

    Examples
    --------
    >>> from skuq import EvidentialProbe
    >>> from skuq.evidential import NetworkHead
    >>> probe = EvidentialProbe(head=NetworkHead(layer=-2, hidden_sizes=(32,)))
    >>> probe.set_params(head__layer=-1).head
    NetworkHead(hidden_sizes=(32,))
    """

    layer: Layer = -1
    hidden_sizes: Sequence[int] = ()
    activation: Activation = "exp"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "layer": [Interval(Integral, None, -1, closed="right"), str],
        "hidden_sizes": ["array-like"],
        "activation": _ACTIVATION,
    }

    def _new(self, z: Tensor, inputs: dict[str, Tensor], n_classes: int, level: float) -> nn.Module:
        mean, scale = mean_and_scale(z, inputs["weight"])
        widths = checked_widths(self.hidden_sizes)
        return NetworkEvidence(mean, scale, n_classes, widths, self.activation)


ProbeHead = LogitHead | NetworkHead

HEADS: dict[str, type[ProbeHead]] = {"logits": LogitHead, "network": NetworkHead}


def checked_head(head: ProbeHead | Literal["logits", "network"]) -> ProbeHead:
    """Resolve the name of a head, and validate the head's parameters."""
    found = HEADS[head]() if isinstance(head, str) else head
    found._validate_params()
    return found


def new_head(
    head: ProbeHead, inputs: dict[str, Tensor], n_classes: int, *, level: float, seed: int
) -> nn.Module:
    """Build the module of a head with seeded initial weights, which may depend on the samples."""
    with seeded(seed):
        return head._new(inputs["inputs"], inputs, n_classes, level)


def safe_exp(x: Tensor, cap: float = LOG_CAP) -> Tensor:
    """Exponential that saturates smoothly at exp(cap); the relative error at cap - 10 is 1e-4."""
    return torch.exp(cap - nn.functional.softplus(cap - x))


class LogitEvidence(nn.Module):
    """Class evidence from the model's own logits, with a learned scale and offset.

    With a scale of 1, class evidence is proportional to the class probabilities, and total evidence
    is proportional to exp(-energy) of the model.
    """

    def __init__(self, offset: float, centred: bool = False, activation: Activation = "exp"):
        super().__init__()
        self.centred = centred
        self.activation = activation
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.offset = nn.Parameter(torch.tensor(offset))

    def forward(self, z: Tensor) -> Tensor:
        if self.centred:
            z = centred_logits(z)
        return _positive(self.log_scale.exp() * z + self.offset, self.activation)


class NetworkEvidence(nn.Module):
    """Class evidence from a network on representations: Eq. 18 with ``w = 1, b = 0``.

    Inputs are standardised first, which only speeds up training.
    """

    mean: Tensor  # (n_hidden,)
    scale: Tensor

    def __init__(
        self,
        mean: Tensor,
        scale: Tensor,
        n_classes: int,
        hidden_sizes: Sequence[int] = (),
        activation: Activation = "exp",
    ):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.activation = activation
        widths = [len(mean), *hidden_sizes, n_classes]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, z: Tensor) -> Tensor:
        scores = self.layers((z - self.mean) / self.scale)
        return _positive(scores, self.activation)  # Eq. 18


def mean_and_scale(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Compute weighted means of columns, and standard deviations (1 for constant columns)."""
    hidden = hidden.double()
    share = (weight / weight.sum(dtype=torch.float64))[:, None]
    mean = (share * hidden).sum(dim=0)
    scale = (share * (hidden - mean).square()).sum(dim=0).sqrt()
    scale[scale <= 1e-6 * mean.abs() + 1e-12] = 1
    return mean.float(), scale.float()


def _positive(scores: Tensor, activation: Activation) -> Tensor:
    return safe_exp(scores) if activation == "exp" else nn.functional.softplus(scores)
