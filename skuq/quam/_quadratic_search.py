"""Search at each input in closed form, with a quadratic approximation of the training loss."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from skuq._networks import HeldOnDevice, on_device
from skuq.base import FloatArray
from skuq.files import stored
from skuq.models import TrainingData
from skuq.quam._curvature import Curvature, Exact, Kronecker, Layers, Samples
from skuq.quam._gradient_search import (
    EFFORT,
    FittedSearch,
    NetworkSearch,
    SearchSettings,
    efforts,
    penalty_schedule,
    variants_at,
)
from skuq.quam._importance_sampling import Trajectories
from skuq.quam._pointwise_search import PointwiseSearch, search_batch
from skuq.quam._pool_search import PoolSearch
from skuq.quam._search import (
    Classification,
    Outputs,
    Problem,
    Search,
    Setup,
    Task,
    with_progress,
)

_ROWS_PER_JOB = 4096
_ELEMENTS = 2**23  # maximum number of elements of an intermediate result: 64 MiB
_FEW_OPERATIONS = 10**10  # up to this number, curvature="auto" is "exact": a second on one core
_SMALL = 5_000_000  # maximum cost (see `default_search`) at which the default search is "pointwise"
# Limits of curvature="exact": rows of the decomposed matrix, and elements of the jacobian (2 GiB).
_LARGEST_EXACT, _MOST_ELEMENTS = 20_000, 2**28
_ACTIVE = 32  # number of classes whose logits a search changes, the most probable ones
_ROUNDS = 3  # number of times that a search chooses these classes and solves for their logits
_NEWTON_STEPS = 30
_STEP_SIZES = (1.0, 0.6, 0.3, 0.1, 0.03, 0.01, 0.003)
_N_CHECKED = 2048  # maximum number of training samples on which true losses are computed
_MODELS_AT_ONCE = 64
_POINTS_AT_ONCE = 8
_REFINED_BATCH = 256
_REFINED = 0.02, 0.002  # first and last step size of refinements
# Distances of the objective from its minimum, in nats: below the first, steps have size 1; below
# the second, no more steps are taken.
_CLOSE, _CONVERGED = 1e-6, 1e-16


@stored("quam.quadratic-search")
@dataclass(kw_only=True, eq=False, repr=False)
class QuadraticSearch(NetworkSearch):
    r"""Search at each input in closed form: Algorithm 1 with a quadratic training loss.

    It is for networks and logistic regression. `PointwiseSearch` with penalty n minimises
    ``-log p_k(x, w) + n (L(w) - L_ref)``. This search replaces the training loss L by its quadratic
    approximation around the given model. The minimum for class k then has the logits ``f + S g``
    with ``g = e_k - p(f + S g)``, and an excess loss of ``g' S g / 2`` nats, summed over the
    training data. Here, f are the given model's logits at x, S is their covariance in the Laplace
    approximation, p is the softmax and e_k a unit vector. Solving this takes milliseconds. For a
    regressor, two models predict one standard deviation (from S) more or less than the given model.

    Parameters
    ----------
    parameters : {"auto", "all", "linear", "last"} or callable, default="auto"
        Searched weights, as in `PoolSearch`, but only of linear and convolutional layers. "auto"
        omits the weights of other layers, such as batch normalisation. With "all" and convolutions,
        `effort` compares pixels instead of features, and far inputs may be missed.
    prior_precision : float, default=0.01
        Precision of the Gaussian prior around the given weights, times the mean square of each
        layer's weights. This makes results independent of the scale of the inputs, and of factors
        that move from one layer to the next through a ReLU.
    effort : {"equal", "paper"}, default="equal"
        "paper": the penalty is the same for all inputs. A change of the weights then moves the
        logits of an input in proportion to its activations, so predictions change most easily if
        activations are large. "equal": the penalty is multiplied by ``|a|**2 / median |a|**2``,
        where a are the inputs of the searched layers, and the median is over training samples. If
        ``|a|**2`` is above its 99 % quantile, the factor decreases to 1 again, because unusually
        large inputs should get a large uncertainty. A regressor always uses "paper".
    curvature : {"auto", "exact", "kronecker"}, default="auto"
        "exact": the generalised Gauss-Newton matrix of all searched weights. "kronecker": a
        Kronecker product for each layer. "auto": "exact" if it takes up to about a second.
    refine_steps : int, default=0
        Number of gradient steps, with the true training loss, from each solution. Set it if
        `check_search` shows that the approximation is poor. A step costs as much as one of
        `PointwiseSearch`.

    Notes
    -----
    Searches change only the logits of an input's 32 most probable classes and of all targeted
    classes. Time and result for an input do not depend on other inputs, except for rounding.

    References
    ----------
    Kronecker factors: Martens, Grosse, "Optimizing Neural Networks with Kronecker-factored
    Approximate Curvature", ICML 2015. The regret (setting "regret" of `QUAMClassifier`): Fogel,
    Feder, "Universal Batch Learning with Log-Loss", ISIT 2018; Bibas, Feder, Hassner, "Single Layer
    Predictive Normalized Maximum Likelihood for Out-of-Distribution Detection", NeurIPS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import QUAMClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> quam = QUAMClassifier(LogisticRegression(max_iter=999), search="quadratic").fit(X, y)
    >>> u = quam.predict_uncertainty([X[0], [9.0, 2.0, 3.0, 2.0]])
    >>> bool(u.epistemic[1] > u.epistemic[0])
    True
    """

    prior_precision: float = 0.01
    effort: str = "equal"
    curvature: str = "auto"
    refine_steps: int = 0

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **NetworkSearch._parameter_constraints,
        "prior_precision": [Interval(Real, 0, None, closed="neither")],
        "effort": EFFORT,
        "curvature": [StrOptions({"auto", "exact", "kronecker"})],
        "refine_steps": [Interval(Integral, 0, None, closed="left")],
    }
    pointwise: ClassVar[bool] = True

    def problem_of(self, fitted: FittedSearch, setup: Setup) -> QuadraticProblem:
        """Compute and decompose the curvature of the training loss at the given model."""
        problem, there = fitted.problem, _with_double(setup.device)
        module = _in_double(problem.module, there)
        X = torch.from_numpy(problem.X)
        layers = Layers.of(module, problem.parameters, _rows(X, slice(1), there))
        others = sorted(set(problem.parameters) - set(layers.parameters))
        if others and (self.parameters != "auto" or not layers.names):
            raise TypeError(
                "search='quadratic' can search only whole linear and convolutional layers, not "
                f"{others[:5]}; select other weights by `parameters` of the search, or use "
                "search='pool' or 'pointwise'."
            )
        n_outputs, size = layers.elements_per_row(_rows(X, slice(1), there), of_solutions=False)
        n_weights, n_rows = layers.n_weights(), n_outputs * len(X)
        smaller = min(n_weights, n_rows)
        exact = self.curvature == "exact"
        if exact and (smaller > _LARGEST_EXACT or n_rows * n_weights > _MOST_ELEMENTS):
            raise MemoryError(
                f"curvature='exact' would need a matrix of {n_rows:,} rows (training samples times "
                f"outputs) and {n_weights:,} columns (searched weights), and would decompose a "
                f"matrix of {smaller:,} rows. Use curvature='kronecker', or parameters='last'."
            )
        if self.curvature == "auto":
            exact = n_rows * n_weights * smaller <= _FEW_OPERATIONS
        prior = [self.prior_precision / max(each, 1e-12) for each in layers.sizes()]
        samples = self._samples(layers, problem, setup.task, max(1, _ELEMENTS // size), there)
        curvature = (Exact if exact else Kronecker).of(layers, samples, prior)
        return QuadraticProblem(fitted, curvature.on("cpu"), tuple(layers.names))

    def _samples(
        self, layers: Layers, problem: Any, task: Task, size: int, device: torch.device
    ) -> Iterator[Samples]:
        """Yield the training samples in batches; warn if this takes long."""
        regression = not isinstance(task, Classification)
        X, batches = torch.from_numpy(problem.X), [*gen_batches(len(problem.X), size)]
        advice = "search__parameters='last'"
        steps = iter(batches)
        for rows in with_progress(steps, len(batches), verbose=0, advice=advice, times=1):
            outputs, uses = layers.uses(_rows(X, rows, device))
            weight = on_device(problem.weight[rows], device).to(outputs)
            yield Samples(uses, outputs, weight, getattr(task, "noise_variance", None), regression)

    def batches(
        self, problem: QuadraticProblem, task: Task, inputs: Tensor, reference: Tensor, device: Any
    ) -> list[QuadraticPoints]:
        """Split preprocessed inputs into batches, each for one process."""
        x = problem.fitted.features(inputs, device).numpy()
        equal = self.effort == "equal" and isinstance(task, Classification)
        effort = efforts(problem.fitted.problem, x) if equal else np.ones(len(x))
        given = np.asarray(reference)
        return [
            QuadraticPoints(
                problem, task, x[rows], given[rows], effort[rows], self.refine_steps, device
            )
            for rows in gen_batches(len(x), _ROWS_PER_JOB)
        ]


def default_search(model: Any, data: TrainingData, setup: Setup) -> tuple[Search, Problem]:
    """Choose a search that suits the network's size; return the search and its problem.

    The cost of gradient searches at an input is the product of the numbers of searched weights, of
    training samples per step, and of searches. If this cost is small, gradient searches are chosen,
    except for a single linear layer, whose loss is nearly quadratic. Otherwise, `QuadraticSearch`
    is chosen, or `PoolSearch` if the network has no suitable layers.
    """
    fitted = QuadraticSearch().fitted(model, data, setup)  # all searches default to these weights
    problem, pointwise = fitted.problem, PointwiseSearch()
    assert isinstance(setup.task, Classification)
    weights = [problem.module.get_parameter(name) for name in problem.parameters]
    n_rows = min(len(problem.X), pointwise.train_batch_size)
    cost = sum(w.numel() for w in weights) * n_rows * setup.task.n_searches(len(model.classes))
    first = torch.from_numpy(problem.X[:1])
    layers = Layers.of(problem.module, problem.parameters, first).layers
    solvable = layers and max(layer.weight[0].numel() for layer in layers) <= Search.most_inputs
    is_linear = solvable and fitted.body is None and len(layers) == 1 and len(weights) <= 2
    search: Any = QuadraticSearch() if solvable else PoolSearch()
    if cost <= _SMALL and not is_linear:
        search = pointwise
    return search, search.problem_of(fitted, setup)


@stored("quam.quadratic-problem")
@dataclass(frozen=True)
class QuadraticProblem(HeldOnDevice, Problem):
    """A network that `fit` split, and the curvature of the training loss in its `layers`."""

    fitted: FittedSearch
    curvature: Kronecker | Exact
    layers: tuple[str, ...]

    @property
    def total_weight(self) -> float:
        return self.fitted.problem.total_weight

    def _copy_to(self, device: torch.device) -> tuple[Layers, Curvature]:
        module = _in_double(self.fitted.problem.module, device)
        return Layers(module, self.layers), self.curvature.on(device)


class Solution(NamedTuple):
    """Models found for some rows.

    `outputs` (n_rows, n_searches, n_outputs); `cost` (n_rows, n_searches), the excess loss, summed
    over the training data, in nats; `moved` (n_rows, n_searches, n_outputs), the vectors g of
    `Curvature.changes`, from which the weights follow.
    """

    outputs: Tensor
    cost: Tensor
    moved: Tensor


class SearchCheck(NamedTuple):
    """Excess losses, summed over the training data, in nats: arrays (n_points, n_searches).

    Attributes
    ----------
    predicted : ndarray
        Excess loss of each model according to the quadratic approximation.
    actual : ndarray
        True excess loss of this model, estimated from at most 2,048 training samples.
    """

    predicted: FloatArray
    actual: FloatArray


class QuadraticPoints(NamedTuple):
    """A batch of inputs, with all that a process needs to solve the searches at these inputs."""

    problem: QuadraticProblem
    task: Any
    x: NDArray[Any]
    reference: NDArray[Any]  # (n_points, n_outputs)
    effort: FloatArray  # (n_points,)
    refine_steps: int
    device: Any

    def outputs(self) -> Iterator[Outputs]:
        """Solve the searches, and yield the results in chunks."""
        for rows, targets, solution, uses in self.solved():
            cost = solution.cost[..., None].cpu() / self.problem.total_weight
            found = Trajectories(solution.outputs[:, :, None].cpu(), cost)
            if not (found.outputs.isfinite().all() and cost.isfinite().all()):
                raise ValueError(
                    "The closed form has no finite solution at some inputs. Scale the inputs, such "
                    "as with StandardScaler, or use a larger `prior_precision` of the search."
                )
            if self.refine_steps:
                found = self.refined(rows, solution, uses)
            yield Outputs(
                torch.from_numpy(self.reference[rows]).double(),
                found,
                None if targets is None else targets.cpu(),
                effort=self.effort[rows],
            )

    def solved(self) -> Iterator[tuple[slice, Tensor | None, Solution, list[Any]]]:
        """Yield, for each chunk of inputs: rows, targets, solutions, and `Use` of each layer."""
        there = _with_double(self.device)
        layers, curvature = self.problem.on(there)
        X = torch.from_numpy(self.x)
        n_outputs, size = layers.elements_per_row(_rows(X, slice(1), there), of_solutions=True)
        n_active = min(n_outputs, _ACTIVE)
        size += n_active**2 * (n_active + len(_STEP_SIZES))  # for Newton's method
        if isinstance(curvature, Exact):
            size += 2 * n_outputs * sum(curvature.base.shape)
        for rows in gen_batches(len(X), max(1, _ELEMENTS // size)):
            reference = on_device(self.reference[rows], there).double()
            effort = on_device(self.effort[rows], there).double()
            uses = layers.uses(_rows(X, rows, there))[1]
            roots = curvature.roots(uses)
            if isinstance(self.task, Classification):
                targets = self.task.targets_at(reference)
                yield rows, targets, towards(reference, roots, targets, effort), uses
            else:
                yield rows, None, apart(reference, roots), uses

    def weights(self, solution: Solution, uses: list[Any]) -> dict[str, Tensor]:
        """Compute the weights of the models, ordered by row and search, in double precision."""
        layers, curvature = self.problem.on(_with_double(self.device))
        found = {}
        changes = curvature.changes(uses, solution.moved)
        for name, layer, change in zip(layers.names, layers.layers, changes, strict=True):
            change = change.flatten(0, 1)
            if layer.bias is not None:
                found[f"{name}.bias"] = layer.bias + change[..., -1]
                change = change[..., :-1]
            found[f"{name}.weight"] = layer.weight + change.reshape(-1, *layer.weight.shape)
        return {name.removeprefix("."): each for name, each in found.items()}

    def checked(self) -> Iterator[SearchCheck]:
        """Yield predicted and true excess losses for each chunk of inputs."""
        there = _with_double(self.device)
        layers, problem = self.problem.on(there)[0], self.problem.fitted.problem
        random = np.random.default_rng(problem.seed)
        rows = np.sort(random.permutation(len(problem.X))[:_N_CHECKED])
        X = _rows(torch.from_numpy(problem.X[rows]), slice(None), there)
        y, weight = (on_device(each[rows], there) for each in (problem.y, problem.weight))
        weight = weight.double() * (problem.total_weight / weight.sum())
        for part, _, solution, uses in self.solved():
            objective = self.task.objective(on_device(self.reference[part], there).double())
            given = objective.training_loss(layers.module(X)[None], y)
            weights = self.weights(solution, uses)
            true = []
            for models in gen_batches(solution.cost.numel(), _MODELS_AT_ONCE):
                some = {name: each[models] for name, each in weights.items()}
                outputs = variants_at(layers.module, some, X, shared_input=True)
                true.append((objective.training_loss(outputs, y) - given) @ weight)
            both = solution.cost, torch.cat(true).reshape(solution.cost.shape)
            yield SearchCheck(*(each.cpu().numpy() for each in both))

    def refined(self, rows: slice, solution: Solution, uses: list[Any]) -> Trajectories:
        """Run gradient searches that start at the solutions; return the last model of each."""
        problem, n_steps = self.problem.fitted.problem, self.refine_steps
        schedule = penalty_schedule(
            n_steps,
            c0=problem.total_weight,
            eta=1.0,
            update_every=1,
            learning_rate=_REFINED[0],
            decay=(_REFINED[0] / _REFINED[1]) ** (1 / max(1, n_steps - 1)),
        )
        settings = SearchSettings(schedule, 0.0, _REFINED_BATCH, torch.device(self.device))
        weights, found = self.weights(solution, uses), []
        x, reference = self.x[rows], torch.from_numpy(self.reference[rows]).double()
        n_searches = solution.cost.shape[1]
        for few in gen_batches(len(x), _POINTS_AT_ONCE):
            models = slice(few.start * n_searches, few.stop * n_searches)
            start = {name: each[models].to(settings.device) for name, each in weights.items()}
            objective = self.task.objective(reference[few].to(settings.device))
            effort = self.effort[rows][few]
            found.append(search_batch(problem, settings, x[few], objective, effort, start))
        return Trajectories(*(torch.cat(each)[:, :, -1:] for each in zip(*found, strict=True)))


def _with_double(device: Any) -> torch.device:
    """Replace MPS by the CPU, because the decompositions need float64."""
    device = torch.device(device)
    return torch.device("cpu") if device.type == "mps" else device


def _in_double(module: nn.Module, device: torch.device) -> nn.Module:
    return deepcopy(module).to(device).double().requires_grad_(False)


def _rows(X: Tensor, rows: slice, device: torch.device) -> Tensor:
    x = on_device(X[rows], device)
    return x.double() if x.is_floating_point() else x


def towards(reference: Tensor, roots: Tensor, targets: Tensor, effort: Tensor) -> Solution:
    """Minimise ``-log p_k(f + S g) + g' S g / (2 m)`` over g for each target k, with S = R R'.

    If there are many classes, only logits of the most probable classes vary. Which classes are most
    probable is decided by f and, in later rounds, also by previous solutions.

    Shapes: `reference` f (n_rows, n_classes), `roots` R (n_rows, n_classes, n), `targets` (n_rows,
    n_searches), `effort` m (n_rows,).
    """
    n_classes, n_searches = reference.shape[1], targets.shape[1]
    n_active = min(n_classes, max(n_searches, _ACTIVE))
    roots = roots * effort.sqrt()[:, None, None]
    relevance = reference.scatter(1, targets, torch.inf)
    for _ in range(1 if n_active == n_classes else _ROUNDS):
        active = relevance.topk(n_active, dim=1).indices
        g, f = _minimised(reference, roots, targets, active)
        relevance = torch.maximum(relevance, f.amax(1))
    cost = (g @ roots).square().sum(2) / 2
    return Solution(f, cost * effort[:, None], g * effort[:, None, None])


def _minimised(
    reference: Tensor, roots: Tensor, targets: Tensor, active: Tensor
) -> tuple[Tensor, Tensor]:
    """Find g and ``f + S g`` by Newton's method, as if logits of inactive classes were constant."""
    near = roots.take_along_dim(active[:, :, None], 1)
    among = near @ near.mT  # (n_rows, n_active, n_active)
    first = reference.take_along_dim(active, 1)[:, None]
    others = reference.scatter(1, active, -torch.inf).logsumexp(1)[:, None, None]
    wanted = (targets[:, :, None] == active[:, None]).to(reference)
    at = wanted.argmax(2)[:, :, None, None]
    g = torch.zeros_like(wanted)
    f = first.expand_as(g)
    sizes = reference.new_tensor(_STEP_SIZES)
    for _ in range(_NEWTON_STEPS):
        p = (f - torch.logaddexp(f.logsumexp(2, keepdim=True), others)).exp()
        residual = wanted - p - g
        step = p[..., None] * (among[:, None] - (p @ among)[:, :, None])
        step.diagonal(dim1=2, dim2=3).add_(1)
        # Solve (1 + Hessian S) d = e_k - p - g; `solve` would check the result and wait for it.
        d = torch.linalg.solve_ex(step, residual).result
        df = d @ among
        # Evaluate the objective along d for all step sizes.
        tried = f[..., None] + df[..., None] * sizes
        value = torch.logaddexp(tried.logsumexp(2), others)
        value -= tried.take_along_dim(at, 2)[:, :, 0]
        value += (df * g).sum(2)[..., None] * sizes + (df * d).sum(2)[..., None] * sizes**2 / 2
        decrement = ((residual @ among) * residual).sum(2)
        # Near a solution, the step size is 1, because rounding would determine the best size.
        # Converged solutions must not change: other rows determine the number of further steps.
        size = torch.where(decrement < _CLOSE, 1.0, sizes[value.argmin(2)])
        size = torch.where(decrement < _CONVERGED, 0.0, size)[..., None]
        g, f = g + size * d, f + size * df
        # Check only on the CPU, because the check would wait for a GPU.
        if f.device.type == "cpu" and not size.any():
            break
    moved = reference[:, None] + (g @ near) @ roots.mT
    return torch.zeros_like(moved).scatter(2, active[:, None].expand_as(g), g), moved


def apart(reference: Tensor, roots: Tensor) -> Solution:
    """Find models whose mean is one standard deviation higher, or lower, at a cost of 1/2 nat."""
    covariance = roots[:, :1] @ roots.mT  # of the mean with all outputs, (n_rows, 1, n_outputs)
    std = covariance[:, :, :1].clip(torch.finfo(roots.dtype).tiny).sqrt()
    signs = reference.new_tensor([1.0, -1.0])[None, :, None]
    first = torch.zeros_like(reference)
    first[:, 0] = 1
    return Solution(
        reference[:, None] + signs * covariance / std,
        torch.full_like(std[:, 0].expand(-1, 2), 0.5),
        signs * first[:, None] / std,
    )
