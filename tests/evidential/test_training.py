"""Validation of the labelled nodes that `fit` is given."""

import numpy as np
import pandas as pd
import pytest

from skuq.evidential import as_node_graph, labelled_nodes


@pytest.fixture(scope="module")
def graph(data):
    return as_node_graph(data.graph)


def test_codes_weights_and_classes(graph):
    data = labelled_nodes(graph, [4, 2, 4], ["b", "a", "b"], [1, 2, 0.5], [[9]], ["a"])
    assert data.classes.tolist() == ["a", "b"]
    assert [part.tolist() for part in data.training] == [[4, 2, 4], [1, 0, 1], [1, 2, 0.5]]
    assert [part.tolist() for part in data.validation] == [[9], [0], [1]]


def test_classes_of_the_model_count_too(graph):
    data = labelled_nodes(graph, [4, 2], [5, 3], X_val=[7], y_val=[4], known_classes=np.arange(5))
    assert data.classes.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.validation.codes.tolist() == [4]


def test_arguments_are_those_given(graph):
    given = {"X": [4, 2], "y": [5, 3], "sample_weight": [1, 2], "X_val": [7], "y_val": [3]}
    arguments = labelled_nodes(graph, **given).as_arguments()
    assert {name: value.tolist() for name, value in arguments.items()} == given
    assert "X_val" not in labelled_nodes(graph, [4, 2], [5, 3]).as_arguments()


def test_pandas_is_taken_by_position(graph, nodes, y):
    data = labelled_nodes(graph, pd.Series(nodes, index=nodes[::-1]), pd.Series(y))
    np.testing.assert_array_equal(data.training.rows, nodes)
    np.testing.assert_array_equal(data.training.codes, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros(60, int)}, "`y` contains only one class"),
        ({"y": np.linspace(0, 1, 60)}, "Unknown label type: continuous"),
        ({"y": np.zeros(59, int)}, "inconsistent numbers of samples"),
        ({"X": np.arange(100, 160)}, "between 0 and 149, got 100 to 159"),
        ({"X": []}, "no node ids"),
        ({"X_val": [70]}, "Pass both `X_val` and `y_val`"),
        ({"y_val": [0]}, "Pass both `X_val` and `y_val`"),
        ({"X_val": [70], "y_val": [9]}, r"`y_val` has labels .*: \[9\]"),
        ({"X_val": [70], "y_val": ["a"]}, "`y_val` has labels"),
        ({"X_val": [170], "y_val": [0]}, "between 0 and 149"),
        ({"X_val": [70, 71], "y_val": [0]}, "inconsistent numbers of samples"),
        ({"sample_weight": -np.ones(60)}, "Negative values"),
        ({"sample_weight": np.zeros(60)}, "at least one non-zero"),
        ({"sample_weight": np.ones(3)}, "sample_weight.shape"),
    ],
)
def test_wrong_data_is_an_error(graph, nodes, y, change, message):
    with pytest.raises(ValueError, match=message):
        labelled_nodes(graph, **{"X": nodes, "y": y, **change})
