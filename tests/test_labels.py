"""Labels as text and as codes."""

import numpy as np
import pytest

from skuq.labels import as_text, codes_of


def test_a_whole_number_is_written_without_point():
    assert [as_text(each) for each in (3, 3.0, np.float32(3), 3.5, "a")] == [*"333", "3.5", "a"]


@pytest.mark.parametrize(
    "classes",
    [
        *(np.array(["cat", "ant", "bee"]), np.array([7, -1, 3]), np.array([True, False])),
        *(np.array([7.5, -1.0, 3.0], np.float32), np.array([None, 1, "a"], object)),
    ],
    ids=lambda classes: str(classes.dtype),
)
def test_codes_are_positions_among_the_classes(classes):
    codes = np.array([1, 0, 0, len(classes) - 1])
    found = codes_of(classes[codes], classes, "y")
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, codes)
    np.testing.assert_array_equal(codes_of(classes[:0], classes, "y"), [])


def test_numbers_of_another_type_are_the_same_labels():
    np.testing.assert_array_equal(codes_of(np.array([2.0, 0.0]), np.arange(3), "y"), [2, 0])
    texts = np.array(["b", "a"], object)
    np.testing.assert_array_equal(codes_of(texts, np.array(["a", "b"]), "y"), [1, 0])


@pytest.mark.parametrize("types", [(np.uint64, np.int64), (np.int64, np.uint64)])
def test_large_integers_of_another_type_are_told_apart(types):
    classes = np.array([2**60, 2**60 + 1, 3], types[1])
    labels = np.array([2**60 + 1, 3, 2**60], types[0])
    np.testing.assert_array_equal(codes_of(labels, classes, "y"), [1, 2, 0])
    with pytest.raises(ValueError, match=rf"\[{2**60 + 2}\] not in"):
        codes_of(np.array([2**60 + 2], types[0]), classes, "y")


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0, 7, 9, 7], [0, 1], r"`y_val` .* \[7, 9\] not in \[0, 1\]"),
        ([np.nan, 1.0], [0.0, 1.0], r"\[nan\] not in"),
        (["1"], [0, 1], r"\['1'\] not in \[0, 1\]"),
        ([1], ["0", "1"], r"\[1\] not in \['0', '1'\]"),
        (["z"], list("abcdefg"), r"not in \['a', 'b', 'c', 'd', 'e'\] \.\.\."),
    ],
)
def test_labels_that_are_not_among_the_classes_are_named(labels, classes, message):
    with pytest.raises(ValueError, match=message):
        codes_of(np.array(labels), np.array(classes), "y_val")
