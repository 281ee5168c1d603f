"""Digits with OOD inputs, synthetic data and loans."""

import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from skuq.calibration import region_mask
from skuq.datasets import (
    GAUSSIAN_REGION,
    load_digits_with_ood,
    make_gaussian_classes,
    make_heteroscedastic,
    make_loans,
)


@pytest.fixture(scope="module")
def data():
    pytest.importorskip("PIL")
    return load_digits_with_ood(n_test=60, n_ood=20, random_state=0)


def as_set(X):
    return {row.tobytes() for row in X}


def test_shapes_are_those_asked_for(data):
    n_digits = len(load_digits().target)
    assert data.X_train.shape == (n_digits - 60, 64)
    assert data.X_test.shape == (60, 64)
    assert (data.y_train.shape, data.y_test.shape) == ((n_digits - 60,), (60,))
    assert {name: X.shape for name, X in data.ood.items()} == dict.fromkeys(
        ["rotated", "inverted", "noise", "photographs"], (20, 64)
    )


def test_brightness_is_in_the_unit_interval_and_uses_it(data):
    for X in (data.X_train, data.X_test, *data.ood.values()):
        assert X.dtype == np.float64
        assert X.min() >= 0
        assert X.max() <= 1
        assert np.ptp(X) > 0.5


def test_the_digits_are_those_of_scikit_learn_each_once_with_its_label(data):
    X, y = load_digits(return_X_y=True)
    ours = [
        (row.tobytes(), label)
        for rows, labels in ((data.X_train, data.y_train), (data.X_test, data.y_test))
        for row, label in zip(rows, labels, strict=True)
    ]
    theirs = [(row.tobytes(), label) for row, label in zip(X / 16, y, strict=True)]
    assert sorted(ours) == sorted(theirs)


def test_no_test_digit_trains(data):
    assert not as_set(data.X_train) & as_set(data.X_test)


def test_every_digit_is_tested_about_equally_often(data):
    counts = np.bincount(data.y_test, minlength=10)
    assert counts.max() - counts.min() <= 1


def test_rotated_inputs_are_test_digits_turned_by_a_quarter(data):
    for turned, image in zip(data.ood["rotated"], data.X_test, strict=False):
        for i in range(8):
            for j in range(8):
                assert turned.reshape(8, 8)[7 - j, i] == image.reshape(8, 8)[i, j]


def test_inverted_inputs_exchange_ink_and_paper(data):
    np.testing.assert_allclose(data.ood["inverted"] + data.X_test[:20], 1)


def test_noise_and_photographs_do_not_repeat(data):
    for name in ("noise", "photographs"):
        assert len(as_set(data.ood[name])) == 20


def test_photographs_are_smoother_than_noise(data):
    def jumps(X):
        return np.abs(np.diff(X.reshape(-1, 8, 8), axis=2)).mean()

    assert jumps(data.ood["photographs"]) < jumps(data.ood["noise"]) / 2


def test_the_same_seed_gives_the_same_data_and_another_seed_does_not(data):
    again = load_digits_with_ood(n_test=60, n_ood=20, random_state=0)
    other = load_digits_with_ood(n_test=60, n_ood=20, random_state=1)
    np.testing.assert_array_equal(again.X_test, data.X_test)
    assert not np.array_equal(other.X_test, data.X_test)
    for name, X in data.ood.items():
        np.testing.assert_array_equal(again.ood[name], X)
        assert not np.array_equal(other.ood[name], X)


@pytest.mark.parametrize("n_ood", [0, -1, 61])
def test_more_ood_inputs_than_test_digits_or_none_are_refused(n_ood):
    expected = f"`n_ood` must be between 1 and n_test=60, got {n_ood}"
    with pytest.raises(ValueError, match=expected):
        load_digits_with_ood(n_test=60, n_ood=n_ood)


def test_without_pillow_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"PIL is needed .* pip install 'skuq\[plot\]'"):
        load_digits_with_ood(n_test=60, n_ood=20)


# --- synthetic data of papers ----------------------------------------------------------------


def test_classes_have_the_means_and_covariances_of_the_paper():
    X, y = make_gaussian_classes((20000, 20000, 20000), random_state=0)
    means = {0: (3, 2), 1: (5, 5), 2: (3, 4)}
    covariances = {0: [[1, 0.8], [0.8, 1]], 1: [[1, -0.8], [-0.8, 1]], 2: [[0.1, 0], [0, 0.1]]}
    for k, mean in means.items():
        np.testing.assert_allclose(X[y == k].mean(axis=0), mean, atol=0.04)
        np.testing.assert_allclose(np.cov(X[y == k].T), covariances[k], atol=0.05)


def test_classes_have_the_sizes_asked_for():
    X, y = make_gaussian_classes(random_state=0)
    assert (X.shape, X.dtype, y.dtype) == ((2100, 2), np.float64, np.int64)
    assert np.bincount(y).tolist() == [1000, 1000, 100]
    assert np.bincount(make_gaussian_classes((3, 0, 2))[1], minlength=3).tolist() == [3, 0, 2]


@pytest.mark.parametrize("n_samples", [(10, 20), (1, 2, 3, 4)])
def test_another_number_of_class_sizes_is_refused(n_samples):
    with pytest.raises(ValueError, match="argument"):
        make_gaussian_classes(n_samples)


def test_region_is_a_twentieth_of_the_data_and_belongs_to_one_class():
    X, y = make_gaussian_classes((10000, 10000, 1000), random_state=0)
    inside = region_mask(GAUSSIAN_REGION, X)
    assert inside.mean() == pytest.approx(0.0531, abs=0.01)  # as the paper has it
    assert (y[inside] == 0).mean() > 0.999


def test_noise_has_the_level_of_equation_18_at_each_input():
    X, y = make_heteroscedastic(60000, random_state=0)
    x = X[:, 0]
    assert (X.shape, y.shape) == ((60000, 1), (60000,))
    assert x.min() == pytest.approx(-4, abs=0.01)
    assert x.max() == pytest.approx(4, abs=0.01)
    noise = y - (np.sin(2 * x) + 0.3 * x**2 - 0.4 * x + 1)
    for at in (-3.5, -1.5, 0.0, 1.0, 3.0):
        near = noise[np.abs(x - at) < 0.05]
        expected = 0.2 + 0.8 * np.exp(-((at / 1.5) ** 2))
        assert near.std() == pytest.approx(expected, rel=0.12)
        assert near.mean() == pytest.approx(0, abs=5 * expected / np.sqrt(len(near)))


@pytest.mark.parametrize("make", [make_gaussian_classes, make_heteroscedastic])
def test_synthetic_data_follow_their_seed(make):
    first, again, other = (make(random_state=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


# --- local files -----------------------------------------------------------------------------


def test_a_logistic_regression_finds_what_loans_depend_on():
    X, y = make_loans(40_000, random_state=0)
    known = pd.DataFrame(
        {
            "burden": X["amount"] / X["income"],
            "years": X["years in job"],
            "owned": X["home"] == "owned",
            "self-employed": X["job"] == "self-employed",
            "age": X["age"],
        }
    ).astype(float)
    model = LogisticRegression(C=np.inf, max_iter=1000).fit(known, y == "late")
    np.testing.assert_allclose(model.coef_[0], [1, -0.1, 1.5, -1.5, 0], atol=0.1)
    assert model.intercept_[0] == pytest.approx(-6.5, abs=0.2)
