"""Networks with the common interface of models."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils import check_array, gen_batches
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from skuq._networks import (
    Cut,
    HeldOnDevice,
    cut_network,
    evaluate,
    forward_hooks,
    input_error,
    is_of_device,
    moved,
    on_device,
    resolve_device,
    rows_at_once,
    run_until,
)
from skuq.files import stored
from skuq.models._model import Model
from skuq.validation import warn_user
from skuq.wrappers import is_peft_model, module_inside

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_ROWS = 4096  # number of rows of a sparse matrix that are converted to dense rows at once


@stored("models.network")
@dataclass(frozen=True, kw_only=True)
class NetworkModel(HeldOnDevice, Model):
    """A network that maps rows to logits or predictions.

    Models with other inputs, such as graph nodes, are subclasses; estimators return them from a
    method ``as_model()``.

    Attributes
    ----------
    module : torch.nn.Module
        Private copy in evaluation mode and without gradients, on the CPU unless `to` has moved it.
        It maps inputs of shape (n_samples, ...) to logits (n_samples, n_classes) or predictions
        (n_samples, n_outputs).
    """

    module: nn.Module
    #: Weights that are searched by default; see `skuq._networks.cut_network`.
    moving_parameters: ClassVar[str] = "auto"

    @classmethod
    def of(cls, network: nn.Module, **attributes: Any) -> Self:
        """Create a model from a copy of a network, in evaluation mode and without gradients."""
        return cls(module=private_copy(network), **attributes)

    @property
    def network(self) -> nn.Module:
        return self.module

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.module.parameters() if p.is_floating_point())

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    def resolved(self, device: torch.device | str) -> torch.device:
        """Resolve a ``device`` parameter; "auto" depends on the size of the network."""
        return resolve_device(device, self.module)

    def to(self, device: torch.device | str) -> Self:
        """Return the model with its module on a device, for many evaluations on this device."""
        return replace(self, module=moved(self.module, self.resolved(device)))

    @property
    def looks_up_ids(self) -> bool:
        return any(isinstance(part, _EMBEDDINGS) for part in self.module.modules())

    def check_ids(self, inputs: Tensor) -> None:
        # On the CPU, because an unknown id makes a GPU unusable for the process.
        module = moved(self.module, "cpu")
        ran: list[nn.Module] = []

        def check(part: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            ids, last = next(chain(arguments, named.values())), part.num_embeddings - 1
            if bool((ids < 0).any()) or bool((ids > last).any()):
                raise IndexError(f"{names[part]!r} accepts ids 0 to {last}")
            ran.append(part)

        # Skip layers that override `forward`, such as position embeddings, which compute ids.
        of_torch = [kind.forward for kind in _EMBEDDINGS]
        named = module.named_modules()
        names = {part: name for name, part in named if type(part).forward in of_torch}
        try:
            with torch.no_grad(), forward_hooks(names, check, before=True):
                module(inputs[:2].clone())
                # Stop at the last embedding that ran; others are used without a call, if at all.
                for batch in torch.split(inputs, rows_at_once(module)) if ran else ():
                    run_until(ran[-1:], module, batch.clone())
        except IndexError as error:
            raise ValueError(
                f"{type(module).__name__} has no embedding for some ids: {error}."
            ) from error

    @torch.inference_mode(False)  # because searches use the inputs in backward passes
    def inputs(self, X: Any) -> Tensor:
        """Preprocess inputs into a tensor of the model's dtype, on the CPU."""
        if self.transform is not None:
            X = check_array(
                self.transform(X), accept_sparse=True, allow_nd=True, input_name="transformed X"
            )
        inputs = _to_tensor(X, self.dtype)
        if not bool(torch.isfinite(inputs).all()):
            raise ValueError(
                f"Input contains NaN, infinity or a value too large for the model's {self.dtype}."
            )
        return inputs

    def one_pass(self, inputs: Tensor) -> Tensor:
        """Evaluate the module on all inputs at once; inputs and outputs are on its device."""
        outputs: Tensor = self.module(inputs.clone())  # a module may alter its input in place
        return outputs

    @torch.no_grad()
    def outputs_there(self, inputs: Tensor) -> Tensor:
        """Predict in batches to limit memory use; outputs stay on the module's device."""
        inputs = on_device(inputs, self.device)
        if self.at_once:
            return self.one_pass(inputs)
        size = rows_at_once(self.module)
        return torch.cat([self.one_pass(batch) for batch in torch.split(inputs, size)])

    def outputs(self, inputs: Tensor, device: torch.device | str = "cpu") -> Tensor:
        there = self.resolved(device)
        try:
            return evaluate(self.on(there), inputs, device=there)
        except (IndexError, RuntimeError) as error:
            if is_of_device(error):
                raise
            raise input_error(self.module, inputs.shape, error) from error

    def _copy_to(self, device: torch.device) -> nn.Module:
        return moved(self.module, device)

    def followed_by(self, layer: nn.Module) -> Self:
        """Return the model with an additional layer after its outputs."""
        return replace(self, module=nn.Sequential(self.module, layer).eval())

    def cut(self, parameters: str | Callable[[str, Tensor], bool], inputs: Tensor) -> Cut:
        """Split the network before the selected weights; see `skuq._networks.cut_network`.

        The module with the selected weights is a copy that shares its tensors with the network.
        Warns if the last layer cannot be separated.
        """
        cut = cut_network(self.module, parameters, inputs[:1024])
        for name, part in cut.module.named_modules():
            # Weights of quantised layers are integers, and their outputs have no gradients.
            if ".quantized." in type(part).__module__:
                raise ValueError(
                    f"{type(self.module).__name__} has quantised layers, such as {name!r}, which "
                    "cannot be searched; pass the float model, as it was before quantize_dynamic."
                )
        n_movable = sum(p.is_floating_point() for p in cut.module.parameters())
        moves_all = len(cut.parameters) == n_movable
        if cut.body is None and parameters in ("auto", "last") and not moves_all:
            warn_user(
                f"{type(self.module).__name__} changes the outputs of its last layer "
                f"({cut.parameters[0].rpartition('.')[0]!r}) by a computation that is not a module "
                "of an nn.Sequential, so this layer cannot be separated, and the whole network is "
                "evaluated in every step. If this takes too long, let the network end with this "
                "layer."
            )
        # Copy the module: during the evaluation of variants, their weights replace the module's
        # weights, while another thread may evaluate the network.
        tensors = chain(cut.module.parameters(), cut.module.buffers())
        shared = {id(tensor): tensor for tensor in tensors}
        return cut._replace(module=deepcopy(cut.module, shared))


def private_copy(module: nn.Module) -> nn.Module:
    """Copy a module to the CPU, in evaluation mode, without gradients, in float32 or float64.

    Wrappers are removed, and weights that are computed in each pass become plain parameters.
    """
    if any(p.is_meta or is_lazy(p) for p in module.parameters()):
        load = (
            "holds no weights yet. If it is on the device 'meta', load them: "
            "module.to_empty(device='cpu'), then module.load_state_dict(weights). If it has lazy "
            "layers, call it once on some inputs, and train it."
        )
        if any(hasattr(part, "_hf_hook") for part in module.modules()):  # set by accelerate
            load = "offloads its weights; load it on one device, without `device_map`."
        raise ValueError(f"{type(module).__name__} {load}")
    copy = _without_wrappers(_copied(module)).cpu().eval()
    _fold_weights(copy)
    copy.requires_grad_(False)
    for part in copy.modules():
        if isinstance(part, _EMBEDDINGS):
            part.register_forward_pre_hook(_as_ids)
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in copy.parameters())
    # Convert half precision to float32: numpy has no bfloat16, and searches in float16 would
    # overflow.
    return copy.float() if half else copy


def _copied(module: nn.Module) -> nn.Module:
    # torch.export overrides `eval` to raise an error.
    scripted = any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())
    if scripted or "eval" in vars(module):
        raise TypeError(
            "Cannot adopt a ScriptModule, even as a part of the network, or a module of "
            "torch.export, which has no evaluation mode; pass the torch.nn.Module it was made from."
        )
    kept = (value for part in module.modules() for value in vars(part).values())
    copies = {id(x): x.detach().clone() for x in kept if isinstance(x, Tensor) and not x.is_leaf}
    try:
        return deepcopy(module, copies)  # tensors with an autograd history need `copies`
    except RuntimeError as error:
        raise ValueError(
            f"{type(module).__name__} cannot be copied, perhaps because it stores tensors of its "
            "last forward pass; detach them, or do not store them."
        ) from error


def _without_wrappers(module: nn.Module) -> nn.Module:
    """Remove wrappers from a module and its children; PEFT adapters are merged into the weights."""
    while (inside := module_inside(module)) is not None:
        module = _merged(module) if is_peft_model(module) else inside
    for name, part in list(module.named_children()):
        if (inside := _without_wrappers(part)) is not part:
            module.register_module(name, inside)
    return module


def _merged(module: Any) -> nn.Module:
    merge = getattr(module, "merge_and_unload", None)
    if merge is None:
        raise TypeError(
            f"The adapter of this {type(module).__name__} cannot be merged into the weights; "
            "learned prompts, for instance, cannot be merged. Pass a model that supports "
            "merge_and_unload()."
        )
    merged: nn.Module = merge()
    return merged


def _as_ids(_embedding: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert ids to integers, because the network receives all inputs in its floating dtype."""
    ids, *others = inputs
    return (ids.long() if isinstance(ids, Tensor) and ids.is_floating_point() else ids, *others)


def _fold_weights(module: nn.Module) -> None:
    """Replace weights that are computed in each pass by plain parameters.

    Searches could not copy weights that `weight_norm` or `spectral_norm` computes, and modules with
    parametrisations cannot be pickled.
    """
    for layer in list(module.modules()):
        if is_parametrized(layer):
            parametrised: Any = layer.parametrizations
            weights = {name: getattr(layer, name).detach() for name in parametrised}
            # remove_parametrizations is not used: it alters the layer's class, which other copies
            # of the layer share.
            layer.__class__ = type_before_parametrizations(layer)
            del layer._modules["parametrizations"]
            layer._load_state_dict_pre_hooks.clear()  # the hook of weight_norm cannot be pickled
            for name, weight in weights.items():
                layer.register_parameter(name, nn.Parameter(weight))
        for hook in list(layer._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                nn.utils.remove_weight_norm(layer, hook.name)
            elif isinstance(hook, SpectralNorm):
                nn.utils.remove_spectral_norm(layer, hook.name)


def _to_tensor(X: Any, dtype: torch.dtype) -> Tensor:
    if not issparse(X):
        array = np.asarray(X)
        if min(array.strides, default=0) < 0:  # torch does not support negative strides
            array = array.copy()
        # A copy, because arrays may be read-only.
        return torch.tensor(array, dtype=dtype, device="cpu")
    tensor = torch.empty(X.shape, dtype=dtype, device="cpu")
    by_row = X.tocsr()
    for rows in gen_batches(X.shape[0], _ROWS):
        tensor[rows] = torch.from_numpy(by_row[rows].toarray())
    return tensor
