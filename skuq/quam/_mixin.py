"""What QUAM's classifier and regressor share: the search on a pool, and its evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple, NotRequired, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils import (
    Tags,
    _safe_indexing,
    check_array,
    check_random_state,
    gen_batches,
    get_tags,
)
from sklearn.utils.validation import _check_sample_weight, _num_samples, check_is_fitted
from torch import Tensor

from skuq.base import FloatArray, IntArray, Uncertainty
from skuq.models import (
    AdoptedInputsMixin,
    AdoptedModel,
    EstimatorModel,
    brings_preprocessing,
    is_network,
    last_step,
    pretrained_inside,
    resolve_device,
    takes_tokens,
    to_dense,
)
from skuq.quam._explanation import Explanation, explain_rows
from skuq.quam._found import Found
from skuq.quam._importance_sampling import ImportanceSampling
from skuq.quam._objectives import Objective
from skuq.quam._pool_search import search_networks
from skuq.quam._pools import KNOWN, SEEN, as_pandas, make_pool, make_token_pool
from skuq.quam._refit_search import (
    RefitProblem,
    check_takes_weights,
    refit_on_pool,
    stacked_rows,
    with_categories_of,
)
from skuq.quam._search import Trajectories
from skuq.quam._search_parameters import SearchParameters
from skuq.quam._search_problem import FittedSearch, SearchProblem, SearchSettings

_OUTPUTS_AT_ONCE = 2**22  # numbers that all models predict for a chunk of inputs
_MOST_ROWS = 8192  # of a chunk
_CHUNKS_PER_JOB = 8
_FEWEST = 1000  # inputs of a pool with new ones
_N_BACKGROUND = 500  # training inputs kept for explanations

KEPT = {  # attributes in saved models, with their kinds
    "model_": AdoptedModel | EstimatorModel,
    "reference_loss_": float,
    "n_features_in_": int,
    "feature_names_in_": NotRequired[NDArray[Any]],
    "_takes_ids": bool,
    "_preprocesses": bool,
    "_input_shape": NotRequired[tuple[int, ...]],
    "_problem": NotRequired[FittedSearch],
    "_found": NotRequired[Found],
}


def checked_weights(sample_weight: Any, y: NDArray[Any]) -> FloatArray:
    """Weights of the samples as float64, none of them negative and not all 0."""
    weight = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
    if not weight.any():  # which older versions of scikit-learn let pass
        raise ValueError("`sample_weight` is 0 for all samples; at least one must count.")
    return weight


class QUAMMixin(SearchParameters, AdoptedInputsMixin, ABC):
    """Search of `fit` and `search_pool`, and evaluation of the models that it found.

    Subclasses say what searches ask for.
    """

    estimator: Any
    _validate_params: Callable[[], None]  # of scikit-learn's BaseEstimator
    _problem: FittedSearch | RefitProblem
    _found: Found  # with search="pool"

    @abstractmethod
    def predict_uncertainty(self, X: Any) -> Uncertainty: ...

    @abstractmethod
    def adversarial_models(self, X: Any) -> Any: ...

    @abstractmethod
    def _sought(self, reference: Tensor) -> IntArray:
        """What searches on a pool ask for, given the reference model's outputs there."""

    @abstractmethod
    def _objective(self, reference: Tensor, sought: IntArray) -> Callable[[Tensor], Objective]:
        """Objective of a network at some inputs of the pool."""

    @abstractmethod
    def _wanted(self, pool: Any, reference: FloatArray, sought: IntArray) -> list[NDArray[Any]]:
        """Targets of the pool, (n_variants, n_pool), with which a learner is refitted."""

    def _searched(self, reference: FloatArray) -> IntArray:
        """Rows of the pool on which a learner is refitted, given what the model predicts there."""
        return np.arange(len(reference))

    @abstractmethod
    def _loss(self, outputs: Tensor, y: NDArray[Any]) -> FloatArray:
        """Losses of a model's outputs, in nats."""

    @property
    def _refits(self) -> bool:
        """Whether models are found by refitting a learner, not by the gradients of a network."""
        return self.search == "pool" and not is_network(self.estimator)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._refits and get_tags(self.estimator).input_tags.allow_nan
        return tags

    def _brings_preprocessing(self) -> bool:
        return self._refits or brings_preprocessing(self.estimator)

    def _validate_training_data(
        self, X: Any, y: Any, *, min_samples: int = 1
    ) -> tuple[Any, NDArray[Any]]:
        if self._refits:
            self._shares()
            check_takes_weights(last_step(self.estimator))
        X, y = super()._validate_training_data(X, y, min_samples=min_samples)
        return self._as_table(X), y

    def _checked_rows(self, X: Any) -> Any:
        return super()._checked_rows(self._as_table(X))

    def _as_table(self, X: Any) -> Any:
        """Rows of a learner as a DataFrame or array; NaN is the learner's business."""
        if not self._refits:
            return X
        X = as_pandas(X)
        if isinstance(X, pd.DataFrame):
            return X
        return check_array(to_dense(X), dtype=None, ensure_all_finite="allow-nan", input_name="X")

    def _subnetwork(self) -> Any:
        """Parameters that move."""
        if self.parameters != "auto":
            return self.parameters
        if pretrained_inside(self.estimator) is not None:
            return "last"  # copies of all weights of a large model would not fit into memory
        return "linear" if self.search == "pool" else "all"

    def _shares(self) -> list[float]:
        """Checked weights of the pool."""
        shares = np.asarray(self.pool_shares, dtype=float)
        if shares.ndim != 1 or not len(shares) or not (shares > 0).all():
            raise ValueError(
                "`pool_shares` must hold at least one share, each greater than 0 and such as 0.1, "
                f"got {self.pool_shares!r}."
            )
        return sorted(shares.tolist())

    def _refit_problem(
        self, X: Any, y: NDArray[Any], weight: FloatArray, classes: Any, seed: int
    ) -> RefitProblem:
        """Training data as they reach the learner, without samples of weight 0."""
        model: EstimatorModel = self.model_
        counts = np.flatnonzero(weight)
        inputs = _safe_indexing(model.inputs(X), counts)
        return RefitProblem(model.estimator, inputs, y[counts], weight[counts], classes, seed)

    def _search_of_fit(self, X: Any, X_pool: Any, seed: int) -> None:
        """Make the pool or take the user's, and search on it; nothing if points are searched."""
        self.__dict__.pop("_found", None)  # of an earlier fit
        if self.search == "pointwise":
            return
        random = check_random_state(seed)
        rows = random.permutation(_num_samples(X))[:_N_BACKGROUND]
        self._background = _safe_indexing(X, rows)
        if X_pool is not None:
            self._search_first(X_pool)
        elif self.pool != "auto":
            self._search_first(self._checked_pool(self._with_names(self.pool(X))))
        else:
            self._search_on_made_pool(X, random)

    def _search_first(self, pool: Any) -> None:
        """Search on a checked pool, and keep it."""
        self._pool = self.model_.inputs(pool)
        sought = self._sought(self._outputs(self._pool))
        self._found = self._search_on(self._pool, sought)

    def _search_on_made_pool(self, X: Any, random: np.random.RandomState) -> None:
        """Search on a pool made of the training inputs, of the kinds that the model takes."""
        if takes_tokens(self.estimator):
            self._search_first(self._checked_pool(make_token_pool(X, random_state=random)))
            return
        # Models that refuse unknown categories, or numbers out of their range, do so in new inputs.
        is_table = self._brings_preprocessing() and X.ndim == 2
        refusals: list[ValueError] = []
        for kinds in (None, SEEN, KNOWN) if is_table else (None,):
            try:
                made = make_pool(X, kinds=kinds, random_state=random)
                self._search_first(self._checked_pool(self._with_names(made)))
                return
            except ValueError as error:
                refusals.append(error)
        refusals[0].add_note(
            "It arose in a search on inputs that are made of the training inputs. Pass inputs of "
            "your own as `X_pool`, or a function that makes them as `pool`."
        )
        raise refusals[0]

    def _with_names(self, pool: Any) -> Any:
        """A pool that is an array, with the names of the columns of the training inputs."""
        names = getattr(self, "feature_names_in_", None)
        if names is None or not isinstance(pool, np.ndarray) or pool.shape[1:] != names.shape:
            return pool
        return pd.DataFrame(pool, columns=names)

    def _checked_pool(self, X_pool: Any) -> Any:
        """Inputs of a pool in the form that was fitted."""
        if isinstance(X_pool, tuple):
            raise ValueError("A pool holds inputs only, without labels; got a tuple.")
        if _num_samples(X_pool) < 2:
            raise ValueError(
                f"A pool needs at least 2 inputs, got {_num_samples(X_pool)}: any model says "
                "anything about a single one. Use search='pointwise' for single inputs."
            )
        rows = self._checked_rows(X_pool)
        return self._with_names(rows) if self._preprocesses else rows

    def _search_on(self, pool: Any, sought: IntArray) -> Found:
        """Search on a pool in the form that the model takes."""
        reference = self._outputs(pool)
        if isinstance(self._problem, RefitProblem):
            rows = self._searched(reference.numpy())
            pool = _safe_indexing(pool, rows)
            return refit_on_pool(
                self._problem,
                pool,
                self._wanted(pool, reference[rows].numpy(), sought),
                self._shares(),
                self._loss,
                sought,
                n_jobs=self.n_jobs,
            )
        device = resolve_device(self.device)
        with torch.inference_mode(False):
            return search_networks(
                self._problem,
                self._settings(self._problem.problem),
                pool,
                self._objective(reference.to(device), sought),
                sought,
            )

    def search_pool(self, X: Any) -> Self:
        """Search adversarial models on new inputs, together with the pool of `fit`.

        Uncertainty of the same inputs is then sharper: what no model can be made to say about
        many inputs at once is well supported, and the search sees just those. The given model is
        not trained again. The result depends on the company of an input, above all on the share
        of unusual ones; see the guide.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New inputs, at least 2.

        Returns
        -------
        QUAMClassifier or QUAMRegressor
            A copy that uses the models found on these inputs. The estimator itself stays.

        Raises
        ------
        ValueError
            If the estimator was not fitted with search="pool", or `X` does not fit the
            training data.
        """
        self._check_found()
        inputs = with_categories_of(self._pool, self.model_.inputs(self._checked_pool(X)))
        # Few inputs alone would pull too hard, and few unusual ones among many too little.
        n_new, order = _num_samples(inputs), check_random_state(0).permutation(len(self._pool))
        made = _safe_indexing(self._pool, order[: max(n_new, _FEWEST - n_new)])
        if torch.is_tensor(inputs) and inputs.shape[1:] != made.shape[1:]:
            raise ValueError(
                f"New inputs must have the shape of the training inputs, {tuple(made.shape[1:])}, "
                f"got {tuple(inputs.shape[1:])}; pad texts to one length."
            )
        both = torch.cat([inputs, made]) if torch.is_tensor(inputs) else stacked_rows(inputs, made)
        found = copy(self)
        found._found = self._search_on(both, self._found.sought)
        return found

    def explain(self, X: Any, *, n_typical: int = 20) -> Explanation:
        """Tell which columns make rows of a table unusual, and which model says what.

        Each column in turn is replaced by the values of some training rows; what the
        epistemic uncertainty loses by it, on average, is the column's contribution.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        n_typical : int, default=20
            Number of training rows, whose values replace a row's.

        Returns
        -------
        Explanation
            Contributions of the columns, in the unit of the epistemic part, and the
            adversarial models.

        Raises
        ------
        ValueError
            If the inputs are not rows of a table.
        """
        self._check_found()
        rows, background = to_dense(self._checked_rows(X)), to_dense(self._background)
        if np.ndim(rows) != 2:
            raise ValueError(f"Only rows of a table can be explained; X has {np.ndim(rows)} axes.")
        typical = _safe_indexing(background, np.arange(n_typical) % len(background))
        epistemic, contribution = explain_rows(
            rows, typical, lambda X: self.predict_uncertainty(X).epistemic
        )
        names = getattr(self, "feature_names_in_", np.arange(rows.shape[1]))
        return Explanation(np.asarray(names), epistemic, contribution, self.adversarial_models(X))

    def _check_found(self) -> None:
        check_is_fitted(self)
        self._validate_params()  # they may have been set after `fit`
        if not hasattr(self, "_found"):
            raise ValueError(
                "This estimator holds no models found on a pool: it was fitted with "
                "search='pointwise', or its last search failed. Fit it with search='pool'."
            )

    def _importance_sampling(self) -> ImportanceSampling:
        """Weights of the models that the searches meet."""
        by_search = self.search == "pool"
        if self.temperature != "auto":
            temperature = float(self.temperature)
        elif by_search:
            # Losses that differ by less than two standard errors are the same.
            temperature = 2 * max(self._found.standard_error, 1e-6)
        else:
            # The likelihood of a mini-batch, which is that of all samples if they fit into one.
            problem = self._fitted_search().problem
            share = min(1, self._train_batch_size / len(problem.X))
            temperature = 1 / (share * problem.total_weight)
        return ImportanceSampling(
            self.setting,
            self.mixture,
            temperature,
            self.gamma,
            by_search=by_search,
            held_out=by_search and self._found.held_out,
        )

    def _batches(
        self, inputs: Tensor, reference: Tensor
    ) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Test points as they reach the layers that move, and outputs of the reference model."""
        x = self._fitted_search().features(inputs, resolve_device(self.device)).numpy()
        outputs = reference.numpy()
        return [(x[rows], outputs[rows]) for rows in gen_batches(len(x), self.batch_size)]

    def _point_search(self) -> tuple[SearchProblem, SearchSettings]:
        """Problem and settings of a search for single points."""
        check_is_fitted(self)
        self._validate_params()  # they may have been set after `fit`
        problem = self._fitted_search().problem
        return problem, self._settings(problem)

    def _fitted_search(self) -> FittedSearch:
        if isinstance(self._problem, RefitProblem):
            raise ValueError(
                "This estimator was fitted with search='pool' and refits its learner; fit it "
                "again with search='pointwise', which takes networks and logistic regression."
            )
        return self._problem

    def _pieces(self, X: Any) -> list[_Piece]:
        """Inputs in pieces, one for each job."""
        self._check_found()
        rows = self._checked_rows(X)
        n_classes = len(self.classes_) if hasattr(self, "classes_") else 1
        of_each = self._found.excess_loss.size * n_classes
        chunk = max(1, min(_MOST_ROWS, _OUTPUTS_AT_ONCE // of_each))
        size = chunk * (1 if self.n_jobs in (None, 1) else _CHUNKS_PER_JOB)
        return [
            _Piece(_safe_indexing(rows, part), self.model_, self._found, self.device, chunk)
            for part in gen_batches(_num_samples(rows), size)
        ]


class Met(NamedTuple):
    """What the given model and all others predict for some inputs."""

    reference: Tensor  # (n_points, n_outputs)
    models: Trajectories
    centre: Tensor | None  # (n_points, n_outputs)


class _Piece(NamedTuple):
    """Some inputs, with all that a process needs to evaluate the models found."""

    x: Any
    model: Any
    found: Found
    device: Any
    chunk: int

    def reduce(self, function: Callable[[Met], Sequence[NDArray[Any]]]) -> list[NDArray[Any]]:
        """Call a function on what was met, chunk by chunk, and join the arrays it returns."""
        parts = [
            function(self._met(_safe_indexing(self.x, rows)))
            for rows in gen_batches(_num_samples(self.x), self.chunk)
        ]
        return [np.concatenate(each) for each in zip(*parts, strict=True)]

    def _met(self, x: Any) -> Met:
        inputs = self.model.inputs(x)
        reference = self.model.outputs(inputs, self.device).double()
        outputs = self.found.outputs(inputs, self.device)
        excess = torch.as_tensor(self.found.excess_loss).expand(len(outputs), -1, -1)
        return Met(reference, Trajectories(outputs, excess), self.found.centre(inputs))


def reduce_piece(
    piece: _Piece, function: Callable[..., Sequence[NDArray[Any]]], *arguments: Any
) -> list[NDArray[Any]]:
    """A job: ``function(met, *arguments)`` for all inputs of a piece."""
    return piece.reduce(lambda met: function(met, *arguments))
