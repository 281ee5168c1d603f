"""Variants of a network: which weights move, what comes before them, and many variants at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint

from skuq.networks._devices import is_of_device, n_weights
from skuq.networks._evaluate import rows_at_once
from skuq.networks._modules import is_chain, part_of_chain
from skuq.validation import warn_user

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)

# Of a network that begins with a linear layer and computes what follows in its own way: all of them
# may move, since a variant then takes no more than 4 MiB.
_FEW_WEIGHTS = 2**20

# Calls put other parameters into a module for a while, which threads may share.
_SWAPPING = Lock()


class Cut(NamedTuple):
    """A network cut in front of the first weights that move.

    Attributes
    ----------
    body : torch.nn.Module or None
        The layers before, from inputs to features; None if `module` takes the inputs themselves.
    module : torch.nn.Module
        The rest, to the outputs.
    parameters : tuple of str
        Names, in `module`, of the parameters that move.
    """

    body: nn.Module | None
    module: nn.Module
    parameters: tuple[str, ...]


def cut_network(
    network: nn.Module, parameters: str | Callable[[str, Tensor], bool], X: Tensor
) -> Cut:
    """Choose weights of a network, and cut it in front of the first of them.

    Parameters
    ----------
    network : torch.nn.Module
        Network in evaluation mode; the parts share its parameters, except where a layer had to
        be taken out of a copy.
    parameters : {"auto", "all", "linear", "last", "bias", "norm"} or callable
        "linear" is all from the first `torch.nn.Linear` to run on, where what follows it is the end
        of an `nn.Sequential` (also of nested ones) or the network begins with it; "last" is the
        last layer, "bias" all biases, "norm" the scales and shifts of normalisation layers; a
        callable is asked ``parameters(name, tensor)`` for each. "auto" is "linear" where that can
        be cut, all of a network that begins with a linear layer and is a chain of layers or has
        less than a million weights, and else "last".
    X : Tensor of shape (n_samples, ...)
        Example inputs, on which a cut is checked; they should be a fair sample.

    Returns
    -------
    Cut
        ``module(body(X))`` equals ``network(X)``, or ``module(X)`` does if `body` is None: as of
        "last" where something is computed after the last layer that is not a module of an
        `nn.Sequential`, other than the logarithm of a softmax.

    Raises
    ------
    ValueError
        If no parameter is chosen, or the network cannot be cut before its first linear layer.

    Warns
    -----
    UserWarning
        If "auto" falls back on the last layer.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    >>> cut = cut_network(net, "last", torch.zeros(1, 4))
    >>> cut.body(torch.zeros(5, 4)).shape, cut.parameters
    (torch.Size([5, 8]), ('weight', 'bias'))
    >>> cut_network(net, lambda name, _: name == "2.weight", torch.zeros(1, 4)).parameters
    ('2.weight',)
    """
    X = X[: rows_at_once(network)]
    if parameters == "auto":
        return _default_cut(network, X)
    if parameters == "last":
        return _before_last_layer(network, X)
    if parameters == "linear":
        cut = _before_linear(network, X)
        if cut is None:
            raise ValueError(
                f"{type(network).__name__} cannot be cut before its first torch.nn.Linear, because "
                "what follows it is not the end of an nn.Sequential. Use parameters='last' or "
                "'all'."
            )
        return cut
    names = _chosen(None, network, parameters).parameters
    if is_chain(network):
        order = list(network._modules)
        first = min(order.index(name.split(".")[0]) for name in names)
        if first > 0:
            rest = part_of_chain(network, slice(first, None))
            return Cut(part_of_chain(network, slice(first)), rest, names)
    return Cut(None, network, names)


def _chosen(
    body: nn.Module | None, module: nn.Module, parameters: str | Callable[[str, Tensor], bool]
) -> Cut:
    floating = {name: p for name, p in module.named_parameters() if p.is_floating_point()}
    if callable(parameters):
        names = [name for name, p in floating.items() if parameters(name, p)]
    elif parameters == "all":
        names = list(floating)
    elif parameters == "bias":
        names = [name for name in floating if name.rpartition(".")[2] == "bias"]
    else:
        norms = (layer for layer in module.modules() if isinstance(layer, _NORMS))
        of_norms = {id(p) for layer in norms for p in layer.parameters()}
        names = [name for name, p in floating.items() if id(p) in of_norms]
    if not names:
        raise ValueError(
            f"The network has no parameters of kind {parameters!r}; it has "
            f"{[name for name, _ in module.named_parameters()]}."
        )
    return Cut(body, module, tuple(names))


def _default_cut(network: nn.Module, X: Tensor) -> Cut:
    """Cut before the first linear layer, or the last layer where all weights would move."""
    cut, ran = _before_linear(network, X), _layers_that_run(network, X)
    begins_linear = isinstance(network.get_submodule(ran[0]), nn.Linear)
    if begins_linear and (_is_plain(network) or n_weights(network) < _FEW_WEIGHTS):
        return cut or _chosen(None, network, "all")
    if cut is not None and not begins_linear:
        return cut
    found = _before_last_layer(network, X)
    n_moving = sum(found.module.get_parameter(name).numel() for name in found.parameters)
    if n_moving < n_weights(network):
        warn_user(
            f"{type(network).__name__} cannot be cut before its first linear layer, so only its "
            f"last layer moves, {ran[-1]!r}, with {n_moving:,} of {n_weights(network):,} weights. "
            "parameters='last' says so without this warning; 'all' moves all, of which each "
            "variant is a copy."
        )
    return found


def _is_plain(network: nn.Module) -> bool:
    """Whether a network is a chain of layers, perhaps nested, and nothing more."""
    return all(is_chain(part) or not any(part.children()) for part in network.modules())


def _before_linear(network: nn.Module, X: Tensor) -> Cut | None:
    """Cut before the first linear layer; no body if it takes the inputs, None if impossible."""
    body = LayerInput.of_first_linear(network, X)
    if body is None:
        return None
    if body.reaches_unaltered(X):
        return _chosen(None, network, "all")
    layers = [body.layer, *map(network.get_submodule, _tail_of(network, body.name))]
    module = nn.Sequential(*layers).train(network.training)
    return _chosen(body, module, "all") if _is_same_function(network, body, module, X) else None


def _before_last_layer(network: nn.Module, X: Tensor) -> Cut:
    """Cut before the last layer; no body if something follows it that is not a module."""
    name = _layers_that_run(network, X)[-1]
    tail = _tail_of(network, name)
    last = network.get_submodule(name)
    following = [network.get_submodule(each) for each in tail]
    head = nn.Sequential(last, *following) if tail else last
    # Many networks end in the function log_softmax, which is not a module of theirs.
    logarithms = nn.Sequential(last, *following, nn.LogSoftmax(dim=-1)).train(network.training)
    features = LayerInput(network, name)
    parts = ((_without(network, [name, *tail]), head), (features, head), (features, logarithms))
    for body, module in parts:
        if _is_same_function(network, body, module, X):
            return _chosen(body, module, "all")
    names = [n for n, p in network.named_parameters() if any(p is own for own in last.parameters())]
    return Cut(None, network, tuple(names))


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
            reached = _run_until(linear, network, _some_rows(X))
        names = (name for name, layer in network.named_modules() if reached and layer is reached[0])
        name = next(names, None)
        return None if name is None else cls(network, name)

    @classmethod
    def of_last_layer(cls, network: nn.Module, X: Tensor) -> LayerInput:
        """Find the last module with parameters that runs on example inputs."""
        return cls(network, _layers_that_run(network, X)[-1])

    @classmethod
    def of_first_vectors(cls, network: nn.Module, X: Tensor) -> LayerInput:
        """Find the first linear layer if it takes one vector for each input, else the last layer.

        In transformers it takes one for each token.
        """
        first = cls.of_first_linear(network, X)
        with torch.no_grad():
            takes_vectors = first is not None and first(_some_rows(X)).ndim == 2
        return first if first is not None and takes_vectors else cls.of_last_layer(network, X)

    @property
    def layer(self) -> nn.Module:
        """The layer."""
        return self.network.get_submodule(self.name)

    def forward(self, X: Tensor) -> Tensor:
        reached = _run_until([self.layer], self.network, X)
        if reached is None:
            raise ValueError(f"{type(self.network).__name__} does not run its layer {self.name!r}.")
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

    def stop(layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        raise _Reached(layer, next(chain(inputs, named.values())))

    handles = [layer.register_forward_pre_hook(stop, with_kwargs=True) for layer in layers]
    try:
        network(X)
    except _Reached as reached:
        layer, inputs = reached.args
        return layer, inputs
    finally:
        for handle in handles:
            handle.remove()
    return None


def _is_same_function(network: nn.Module, body: nn.Module, rest: nn.Module, X: Tensor) -> bool:
    """Whether two parts in turn return on example inputs what the network returns."""
    with torch.no_grad():
        expected = network(X.clone())
        try:
            found = rest(body(X.clone()))
            same_shape = bool(expected.shape == found.shape)
            return same_shape and torch.allclose(expected, found, equal_nan=True)
        except Exception:  # whatever layers raise on inputs that are not meant for them
            return False


def _layers_that_run(network: nn.Module, X: Tensor) -> list[str]:
    """Names of the modules with parameters of their own, in the order of a forward pass."""
    ran: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda _module, _inputs, name=name: ran.append(name))
        for name, module in network.named_modules()
        if any(True for _ in module.parameters(recurse=False)) and "parametrizations" not in name
    ]
    try:
        with torch.no_grad():
            network(_some_rows(X))
    finally:
        for handle in handles:
            handle.remove()
    return ran or [""]  # all that holds parameters may be a list of them, which does not run


def _some_rows(X: Tensor) -> Tensor:
    """A copy of the first two inputs: normalisation by the batch alone takes no single one."""
    return X[:2].clone()


def _tail_of(network: nn.Module, name: str) -> list[str]:
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

    with _SWAPPING, _without_fused_attention(), _without_checkpoints():
        if not any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
            try:
                batched: Callable[..., Tensor] = vmap(
                    forward, in_dims=(0, None if shared_input else 0)
                )
                return batched(dict(parameters), X.clone())
            except RuntimeError as error:
                # A slow loop would hide that all at once is too much, or that a device failed. Of
                # layers without a batched form, torch's errors have no class of their own: the loop
                # works for them, or says what is wrong.
                if is_of_device(error):
                    raise
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


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """Run functions of `torch.utils.checkpoint` as they are, so that their activations are kept.

    Otherwise the backward pass computes them again, when the module no longer has the weights of a
    variant: that is an error, or gradients are missing.
    """
    was = {name: getattr(checkpoint, name) for name in _CHECKPOINTS if hasattr(checkpoint, name)}
    for name in was:
        setattr(checkpoint, name, _CHECKPOINTS[name])
    try:
        yield
    finally:
        for name, function in was.items():
            setattr(checkpoint, name, function)


class _Plain:
    """In place of the autograd function with the same method."""

    @staticmethod
    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *inputs: Any) -> Any:
        return function(*inputs)


def _around_nothing(*_arguments: Any, **_named: Any) -> Iterator[None]:
    """In place of the generator that runs before and after a function."""
    yield


# What torch.utils.checkpoint.checkpoint calls, which users import under its own name.
_CHECKPOINTS = {
    "CheckpointFunction": _Plain,
    "_checkpoint_without_reentrant_generator": _around_nothing,
}
