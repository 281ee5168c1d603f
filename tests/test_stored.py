"""Objects as containers under names of a format: the same again, and nothing that was forged."""

from dataclasses import dataclass
from typing import Any, NamedTuple, NotRequired, TypeVar

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.utils._param_validation import StrOptions
from torch import nn

import skuq.files
from skuq import Uncertainty
from skuq._networks import BinaryLogits
from skuq.base import FloatArray
from skuq.files import (
    CLASSES,
    NotStorableError,
    StoredError,
    from_stored,
    stored,
    to_stored,
    untrusted,
)


class Point(NamedTuple):
    x: float
    y: float | None


@dataclass(frozen=True)
class Shape:
    points: tuple[Point, ...]
    weights: FloatArray
    labels: dict[str, list[str]]


class Scaler(BaseEstimator):
    _parameter_constraints = {"way": [StrOptions({"up", "down"})]}

    def __init__(self, way="up"):
        self.way = way


SCALER = {"factor_": float, "shape_": NotRequired[tuple[int, str]], "other_": NotRequired[Any]}


@pytest.fixture(autouse=True)
def named(monkeypatch):
    monkeypatch.setattr(skuq.files, "CLASSES", dict(CLASSES))
    stored("test.point")(Point)
    stored("test.shape")(Shape)
    stored("test.scaler", fields=SCALER)(Scaler)


def plain(value):
    """Whether nothing but containers, arrays and text is in a value."""
    if isinstance(value, dict):
        return type(value) is dict and all(map(plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(plain, value))
    return value is None or type(value) in (str, int, float, bool, np.ndarray)


SHAPE = Shape((Point(1.0, None), Point(2, 3.0)), np.array([0.5]), {"a": ["b"]})


def test_an_object_is_the_same_again_and_found_by_its_name_if_its_class_moved():
    made = to_stored([SHAPE])
    assert plain(made)
    assert made[0]["skuq"] == "test.shape"
    assert made[0]["points"][0] == {"skuq": "test.point", "x": 1.0, "y": None}
    (again,) = from_stored(made)
    assert (again.points, again.labels) == (SHAPE.points, SHAPE.labels)
    np.testing.assert_array_equal(again.weights, [0.5])
    moved = type("Shape", (), {"__module__": "elsewhere"})
    del skuq.files.CLASSES["test.shape"]
    stored("test.shape", fields={"points": Any, "weights": Any, "labels": Any})(moved)
    (again,) = from_stored(made)
    assert type(again) is moved
    assert again.points == SHAPE.points


def test_an_estimator_keeps_its_parameters_and_what_was_fitted():
    scaler = Scaler("down")
    scaler.factor_ = np.float64(0.1)
    made = to_stored(scaler)
    assert made == {"skuq": "test.scaler", "way": "down", "factor_": 0.1}
    again = from_stored(made)
    assert (type(again), again.get_params(), again.factor_) == (Scaler, {"way": "down"}, 0.1)
    scaler.unknown_ = 1
    with pytest.raises(NotStorableError, match="unknown_"):
        to_stored(scaler)
    with pytest.raises(ValueError, match=r"test\.point"):  # a name is given once
        stored("test.point")(Shape)


def test_a_table_is_its_columns_and_a_dictionary_with_the_key_of_names_itself():
    for value in ({"skuq": "tables.comparison", 2: [1]}, {"a": {"skuq": 1}}):
        assert from_stored(to_stored(value)) == value
    frame = pd.DataFrame({"a": [1.5, np.nan], "b": ["x", None], "c": [True, False]})
    made = to_stored({"rows": frame})
    assert plain(made)
    pd.testing.assert_frame_equal(from_stored(made)["rows"], frame)


def test_networks_of_known_layers_are_arrays():
    inner = nn.Sequential(nn.Linear(4, 1, bias=False), BinaryLogits())
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), inner).double().eval()
    made = to_stored({"a": [network, network[0].weight]})
    assert plain(made)
    before = torch.random.get_rng_state()
    again, weight = from_stored(made)["a"]
    assert torch.random.get_rng_state().equal(before)
    X = torch.randn(5, 3, dtype=torch.float64)
    assert again(X).equal(network(X))
    assert weight.equal(network[0].weight)
    assert not any(parameter.requires_grad for parameter in again.parameters())
    assert not again.training
    for other, name in (
        (nn.Sequential(nn.Linear(3, 4), nn.GELU()), "GELU"),
        (Uncertainty(*np.zeros((3, 2))), r"skuq\.base\.Uncertainty"),
    ):
        with pytest.raises(NotStorableError, match=name):
            to_stored({"a": other})


def test_boosted_trees_are_one_array():
    X, y = load_iris(return_X_y=True)
    X[::9, 2] = np.nan
    trees = HistGradientBoostingClassifier(max_iter=3).fit(X, y)
    before = trees.predict_proba(X)
    made = to_stored([trees])
    assert sum(made[0]["sizes"]) == len(made[0]["nodes"])
    (again,) = from_stored(made)
    for each in (trees, again):
        np.testing.assert_array_equal(each.predict_proba(X), before)
    assert [*map(len, again._predictors)] == [3, 3, 3]
    forged = [({"sizes": np.array([0, len(made[0]["nodes"])])}, "sizes")]
    for name, value in (("left", 0), ("right", 10**7), ("feature_idx", 4), ("is_categorical", 1)):
        nodes = made[0]["nodes"].copy()
        nodes[name][0] = value
        forged.append(({"nodes": nodes}, "leads out of the tree, or reads"))
    for other, words in forged:
        with pytest.raises(StoredError, match=words):
            from_stored(made[0] | other)
    made[0]["estimator"]._predictors = []
    with pytest.raises(StoredError):
        from_stored(made)
    of_categories = HistGradientBoostingClassifier(max_iter=3, categorical_features=[3])
    assert to_stored(of_categories.fit(X, y)) is of_categories


RELU = {"skuq": "torch.relu"}
TREES = {"skuq": "sklearn.trees", "nodes": np.ones(1), "sizes": np.ones(1, int)}
FORGED = [  # and a word of ours, unless another library refuses
    ({"skuq": "test.other"}, "'test.other'"),
    ({"skuq": "torch.gelu"}, "'torch.gelu'"),
    ({"skuq": ["test.point"]}, r"\['test.point'\]"),
    ({"skuq": "test.point", "x": 1.0}, "lacks the field 'y'"),
    ({"skuq": "test.point", "x": 1.0, "y": 1.0, "z": 1.0}, "no field 'z'"),
    ({"skuq": "test.point", "x": "1", "y": 1.0}, "'x' is of type str, not float"),
    ({"skuq": "test.scaler", "way": "up", "factor_": []}, "'factor_' is of type list"),
    ({"skuq": "test.scaler", "way": "left", "factor_": 1.0}, ""),
    ({"skuq": "test.scaler", "way": "up", "factor_": 1.0, "shape_": (1, 2)}, "'shape_'"),
    ({"skuq": "test.scaler", "factor_": 1.0}, "lacks the field 'way'"),
    (TREES | {"estimator": Scaler()}, ""),
    ({"skuq": "torch.tensor", "array": [1.0]}, "'array' is of type list, not ndarray"),
    ({"skuq": "torch.tensor", "array": np.array([None])}, ""),
    ({"skuq": "torch.linear", "weight": np.ones((2, 3)), "bias": np.ones(3)}, ""),
    ({"skuq": "torch.linear", "weight": np.ones(3), "bias": None}, ""),
    ({"skuq": "torch.linear", "weight": np.ones((2, 3), int), "bias": None}, ""),
    ({"skuq": "torch.chain", "names": ["a"], "layers": ["torch.relu"]}, ""),
    ({"skuq": "torch.chain", "names": ["a.b"], "layers": [RELU]}, ""),
    ({"skuq": "torch.chain", "names": [], "layers": [RELU]}, ""),
    (RELU | {"inplace": True}, "no field 'inplace'"),
    ({"skuq": "networks.affine", "factor": [1.0], "shift": "a"}, "'shift' is of type str"),
    ({"skuq": "pandas.frame", "columns": {"a": [1]}}, "'columns' is of type dict"),
    ({"skuq": "dict", "keys": [[]], "values": [1]}, ""),
]


@pytest.mark.parametrize(("forged", "message"), FORGED)
def test_what_was_forged_is_refused(forged, message):
    for inside in (forged, {"a": [(forged,)]}):
        with pytest.raises(StoredError, match=message or "."):
            from_stored(inside)


HINTS = [  # values that fit, and others
    (NDArray[Any], [np.array(["a"]), np.ones(1)], [[1.0], None]),
    (FloatArray, [np.ones(1)], [np.array(["a"]), np.ones(1, bool)]),
    (dict[str, int], [{}, {"a": 1}, {"a": np.int64(1)}], [{1: 1}, {"a": 1.5}, []]),
    (tuple[int, ...], [(), (1, 2)], [[1], (1, "a")]),
    (tuple[list[Any], bool], [([], True)], [([],), ([], True, 1), ([], "a")]),
    (str | None, ["a", None], [1]),
    (None, [None], [0]),
]


@pytest.mark.parametrize(("hint", "fitting", "others"), HINTS)
def test_values_are_checked_with_all_that_is_in_them(hint, fitting, others):
    made = stored("test.one", fields={"one": hint})(type("One", (), {}))
    for value in fitting:
        again = from_stored({"skuq": "test.one", "one": value})
        assert type(again) is made
        assert again.one is value or again.one == value
    for value in others:
        with pytest.raises(StoredError, match="'one' is of type"):
            from_stored({"skuq": "test.one", "one": value})


@pytest.mark.parametrize("of_items", [False, True])
def test_hints_of_arrays_may_be_aliases_of_their_own(monkeypatch, of_items):
    # `NDArray[...]` is one since NumPy 2.5.
    typing_extensions = pytest.importorskip("typing_extensions")
    item = TypeVar("item", bound=np.generic)
    arrays = np.ndarray[tuple[Any, ...], np.dtype[item]]
    alias = typing_extensions.TypeAliasType("NDArray", arrays, type_params=(item,))
    monkeypatch.setattr(skuq.files, "NDArray", alias)
    hint, fitting = alias[np.float64], [np.ones(1)]
    others = [np.array(["a"]), np.ones(1, bool), [1.0]]
    if of_items:
        hint, fitting, others = dict[str, alias[Any]], [{}, {"a": np.ones(1)}], [{"a": [1.0]}]
    test_values_are_checked_with_all_that_is_in_them(hint, fitting, others)


def test_the_refusal_of_a_pickle_says_what_to_do(tmp_path):
    (tmp_path / "model.pkl").write_bytes(b"anything")
    message = untrusted(tmp_path / "model.pkl")
    assert "runs code" in message
    assert "`trust=True`" in message
    assert untrusted(tmp_path / "model.pkl", "Or not.").endswith(" Or not.")
