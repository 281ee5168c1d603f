"""The conformance suite passes what conforms and catches each defect by the right name."""

import random
from copy import copy
from functools import partial, wraps

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


def parts(change):
    """A method `_parts` that changes the aleatoric and the epistemic part."""
    return {"_parts": lambda old, self, X: change(*old(X))}


def first(method, do):
    """A method that does something with its arguments before what it does otherwise."""

    def call(old, self, *args):
        do(self, *args)
        return old(*args)

    return {method: call}


learning, predicting = partial(first, "_learn"), partial(first, "_parts")


def result(change):
    return {"predict_uncertainty": lambda old, self, X: change(old(X))}


def bounds(change):
    return {"predict_proba_bounds": lambda old, self, X: change(*old(X))}


def checking(change):
    return {"_check": lambda old, self, X: old(change(X))}


def raising(error):
    def method(old, self, *args):
        raise error

    return method


def first_column(old, self, X):
    check_is_fitted(self)
    return old(np.repeat(check_array(X)[:, :1], self.n_features_in_, axis=1))


def unfitted_uncertainty(old, self, X):
    return old(X) if hasattr(self, "means_") else Uncertainty.from_total(np.ones(len(X)))


def without_digits(old, self):
    state = dict(old())
    return state | ({"means_": state["means_"].round(2)} if "means_" in state else {})


def check_columns(old, self, X):
    if hasattr(self, "means_") and np.shape(X)[1] != self.means_.shape[1]:
        raise IndexError("columns")
    return old(X)


def refuse_gaps(old, self, X):
    if isinstance(X, np.ndarray) and np.isnan(X).any():
        raise ValueError("Input is bad.")
    return old(X)


def check_without_names(old, self, X):
    names = vars(self).pop("feature_names_in_", None)
    X = old(np.asarray(X))
    vars(self).update({} if names is None else {"feature_names_in_": names})
    return X


def fit_frames_otherwise(old, self, X, y):
    old(X, y)
    self.means_ = self.means_ + 0.1 * hasattr(self, "feature_names_in_")
    return self


def share(old, self, X, y, rng):
    old(X, y, rng)
    type(self).means_ = vars(self).pop("means_")


def learn_by_length(old, self, X, y, rng):
    old(X, y, rng)
    self.means_ = self.means_ * (1 + 0.1 * (y.dtype.kind == "U"))


def fit_seed_0(old, self, X, y):
    if self.random_state not in (None, 0):
        raise ValueError("random_state must be 0.")
    return old(X, y)


METHODS = {
    "parameters": {
        "AltersParameter": {
            "__init__": lambda old, self, scale=1.0, random_state=None: old(2 * scale, random_state)
        },
        "IgnoresSetParams": {"set_params": lambda old, self, **params: self},
        "ReturnsNothingFromSetParams": {"set_params": lambda old, self, **p: old(**p) and None},
        "ClonesWithOtherParameter": {
            "__sklearn_clone__": lambda old, self: type(self)(self.scale + 1, self.random_state)
        },
    },
    "result": {
        "CannotFit": {"fit": raising(RuntimeError("no device"))},
        "ReturnsTuple": result(lambda u: u.parts),
        "ReturnsSinglePrecision": result(lambda u: Uncertainty(*np.float32(u.parts))),
        "ReturnsLists": result(lambda u: Uncertainty(*map(np.ndarray.tolist, u.parts))),
        "ReturnsColumns": parts(lambda a, e: (a[:, None], e[:, None])),
        "ReturnsInfinity": parts(lambda a, e: (a, np.full_like(e, np.inf))),
    },
    "parts_not_negative": {"NegativePart": parts(lambda a, e: (a, e - 10))},
    "parts_add_up": {
        "TotalSlightlyOff": result(lambda u: Uncertainty(u.total * (1 + 1e-7), *u.parts[1:]))
    },
    "unfitted": {
        "AnswersUnfitted": {"predict_uncertainty": unfitted_uncertainty},
        "RaisesAttributeErrorUnfitted": {
            "_check": lambda old, self, X: validate_data(self, X, reset=False) - 0 * self.means_[0]
        },
    },
    "clone": {"CloneStaysFitted": {"__sklearn_clone__": lambda old, self: copy(self)}},
    "repeated_calls": {
        "NoisyPrediction": parts(lambda a, e: (a + np.random.default_rng().random(), e))
    },
    "pickle": {
        "CannotBePickled": learning(lambda self, *_: setattr(self, "f_", lambda: None)),
        "PickleLosesDigits": {"__getstate__": without_digits},
    },
    "fitting_changes_nothing": {
        "ChangesTrainingInput": learning(lambda self, X, y, rng: np.subtract(X, 1, out=X)),
        "ChangesTargets": learning(lambda self, X, y, rng: np.copyto(y, y[::-1].copy())),
        "OverwritesParameter": learning(
            lambda self, X, *_: setattr(self, "scale", self.scale / len(X))
        ),
        "ConvertsParameter": learning(lambda self, *_: setattr(self, "scale", int(self.scale))),
    },
    "predicting_changes_nothing": {
        "CountsCalls": predicting(lambda self, X: vars(self).update(calls_=len(vars(self)))),
        "KeepsLastInputInside": learning(lambda self, *_: setattr(self, "cache_", {"seen": []}))
        | predicting(lambda self, X: self.cache_["seen"].append(X)),
        "LeavesTrainingMode": learning(
            lambda self, *_: setattr(self, "net_", torch.nn.Identity().eval())
        )
        | predicting(lambda self, X: self.net_.train() and None),
        "ChangesInput": {
            "_parts": lambda old, self, X: (old(X), np.subtract(X, X.mean(axis=0), out=X))[0]
        },
    },
    "global_random_state": {
        "SeedsNumpyInFit": learning(lambda *_: np.random.seed(0)),  # noqa: NPY002
        "DrawsFromNumpy": predicting(lambda self, X: np.random.random()),  # noqa: NPY002
        "SeedsTorch": predicting(lambda self, X: torch.manual_seed(0)),
        "SeedsPython": predicting(lambda self, X: random.seed(0)),
    },
    "repeated_fits": {
        "IgnoresRandomState": {
            "_learn": lambda old, self, X, y, rng: old(X, y, np.random.default_rng())
        }
    },
    "single_row": {"SqueezesSingleRow": result(lambda u: Uncertainty(*map(np.squeeze, u.parts)))},
    "row_order": {"DependsOnPosition": parts(lambda a, e: (a, e + 1e-4 * np.arange(len(e))))},
    "batches": {
        "NormalisesByBatch": parts(lambda a, e: (a, e / e.max())),
        "NormalisesLargeBatches": parts(lambda a, e: (a, e / e.max() if len(e) > 16 else e)),
    },
    "score_samples": {"ScoresWithWrongSign": {"score_samples": lambda old, self, X: -old(X)}},
    "proba_bounds": {
        "BoundsInOrderOfArrival": bounds(lambda lower, upper: CredalInterval(upper, lower)),
        "BoundsOfOneClass": bounds(lambda low, high: CredalInterval(low[:, :1], high[:, :1])),
        "BoundsWithoutNames": bounds(lambda lower, upper: (lower, upper)),
    },
    "number_of_columns": {
        "UsesFirstColumnOnly": {"_check": first_column},
        "RaisesWrongErrorForColumns": {"_check": check_columns},
    },
    "nan": {
        "FillsGaps": checking(lambda X: np.nan_to_num(X) if isinstance(X, np.ndarray) else X),
        "IsVagueAboutGaps": {"_check": refuse_gaps},
    },
    "empty": {
        "TakesNoRows": {
            "_check": lambda old, self, X: X if len(X) == 0 else old(X),
            "_parts": lambda old, self, X: old(X) if len(X) else (np.empty(0), np.empty(0)),
        }
    },
    "memory_layout": {
        "ReadsMemoryOrder": {
            "_parts": lambda old, self, X: old(X.ravel(order="K").reshape(X.shape))
        },
        "NeedsWritableInput": predicting(lambda self, X: np.add(X, 0, out=X)),
    },
    "data_frame": {
        "ForgetsColumnNames": checking(np.asarray)
        | {"fit": lambda old, self, X, y: old(np.asarray(X), y)},
        "IgnoresColumnNames": {"_check": check_without_names},
        "LearnsOtherwiseFromFrames": {"fit": fit_frames_otherwise},
    },
    "pipeline": {
        "NeverLooksFitted": {
            "__sklearn_is_fitted__": lambda old, self: False,
            "_check": lambda old, self, X: (
                validate_data(self, X, reset=False) if hasattr(self, "means_") else old(X)
            ),
        }
    },
    "other_instances": {"SharesWhatItLearnt": {"_learn": share}},
    "two_classes": {
        "LosesTwoClasses": {
            "_parts": lambda old, self, X: (
                old(X) if len(self.classes_) > 2 else np.full((2, len(X)), np.inf)
            )
        }
    },
    "string_labels": {
        "NeedsNumericLabels": {"_learn": lambda old, self, X, y, rng: old(X, y.astype(float), rng)},
        "OrdersLabelsByLength": {"_learn": learn_by_length},
    },
    "search": {"RefusesOtherSeeds": {"fit": fit_seed_0}},
}


def defective(name, methods):
    """A class that breaks a promise; its methods get those that they replace first."""

    def method(key, function):
        def call(self, *args, **kwargs):
            return function(getattr(super(made, self), key, None), self, *args, **kwargs)

        return wraps(getattr(Conforming, key))(call) if hasattr(Conforming, key) else call

    made = type(name, (Conforming,), {"__module__": __name__})
    for key, function in methods.items():
        setattr(made, key, method(key, function))
    globals()[name] = made  # where pickle looks for it
    return made


class WithoutMethod(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        return self


class WithoutScores(ClassifierMixin, BaseEstimator):
    __init__, fit, _learn = Conforming.__init__, Conforming.fit, Conforming._learn
    _check, _parts = Conforming._check, Conforming._parts
    predict_uncertainty = Conforming.predict_uncertainty


DEFECTS = [("check_result", WithoutMethod), ("check_score_samples", WithoutScores)] + [
    (f"check_{check}", defective(name, methods))
    for check, classes in METHODS.items()
    for name, methods in classes.items()
]
OF_NAME = {defect.__name__: defect for _, defect in DEFECTS}
NegativePart, FillsGaps, CannotFit = map(OF_NAME.get, ["NegativePart", "FillsGaps", "CannotFit"])


def names(*args, **kwargs):
    return [check.__name__ for check in uncertainty_checks(*args, **kwargs)]


@pytest.mark.parametrize(("check", "defective"), DEFECTS)
def test_a_defect_is_caught_by_the_check_that_names_it(check, defective):
    expected = rf"(?s)^{defective.__name__} fails {check}\. Expected: [A-Z`].*\. Found: .+"
    with pytest.raises(AssertionError, match=expected):
        check_uncertainty_estimator(defective())


def test_there_is_a_defect_for_every_check_and_each_states_its_fact_in_one_line():
    checks = [*uncertainty_checks(Conforming())]
    assert {check.__name__ for check in checks} == {check for check, _ in DEFECTS}
    for check in checks:
        assert check.__doc__.endswith("."), check.__name__
        assert "\n" not in check.__doc__, check.__name__


def tagged(base, change):
    def tags_of(self):
        tags = base.__sklearn_tags__(self)
        change(tags)
        return tags

    return type("Tagged", (base,), {"__sklearn_tags__": tags_of})


class NeedsNoFit(tagged(NodeUncertainty, lambda tags: setattr(tags, "requires_fit", False))):
    def predict_uncertainty(self, X):
        return Uncertainty.from_parts(np.ones(len(X)), np.zeros(len(X)))


class AllowsNan(tagged(FillsGaps, lambda tags: setattr(tags.input_tags, "allow_nan", True))):
    pass


class Binary(tagged(Conforming, lambda tags: setattr(tags.classifier_tags, "multi_class", False))):
    def _learn(self, X, y, rng):
        super()._learn(X, y, rng)
        if len(self.classes_) != 2:
            raise ValueError("Only two classes are supported.")


class Neighbours(Conforming):
    """Its search trees count their calls."""

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
        sizes = (X.shape[1], 1024), (1024, 3)
        self.weights_ = [rng.normal(size=size).astype(np.float32) / 16 for size in sizes]

    def _parts(self, X):
        first, second = self.weights_
        outputs = np.maximum(X.astype(np.float32) @ first, 0) @ second
        return np.abs(outputs).astype(float).T[:2]


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


def test_the_estimator_given_conforms_and_is_never_fitted_or_altered():
    for estimator in (Conforming(0.5, random_state=7), ConformingRegressor()):
        before = dict(vars(estimator))
        check_uncertainty_estimator(estimator)
        assert vars(estimator) == before


def test_a_class_that_declares_signed_parts_may_have_them():
    with pytest.raises(AssertionError, match=r"check_parts_not_negative.*signed_uncertainty"):
        check_uncertainty_estimator(NegativePart())
    signed = NegativePart()
    signed.signed_uncertainty = True
    assert "check_parts_not_negative" not in names(signed)


NODES, ROWS = np.arange(30) % 7, np.random.default_rng(0).normal(size=(40, 300))
OF_NODES, OF_ROWS = {"X": NODES, "y": NODES % 2}, {"X": ROWS, "y": np.arange(40) % 3}
OTHERS = [AllowsNan(), NeedsPositiveInput(), NeedsPositiveTargets(), Binary(), Neighbours()]
CASES = [(NeedsNoFit(), OF_NODES), (NodeUncertainty(), OF_NODES), (SinglePrecision(), OF_ROWS)]
CASES += [(estimator, {}) for estimator in OTHERS]


@pytest.mark.parametrize(
    ("estimator", "data"), CASES, ids=[type(each).__name__ for each, _ in CASES]
)
def test_an_estimator_is_asked_only_what_its_tags_and_its_precision_promise(estimator, data):
    check_uncertainty_estimator(estimator, **data)


def test_the_random_state_of_what_it_holds_is_fixed_if_it_has_none_itself():
    check_uncertainty_estimator(Holding(Conforming()))
    with pytest.raises(AssertionError, match="Holding fails check_repeated_fits"):
        check_uncertainty_estimator(Holding(OF_NAME["IgnoresRandomState"]()))


def first_check(estimator):
    next(uncertainty_checks(estimator))(estimator)


class Altering(Holding):
    """A clone holds something else: what its other parameter says."""

    def __sklearn_clone__(self):
        return type(self)(clone(self.inner), self.module, self.module)


def test_a_clone_that_alters_a_parameter_of_any_type_is_caught_and_copies_are_equal():
    for parameter, other in (
        ([("a", Conforming())], [("a", Conforming(scale=2.0))]),
        ([1, 2], [1]),
        ({"a": np.array([1.0, np.nan])}, {"a": np.array([1.0, 2.0])}),
        ({"a": 1}, {"b": 1}),
        (np.zeros((1, 2)), np.zeros(2)),
        (np.array([np.nan, "a", None], dtype=object), np.array([np.nan, "b", None], dtype=object)),
        (pd.DataFrame({"a": [np.nan], "b": [None]}), pd.DataFrame({"a": [1.0], "b": [None]})),
        (pd.Series([np.nan]), pd.Series([0.0])),
        (sparse.csr_array([[np.nan, 1.0]]), sparse.csr_array([[1.0, np.nan]])),
        (float("nan"), 1.0),
        (Conforming(), Conforming(scale=3.0)),
        (torch.nn.Linear(2, 2), None),
    ):
        first_check(Holding(Conforming(), parameter))
        with pytest.raises(AssertionError, match="clone changed weights"):
            first_check(Altering(Conforming(), parameter, other))


TEXTS = ["a", "text", "", "and more"] * 5
LOOKED_UP = {
    "list": (TEXTS, lambda X: np.char.str_len(X)),
    "frame": (pd.DataFrame({"text": TEXTS}), lambda X: X["text"].str.len().to_numpy()),
    "sparse": (sparse.csr_array(np.tri(20, 30)), lambda X: np.diff(X.tocsr().indptr)),
    "tensor": (
        torch.tensor([[1.0, 2.0], [np.nan, 3.0]] * 10),
        lambda X: X.nan_to_num().numpy()[:, 0].astype(float),
    ),
}


class Lookup(UncertaintyMixin, BaseEstimator):
    """Takes nothing but the type it is given."""

    def __init__(self, kind="list"):
        self.kind = kind

    def _lengths(self, X):
        example, lengths = LOOKED_UP[self.kind]
        assert isinstance(X, type(example)), type(X)
        return lengths(X)

    def fit(self, X, y=None):
        self.longest_ = self._lengths(X).max()
        return self

    def predict_uncertainty(self, X):
        check_is_fitted(self)
        lengths = self._lengths(X)
        return Uncertainty.from_parts(lengths, lengths / self.longest_)


@pytest.mark.parametrize("kind", LOOKED_UP)
def test_lists_frames_sparse_matrices_and_tensors_stay_what_they_are(kind):
    X, _ = LOOKED_UP[kind]
    check_uncertainty_estimator(Lookup(kind), X=X)
    check_uncertainty_estimator(Lookup(kind), X=X, X_predict=X[:3])


def test_given_data_are_never_changed_and_leave_out_exactly_the_checks_that_cannot_pass():
    X = np.ones((20, 2))
    for check in uncertainty_checks(OF_NAME["ChangesTrainingInput"](), X=X, y=np.arange(20) % 2):
        if check.__name__ != "check_fitting_changes_nothing":
            check(OF_NAME["ChangesTrainingInput"]())
    assert (X == 1).all()
    about_classes = {"check_two_classes", "check_string_labels", "check_proba_bounds"}
    assert set(names(Conforming())) - set(names(ConformingRegressor())) == about_classes
    of_tables = ["number_of_columns", "nan", "empty", "memory_layout", "data_frame", "pipeline"]
    of_tables += ["other_instances", "two_classes", "string_labels"]
    left_out = set(names(NodeUncertainty())) - set(names(NodeUncertainty(), **OF_NODES))
    assert left_out == {f"check_{name}" for name in of_tables}


def test_an_estimator_may_predict_on_another_kind_of_input_than_it_is_fitted_on():
    given = {"X": np.arange(6), "X_predict": np.random.default_rng(0).normal(size=(20, 2))}
    check_uncertainty_estimator(Agent(), **given)
    with pytest.raises(AssertionError, match=r"Agent fails check_result"):
        check_uncertainty_estimator(Agent(), X=given["X"])
    agent = PositionalAgent()
    with pytest.raises(AssertionError, match="fails check_row_order"):
        check_uncertainty_estimator(agent, **given)
    cases = parametrize_with_uncertainty_checks([agent], **given).args[1]
    for checks in (uncertainty_checks(agent, **given), [case.values[1] for case in cases]):
        of_name = {check.__name__: check for check in checks}
        of_name["check_result"](agent)
        with pytest.raises(AssertionError, match="reversed and given order"):
            of_name["check_row_order"](agent)


def test_checks_that_only_predict_share_one_fit():
    fits = []

    class Counting(Conforming):
        def fit(self, X, y):
            fits.append(len(X))
            return super().fit(X, y)

    checks = {check.__name__: check for check in uncertainty_checks(Counting())}
    estimator = Counting()
    for name in ("check_result", "check_batches", "check_nan", "check_row_order"):
        checks[name](estimator)
    assert len(fits) == 1
    checks["check_result"](Counting())
    assert len(fits) == 2


def test_a_check_keeps_the_global_random_states_that_a_defect_would_reseed():
    checks = {check.__name__: check for check in uncertainty_checks(OF_NAME["SeedsNumpyInFit"]())}
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the state in question
    with pytest.raises(AssertionError, match=r"`fit` changed the generator of `numpy\.random`"):
        checks["check_global_random_state"](OF_NAME["SeedsNumpyInFit"]())
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_an_error_of_the_estimator_is_shown_and_chained():
    with pytest.raises(AssertionError, match="Found: RuntimeError: no device") as caught:
        check_uncertainty_estimator(CannotFit())
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("estimator", "data", "error", "message"),
    [
        (Conforming, {}, TypeError, "instance"),
        (type("Neither", (UncertaintyMixin, BaseEstimator), {})(), {}, ValueError, "pass X and y"),
        (Conforming(), {"X_predict": np.zeros((3, 4))}, ValueError, "X_predict"),
    ],
)
def test_what_cannot_be_checked_is_refused(estimator, data, error, message):
    with pytest.raises(error, match=message):
        check_uncertainty_estimator(estimator, **data)


def test_parametrized_cases_are_named_after_estimator_and_check():
    estimators = [Conforming(scale=2.0), Holding(LogisticRegression())]
    ids = [case.id for case in parametrize_with_uncertainty_checks(estimators).args[1]]
    assert ids[0] == "Conforming(scale=2.0)-check_parameters"
    assert len(set(ids)) == len(ids)
