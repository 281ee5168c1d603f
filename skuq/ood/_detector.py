"""Detection of out-of-distribution inputs with a controlled false alarm rate."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OutlierMixin, _fit_context, clone, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.utils import _safe_indexing, check_random_state, column_or_1d, indexable
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import (
    _num_samples,
    check_consistent_length,
    check_is_fitted,
)

from skuq import validation
from skuq.base import FloatArray, IntArray, with_index_of
from skuq.devices import DeviceMixin
from skuq.explanations import UnusualParts
from skuq.features import feature_encoder
from skuq.labels import codes_of, labels_in_mask, proportional_order
from skuq.models import Given, ModelMixin, as_rows, check_is_estimator, is_prefit, look_at
from skuq.ood import _outputs
from skuq.ood._scores import SCORES, Combination, OfUser, Score, Training, are_columns, automatic
from skuq.wrappers import is_module

_FEWEST_HELD_OUT, _MOST_HELD_OUT = 20, 5000
_RESERVED = (
    "p_value",
    "surprise",
    "most_unusual",
    "columns",
    "words",
)  # columns of the result of `explain`


@dataclass(repr=False, eq=False)
class OODDetector(DeviceMixin, ModelMixin, OutlierMixin, BaseEstimator):
    """Detector of out-of-distribution inputs with a known false alarm rate.

    Scores of an input are the uncertainty of the model, the distance from the training data in the
    model's features and, for tables, the number of values that training rows lack. The scores are
    combined into one statistic, which is compared with the statistic of held-out inputs. If new
    inputs have the distribution of the held-out inputs, at most a fraction `false_alarm_rate` of
    them is expected to be flagged, for any model. With several scores, only simulations show this.

    Parameters
    ----------
    estimator : object, default=None
        The model: any regressor, or classifier with `predict_proba`, of scikit-learn, skorch or
        skuq; a `torch.nn.Module`; or a pipeline. It is cloned and trained. A model in a
        `FrozenEstimator` and a bare module are used without retraining. None: scores are computed
        from the inputs only, without a model.
    false_alarm_rate : float, default=0.05
        Largest expected fraction of inputs that `predict` flags among inputs with the
        distribution of the held-out inputs.
    scores : "auto" or list of str or callable, default="auto"
        Scores to combine. "auto" uses all scores that apply to the model and the inputs:

        - "neighbors": mean distance to the ten nearest training inputs. It is measured between the
          inputs of a learner or, in a network, between inputs of the first layer that gets a vector
          per sample. Tables are standardised; other vectors are standardised or scaled to unit
          length, whichever lets neighbours predict the labels better.
        - "epistemic": epistemic uncertainty of a skuq estimator.
        - For embeddings (learned features, or at least 32 features): "entropy" and "energy" of a
          classifier's predictions; "total", the total uncertainty of a skuq estimator; with at
          least five training inputs per feature, "mahalanobis", the relative Mahalanobis distance;
          and "length", whether the norm is outside the training range by more than half the range.
        - For columns of a table, "support": number of columns with a category that does not occur
          in training rows, or with a number outside the training range by more than half the range.

        A callable receives a batch of inputs and returns one score per input, larger for more
        unusual inputs; a score must not depend on the other inputs of the batch.
    by_class : bool, default=False
        Whether the false alarm rate holds within each class. If True, the rate also holds if the
        class proportions of new inputs differ from those of the held-out inputs, but fewer OOD
        inputs are detected.
    device, random_state
        As in `EvidentialProbe`; `random_state` also seeds the held-out split.

    Attributes
    ----------
    estimator_ : object or None
        The fitted model.
    scores_ : list of str
        Names of the scores that are combined.
    offset_ : float
        Threshold: inputs with smaller `score_samples` are flagged. It is `false_alarm_rate`.
    n_held_out_ : int
        Number of held-out inputs.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    Each score is converted to a surprise, the negative log of its p-value among the held-out
    inputs. Beyond the 90 % quantile of their scores, the surprise grows linearly. The squared
    surprises are averaged within each kind of score (model, distance, support), and summed over
    kinds. An input is compared with each held-out fold by surprises that do not depend on this fold
    (CV+, Barber et al.). This comparison is proved to flag at most twice the false alarm rate.

    The false alarm rate holds in expectation over the draw of the held-out inputs. With n of them,
    the rate of one fitted detector has a standard deviation of about ``sqrt(rate / n)``. P-values
    of training inputs are too large, because each input is its own nearest neighbour. A pipeline
    around the detector does not transform `X_held_out`; pass the pipeline as `estimator` instead.

    References
    ----------
    Barber, Candès, Ramdas, Tibshirani, "Predictive Inference with the Jackknife+", Annals of
    Statistics 49, 2021. Bates, Candès, Lei, Romano, Sesia, "Testing for Outliers with Conformal
    p-values", Annals of Statistics 51, 2023. Haroush, Frostig, Heller, Soudry, "A Statistical
    Framework for Efficient Out of Distribution Detection in Deep Neural Networks", ICLR 2022
    (p-values, combined by Fisher's method).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import OODDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> detector = OODDetector(LogisticRegression(max_iter=1000), random_state=0).fit(X, y)
    >>> detector.predict([[5.1, 3.5, 1.4, 0.2], [5.1, 3.5, 1.4, 9.9]])
    array([ 1, -1])
    """

    estimator: Any = None
    _: KW_ONLY
    false_alarm_rate: float = 0.05
    scores: str | Sequence[str | Callable[[Any], Any]] = "auto"
    by_class: bool = False
    device: str = "auto"
    random_state: Any = None

    _supports_ids = True
    _needs_all_inputs = False
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": "no_validation",
        "false_alarm_rate": [Interval(Real, 0, 1, closed="neither")],
        "scores": [StrOptions({"auto"}), list],
        "by_class": ["boolean"],
        "device": "no_validation",
        "random_state": ["random_state"],
    }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.estimator is not None
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_combination")

    @property
    def offset_(self) -> float:
        """Threshold of `score_samples` below which inputs are flagged."""
        return self.false_alarm_rate

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        X_held_out: Any = None,
        y_held_out: Any = None,
        groups: Any = None,
    ) -> Self:
        """Train the model, and score held-out inputs for comparison.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, ...), or of shape (n_nodes,)
            Training inputs; node ids for a node classifier. If `X_held_out` is None, a fifth of
            them, at most 5,000, is held out.
        y : array-like of shape (n_samples,), default=None
            Labels, or targets of a regression; with a bare module or without an estimator, floats
            are targets. Not needed for a frozen estimator with `predict`. Without an estimator, `y`
            serves to choose the metric; "mahalanobis" is computed only if `y` holds labels.
        X_held_out : array-like like `X`, default=None
            Inputs with the distribution of new in-distribution inputs, not used for training.
        y_held_out : array-like of shape (n_held_out,), default=None
            Labels of the held-out inputs, needed for `by_class`.
        groups : array-like of shape (n_samples,), default=None
            Groups of the inputs in `X`, such as persons with several inputs. Whole groups are held
            out and count as one input each: the false alarm rate holds for inputs of new groups.

        Raises
        ------
        ValueError
            If `y` is missing, if a score does not apply to the model or the inputs, or if the model
            was trained on held-out nodes.

        Warns
        -----
        UserWarning
            If a frozen estimator may have been trained on the held-out inputs; if the held-out
            inputs are too few for the rate; if the model's training loss exceeds that of guessing;
            or if a module gets labels 0 and 1 as floats.
        """
        random = check_random_state(self.random_state)
        seed = int(random.randint(np.iinfo(np.int32).max))
        given = look_at(self.estimator)
        check_is_estimator(given.learner)
        self._takes_nodes = given.takes_ids
        X, y = self._labelled_inputs(given, X, y)
        if is_module(given.trained) or self.estimator is None:
            regression = np.asarray(y).dtype.kind == "f"
        else:
            regression = is_regressor(self.estimator)
        if y_held_out is not None and X_held_out is None:
            raise ValueError("`y_held_out` was passed without `X_held_out`; pass both or neither.")
        if groups is not None and X_held_out is not None:
            raise ValueError("`groups` has no effect with `X_held_out`; pass one of them.")
        if self.by_class and (y is None or regression):
            raise ValueError("by_class=True needs labels as `y`; pass labels, or by_class=False.")
        has_held_out, units = X_held_out is not None, None
        if not has_held_out:
            labels = None if regression or y is None else column_or_1d(y)
            units = None if groups is None else validation.group_codes(groups, _num_samples(X))
            parts = self._hold_out(_num_samples(X), labels, units, random)
            X, X_held_out = (_safe_indexing(X, rows) for rows in parts)
            if y is not None:
                y, y_held_out = (_safe_indexing(y, rows) for rows in parts)
            units = None if units is None else units[parts[1]]
        elif self._takes_nodes:
            X_held_out = _outputs.node_ids(X_held_out)
        if self.estimator is None:
            training = self._encoded(X, y, random)
        elif self._takes_nodes:
            training = self._fitted_on_nodes(X, y, random)
        else:
            training = self._fitted(given, X, y, regression, seed, random)
        self._scores = self._made_scores(training)
        self.scores_ = list(self._scores)
        self._parts = None
        if self._takes_nodes:
            _outputs.check_held_out_nodes(self.estimator_, X_held_out, given=has_held_out)
        else:
            names = getattr(self, "feature_names_in_", None)
            rows, columns = training.rows.X, training.are_columns
            self._parts = UnusualParts.of(rows, random, names, are_columns=columns)
        held_out = self._scores_of(X_held_out)
        check_consistent_length(held_out[self.scores_[0]], y_held_out)
        codes = self._codes_by_class(y, y_held_out) if self.by_class else None
        kinds = {name: score.group for name, score in self._scores.items()}
        self._combination = Combination.of(held_out, kinds, codes, units=units)
        self.n_held_out_ = len(self._combination.held_out)
        smallest = self._combination.smallest_p_value
        if self.false_alarm_rate < smallest:
            needed = int(np.ceil(1 / self.false_alarm_rate - 1e-9)) - 1
            validation.warn_user(
                f"No input can be flagged at false_alarm_rate={self.false_alarm_rate}: with "
                f"{self.n_held_out_} held-out inputs, the smallest p-value is {smallest:.3g}. Pass "
                f"at least {needed} held-out {'inputs' if units is None else 'groups'}"
                f"{' of each class' if self.by_class else ''}, or increase `false_alarm_rate`."
            )
        return self

    def fit_predict(self, X: Any, y: Any = None, **kwargs: Any) -> NDArray[np.int64]:
        return self.fit(X, y, **kwargs).predict(X)

    def p_values(self, X: Any) -> FloatArray:
        """Compute conformal p-values in (0, 1], (n_samples,), which are small for unusual inputs.

        A p-value is the fraction of inputs, among the held-out inputs and the input itself, that
        are at least as unusual as the input. Among inputs with the distribution of the held-out
        inputs, at most a fraction p is expected to have a p-value of p or less.
        """
        check_is_fitted(self)
        return self._combination.p_values(self._scores_of(X))

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Predict -1 if the p-value of an input is at most `false_alarm_rate`, else 1, as int64."""
        inside = self.decision_function(X) >= 0
        return np.where(inside, 1, -1).astype(np.int64)

    def decision_function(self, X: Any) -> FloatArray:
        """Compute `score_samples` minus `offset_`, (n_samples,): negative for flagged inputs."""
        return self.score_samples(X) - self.offset_

    def score_samples(self, X: Any) -> FloatArray:
        """Compute p-values, lowered by up to 1e-9 so that the combined surprise breaks ties.

        Smaller scores, (n_samples,), are more unusual, also beyond the range of held-out inputs.
        """
        check_is_fitted(self)
        return self._combination.ranks(self._scores_of(X))

    def single_scores(self, X: Any) -> pd.DataFrame:
        """Compute the separate scores, before comparison with the scores of held-out inputs.

        The DataFrame has one row per input, with the index of `X`, and one column per score in
        `scores_`, float64; larger is more unusual. Units differ between scores.
        """
        check_is_fitted(self)
        return with_index_of(X, pd.DataFrame(self._scores_of(X)))

    def explain(self, X: Any) -> pd.DataFrame:
        """Return the score and the columns or words that make each input unusual.

        Each column or word of an input is replaced by columns or words of training inputs, and the
        results are scored, which takes as much time as scoring 20 inputs.

        Returns
        -------
        DataFrame
            One row per input, with the index of `X`. Columns: ``p_value``; ``surprise``, the
            combined surprise, which also ranks inputs of equal p-value; ``most_unusual``, the name
            of the score with the largest surprise; and one column of p-values per score. For tables
            of up to 100 columns, ``columns`` names up to three columns and their values:
            values that training rows lack, or that contribute most to the surprise. For texts,
            ``words`` are up to three words that training texts lack, or that contribute most.
        """
        check_is_fitted(self)
        scores, combined = self._scores_of(X), self._combination
        surprises = pd.DataFrame(combined.surprises(scores))
        found: dict[str, Any] = {
            "p_value": combined.p_values(scores),
            "surprise": combined.statistic(scores),
            "most_unusual": surprises.idxmax(axis=1).to_numpy(),
            **combined.single_p_values(scores),
        }
        if self._parts is not None:
            name = "words" if validation.is_texts(X) else "columns"
            found[name] = self._parts.describe(
                validation.to_dense(self._checked_inputs(X)),
                lambda other: combined.statistic(
                    self._scores_of(validation.with_names(self, other))
                ),
            )
        return with_index_of(X, pd.DataFrame(found))

    def _labelled_inputs(self, given: Given, X: Any, y: Any) -> tuple[Any, Any]:
        if self._takes_nodes:
            y = None if y is None else labels_in_mask(X, y)
            X = _outputs.node_ids(X)
        if given.pretrained is None:
            validation.refuse_several_inputs(X)
        if self.estimator is None:
            X = self._checked_inputs(X, reset=True)
            if y is None:
                return X, None
        X = as_rows(self.estimator, X)
        if y is None and is_prefit(self.estimator) and hasattr(self.estimator, "predict"):
            return indexable(X)[0], self.estimator.predict(X)
        if y is None:
            train = (
                "must be trained. Pass y, or a fitted model with `predict` in a FrozenEstimator."
            )
            own = "is a module. Pass labels or its own predictions: module(X).argmax(1)."
            raise ValueError(
                "This OODDetector requires y to be passed, but the target y is None: its estimator "
                f"{own if is_module(given.learner) else train}"
            )
        y = validation.one_target(y)
        return tuple(indexable(X, validation.checked_labels(y, "y") if y.dtype == object else y))

    def _hold_out(
        self, n_rows: int, labels: Any, units: IntArray | None, random: np.random.RandomState
    ) -> tuple[IntArray, IntArray]:
        """Split rows into training and held-out rows, stratified by the labels if there are any."""
        n_held_out = min(round(n_rows / 5), _MOST_HELD_OUT)
        n_held_out = max(n_held_out, min(_FEWEST_HELD_OUT, n_rows // 2), 1)
        if n_rows - n_held_out < 1:
            raise ValueError(
                f"Found {n_rows} sample(s), and at least 2 are required, one of which is held out. "
                "Pass more samples, or `X_held_out`."
            )
        if is_prefit(self.estimator) and not self._takes_nodes:
            validation.warn_user(
                "A part of X is held out. If the frozen estimator was trained on it, the actual "
                "false alarm rate is higher than `false_alarm_rate`. Pass inputs that were not "
                "used for training as `X_held_out`."
            )
        order = random.permutation(n_rows)
        if labels is not None:
            order = proportional_order(labels, order, random)
        held = np.isin(np.arange(n_rows), order[:n_held_out])
        held = held if units is None else validation.whole_groups(held, units)
        if held.all() or not held.any():
            raise ValueError("`groups` has too few groups to hold out a fifth; pass more groups.")
        return np.flatnonzero(~held), np.flatnonzero(held)

    def _encoded(self, X: Any, y: Any, random: np.random.RandomState) -> Training:
        self.estimator_ = None
        self._evaluate: _outputs.Evaluator = _outputs.InputsAlone(feature_encoder(X))
        rows = self._evaluate.of_all(X, self.device)
        codes = targets = None
        if np.asarray(y).dtype.kind == "f":
            targets = validation.finite(y, "y")
        elif y is not None and len(np.unique(y)) > 1:
            codes = np.unique(y, return_inverse=True)[1]
        return Training(rows, are_columns(rows, learned=False), codes, targets, random)

    def _fitted(
        self, given: Given, X: Any, y: Any, regression: bool, seed: int, random: Any
    ) -> Training:
        if regression and is_module(given.trained) and np.isin(y, [0, 1]).all():
            validation.warn_user(
                "`y` holds only 0 and 1 as floats. Floats are targets of a regression; if these "
                "are labels of two classes, cast them: y.astype(int)."
            )
        as_network = given.is_network and not hasattr(given.trained, "predict_uncertainty")
        form: Literal["network", "learner"] = "network" if as_network else "learner"
        data = self._resolve(X, y, seed=seed, form=form, regression=regression, device=self.device)
        model = self.model_
        if model.network is not None:
            self.estimator_ = model.network
            self._evaluate = _outputs.NetworkOutputs.of(
                model, data.inputs, self.device, is_classifier=not regression
            )
        else:
            self.estimator_ = model.estimator
            self._evaluate = _outputs.LearnerOutputs.of(model, data.X, self.device)
        codes, targets = (None, data.labels) if regression else (data.codes, None)
        rows = self._evaluate.of_all(data.X, self.device, codes)
        if rows.log_proba is not None and codes is not None and not given.class_weights:
            validation.warn_if_worse_than_guessing(rows.log_loss, codes, model.classes)
        columns = are_columns(rows, learned=self._evaluate.learned)
        return Training(rows, columns, codes, targets, random)

    def _fitted_on_nodes(self, X: Any, y: Any, random: np.random.RandomState) -> Training:
        given, self.n_features_in_ = self.estimator, 1
        frozen = isinstance(given, FrozenEstimator)
        self.estimator_ = given.estimator if frozen else clone(given).fit(X, y)
        self._evaluate = _outputs.NodeOutputs.of(self.estimator_, X, y, self.device)
        return Training(self._evaluate(X, self.device), False, None, None, random)

    def _made_scores(self, training: Training) -> dict[str, Score]:
        if isinstance(self.scores, str):
            if scores := automatic(training):
                return scores
            raise ValueError(
                "scores='auto' found no score that applies to the model and the inputs. Pass "
                "functions of the inputs as `scores`."
            )
        if not len(self.scores):
            raise ValueError("`scores` is empty; pass 'auto' or at least one score.")
        made: dict[str, Score] = {}
        for each in self.scores:
            name = getattr(each, "__name__", type(each).__name__) if callable(each) else each
            if name in made or name in _RESERVED:
                raise ValueError(f"The name {name!r} in `scores` is used twice or reserved.")
            if callable(each):
                made[name] = OfUser(name, each)
            elif each not in SCORES:
                raise ValueError(f"Unknown score {each!r}; choose from {list(SCORES)}.")
            elif lacking := SCORES[each].lacks(training):
                raise ValueError(f"The score {each!r} needs {lacking}.")
            else:
                made[each] = SCORES[each].of(training)
        return made

    def _codes_by_class(self, y: Any, y_held_out: Any) -> NDArray[np.int64]:
        if y_held_out is None:
            raise ValueError(
                "by_class=True needs the labels of the held-out inputs; pass `y_held_out`."
            )
        known = np.unique(y)
        codes = codes_of(column_or_1d(y_held_out, warn=True), known, "y_held_out")
        missing = np.setdiff1d(np.arange(len(known)), codes)
        if len(missing):
            raise ValueError(
                f"The held-out inputs have no sample of class {known[missing[0]]}. Pass samples of "
                "each class as `X_held_out` and `y_held_out`, or use by_class=False."
            )
        return codes

    def _scores_of(self, X: Any) -> dict[str, FloatArray]:
        """Compute all scores of the inputs, (n_samples,) each."""
        parts: dict[str, list[FloatArray]] = {name: [] for name in self._scores}
        nodes = [_outputs.node_ids(X)] if self._takes_nodes else None
        for batch in nodes or _outputs.batches_of(self._checked_inputs(X)):
            rows = self._evaluate(batch, self.device)
            for name, score in self._scores.items():
                parts[name].append(score(rows))
        return {name: np.concatenate(part) for name, part in parts.items()}

    def _checked_inputs(self, X: Any, *, reset: bool = False) -> Any:
        if self.estimator is not None:
            return self.model_.form.check(self, X)
        if hasattr(X, "columns"):
            validation.check_some_samples(X, self)
            validation.validate_data(self, X, reset=reset, skip_check_array=True)
            X = validation.as_pandas(X)
            return X if reset else validation.like_fitted(self, X)
        X = validation.validate_data(self, X, reset=reset, accept_sparse="csr", allow_nd=True)
        return validation.like_fitted(self, X)
