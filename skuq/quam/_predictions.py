"""Jobs that compute the predictions of the models found, in batches, for parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing, gen_batches
from sklearn.utils.validation import _num_samples

from skuq._information import array_namespace
from skuq.quam._importance_sampling import Trajectories
from skuq.quam._tasks import Found, Outputs, Task

if TYPE_CHECKING:
    from skuq.quam._gradient_search import SearchProblem, SearchSettings


class SearchedPoints(NamedTuple):
    """A batch of test points, and everything a process needs to run their searches."""

    problem: SearchProblem
    settings: SearchSettings
    task: Task
    x: NDArray[Any]
    reference: NDArray[Any]  # (n_points, n_outputs)

    def outputs(self) -> Iterator[Outputs]:
        """Run the searches; only results computed from the trajectories leave the process."""
        from skuq._networks import on_device
        from skuq.quam._objectives import Targeted
        from skuq.quam._pointwise_search import search_batch

        reference = on_device(self.reference, self.settings.device)
        objective = self.task.point_objective(reference)
        models = search_batch(self.problem, self.settings, self.x, objective)
        targets = objective.targets.cpu() if isinstance(objective, Targeted) else None
        yield Outputs(on_device(self.reference, "cpu"), models, targets)


class EvaluatedRows(NamedTuple):
    """A batch of inputs, and everything a process needs to evaluate the models found on a pool."""

    x: Any
    model: Any
    found: Found
    device: Any
    chunk: int

    def outputs(self) -> Iterator[Outputs]:
        """Predictions of all models, in chunks."""
        for part in gen_batches(_num_samples(self.x), self.chunk):
            inputs = self.model.inputs(_safe_indexing(self.x, part))
            reference = self.model.outputs(inputs, self.device)
            outputs = self.found.outputs(inputs, self.device)
            xp = array_namespace(outputs)
            excess, targets = (
                xp.broadcast_to(xp.asarray(each), (len(outputs), *each.shape))
                for each in (self.found.excess_loss, self.found.targets)
            )
            yield Outputs(
                xp.asarray(reference, dtype=xp.float64),
                Trajectories(outputs, excess),
                None if self.found.targets[0] < 0 else targets,
                self.found.centre(inputs),
            )


def reduced(
    job: SearchedPoints | EvaluatedRows,
    function: Callable[..., Sequence[NDArray[Any]]],
    argument: Any,
) -> list[NDArray[Any]]:
    """Run a job: apply ``function(outputs, argument)`` to all its inputs."""
    parts = [function(outputs, argument) for outputs in job.outputs()]
    return [np.concatenate(each) for each in zip(*parts, strict=True)]
