"""Base class of QUAM's classifier and regressor: it runs searches, and evaluates the models found.

The gradient searches, which need torch, are imported only if such a search is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from numbers import Integral, Real
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NotRequired, Self

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.linear_model import LogisticRegression
from sklearn.utils import Tags, _safe_indexing, check_random_state, gen_batches, get_tags
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _num_samples, check_is_fitted

from skuq._information import array_namespace
from skuq._progress import progress
from skuq.base import IntArray, Uncertainty
from skuq.devices import with_gradients
from skuq.explanations import Explanation, explained_inputs, index_of
from skuq.features import category_columns
from skuq.imports import import_networks
from skuq.models import FunctionClassifier, Given, Model, ModelMixin, TrainingData, look_at
from skuq.quam._importance_sampling import ImportanceSampling, Trajectories
from skuq.quam._pools import KNOWN, SEEN, make_pool, make_token_pool
from skuq.quam._refit_search import RefitSearch, stacked_rows, with_categories_of
from skuq.quam._search import Found, Outputs, Problem, Search, Setup, Task, Work, warn_if_slow
from skuq.validation import (
    group_codes,
    is_texts,
    refuse_ineffective,
    unwarned_weights,
    warn_of_relative_weights,
    with_names,
)

if TYPE_CHECKING:
    from skuq.quam._pointwise_search import SearchedPoints
    from skuq.quam._quadratic_search import QuadraticPoints, SearchCheck

# Module and class of each search, by the value of the parameter `search`.
SEARCHES = {
    "pool": ("skuq.quam._pool_search", "PoolSearch"),
    "refit": ("skuq.quam._refit_search", "RefitSearch"),
    "pointwise": ("skuq.quam._pointwise_search", "PointwiseSearch"),
    "quadratic": ("skuq.quam._quadratic_search", "QuadraticSearch"),
}


# Constraints on the parameters that the classifier and the regressor share.
PARAMETERS: dict[str, Any] = {
    "estimator": "no_validation",
    "search": [StrOptions(set(SEARCHES)), Search, None],
    "setting": [StrOptions({"selected", "expected", "pairwise"})],
    "mixture": [StrOptions({"trajectory", "dirac"})],
    "gamma": [Interval(Real, 0, None, closed="left")],
    "temperature": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
    "device": "no_validation",  # `resolve_device` checks it, because the check needs torch
    "n_jobs": [Integral, None],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}

# Attributes that are saved with a model, and their types; see `skuq.files`.
KEPT: dict[str, Any] = {
    "model_": Model,
    "search_": Search,
    "reference_loss_": float,
    "n_features_in_": int,
    "feature_names_in_": NotRequired[NDArray[Any]],
    "_task": Task,
    "_problem": NotRequired[Problem],
    "_found": NotRequired[Found],
}

# Maximum number of outputs that all models together compute for one chunk of inputs.
_OUTPUTS_AT_ONCE = 2**22
_MOST_ROWS = 8192  # maximum number of inputs per chunk
_CHUNKS_PER_JOB = 8
# Minimum number of inputs per parallel job. Also, `search_pool` adds inputs from the pool of `fit`
# to the new inputs until there are this many (or the pool is used up).
_FEWEST = 1000
_FASTER = "search='quadratic', or fewer n_steps or refine_steps of the search"
_N_BACKGROUND = 500  # maximum number of stored training inputs, whose values `explain` uses


@dataclass(repr=False, eq=False)
class QUAMBase(ModelMixin, ABC):
    """Base class that searches for models in `fit` and `search_pool`, and evaluates the models."""

    estimator: Any = None
    _: KW_ONLY
    search: Any = None
    setting: str = "expected"
    mixture: str = "trajectory"
    gamma: float = 0.01
    temperature: float | str = "auto"
    device: str = "auto"
    n_jobs: int | None = None
    random_state: Any = None
    verbose: int = 0

    _validate_params: Callable[[], None] = field(init=False)  # of scikit-learn's BaseEstimator
    search_: Any = field(init=False)  # a Search
    _task: Any = field(init=False)  # a Task
    _problem: Any = field(init=False)  # the Problem that the search built
    _found: Found = field(init=False)  # not set if the search is pointwise
    _pool: Any = field(init=False)
    _background: Any = field(init=False)
    # Whether search=None means, for networks, a search on a pool even without `X_pool`.
    _default_is_pool: ClassVar[bool] = False

    @abstractmethod
    def _refuse_ineffective(self, given: Given) -> None:
        """Raise an error if a parameter is set that has no effect with the search `search_`."""

    @abstractmethod
    def _present_task(self) -> Task:
        """Build the task from the present parameters, which may have changed since `fit`."""

    @abstractmethod
    def predict_uncertainty(self, X: Any) -> Uncertainty: ...

    @abstractmethod
    def adversarial_models(self, X: Any) -> Any: ...

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        refits = self.search is None or isinstance(self.search, str | RefitSearch)
        if refits and not look_at(self.estimator).is_network:
            tags.input_tags.allow_nan = get_tags(self.estimator).input_tags.allow_nan
        return tags

    def _prepared(
        self, X: Any, y: Any, sample_weight: Any, X_pool: Any, groups: Any, **training: Any
    ) -> tuple[TrainingData, Any]:
        given = look_at(self.estimator)
        codes = None if groups is None else group_codes(groups, _num_samples(X))
        self.search_ = self._chosen_search(given, X_pool, X)
        if sample_weight is not None and self.search_.form == "learner":
            weight = unwarned_weights(sample_weight, _num_samples(y))
            if given.usable_weight(weight) is None:  # all weights are equal
                warn_of_relative_weights(weight)
                sample_weight = None
        self._refuse_ineffective(given)
        further = () if X_pool is None else (X_pool,)
        training |= {"sample_weight": sample_weight, "further": further, "device": self.device}
        data = self._resolve(X, y, given=given, form=self.search_.form, **training)
        by_default = self.search is None and self.search_.form == "network"
        if by_default and not given.is_network and data.inputs.shape[1] > Search.most_inputs:
            self.search_ = RefitSearch()  # with so many features, refits are faster
            data = self._resolve(X, y, given=given, form="learner", **training)
        if codes is not None and len(data.labels) < len(codes):  # drop groups of dropped samples
            codes = codes[unwarned_weights(sample_weight, len(codes)) > 0]
        return data._replace(groups=codes), sample_weight

    def _chosen_search(self, given: Given, X_pool: Any, X: Any) -> Search:
        """Return the requested or the default search; raise if it does not suit the estimator."""
        if isinstance(given.learner, FunctionClassifier):
            raise TypeError(
                f"{type(self).__name__} refits a model or changes its weights, which a function "
                "does not allow. OODDetector and CalibrationAuditor need only its predictions."
            )
        search = self.search
        if search is None:
            with_pool = X_pool is not None or self._default_is_pool
            by_gradients = given.is_network or (not with_pool and _is_softmax(given, X))
            search = ("pool" if with_pool else "quadratic") if by_gradients else "refit"
        if isinstance(search, str):
            module, name = SEARCHES[search]
            load = import_module if search == "refit" else import_networks
            search = getattr(load(module), name)()
        search._validate_params()
        search.check_suits(given, self.device)
        if X_pool is not None:
            _check_pool(X_pool, search)
            refuse_ineffective(
                search, ["pool"], "with `X_pool`, which is used as the pool instead."
            )
        return search

    @property
    def _device(self) -> Any:
        learner = self.search_.form == "learner"
        return self.device if learner else self.model_.resolved(self.device)

    def _problem_of(self, data: TrainingData, setup: Setup) -> Any:
        """Build the problem of the search; if `search` is None, first choose a default search."""
        if self.search is None and self.search_.pointwise:
            module = import_networks("skuq.quam._quadratic_search")
            self.search_, problem = module.default_search(self.model_, data, setup)
            self._refuse_ineffective(data.given)
            return problem
        return self.search_.problem(self.model_, data, setup)

    def _search(self, data: TrainingData, seed: int) -> None:
        """Search on the user's pool or a generated pool, unless the search is pointwise."""
        self.__dict__.pop("_found", None)  # remove the models of an earlier fit
        search = self.search_
        random = check_random_state(seed)
        rows = random.permutation(_num_samples(data.X))[:_N_BACKGROUND]
        self._background = _safe_indexing(data.X, rows)
        if search.pointwise:
            return
        if data.further:
            self._search_first(self._named(data.further[0]))
        elif search.pool != "auto":
            made = with_names(self, search.pool(data.X))
            _check_pool(made, search)
            self._search_first(self._named(self._checked_rows(made)))
        else:
            self._search_on_made_pool(data.X, random)

    def _search_first(self, pool: Any) -> None:
        self._pool = self.model_.inputs(pool)
        self.model_.check_ids(self._pool)
        targets = self._task.targets(self._outputs(self._pool))
        self._found = self._search_on(self._pool, targets)

    def _search_on_made_pool(self, X: Any, random: np.random.RandomState) -> None:
        """Generate a pool from training inputs, without values that the model rejects; search."""
        form = self.model_.form
        if form.are_tokens:
            made = make_token_pool(X, special=form.special_tokens, random_state=random)
            self._search_first(self._checked_rows(made))
            return
        # Some models raise errors for unknown categories or ids, or for numbers out of range. If
        # the search fails, repeat it without new categories and ids, then without such numbers too.
        is_table = form.reaches_preprocessing and len(X.shape) == 2
        limits_kinds = is_table or (self.model_.looks_up_ids and len(X.shape) == 2)
        names = getattr(self, "feature_names_in_", range(X.shape[-1]))
        codes = category_columns(self.estimator, names) if is_table else ()
        refusals: list[Exception] = []
        for kinds in (None, SEEN, KNOWN) if limits_kinds else (None,):
            try:
                made = make_pool(X, kinds=kinds, categories=codes, random_state=random)
                self._search_first(self._named(self._checked_rows(with_names(self, made))))
                return
            except Exception as error:  # any error, as libraries define their own classes
                refusals.append(error)
        refusals[0].add_note(
            "The error occurred in the search on a pool that was generated from the training "
            "inputs. Pass inputs for which the model works as `X_pool`, or a function that "
            "generates such inputs as `pool` of the search."
        )
        raise refusals[0]

    def _named(self, rows: Any) -> Any:
        """Add column names to validated rows if preprocessing inside the model needs the names."""
        return with_names(self, rows) if self.model_.form.reaches_preprocessing else rows

    @with_gradients()
    def _search_on(self, pool: Any, targets: IntArray) -> Found:
        reference = self._outputs(pool)
        n_fit = self.search_.searches_in_memory(self._problem, len(targets))
        return self.search_.run(
            self._problem,
            self._task,
            pool,
            reference,
            self._task.fewer_targets(reference, targets, n_fit),
            Work(self._device, self.n_jobs, self.verbose),
        )

    def search_pool(self, X: Any) -> Self:
        """Search for adversarial models on new inputs, together with the pool of `fit`.

        The returned copy detects more reliably which of these inputs have a prediction that the
        training data do not determine. The given model is not retrained. The result for a row
        depends on the other rows in `X`, above all on the fraction of unusual rows; see the guide.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New inputs; at least 2 are needed.

        Returns
        -------
        QUAMClassifier or QUAMRegressor
            A copy that uses the models found on these inputs.

        Raises
        ------
        ValueError
            If the estimator was fitted with search="pointwise" or "quadratic", which use no pool.
        """
        self._check_found()
        _check_pool(X, self.search_)
        new = self._named(self._checked_rows(X))
        inputs = with_categories_of(self._pool, self.model_.inputs(new))
        # The total weight of a pool is fixed. If the pool were a few new inputs alone, each would
        # weigh too much; if it were many new inputs alone, unusual inputs would weigh too little.
        # Therefore, add inputs from the pool of `fit`: at least as many as there are new inputs,
        # and enough for `_FEWEST` inputs in total.
        n_new, n_pool = _num_samples(inputs), _num_samples(self._pool)
        order = check_random_state(0).permutation(n_pool)
        made = _safe_indexing(self._pool, order[: max(n_new, _FEWEST - n_new)])
        both_of = array_namespace(inputs)
        if both_of is not np and inputs.shape[1:] != made.shape[1:]:
            raise ValueError(
                f"Each new input must have the shape of a training input, {tuple(made.shape[1:])}, "
                f"got {tuple(inputs.shape[1:])}; pad texts to the same length."
            )
        both = stacked_rows(inputs, made) if both_of is np else both_of.cat([inputs, made])
        found = copy(self)
        found._found = self._search_on(both, self._found.targets)
        return found

    def check_search(self, X: Any) -> SearchCheck:
        """Compare the predicted and true training losses of models that a `QuadraticSearch` finds.

        If true excess losses are more than twice the predicted excess losses, the quadratic
        approximation is poor at these inputs: set `refine_steps` of the search, or use
        search="pointwise".

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            A sample of inputs; twenty are enough. For each input and class, a network is evaluated
            on up to 2,048 training samples.

        Returns
        -------
        SearchCheck
            Predicted and true excess loss of all training data, for each input and class, in nats.
        """
        check_is_fitted(self)
        if not hasattr(self.search_, "curvature"):
            raise ValueError("`check_search` needs a model fitted with search='quadratic'.")
        parts = [part for job in self._points(X) for part in job.checked()]
        return type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))

    def without_training_data(self) -> Self:
        """Return a copy without training data; the copy predicts the same, but cannot search.

        The copy supports `predict`, `predict_uncertainty` and `adversarial_models`. Raises a
        `ValueError` if the estimator was fitted with search="pointwise" or "quadratic".
        """
        self._check_found()
        twin = copy(self)
        twin._found = self._found.without_training_data()
        for name in ("_problem", "_pool", "_background"):
            vars(twin).pop(name, None)
        return twin

    def explain(self, X: Any, *, n_typical: int = 20) -> Explanation:
        """Attribute the epistemic uncertainty to columns or words; also return adversarial models.

        Values or words of training inputs replace those of `X`. If this estimator is the last step
        of a pipeline, use `skuq.explain`, which explains the original columns.

        Parameters
        ----------
        X, n_typical
            As in `skuq.explain`.

        Returns
        -------
        Explanation
            Contributions of the columns, in the unit of the epistemic part, and the
            adversarial models.
        """
        check_is_fitted(self)
        self._validate_params()  # parameters may have changed since `fit`
        given = self._checked_rows(X)
        found = explained_inputs(
            given,
            self._background,
            lambda rows: self.predict_uncertainty(with_names(self, rows)).epistemic,
            n_typical,
            names=getattr(self, "feature_names_in_", None),
        )
        models = self.adversarial_models(with_names(self, given))
        return replace(found, models=models, index=index_of(X))

    def _check_found(self) -> None:
        check_is_fitted(self)
        self._validate_params()  # parameters may have changed since `fit`
        if not hasattr(self, "_found"):
            raise ValueError(
                "This estimator has no models from a search on a pool: either it was fitted with "
                "search='pointwise' or 'quadratic', which search at each input instead, or its "
                "last search failed. Fit it with search='pool' or 'refit'."
            )

    def _importance_sampling(self) -> ImportanceSampling:
        check_is_fitted(self)
        pointwise = self.search_.pointwise
        # Parameters may have changed since `fit`.
        self._validate_params() if pointwise else self._check_found()
        if self.temperature != "auto":
            temperature = float(self.temperature)
        elif not pointwise:
            # Models whose losses differ by less than two standard errors then get similar weights.
            temperature = 2 * max(self._found.standard_error, 1e-6)
        else:  # the importance weights are likelihoods of the training set
            temperature = 1 / self._problem.total_weight
        return ImportanceSampling(
            self.setting,
            self.mixture,
            temperature,
            self.gamma,
            by_search=not pointwise,
            held_out=not pointwise and self._found.held_out,
        )

    def _measured(self, epistemic: Any) -> Any:
        """Return the epistemic part, or None if it is unknown: if all refits equal the model."""
        unchanged = getattr(vars(self).get("_found"), "unchanged", False)
        return None if unchanged else epistemic

    @with_gradients()
    def _over(
        self, X: Any, function: Callable[..., Sequence[NDArray[Any]]], argument: Any
    ) -> list[NDArray[Any]]:
        """Call ``function(outputs, argument)`` on batches of `X` in `n_jobs` jobs; join results."""
        jobs: Any = self._points(X) if self.search_.pointwise else self._rows(X)
        n_points = sum(_num_samples(job.x) for job in jobs)
        parts = []
        with progress(total=n_points, desc="QUAM", unit="input", verbose=self.verbose) as bar:
            calls = (delayed(_reduced)(job, function, argument) for job in jobs)
            start = perf_counter()
            for part in Parallel(n_jobs=self.n_jobs, return_as="generator")(calls):
                bar.update(len(part[0]))
                parts.append(part)
                if len(parts) == 2 and self.search_.pointwise:
                    warn_if_slow(len(jobs), (perf_counter() - start) / 2, "batches", _FASTER)
        return list(map(np.concatenate, zip(*parts, strict=True)))

    def _points(self, X: Any) -> Any:
        """Split inputs into batches; the searches at all inputs of a batch run together."""
        check_is_fitted(self)
        self._validate_params()  # parameters may have changed since `fit`
        self.search_._validate_params()
        inputs = self._inputs(X)
        return self.search_.batches(
            self._problem, self._present_task(), inputs, self._outputs(inputs), self._device
        )

    def _rows(self, X: Any) -> list[EvaluatedRows]:
        self._check_found()
        rows = self._checked_rows(X)
        n_classes = 1 if self.model_.classes is None else len(self.model_.classes)
        of_each = self._found.excess_loss.size * n_classes
        chunk = max(1, min(_MOST_ROWS, _OUTPUTS_AT_ONCE // of_each))
        n_workers, size, found = effective_n_jobs(self.n_jobs), chunk, self._found
        if n_workers > 1:
            share = max(_FEWEST, -(-_num_samples(rows) // n_workers))
            size, found = min(share, _CHUNKS_PER_JOB * chunk), found.without_training_data()
        return [
            EvaluatedRows(_safe_indexing(rows, part), self.model_, found, self.device, chunk)
            for part in gen_batches(_num_samples(rows), size)
        ]


class EvaluatedRows(NamedTuple):
    """A batch of inputs, with all that a process needs to evaluate models found on a pool."""

    x: Any
    model: Any
    found: Found
    device: Any
    chunk: int

    def outputs(self) -> Iterator[Outputs]:
        """Yield the predictions of all models, in chunks of inputs."""
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


def _reduced(
    job: SearchedPoints | QuadraticPoints | EvaluatedRows,
    function: Callable[..., Sequence[NDArray[Any]]],
    argument: Any,
) -> list[NDArray[Any]]:
    """Apply ``function(outputs, argument)`` to all inputs of a job."""
    parts = [function(outputs, argument) for outputs in job.outputs()]
    return [np.concatenate(each) for each in zip(*parts, strict=True)]


def _is_softmax(given: Given, X: Any) -> bool:
    """Whether the model is a logistic regression that can be searched as a network."""
    learner = given.trained
    if not isinstance(learner, LogisticRegression) or given.decides or given.resamples:
        return False
    options = learner.get_params()
    l1 = options.get("l1_ratio", options.get("l1_ratios"))
    differs = (
        options["solver"] == "liblinear",
        options.get("multi_class") == "ovr",
        options.get("penalty") in ("l1", "elasticnet"),
        not isinstance(l1, str) and np.any(l1),  # some scikit-learn versions' default is "warn"
        given.class_weights,
        is_texts(X),
        issparse(X) and X.shape[1] > Search.most_inputs,
        find_spec("torch") is None,
    )
    return not any(differs)


def _check_pool(X_pool: Any, search: Search) -> None:
    if search.pointwise:
        raise ValueError(
            "A pool has no effect with search='pointwise' or 'quadratic', which search at each "
            "input instead; use search='pool' or 'refit'."
        )
    if _num_samples(X_pool) < 2:
        raise ValueError(
            f"A pool needs at least 2 inputs, got {_num_samples(X_pool)}, because a search on one "
            "input can find models that predict anything there. Use search='pointwise' for single "
            "inputs."
        )
