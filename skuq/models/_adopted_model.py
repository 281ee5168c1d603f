"""A fitted model in the one form that the algorithms work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from numpy.typing import NDArray
from sklearn.utils import check_array
from torch import Tensor, nn

from skuq.models._dense import to_tensor
from skuq.models._device import resolve_device
from skuq.models._evaluate import evaluate, moved
from skuq.stored import stored


@stored("models.adopted")
@dataclass(frozen=True)
class AdoptedModel:
    """A fitted model in the one form that the algorithms work on: outputs for all inputs.

    This class is for models of rows. A model of other inputs, such as nodes of a graph, derives
    from it, and its estimator returns it from a method ``as_adopted()``.

    Attributes
    ----------
    at_once : bool
        Whether all inputs are evaluated together, however many they are.
    module : torch.nn.Module
        Private copy in evaluation mode and without gradients, on the CPU except after `to`;
        maps inputs of shape (n_samples, ...) to logits (n_samples, n_classes) or predictions
        (n_samples, n_outputs).
    classes : ndarray of shape (n_classes,) or None
        Labels in the order of the logits; None if the model does not know them.
    transform : callable or None
        Preprocessing that the model applies before its module.
    """

    module: nn.Module
    classes: NDArray[Any] | None = None
    transform: Callable[[Any], Any] | None = None
    at_once: ClassVar[bool] = False

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters."""
        return next(p.dtype for p in self.module.parameters() if p.is_floating_point())

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    def to(self, device: torch.device | str) -> Self:
        """Return the model with its module on a device, for many evaluations there."""
        return replace(self, module=moved(self.module, resolve_device(device)))

    def inputs(self, X: Any) -> Tensor:
        """Preprocess inputs into a tensor of the model's dtype, on the CPU."""
        if self.transform is not None:
            X = check_array(
                self.transform(X), accept_sparse=True, allow_nd=True, input_name="transformed X"
            )
        inputs = to_tensor(X, self.dtype)
        if not bool(torch.isfinite(inputs).all()):
            raise ValueError(
                f"Input contains NaN, infinity or a value too large for the model's {self.dtype}."
            )
        return inputs

    def one_pass(self, inputs: Tensor) -> Tensor:
        """Evaluate the module on inputs that are on its device, all at once, and stay there."""
        outputs: Tensor = self.module(inputs.clone())  # a module may alter its input in place
        return outputs

    def outputs(self, inputs: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Evaluate the module without gradients.

        Parameters
        ----------
        inputs : Tensor of shape (n_samples, ...)
            What `inputs` returns.
        device : torch.device or str, default="cpu"
            Where to compute; "auto" is CUDA if present.

        Returns
        -------
        Tensor of shape (n_samples, n_outputs)
            Logits or predictions, on the CPU.
        """
        return evaluate(self.module, inputs, device=resolve_device(device))

    def followed_by(self, layer: nn.Module) -> Self:
        """Return the model with a further layer on its outputs."""
        return replace(self, module=nn.Sequential(self.module, layer).eval())
