"""torch networks: architectures, training with skorch, splitting, and batched variants."""

from typing import TYPE_CHECKING

from skuq.imports import import_optional, lazy_names

import_optional("torch", extra=None)
from skuq._networks._devices import HeldOnDevice as HeldOnDevice
from skuq._networks._devices import as_double as as_double
from skuq._networks._devices import device_with_memory as device_with_memory
from skuq._networks._devices import evaluate as evaluate
from skuq._networks._devices import forward_hooks as forward_hooks
from skuq._networks._devices import free_memory as free_memory
from skuq._networks._devices import input_error as input_error
from skuq._networks._devices import is_of_device as is_of_device
from skuq._networks._devices import largest_activation as largest_activation
from skuq._networks._devices import moved as moved
from skuq._networks._devices import on_device as on_device
from skuq._networks._devices import resolve_device as resolve_device
from skuq._networks._devices import rows_at_once as rows_at_once
from skuq._networks._devices import seeded as seeded
from skuq._networks._devices import within_memory as within_memory
from skuq._networks._modules import MLP as MLP
from skuq._networks._modules import Affine as Affine
from skuq._networks._modules import BinaryLogits as BinaryLogits
from skuq._networks._modules import Columns as Columns
from skuq._networks._modules import LeNet as LeNet
from skuq._networks._modules import LogitsOf as LogitsOf
from skuq._networks._modules import LogProbabilities as LogProbabilities
from skuq._networks._modules import ScaledLogits as ScaledLogits
from skuq._networks._modules import TabularNet as TabularNet
from skuq._networks._modules import WeightedLoss as WeightedLoss
from skuq._networks._modules import is_chain as is_chain
from skuq._networks._modules import linear_layer as linear_layer
from skuq._networks._modules import part_of_chain as part_of_chain
from skuq._networks._training import TrainingSet as TrainingSet
from skuq._networks._training import TrainingSettings as TrainingSettings
from skuq._networks._training import float64_mlp as float64_mlp
from skuq._networks._training import train as train
from skuq._networks._training import train_default_classifier as train_default_classifier
from skuq._networks._training import train_default_regressor as train_default_regressor
from skuq._networks._training import training_batches as training_batches
from skuq._networks._variants import SWAPPING as SWAPPING
from skuq._networks._variants import Cut as Cut
from skuq._networks._variants import LayerInput as LayerInput
from skuq._networks._variants import SampleFeatures as SampleFeatures
from skuq._networks._variants import cut_network as cut_network
from skuq._networks._variants import run_until as run_until
from skuq._networks._variants import stack_parameters as stack_parameters
from skuq._networks._variants import stacked_forward as stacked_forward

if TYPE_CHECKING:
    from skuq._networks._skorch import fit_net as fit_net
    from skuq._networks._skorch import net_dtype as net_dtype

# skorch is slow to import.
_SKORCH = {"skuq._networks._skorch": ("fit_net", "net_dtype")}
__getattr__ = lazy_names(__name__, _SKORCH)
