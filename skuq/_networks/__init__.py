"""torch networks: architectures, training with skorch, splitting, and batched variants."""

from typing import TYPE_CHECKING

from skuq.imports import import_optional, lazy_names

import_optional("torch", extra=None)
from skuq._networks._devices import (
    HeldOnDevice,
    as_double,
    device_with_memory,
    free_memory,
    moved,
    on_device,
    resolve_device,
    seeded,
    within_memory,
)
from skuq._networks._evaluate import (
    evaluate,
    forward_hooks,
    input_error,
    largest_activation,
    rows_at_once,
)
from skuq._networks._modules import (
    MLP,
    Affine,
    BinaryLogits,
    Columns,
    LeNet,
    LogitsOf,
    LogProbabilities,
    ScaledLogits,
    TabularNet,
    WeightedLoss,
    is_chain,
    linear_layer,
    part_of_chain,
)
from skuq._networks._training import (
    TrainingSet,
    TrainingSettings,
    float64_mlp,
    train,
    train_default_classifier,
    train_default_regressor,
    training_batches,
)
from skuq._networks._variants import (
    SWAPPING,
    Cut,
    LayerInput,
    cut_network,
    stack_parameters,
    stacked_forward,
)

if TYPE_CHECKING:
    from skuq._networks._skorch import WeightedClassifier, fit_net, net_dtype

__all__ = [
    "MLP",
    "SWAPPING",
    "Affine",
    "BinaryLogits",
    "Columns",
    "Cut",
    "HeldOnDevice",
    "LayerInput",
    "LeNet",
    "LogProbabilities",
    "LogitsOf",
    "ScaledLogits",
    "TabularNet",
    "TrainingSet",
    "TrainingSettings",
    "WeightedClassifier",
    "WeightedLoss",
    "as_double",
    "cut_network",
    "device_with_memory",
    "evaluate",
    "fit_net",
    "float64_mlp",
    "forward_hooks",
    "free_memory",
    "input_error",
    "is_chain",
    "largest_activation",
    "linear_layer",
    "moved",
    "net_dtype",
    "on_device",
    "part_of_chain",
    "resolve_device",
    "rows_at_once",
    "seeded",
    "stack_parameters",
    "stacked_forward",
    "train",
    "train_default_classifier",
    "train_default_regressor",
    "training_batches",
    "within_memory",
]

# skorch is slow to import.
_SKORCH = {"skuq._networks._skorch": ("WeightedClassifier", "fit_net", "net_dtype")}
__getattr__ = lazy_names(__name__, _SKORCH)
