"""Many variants of one network, computed as one batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel


def stack_parameters(
    module: nn.Module, n_models: int, names: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """Copy parameters of a module once per model.

    Parameters
    ----------
    module : torch.nn.Module
        The model that every variant starts from.
    n_models : int
        Number of variants.
    names : iterable of str, default=None
        Parameters to copy; None takes all.

    Returns
    -------
    dict of str to Tensor
        Leaf tensors of shape (n_models, \\*parameter.shape) that require gradients.
    """
    parameters = dict(module.named_parameters())
    chosen = parameters if names is None else {name: parameters[name] for name in names}
    return {
        name: p.detach().expand(n_models, *p.shape).clone().requires_grad_()
        for name, p in chosen.items()
    }


def stacked_forward(
    module: nn.Module, parameters: Mapping[str, Tensor], X: Tensor, *, shared_input: bool
) -> Tensor:
    """Evaluate all variants of a module, at once if its layers allow it and in turn if not.

    Recurrent layers (`nn.LSTM`, `nn.GRU`, `nn.RNN`) have no batched form, nor has a network whose
    way depends on the values of its inputs; for these each variant is evaluated by itself, which
    takes longer.

    Parameters
    ----------
    module : torch.nn.Module
        Supplies the computation, and every parameter and buffer that `parameters` leaves out.
    parameters : mapping of str to Tensor of shape (n_models, \\*parameter.shape)
        Parameters that differ between the variants.
    X : Tensor of shape (n_samples, ...) or (n_models, n_samples, ...)
        Inputs, the same for all variants (`shared_input`) or one batch for each. They stay as
        they are: each variant gets a copy, since a module may alter its input in place.
    shared_input : bool
        Which of the two forms `X` has.

    Returns
    -------
    Tensor of shape (n_models, n_samples, n_outputs)
        Outputs of each variant.

    Raises
    ------
    RuntimeError
        If the inputs do not fit, or memory does not suffice for all variants at once.

    Examples
    --------
    >>> net = nn.Linear(2, 3)
    >>> stacked_forward(net, stack_parameters(net, 5), torch.ones(4, 2), shared_input=True).shape
    torch.Size([5, 4, 3])
    """

    def forward(own: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(module, own, (x,))
        return out

    with _without_fused_attention():
        if not any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
            try:
                batched: Callable[..., Tensor] = vmap(
                    forward, in_dims=(0, None if shared_input else 0)
                )
                return batched(dict(parameters), X.clone())
            except torch.OutOfMemoryError:
                raise  # all at once is too much: a slow loop would hide that
            except (NotImplementedError, RuntimeError):
                pass  # torch has no narrower error for these; the loop works, or says what is wrong
        n_models = len(next(iter(parameters.values())))
        return torch.stack(
            [
                forward(
                    {name: p[i] for name, p in parameters.items()},
                    (X if shared_input else X[i]).clone(),
                )
                for i in range(n_models)
            ]
        )


@contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Plain operations in transformer layers: fused kernels have no batched form or derivative."""
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


class Head(NamedTuple):
    """A network cut before its last layer.

    Attributes
    ----------
    module : torch.nn.Module
        Last layer and what follows it: maps features to outputs.
    body : torch.nn.Module
        The rest: maps inputs to features.
    """

    module: nn.Module
    body: nn.Module


def split_head(network: nn.Module, X: Tensor) -> Head:
    """Cut a network before its last layer, so that features can be computed once.

    The last layer is the last module with parameters to run. What follows it must be
    the end of an `nn.Sequential` or nothing at all; this is checked on `X`, so that `X`
    should be a fair sample of the inputs.

    Parameters
    ----------
    network : torch.nn.Module
        Network in evaluation mode.
    X : Tensor of shape (n_samples, ...)
        Example inputs, on which the cut is checked.

    Returns
    -------
    Head
        ``head.module(head.body(X))`` equals ``network(X)``.

    Raises
    ------
    ValueError
        If the network does not end in one layer of which the output is a function.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> head = split_head(net.eval(), torch.zeros(1, 4))
    >>> head.body(torch.zeros(5, 4)).shape
    torch.Size([5, 8])
    """
    name = last_layer(network, X)
    tail = tail_of(network, name)
    last = network.get_submodule(name)
    head = nn.Sequential(last, *(network.get_submodule(t) for t in tail)) if tail else last
    body = _without(network, [name, *tail])
    if not is_same_function(network, body, head, X):
        raise ValueError(
            f"{type(network).__name__} computes something after its last layer "
            f"({last}) that is not a module of an nn.Sequential, so the layer cannot be "
            "cut off; use parameters='all'."
        )
    return Head(head, body)


def is_same_function(network: nn.Module, body: nn.Module, rest: nn.Module, X: Tensor) -> bool:
    """Whether two parts in turn return on example inputs what the network returns."""
    with torch.no_grad():
        expected = network(X.clone())
        try:
            found = rest(body(X.clone()))
            same_shape = bool(expected.shape == found.shape)
            return same_shape and torch.allclose(expected, found, equal_nan=True)
        except Exception:  # whatever layers raise on inputs that are not meant for them
            return False


def last_layer(network: nn.Module, X: Tensor) -> str:
    """Name of the last module with parameters of its own that runs in a forward pass."""
    ran: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda _module, _inputs, name=name: ran.append(name))
        for name, module in network.named_modules()
        if any(True for _ in module.parameters(recurse=False)) and "parametrizations" not in name
    ]
    try:
        with torch.no_grad():
            network(some_rows(X))
    finally:
        for handle in handles:
            handle.remove()
    return ran[-1]


def some_rows(X: Tensor) -> Tensor:
    """A copy of the first two inputs: normalisation by the batch alone takes no single one."""
    return X[:2].clone()


def tail_of(network: nn.Module, name: str) -> list[str]:
    """Names of the modules that follow a module in the `nn.Sequential`s around it."""
    following = []
    while name:
        parent, _, position = name.rpartition(".")
        siblings = network.get_submodule(parent)
        if isinstance(siblings, nn.Sequential):
            prefix = f"{parent}." if parent else ""
            names = [child for child, _ in siblings.named_children()]
            following += [prefix + child for child in names[names.index(position) + 1 :]]
        name = parent
    return following


def _without(network: nn.Module, names: Collection[str]) -> nn.Module:
    """A copy of a network in which some modules do nothing."""
    if "" in names:
        return nn.Identity()
    body = deepcopy(network)
    for name in names:
        body.set_submodule(name, nn.Identity())
    return body
