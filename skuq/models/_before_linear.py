"""Networks cut in front of their first linear layer, so that features are computed once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from skuq.models._stacked import is_same_function, last_layer, some_rows, tail_of


class BeforeLinear(NamedTuple):
    """A network cut in front of its first linear layer.

    Attributes
    ----------
    body : torch.nn.Module or None
        Maps inputs to what enters `module`; None if those are the inputs as they are.
    module : torch.nn.Module
        The rest, to the outputs.
    """

    body: nn.Module | None
    module: nn.Module


def split_before_linear(network: nn.Module, X: Tensor) -> BeforeLinear:
    """Cut a network in front of its first linear layer.

    The first linear layer is the first `torch.nn.Linear` to run. What follows it must be the end
    of an `nn.Sequential`, also of nested ones; this is checked on `X`, so that `X` should be a
    fair sample of the inputs. Any other network is not cut: all of it is in `module`.

    Parameters
    ----------
    network : torch.nn.Module
        Network in evaluation mode; `module` shares its parameters.
    X : Tensor of shape (n_samples, ...)
        Example inputs, on which the cut is checked.

    Returns
    -------
    BeforeLinear
        ``module(body(X))`` equals ``network(X)``, or ``module(X)`` does if `body` is None.

    Examples
    --------
    >>> net = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 3), nn.ReLU())
    >>> body, module = split_before_linear(net.eval(), torch.zeros(1, 1, 4))
    >>> body(torch.zeros(5, 1, 4)).shape
    torch.Size([5, 4])
    >>> [name for name, _ in module.named_parameters()]
    ['0.weight', '0.bias']
    >>> split_before_linear(nn.Linear(4, 3), torch.zeros(1, 4))
    BeforeLinear(body=None, module=Linear(in_features=4, out_features=3, bias=True))
    """
    body = LayerInput.of_first_linear(network, X)
    if body is None or body.reaches_unaltered(X):
        return BeforeLinear(None, network)
    layers = [body.layer, *map(network.get_submodule, tail_of(network, body.name))]
    module = nn.Sequential(*layers).train(network.training)
    if is_same_function(network, body, module, X):
        return BeforeLinear(body, module)
    return BeforeLinear(None, network)


class LayerInput(nn.Module):
    """Features that enter one layer of a network, which runs no further.

    Parameters
    ----------
    network : torch.nn.Module
        Network in evaluation mode.
    name : str
        Name of the layer in `network`. If it runs several times, its first input is meant.

    Examples
    --------
    >>> net = nn.Sequential(nn.ReLU(), nn.Linear(2, 3))
    >>> features = LayerInput(net, "1")
    >>> features(torch.tensor([[-1.0, 2.0]]))
    tensor([[0., 2.]])
    """

    def __init__(self, network: nn.Module, name: str):
        super().__init__()
        self.network = network
        self.name = name
        self.training = network.training

    @classmethod
    def of_first_linear(cls, network: nn.Module, X: Tensor) -> LayerInput | None:
        """Find the first `torch.nn.Linear` that runs on example inputs; None if there is none."""
        linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            reached = _run_until(linear, network, some_rows(X))
        names = (name for name, layer in network.named_modules() if reached and layer is reached[0])
        name = next(names, None)
        return None if name is None else cls(network, name)

    @classmethod
    def of_last_layer(cls, network: nn.Module, X: Tensor) -> LayerInput:
        """Find the last module with parameters that runs on example inputs."""
        return cls(network, last_layer(network, X))

    @property
    def layer(self) -> nn.Module:
        """The layer."""
        return self.network.get_submodule(self.name)

    def forward(self, X: Tensor) -> Tensor:
        reached = _run_until([self.layer], self.network, X)
        assert reached is not None
        return reached[1]

    def reaches_unaltered(self, X: Tensor) -> bool:
        """Whether the layer takes the inputs as they are."""
        X = X.clone()
        with torch.no_grad():
            return self(X) is X and X._version == 0  # which counts alterations in place


class _Reached(Exception):
    """End of a forward pass at a layer."""


def _run_until(
    layers: Iterable[nn.Module], network: nn.Module, X: Tensor
) -> tuple[nn.Module, Tensor] | None:
    """Run a network up to the first of some layers; the layer and its input, if it gets there."""

    def stop(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        raise _Reached(layer, inputs[0])

    handles = [layer.register_forward_pre_hook(stop) for layer in layers]
    try:
        network(X)
    except _Reached as reached:
        layer, inputs = reached.args
        return layer, inputs
    finally:
        for handle in handles:
            handle.remove()
    return None
