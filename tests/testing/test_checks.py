"""The conformance suite passes what conforms and catches each defect by the right name."""

import random

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from skuq import CredalInterval, Uncertainty, UncertaintyMixin
from skuq.testing import (
    check_uncertainty_estimator,
    parametrize_with_uncertainty_checks,
    uncertainty_checks,
)


class Conforming(ClassifierMixin, UncertaintyMixin, BaseEstimator):
    """Softmax of distances to class means, which are estimated on a random half."""

    def __init__(self, scale=1.0, random_state=None):
        self.scale = scale
        self.random_state = random_state

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        self._learn(X, y, check_random_state(self.random_state))
        return self

    def _learn(self, X, y, rng):
        self.classes_ = np.unique(y)
        groups = [np.flatnonzero(y == label) for label in self.classes_]
        halves = [rng.permutation(rows)[: len(rows) // 2] for rows in groups]
        self.means_ = np.array([X[rows].mean(axis=0) for rows in halves])

    def _check(self, X):
        check_is_fitted(self)
        return validate_data(self, X, reset=False)

    def _parts(self, X):
        """Aleatoric and epistemic part for valid input."""
        distances = self.scale * ((X[:, None] - self.means_) ** 2).sum(axis=-1)
        weights = np.exp(distances.min(axis=1, keepdims=True) - distances)
        return 1 - weights.max(axis=1) / weights.sum(axis=1), distances.min(axis=1)

    def predict_uncertainty(self, X):
        return Uncertainty.from_parts(*self._parts(self._check(X)))

    def predict_proba(self, X):
        self._check(X)
        return np.full((len(X), len(self.classes_)), 1 / len(self.classes_))

    def predict_proba_bounds(self, X):
        proba = self.predict_proba(X)
        return CredalInterval(proba / 2, (1 + proba) / 2)


class ConformingRegressor(RegressorMixin, UncertaintyMixin, BaseEstimator):
    """Constant noise and distance to the mean; it has no random_state and needs none."""

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        self.mean_, self.noise_ = X.mean(axis=0), np.var(y)
        return self

    def predict_uncertainty(self, X):
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        distance = np.abs(X - self.mean_).sum(axis=1)
        return Uncertainty.from_parts(np.full(len(X), self.noise_), distance)


class NodeUncertainty(ClassifierMixin, UncertaintyMixin, BaseEstimator):
    """Input that is no table: numbers of nodes, looked up in a list."""

    def fit(self, X, y):
        self.classes_, self.counts_ = np.unique(y), np.bincount(X)
        return self

    def predict_uncertainty(self, X):
        check_is_fitted(self)
        return Uncertainty.from_parts(X / 10, 1 / (1 + self.counts_[X]))


class Agent(UncertaintyMixin, BaseEstimator):
    """Fitted on seeds of an environment, asked about observations of two numbers."""

    def fit(self, X, y=None):
        self.centre_ = np.mean([np.random.default_rng(seed).normal(size=2) for seed in X], axis=0)
        return self

    def predict_uncertainty(self, X):
        check_is_fitted(self)
        distance = np.abs(check_array(X) - self.centre_)
        return Uncertainty.from_parts(distance[:, 0], distance[:, 1])


# --- each class breaks one promise ----------------------------------------------------------


class AltersParameter(Conforming):
    def __init__(self, scale=1.0, random_state=None):
        self.scale = 2.5 * scale
        self.random_state = random_state


class IgnoresSetParams(Conforming):
    def set_params(self, **params):
        return self


class ReturnsNothingFromSetParams(Conforming):
    def set_params(self, **params):
        super().set_params(**params)


class ClonesWithOtherParameter(Conforming):
    def __sklearn_clone__(self):
        return type(self)(self.scale + 1, self.random_state)


class CannotFit(Conforming):
    def fit(self, X, y):
        raise RuntimeError("no device")


class WithoutMethod(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        return self


class ReturnsTuple(Conforming):
    def predict_uncertainty(self, X):
        return super().predict_uncertainty(X).parts


class ReturnsSinglePrecision(Conforming):
    def predict_uncertainty(self, X):
        parts = super().predict_uncertainty(X).parts
        return Uncertainty(*(part.astype(np.float32) for part in parts))


class ReturnsLists(Conforming):
    def predict_uncertainty(self, X):
        return Uncertainty(*(part.tolist() for part in super().predict_uncertainty(X).parts))


class ReturnsColumns(Conforming):
    def _parts(self, X):
        return [part[:, None] for part in super()._parts(X)]


class ReturnsInfinity(Conforming):
    def _parts(self, X):
        aleatoric, epistemic = super()._parts(X)
        return aleatoric, np.full_like(epistemic, np.inf)


class NegativePart(Conforming):
    def _parts(self, X):
        aleatoric, epistemic = super()._parts(X)
        return aleatoric, epistemic - 10


class TotalSlightlyOff(Conforming):
    def predict_uncertainty(self, X):
        u = super().predict_uncertainty(X)
        return Uncertainty(u.total * (1 + 1e-7), u.aleatoric, u.epistemic)


class AnswersUnfitted(Conforming):
    def predict_uncertainty(self, X):
        if not hasattr(self, "means_"):
            return Uncertainty.from_parts(np.ones(len(X)), np.ones(len(X)))
        return super().predict_uncertainty(X)


class RaisesAttributeErrorUnfitted(Conforming):
    def _check(self, X):
        return validate_data(self, X, reset=False) - 0 * self.means_[0]


class CloneStaysFitted(Conforming):
    def __sklearn_clone__(self):
        copy = type(self)(self.scale, self.random_state)
        vars(copy).update(vars(self))
        return copy


class NoisyPrediction(Conforming):
    def _parts(self, X):
        aleatoric, epistemic = super()._parts(X)
        return aleatoric + np.random.default_rng().random(), epistemic


class CannotBePickled(Conforming):
    def _learn(self, X, y, rng):
        super()._learn(X, y, rng)
        self.function_ = lambda: None


class PickleLosesDigits(Conforming):
    def __getstate__(self):
        state = dict(super().__getstate__())
        if "means_" in state:
            state["means_"] = state["means_"].round(2)
        return state


class CountsCalls(Conforming):
    calls_ = 0

    def _parts(self, X):
        self.calls_ += 1
        return super()._parts(X)


class KeepsLastInputInside(Conforming):
    def _learn(self, X, y, rng):
        super()._learn(X, y, rng)
        self.cache_ = {"seen": []}

    def _parts(self, X):
        self.cache_["seen"].append(X)
        return super()._parts(X)


class LeavesTrainingMode(Conforming):
    def _learn(self, X, y, rng):
        super()._learn(X, y, rng)
        self.net_ = torch.nn.Identity().eval()

    def _parts(self, X):
        self.net_.train()
        return super()._parts(X)


class ChangesTrainingInput(Conforming):
    def _learn(self, X, y, rng):
        X -= 1
        super()._learn(X, y, rng)


class ChangesTargets(Conforming):
    def _learn(self, X, y, rng):
        y[:] = y[::-1].copy()
        super()._learn(X, y, rng)


class OverwritesParameter(Conforming):
    def _learn(self, X, y, rng):
        super()._learn(X, y, rng)
        self.scale = self.scale / len(X)


class ChangesInput(Conforming):
    def _parts(self, X):
        parts = super()._parts(X)
        X -= X.mean(axis=0)
        return parts


class SeedsNumpyInFit(Conforming):
    def _learn(self, X, y, rng):
        np.random.seed(0)  # noqa: NPY002 - the defect
        super()._learn(X, y, rng)


class DrawsFromNumpy(Conforming):
    def _parts(self, X):
        np.random.random()  # noqa: NPY002 - the defect
        return super()._parts(X)


class SeedsTorch(Conforming):
    def _parts(self, X):
        torch.manual_seed(0)
        return super()._parts(X)


class SeedsPython(Conforming):
    def _parts(self, X):
        random.seed(0)
        return super()._parts(X)


class IgnoresRandomState(Conforming):
    def _learn(self, X, y, rng):
        super()._learn(X, y, np.random.default_rng())


class SqueezesSingleRow(Conforming):
    def predict_uncertainty(self, X):
        return Uncertainty(*map(np.squeeze, super().predict_uncertainty(X).parts))


class DependsOnPosition(Conforming):
    def _parts(self, X):
        aleatoric, epistemic = super()._parts(X)
        return aleatoric, epistemic + 1e-4 * np.arange(len(X))


class NormalisesByBatch(Conforming):
    def _parts(self, X):
        aleatoric, epistemic = super()._parts(X)
        return aleatoric, epistemic / epistemic.max()


class NormalisesLargeBatches(Conforming):
    def _parts(self, X):
        aleatoric, epistemic = super()._parts(X)
        return aleatoric, epistemic / epistemic.max() if len(X) > 16 else epistemic


class ScoresWithWrongSign(Conforming):
    def score_samples(self, X):
        return self.predict_uncertainty(X).epistemic


class BoundsInOrderOfArrival(Conforming):
    def predict_proba_bounds(self, X):
        lower, upper = super().predict_proba_bounds(X)
        return CredalInterval(upper, lower)


class BoundsOfOneClass(Conforming):
    def predict_proba_bounds(self, X):
        return CredalInterval(*(part[:, :1] for part in super().predict_proba_bounds(X)))


class BoundsWithoutNames(Conforming):
    def predict_proba_bounds(self, X):
        return tuple(super().predict_proba_bounds(X))


class WithoutScores(ClassifierMixin, BaseEstimator):
    __init__, fit, _learn = Conforming.__init__, Conforming.fit, Conforming._learn
    _check, _parts = Conforming._check, Conforming._parts
    predict_uncertainty = Conforming.predict_uncertainty


class UsesFirstColumnOnly(Conforming):
    def _check(self, X):
        check_is_fitted(self)
        return np.repeat(check_array(X)[:, :1], self.n_features_in_, axis=1)


class RaisesWrongErrorForColumns(Conforming):
    def _check(self, X):
        if np.shape(X)[1] != len(self.means_[0] if hasattr(self, "means_") else X[0]):
            raise IndexError("columns")
        return super()._check(X)


class FillsGaps(Conforming):
    def _check(self, X):
        return super()._check(np.nan_to_num(X) if isinstance(X, np.ndarray) else X)


class IsVagueAboutGaps(Conforming):
    def _check(self, X):
        if isinstance(X, np.ndarray) and np.isnan(X).any():
            raise ValueError("Input is bad.")
        return super()._check(X)


class TakesNoRows(Conforming):
    def _check(self, X):
        check_is_fitted(self)
        return validate_data(self, X, reset=False, ensure_min_samples=0)

    def _parts(self, X):
        return super()._parts(X) if len(X) else (np.empty(0), np.empty(0))


class ReadsMemoryOrder(Conforming):
    def _parts(self, X):
        return super()._parts(X.ravel(order="K").reshape(X.shape))


class NeedsWritableInput(Conforming):
    def _parts(self, X):
        X += 0
        return super()._parts(X)


class ForgetsColumnNames(Conforming):
    def fit(self, X, y):
        return super().fit(np.asarray(X), y)

    def _check(self, X):
        return super()._check(np.asarray(X))


class IgnoresColumnNames(Conforming):
    def _check(self, X):
        check_is_fitted(self)
        names = vars(self).pop("feature_names_in_", None)
        X = super()._check(np.asarray(X))
        if names is not None:
            self.feature_names_in_ = names
        return X


class LearnsOtherwiseFromFrames(Conforming):
    def fit(self, X, y):
        super().fit(X, y)
        if hasattr(self, "feature_names_in_"):
            self.means_ = self.means_ + 0.1
        return self


class NeverLooksFitted(Conforming):
    def predict_uncertainty(self, X):
        return Uncertainty.from_parts(*self._parts(self._check(X)))

    def __sklearn_is_fitted__(self):
        return False

    def _check(self, X):
        check_is_fitted(self, "means_") if hasattr(self, "means_") else check_is_fitted(self)
        return validate_data(self, X, reset=False)


class SharesWhatItLearnt(Conforming):
    shared = {}

    def _learn(self, X, y, rng):
        super()._learn(X, y, rng)
        self.shared["means"] = self.means_

    def _parts(self, X):
        self.means_ = self.shared["means"]
        return super()._parts(X)


class LosesTwoClasses(Conforming):
    def _parts(self, X):
        aleatoric, epistemic = super()._parts(X)
        return (aleatoric if len(self.classes_) > 2 else aleatoric * np.nan), epistemic


class NeedsNumericLabels(Conforming):
    def _learn(self, X, y, rng):
        super()._learn(X, y.astype(float), rng)


class OrdersLabelsByLength(Conforming):
    def _learn(self, X, y, rng):
        super()._learn(X, y, rng)
        self.means_ = self.means_ * (1 + 0.1 * (y.dtype.kind == "U"))


class RefusesOtherSeeds(Conforming):
    def fit(self, X, y):
        if self.random_state not in (None, 0):
            raise ValueError("random_state must be 0.")
        return super().fit(X, y)


DEFECTS = {
    "check_parameters": [
        AltersParameter,
        IgnoresSetParams,
        ReturnsNothingFromSetParams,
        ClonesWithOtherParameter,
    ],
    "check_result": [
        CannotFit,
        WithoutMethod,
        ReturnsTuple,
        ReturnsSinglePrecision,
        ReturnsLists,
        ReturnsColumns,
        ReturnsInfinity,
    ],
    "check_parts_not_negative": [NegativePart],
    "check_parts_add_up": [TotalSlightlyOff],
    "check_unfitted": [AnswersUnfitted, RaisesAttributeErrorUnfitted],
    "check_clone": [CloneStaysFitted],
    "check_repeated_calls": [NoisyPrediction],
    "check_pickle": [CannotBePickled, PickleLosesDigits],
    "check_fitting_changes_nothing": [
        ChangesTrainingInput,
        ChangesTargets,
        OverwritesParameter,
    ],
    "check_predicting_changes_nothing": [
        CountsCalls,
        KeepsLastInputInside,
        LeavesTrainingMode,
        ChangesInput,
    ],
    "check_global_random_state": [SeedsNumpyInFit, DrawsFromNumpy, SeedsTorch, SeedsPython],
    "check_repeated_fits": [IgnoresRandomState],
    "check_single_row": [SqueezesSingleRow],
    "check_row_order": [DependsOnPosition],
    "check_batches": [NormalisesByBatch, NormalisesLargeBatches],
    "check_score_samples": [ScoresWithWrongSign, WithoutScores],
    "check_proba_bounds": [BoundsInOrderOfArrival, BoundsOfOneClass, BoundsWithoutNames],
    "check_number_of_columns": [UsesFirstColumnOnly, RaisesWrongErrorForColumns],
    "check_nan": [FillsGaps, IsVagueAboutGaps],
    "check_empty": [TakesNoRows],
    "check_memory_layout": [ReadsMemoryOrder, NeedsWritableInput],
    "check_data_frame": [ForgetsColumnNames, IgnoresColumnNames, LearnsOtherwiseFromFrames],
    "check_pipeline": [NeverLooksFitted],
    "check_other_instances": [SharesWhatItLearnt],
    "check_two_classes": [LosesTwoClasses],
    "check_string_labels": [NeedsNumericLabels, OrdersLabelsByLength],
    "check_search": [RefusesOtherSeeds],
}


def names(*args, **kwargs):
    return [check.__name__ for check in uncertainty_checks(*args, **kwargs)]


@pytest.mark.parametrize(
    ("check", "defective"),
    [(check, defective) for check, classes in DEFECTS.items() for defective in classes],
)
def test_a_defect_is_caught_by_the_check_that_names_it(check, defective):
    expected = rf"(?s)^{defective.__name__} fails {check}\. Expected: [A-Z`].*\. Found: .+"
    with pytest.raises(AssertionError, match=expected):
        check_uncertainty_estimator(defective())


def test_there_is_a_defect_for_every_check():
    assert set(names(Conforming())) == set(DEFECTS)


# --- unusual, but conforming unless a name says otherwise ------------------------------------


class Signed(NegativePart):
    signed_uncertainty = True


class AllowsNan(FillsGaps):
    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class NeedsNoFit(NodeUncertainty):
    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    def predict_uncertainty(self, X):
        return Uncertainty.from_parts(np.ones(len(X)), np.zeros(len(X)))


class Binary(Conforming):
    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _learn(self, X, y, rng):
        super()._learn(X, y, rng)
        if len(self.classes_) != 2:
            raise ValueError("Only two classes are supported.")


class Neighbours(Conforming):
    def _learn(self, X, y, rng):
        super()._learn(X, y, rng)
        self.inner_ = KNeighborsClassifier(algorithm="kd_tree").fit(X, y)

    def _parts(self, X):
        aleatoric, epistemic = super()._parts(X)
        return aleatoric, epistemic + self.inner_.kneighbors(X)[0].mean(axis=1)


class NeedsPositiveInput(UncertaintyMixin, MultinomialNB):
    def predict_uncertainty(self, X):
        error = 1 - self.predict_proba(X).max(axis=1)
        return Uncertainty.from_parts(error, error**2)


class NeedsPositiveTargets(UncertaintyMixin, PoissonRegressor):
    def predict_uncertainty(self, X):
        mean = self.predict(X)
        return Uncertainty.from_parts(mean, np.zeros_like(mean))


class SinglePrecision(Conforming):
    """A network with random weights, whose products are rounded as the batch has it."""

    def _learn(self, X, y, rng):
        super()._learn(X, y, rng)
        self.weights_ = [
            rng.normal(size=size).astype(np.float32) / 16
            for size in ((X.shape[1], 1024), (1024, 3))
        ]

    def _parts(self, X):
        first, second = self.weights_
        outputs = np.maximum(X.astype(np.float32) @ first, 0) @ second
        return np.abs(outputs).astype(float).T[:2]


class Positional(NodeUncertainty):
    def predict_uncertainty(self, X):
        u = super().predict_uncertainty(X)
        return Uncertainty.from_parts(u.aleatoric, u.epistemic + np.arange(len(X)))


class PositionalAgent(Agent):
    def predict_uncertainty(self, X):
        u = super().predict_uncertainty(X)
        return Uncertainty.from_parts(u.aleatoric, u.epistemic + np.arange(len(X)))


class Holding(ClassifierMixin, UncertaintyMixin, BaseEstimator):
    """Hands everything to an estimator; its other parameters are of several types."""

    def __init__(self, inner=None, weights=(1.0, 2.0), module=None):
        self.inner = inner
        self.weights = weights
        self.module = module

    def fit(self, X, y):
        self.inner_ = clone(self.inner).fit(X, y)
        if hasattr(self.inner_, "feature_names_in_"):
            self.feature_names_in_ = self.inner_.feature_names_in_
        return self

    def predict_uncertainty(self, X):
        check_is_fitted(self)
        return self.inner_.predict_uncertainty(X)


# --- what conforms passes -------------------------------------------------------------------


@parametrize_with_uncertainty_checks([Conforming(), Conforming(scale=0.5), ConformingRegressor()])
def test_what_conforms_passes_each_check(estimator, check):
    check(estimator)


def test_a_class_that_declares_signed_parts_may_have_them():
    with pytest.raises(AssertionError, match=r"check_parts_not_negative.*signed_uncertainty"):
        check_uncertainty_estimator(NegativePart())
    check_uncertainty_estimator(Signed())


def test_an_estimator_that_allows_nan_is_not_asked_to_refuse_it():
    check_uncertainty_estimator(AllowsNan())


def test_an_estimator_that_needs_no_fit_is_not_asked_to_refuse_predicting():
    nodes = np.arange(20)
    check_uncertainty_estimator(NeedsNoFit(), X=nodes, y=nodes % 2)


def test_estimators_that_need_positive_numbers_get_them():
    check_uncertainty_estimator(NeedsPositiveInput())
    check_uncertainty_estimator(NeedsPositiveTargets())


@pytest.mark.parametrize("seed", range(3))
def test_rounding_in_single_precision_is_allowed(seed):
    X = np.random.default_rng(seed).normal(size=(40, 300))
    check_uncertainty_estimator(SinglePrecision(), X=X, y=np.arange(40) % 3)


def test_a_binary_classifier_gets_two_classes():
    check_uncertainty_estimator(Binary())


def test_call_counters_of_search_trees_are_no_change():
    check_uncertainty_estimator(Neighbours())


def test_the_random_state_of_what_it_holds_is_fixed_if_it_has_none_itself():
    check_uncertainty_estimator(Holding(Conforming()))
    with pytest.raises(AssertionError, match="Holding fails check_repeated_fits"):
        check_uncertainty_estimator(Holding(IgnoresRandomState()))


def test_copied_arrays_networks_and_estimators_count_as_equal_parameters():
    holding = Holding(Conforming(scale=0.5), np.array([0.1, 0.2]), torch.nn.Linear(2, 2))
    check_uncertainty_estimator(holding)


@pytest.mark.parametrize(
    "parameter",
    [
        [("a", LogisticRegression(C=2.0)), ("b", Conforming())],
        {"first": np.array([1.0, np.nan]), "second": [np.arange(3), np.arange(2)]},
        np.array([np.nan, "a", None], dtype=object),
        pd.DataFrame({"a": [1.0, np.nan], "b": ["x", None]}),
        sparse.csr_array([[0.0, np.nan], [1.0, 0.0]]),
        float("nan"),
        pd.Series([np.nan]),
    ],
    ids=lambda parameter: type(parameter).__name__,
)
def test_copied_parameters_of_any_type_count_as_equal(parameter):
    check_uncertainty_estimator(Holding(Conforming(), parameter))


@pytest.mark.parametrize(
    ("parameter", "other"),
    [
        ([("a", Conforming())], [("a", Conforming(scale=2.0))]),
        ([1, 2], [1]),
        ({"a": np.arange(3)}, {"a": np.arange(3) + 1}),
        ({"a": 1}, {"b": 1}),
        (np.zeros((1, 2)), np.zeros(2)),
        (pd.DataFrame({"a": [np.nan]}), pd.DataFrame({"a": [1.0]})),
        (sparse.csr_array([[0.0, 1.0]]), sparse.csr_array([[1.0, 0.0]])),
        (1.0, float("nan")),
    ],
    ids=lambda parameter: type(parameter).__name__,
)
def test_a_clone_that_alters_a_parameter_of_any_type_is_caught(parameter, other):
    class Altering(Holding):
        def __sklearn_clone__(self):
            return type(self)(clone(self.inner), other)

    with pytest.raises(AssertionError, match=r"check_parameters.* clone changed weights"):
        check_uncertainty_estimator(Altering(Conforming(), parameter))


def test_a_clone_that_alters_an_estimator_inside_is_caught():
    class Altering(Holding):
        def __sklearn_clone__(self):
            return type(self)(clone(self.inner).set_params(scale=3.0))

    with pytest.raises(AssertionError, match=r"check_parameters.* clone changed inner"):
        check_uncertainty_estimator(Altering(Conforming()))


# --- how it is run --------------------------------------------------------------------------


def test_input_that_is_no_table_is_used_as_it_is():
    nodes = np.arange(30) % 7
    check_uncertainty_estimator(NodeUncertainty(), X=nodes, y=nodes % 2)


class Lookup(UncertaintyMixin, BaseEstimator):
    """Takes nothing but the type it is given."""

    def __init__(self, kind=list, lengths=len):
        self.kind = kind
        self.lengths = lengths

    def fit(self, X, y=None):
        assert isinstance(X, self.kind), type(X)
        self.longest_ = self.lengths(X).max()
        return self

    def predict_uncertainty(self, X):
        check_is_fitted(self)
        assert isinstance(X, self.kind), type(X)
        lengths = self.lengths(X)
        return Uncertainty.from_parts(lengths, lengths / self.longest_)


def lengths_of_texts(texts):
    return np.array([len(text) for text in texts])


def lengths_of_a_column(frame):
    return lengths_of_texts(frame["text"])


def nonzero_in_rows(X):
    return np.diff(X.tocsr().indptr)


def first_numbers(tensor):
    return tensor.nan_to_num().numpy()[:, 0].astype(float)


TEXTS = ["a", "text", "", "and more"] * 5


@pytest.mark.parametrize(
    ("X", "lengths"),
    [
        (TEXTS, lengths_of_texts),
        (pd.DataFrame({"text": TEXTS}), lengths_of_a_column),
        (sparse.csr_array(np.tri(20, 30)), nonzero_in_rows),
        (torch.tensor([[1.0, 2.0], [np.nan, 3.0]] * 10), first_numbers),
    ],
    ids=["list", "frame", "sparse", "tensor"],
)
def test_lists_frames_sparse_matrices_and_tensors_stay_what_they_are(X, lengths):
    check_uncertainty_estimator(Lookup(type(X), lengths), X=X)
    check_uncertainty_estimator(Lookup(type(X), lengths), X=X, X_predict=X[:3])


def test_given_data_are_never_changed():
    X = np.ones((20, 2))
    for check in uncertainty_checks(ChangesTrainingInput(), X=X, y=np.arange(20) % 2):
        if check.__name__ != "check_fitting_changes_nothing":
            check(ChangesTrainingInput())
    assert (X == 1).all()


def test_given_data_leave_out_exactly_the_checks_that_need_a_table():
    nodes = np.arange(30) % 7
    table_only = {
        "check_number_of_columns",
        "check_nan",
        "check_empty",
        "check_memory_layout",
        "check_data_frame",
        "check_pipeline",
        "check_other_instances",
        "check_two_classes",
        "check_string_labels",
    }
    given = set(names(NodeUncertainty(), X=nodes, y=nodes % 2))
    assert set(names(NodeUncertainty())) - given == table_only


def test_a_defect_is_caught_on_given_data_too():
    nodes = np.arange(30) % 7
    with pytest.raises(AssertionError, match="Positional fails check_row_order"):
        check_uncertainty_estimator(Positional(), X=nodes, y=nodes % 2)


def test_an_estimator_may_predict_on_another_kind_of_input_than_it_is_fitted_on():
    seeds, observations = np.arange(6), np.random.default_rng(0).normal(size=(20, 2))
    check_uncertainty_estimator(Agent(), X=seeds, X_predict=observations.tolist())
    with pytest.raises(AssertionError, match=r"Agent fails check_result.* Expected 2D array"):
        check_uncertainty_estimator(Agent(), X=seeds)


def test_a_defect_is_caught_on_given_inputs_to_predict_in_every_way_of_running():
    given = {"X": np.arange(6), "X_predict": np.random.default_rng(0).normal(size=(20, 2))}
    with pytest.raises(AssertionError, match="PositionalAgent fails check_row_order"):
        check_uncertainty_estimator(PositionalAgent(), **given)
    for checks in (
        {check.__name__: check for check in uncertainty_checks(PositionalAgent(), **given)},
        {
            case.values[1].__name__: case.values[1]
            for case in parametrize_with_uncertainty_checks([PositionalAgent()], **given).args[1]
        },
    ):
        checks["check_result"](PositionalAgent())
        with pytest.raises(AssertionError, match="reversed and given order"):
            checks["check_row_order"](PositionalAgent())


def test_inputs_to_predict_need_inputs_to_fit_on():
    with pytest.raises(ValueError, match="`X_predict` needs `X`"):
        check_uncertainty_estimator(Conforming(), X_predict=np.zeros((3, 4)))


def test_a_regressor_is_not_asked_about_classes():
    about_classes = {"check_two_classes", "check_string_labels", "check_proba_bounds"}
    assert set(names(Conforming())) - set(names(ConformingRegressor())) == about_classes


def test_the_estimator_given_is_never_fitted_or_altered():
    estimator = Conforming(random_state=7)
    check_uncertainty_estimator(estimator)
    assert vars(estimator) == {"scale": 1.0, "random_state": 7}


def test_checks_that_only_predict_share_one_fit():
    fits = []

    class Counting(Conforming):
        def fit(self, X, y):
            fits.append(len(X))
            return super().fit(X, y)

    predict_only = [
        check
        for check in uncertainty_checks(Counting())
        if check.__name__ in ("check_result", "check_batches", "check_nan", "check_row_order")
    ]
    estimator = Counting()
    for check in predict_only:
        check(estimator)
    assert len(fits) == 1
    predict_only[0](Counting())
    assert len(fits) == 2


def test_a_check_keeps_the_global_random_states_that_a_defect_would_reseed():
    (check,) = (
        check
        for check in uncertainty_checks(SeedsNumpyInFit())
        if check.__name__ == "check_global_random_state"
    )
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the state in question
    with pytest.raises(AssertionError, match=r"`fit` changed the generator of `numpy\.random`"):
        check(SeedsNumpyInFit())
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_an_error_of_the_estimator_is_shown_and_chained():
    with pytest.raises(AssertionError, match="Found: RuntimeError: no device") as caught:
        check_uncertainty_estimator(CannotFit())
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_every_check_states_its_fact_in_one_line():
    for check in uncertainty_checks(Conforming()):
        assert check.__doc__.endswith("."), check.__name__
        assert "\n" not in check.__doc__, check.__name__


def test_a_class_is_refused():
    with pytest.raises(TypeError, match="got the class Conforming"):
        check_uncertainty_estimator(Conforming)


def test_data_must_be_given_if_they_cannot_be_generated():
    class Neither(UncertaintyMixin, BaseEstimator):
        pass

    with pytest.raises(ValueError, match="Neither is neither a classifier nor a regressor"):
        check_uncertainty_estimator(Neither())


def test_parametrized_cases_are_named_after_estimator_and_check():
    decorator = parametrize_with_uncertainty_checks(
        [Conforming(scale=2.0), Holding(LogisticRegression())]
    )
    ids = [case.id for case in decorator.args[1]]
    assert ids[0] == "Conforming(scale=2.0)-check_parameters"
    assert len(set(ids)) == len(ids)
