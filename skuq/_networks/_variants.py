"""Variants of a network: choice of weights, split before these weights, batched evaluation."""

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

from skuq._networks._devices import forward_hooks, is_of_device, n_weights, rows_at_once
from skuq._networks._modules import is_chain, part_of_chain
from skuq.validation import warn_user

# A network that begins with a linear layer and cannot be split is searched as a whole if it has
# fewer weights than this number. A variant of such a network takes at most 4 MiB.
_FEW_WEIGHTS = 2**20

#: Lock for calls of `functional_call`, which temporarily replaces the parameters of a module that
#: threads may share.
SWAPPING = Lock()


class Cut(NamedTuple):
    """A network split before the first selected weights.

    `body` maps inputs to features (None: `module` is the whole network), `module` maps features to
    outputs; `parameters` are the names, in `module`, of the selected parameters.
    """

    body: nn.Module | None
    module: nn.Module
    parameters: tuple[str, ...]


def cut_network(
    network: nn.Module, parameters: str | Callable[[str, Tensor], bool], X: Tensor
) -> Cut:
    """Select weights of a network, and split the network before the first selected weight.

    The equality of ``module(body(X))`` and ``network(X)`` is checked on the example inputs `X`. The
    parts share the parameters of `network`, except a `body` that is a copy without some layers. For
    `parameters`, see `skuq.quam.PoolSearch`. For "linear", unless the network begins with a linear
    layer, its first linear layer and all later layers must form the end of nested `nn.Sequential`s.
    "auto" is "linear" if the network can be split there; otherwise "all" if it begins with a linear
    layer and is a chain or has fewer than a million weights; otherwise "last", with a warning.
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
                "this layer and the layers after it do not form the end of an nn.Sequential. Use "
                "parameters='last' or 'all'."
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
    else:
        names = list(floating)
    if not names:
        raise ValueError(
            f"`parameters` selects no parameter of the network, which has "
            f"{[name for name, _ in module.named_parameters()]}."
        )
    return Cut(body, module, tuple(names))


def _default_cut(network: nn.Module, X: Tensor) -> Cut:
    """Split for "auto": before the first linear layer if possible, else before the last layer."""
    cut, ran = _before_linear(network, X), _layers_that_run(network, X)
    begins_linear = isinstance(network.get_submodule(ran[0]), nn.Linear)
    # A plain network consists of (nested) chains of layers only.
    is_plain = all(is_chain(part) or not any(part.children()) for part in network.modules())
    if begins_linear and (is_plain or n_weights(network) < _FEW_WEIGHTS):
        return cut or _chosen(None, network, "all")
    if cut is not None and not begins_linear:
        return cut
    found = _before_last_layer(network, X)
    n_moving = sum(found.module.get_parameter(name).numel() for name in found.parameters)
    if n_moving < n_weights(network):
        warn_user(
            f"{type(network).__name__} cannot be cut before its first linear layer, so only its "
            f"last layer is searched: {ran[-1]!r}, {n_moving:,} of {n_weights(network):,} weights. "
            "Set parameters='last' to silence this warning, or parameters='all' to search all "
            "weights, which each variant copies."
        )
    return found


def _before_linear(network: nn.Module, X: Tensor) -> Cut | None:
    """Split before the first linear layer (without a body if it is first); None if impossible."""
    body = LayerInput.of_first_linear(network, X)
    if body is None:
        return None
    if body.reaches_unaltered(X):
        return _chosen(None, network, "all")
    layers = [body.layer, *map(network.get_submodule, _tail_of(network, body.name))]
    module = nn.Sequential(*layers).train(network.training)
    return _chosen(body, module, "all") if _is_same_function(network, body, module, X) else None


def _before_last_layer(network: nn.Module, X: Tensor) -> Cut:
    """Split before the last layer, unless code outside of modules alters the layer's output."""
    name = _layers_that_run(network, X)[-1]
    tail = _tail_of(network, name)
    last = network.get_submodule(name)
    following = [network.get_submodule(each) for each in tail]
    head = nn.Sequential(last, *following) if tail else last
    # Many networks end in a call of log_softmax, which is not a module.
    logarithms = nn.Sequential(last, *following, nn.LogSoftmax(dim=-1)).train(network.training)
    features = LayerInput(network, name)
    parts = ((_without(network, [name, *tail]), head), (features, head), (features, logarithms))
    for body, module in parts:
        if _is_same_function(network, body, module, X):
            return _chosen(body, module, "all")
    names = [n for n, p in network.named_parameters() if any(p is own for own in last.parameters())]
    return Cut(None, network, tuple(names))


class LayerInput(nn.Module):
    """Module that runs a network up to the first run of a layer, and returns the layer's input."""

    def __init__(self, network: nn.Module, name: str):
        super().__init__()
        self.network, self.name = network, name
        self.training = network.training

    @classmethod
    def of_first_linear(cls, network: nn.Module, X: Tensor) -> LayerInput | None:
        """Find the first `torch.nn.Linear` that runs on example inputs; None if there is none."""
        linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            reached = run_until(linear, network, _some_rows(X))
        names = (name for name, layer in network.named_modules() if reached and layer is reached[0])
        name = next(names, None)
        return None if name is None else cls(network, name)

    @classmethod
    def of_last_layer(cls, network: nn.Module, X: Tensor) -> LayerInput:
        """Find the last module with parameters that runs on example inputs."""
        return cls(network, _layers_that_run(network, X)[-1])

    @classmethod
    def of_first_vectors(cls, network: nn.Module, X: Tensor) -> LayerInput:
        """Find the first linear layer if it gets one vector per sample, or else the last layer."""
        first, some = cls.of_first_linear(network, X), _some_rows(X)
        with torch.no_grad():
            rows = None if first is None else first(some)
        takes_vectors = rows is not None and rows.ndim == 2 and len(rows) == len(some)
        return first if first is not None and takes_vectors else cls.of_last_layer(network, X)

    @property
    def layer(self) -> nn.Module:
        return self.network.get_submodule(self.name)

    def forward(self, X: Tensor) -> Tensor:
        reached = run_until([self.layer], self.network, X)
        assert reached is not None
        return reached[1]

    def reaches_unaltered(self, X: Tensor) -> bool:
        """Whether the layer receives the network's inputs unchanged."""
        X = X.clone()
        with torch.no_grad():
            return self(X) is X and X._version == 0  # `_version` counts in-place changes


class SampleFeatures(LayerInput):
    """A layer's input for each sample; if a sample has several rows, such as frames, their mean."""

    def forward(self, X: Tensor) -> Tensor:
        rows, n_samples = super().forward(X.clone()), len(X)
        if len(rows) == n_samples:
            return rows
        first, last = super().forward(X[:1].clone()), super().forward(X[-1:].clone())
        n_each, shape = len(first), rows.shape[1:]
        if len(rows) == n_samples * n_each:
            # A sample's rows are adjacent, or each pass over all samples gives one row per sample.
            by_pass = rows.reshape(n_each, n_samples, *shape).transpose(0, 1)
            for by_sample in (rows.reshape(n_samples, n_each, *shape), by_pass):
                ends = torch.stack([by_sample[0], by_sample[-1]])
                if torch.allclose(ends, torch.stack([first, last]), rtol=1e-3, atol=1e-5):
                    return by_sample.mean(1)
        raise ValueError(
            f"Layer {self.name!r} receives {len(rows)} rows for {n_samples} samples, in an order "
            "that does not show which rows belong to a sample. Pass a module that takes one row "
            "for each sample, such as a frame or a crop, and average its outputs."
        )


class _Reached(Exception):
    """Raised to stop a forward pass at a layer."""


def run_until(
    layers: Iterable[nn.Module], network: nn.Module, X: Tensor
) -> tuple[nn.Module, Tensor] | None:
    """Run a network up to the first of some layers; return that layer and its input, or None."""

    def stop(layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        raise _Reached(layer, next(chain(inputs, named.values())))

    try:
        with forward_hooks(layers, stop, before=True):
            network(X)
    except _Reached as reached:
        layer, inputs = reached.args
        return layer, inputs
    return None


def _is_same_function(network: nn.Module, body: nn.Module, rest: nn.Module, X: Tensor) -> bool:
    """Whether ``rest(body(X))`` equals ``network(X)`` on example inputs."""
    with torch.no_grad():
        expected = network(X.clone())
        try:
            found = rest(body(X.clone()))
            same_shape = bool(expected.shape == found.shape)
            return same_shape and torch.allclose(expected, found, equal_nan=True)
        except Exception:  # layers may raise any error for wrong inputs
            return False


def _layers_that_run(network: nn.Module, X: Tensor) -> list[str]:
    """List names of modules that directly own parameters, in the order of a forward pass."""
    ran: list[str] = []
    names = {
        module: name
        for name, module in network.named_modules()
        if any(True for _ in module.parameters(recurse=False)) and "parametrizations" not in name
    }
    noted = forward_hooks(names, lambda layer, *_: ran.append(names[layer]), before=True)
    with torch.no_grad(), noted:
        network(_some_rows(X))
    # "" is the name of the network itself. It is returned if no such module was called, for example
    # if all parameters are in a ParameterList, which is never called.
    return ran or [""]


def _some_rows(X: Tensor) -> Tensor:
    """Copy the first two inputs; one input is not enough for normalisation by batch statistics."""
    return X[:2].clone()


def _tail_of(network: nn.Module, name: str) -> list[str]:
    """List names of the modules that follow a module in all enclosing `nn.Sequential`s."""
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
    if "" in names:
        return nn.Identity()
    body = deepcopy(network)
    for name in names:
        body.set_submodule(name, nn.Identity())
    return body


def stack_parameters(
    module: nn.Module, n_models: int, names: Iterable[str] | None = None
) -> dict[str, Tensor]:
    r"""Copy parameters once per model: leaf tensors (n_models, \*parameter.shape)."""
    parameters = dict(module.named_parameters())
    chosen = parameters if names is None else {name: parameters[name] for name in names}
    return {
        name: p.detach().expand(n_models, *p.shape).clone().requires_grad_()
        for name, p in chosen.items()
    }


def stacked_forward(
    module: nn.Module, parameters: Mapping[str, Tensor], X: Tensor, *, shared_input: bool
) -> Tensor:
    r"""Evaluate all variants of a module: in one batched pass if possible, otherwise in a loop.

    Recurrent layers, and networks whose control flow depends on input values, cannot be batched.
    Shapes: `parameters` (n_models, \*parameter.shape), `X` (n_samples, ...) or, unless
    `shared_input`, (n_models, n_samples, ...); returns (n_models, n_samples, n_outputs).
    """

    def forward(own: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(module, own, (x,))
        return out

    with SWAPPING, _without_fused_attention(), _without_checkpoints():
        if not any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
            try:
                in_dims = 0, None if shared_input else 0
                batched: Callable[..., Tensor] = vmap(forward, in_dims=in_dims)
                return batched(dict(parameters), X.clone())
            except RuntimeError as error:
                # Raise errors of memory and device here, because the slow loop below could hide
                # them. torch has no error class for layers that cannot be batched. An error with
                # any other cause will be raised again by the loop.
                if is_of_device(error):
                    raise
        outputs = []
        for i in range(len(next(iter(parameters.values())))):
            own = {name: p[i] for name, p in parameters.items()}
            outputs.append(forward(own, (X if shared_input else X[i]).clone()))
        return torch.stack(outputs)


@contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Disable transformer layers' fused kernels, which do not support batching or gradients."""
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """Disable `torch.utils.checkpoint`: its backward pass would use the module's own weights."""
    was = {name: getattr(checkpoint, name) for name in _CHECKPOINTS if hasattr(checkpoint, name)}
    for name in was:
        setattr(checkpoint, name, _CHECKPOINTS[name])
    try:
        yield
    finally:
        for name, function in was.items():
            setattr(checkpoint, name, function)


class _Plain:
    """Replacement for checkpoint's autograd function; it calls the given function directly."""

    @staticmethod
    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *inputs: Any) -> Any:
        return function(*inputs)


def _around_nothing(*_arguments: Any, **_named: Any) -> Iterator[None]:
    """Replacement for checkpoint's generator; it does nothing before and after the function."""
    yield


# Replacements for internals of torch.utils.checkpoint. Replacing the function `checkpoint` would
# have no effect on modules that have already imported it.
_CHECKPOINTS = {
    "CheckpointFunction": _Plain,
    "_checkpoint_without_reentrant_generator": _around_nothing,
    "_checkpoint_without_reentrant_generator_impl": _around_nothing,  # called since torch 2.14
}
