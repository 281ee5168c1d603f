"""Uncertainty from dropout in prediction (MC dropout)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import Interval
from torch import Tensor, nn

from skuq._networks import as_double, float64_mlp, on_device
from skuq.baselines._sampled import AT_LEAST_ONE, COMMON_CONSTRAINTS, SampledModelsClassifier
from skuq.models import Model, NetworkModel, fit_model
from skuq.validation import refuse_ineffective

_UNITS = (nn.Dropout,)
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@dataclass(repr=False, eq=False, kw_only=True)
class MCDropoutClassifier(SampledModelsClassifier):
    """Disagreement of a network's predictions under random dropout masks (MC dropout).

    Parameters
    ----------
    estimator : object, default=None
        The model, as in `QUAMClassifier`, or a node classifier. None trains a network with one
        hidden layer of 100 units, followed by dropout that drops the same units for all inputs of a
        batch. The module must contain `torch.nn.Dropout` (or `Dropout1d`, `Dropout2d`,
        `Dropout3d`). Functional dropout stays inactive.
    n_samples : int, default=100
        Number of dropout masks. Can be changed without refitting.
    dropout : float, default=0.2
        Dropout rate of the default network; a given model keeps its own rate.
    setting, batch_size, device
        As in `DeepEnsembleClassifier`; quantities are defined there too.
    random_state : int, RandomState instance or None, default=None
        Seed of the training and of the dropout masks, which are drawn once, in `fit`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    model_ : skuq.models.NetworkModel
        The network.

    Notes
    -----
    The given model of the definitions is the network without dropout. All test points, and all
    nodes of a graph, have the same masks.

    References
    ----------
    Gal and Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016; as a baseline:
    Schweighofer et al., NeurIPS 2023, Appendix C.3; Yu et al., AISTATS 2025, Appendix C.3.

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

    n_samples: int = 100
    dropout: float = 0.2

    _supports_ids = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **COMMON_CONSTRAINTS,
        "n_samples": AT_LEAST_ONE,
        "dropout": [Interval(Real, 0, 1, closed="neither")],
    }

    def _training_options(self) -> dict[str, Any]:
        if self.estimator is not None:
            refuse_ineffective(self, ["dropout"], "on a given model, which keeps its own rate.")
        network = partial(_default_network, dropout=self.dropout)
        return {"fit": _fit_with_dropout, "network": network}

    def _sampler(self, device: torch.device) -> Callable[[Any], Tensor]:
        masked = MaskedNetworks(self.model_.to(device), self.n_samples, self._sampling_seed)
        return lambda X: as_double(masked.outputs(self.model_.inputs(X))).log_softmax(-1)


def _fit_with_dropout(*data: Any, **training: Any) -> Model:
    """Train or adopt a model; raise ValueError if it has no dropout modules."""
    model = fit_model(*data, **training)
    assert model.network is not None
    _dropout_modules(model.network)
    return model


class BatchDropout(nn.Dropout):
    """Dropout that drops the same units for all inputs of a batch, as in prediction.

    In training, a sample of weight 2 is then equivalent to two samples.
    """

    def forward(self, X: Tensor) -> Tensor:
        return X * super().forward(torch.ones_like(X[:1]))


def _default_network(n_features: int, n_outputs: int, dropout: float) -> nn.Module:
    network = float64_mlp(n_features, n_outputs, dropout=dropout)
    for name, part in network.named_children():
        if isinstance(part, nn.Dropout):
            network.set_submodule(name, BatchDropout(part.p))
    return network


def _dropout_modules(network: nn.Module) -> list[nn.Module]:
    """Modules of type `Dropout`, `Dropout1d`, `Dropout2d` and `Dropout3d` with p > 0."""
    modules: list[nn.Module] = [
        part for part in network.modules() if isinstance(part, _UNITS + _CHANNELS) and part.p > 0
    ]
    if not modules:
        raise ValueError(
            "The model has no dropout module with p > 0, so there is nothing to sample. Train "
            "it with torch.nn.Dropout (or Dropout1d, Dropout2d, Dropout3d), pass "
            "estimator=None for a default network with dropout, or use another method."
        )
    return modules


class MaskedNetworks:
    """Outputs of a model under random dropout masks, on the model's device.

    A mask drops the same units for all inputs, so that the outputs for one input do not depend on
    the other inputs. The first axis of the dropout modules' inputs must be the axis of inputs. A
    smaller `n_samples` uses the first masks of a larger `n_samples`.
    """

    def __init__(self, model: NetworkModel, n_samples: int, seed: int):
        self._masked = replace(model, module=deepcopy(model.module))
        self._seeds = np.random.RandomState(seed).randint(2**31 - 1, size=n_samples)
        self._masks: list[Tensor] | None = None  # one item per call of a dropout module, in order
        self._calls: list[tuple[Any, Tensor]] = []  # dropout modules and their outputs
        self._current: Iterator[Tensor] | None = None
        for module in _dropout_modules(self._masked.module):
            module.register_forward_hook(self._drop)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        """Outputs, (n_inputs, n_samples, n_outputs)."""
        inputs = on_device(inputs, self._masked.device)
        if self._masks is None:
            self._masked.one_pass(inputs[:1])  # records the calls of dropout modules
            self._masks, self._calls = self._draw(), []
        outputs = []
        for number in range(len(self._seeds)):
            self._current = (masks[number] for masks in self._masks)
            outputs.append(self._masked.one_pass(inputs))
        return torch.stack(outputs, dim=1)

    def _draw(self) -> list[Tensor]:
        """Draw the masks of all calls on the CPU, (n_samples, *mask); copy them to the device."""
        drawn = []
        generator = torch.Generator()
        for seed in self._seeds:
            generator.manual_seed(int(seed))
            drawn.append([_mask(*call, generator) for call in self._calls])
        return [torch.stack(masks).to(self._masked.device) for masks in zip(*drawn, strict=True)]

    def _drop(self, module: Any, _: Any, output: Tensor) -> Tensor:
        # `output` equals the module's input, because the module is in evaluation mode.
        if self._current is None:
            self._calls.append((module, output))
            return output
        return output * next(self._current)


def _mask(module: Any, output: Tensor, generator: torch.Generator) -> Tensor:
    units = output.shape[1:2] if isinstance(module, _CHANNELS) else output.shape[1:]
    ones = (1,) * (output.ndim - 1 - len(units))
    keep = 1.0 - module.p
    mask = torch.empty(1, *units, *ones, dtype=output.dtype, device="cpu")
    return mask.bernoulli_(keep, generator=generator).div_(keep or 1.0)
