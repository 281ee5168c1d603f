"""Data for demonstrations, and local files that are read without trusting them."""

import pickle
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from skuq.calibration import region_mask
from skuq.datasets import (
    GAUSSIAN_REGION,
    load_digits_with_ood,
    load_npz,
    load_table,
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


@pytest.mark.parametrize("sizes", [{"n_test": 0.2, "n_ood": 1}, {"n_ood": 1.5}])
def test_numbers_of_digits_are_integers(sizes):
    with pytest.raises(ValueError, match=r"'n_(test|ood)' parameter .* must be an instance of"):
        load_digits_with_ood(**sizes)


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


@pytest.mark.parametrize(
    ("n_samples", "reason"),
    [(100, "'n_samples' .* must be an array-like"), ((10, 20), "must be three integers, one")],
)
def test_another_number_of_class_sizes_is_refused(n_samples, reason):
    with pytest.raises(ValueError, match=reason):
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


@pytest.fixture
def folder(tmp_path):
    np.savez(tmp_path / "flowers.npz", X=np.eye(3), y=np.arange(3))
    np.savez_compressed(tmp_path / "stars_test.npz", X=np.ones(2))
    (tmp_path / "notes.txt").write_text("no data", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("as_path", [str, lambda path: path])
def test_all_arrays_of_a_file_are_read(folder, as_path):
    arrays = load_npz("flowers", as_path(folder))
    assert set(arrays) == {"X", "y"}
    np.testing.assert_array_equal(arrays["X"], np.eye(3))
    np.testing.assert_array_equal(arrays["y"], np.arange(3))


def test_a_file_that_only_holds_test_data_is_found_by_its_plain_name(folder):
    assert set(load_npz("stars", folder)) == {"X"}
    assert set(load_npz("stars_test", folder)) == {"X"}


def test_a_file_of_exactly_that_name_comes_first(folder):
    np.savez(folder / "flowers_test.npz", other=np.zeros(1))
    assert set(load_npz("flowers", folder)) == {"X", "y"}


def test_pickled_objects_are_refused_and_never_run(folder):
    class Bomb:
        def __reduce__(self):
            return (open, (str(folder / "exploded"), "w"))

    np.savez(folder / "trap.npz", X=np.array([Bomb()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_npz("trap", folder)
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda good: good[: len(good) // 2], "not a zip file"),
        (lambda good: b"", "not a zip file"),
        (lambda good: b"hello", "not a zip file"),
        (lambda good: pickle.dumps({"a": 1}), "not a zip file"),
        (lambda good: good[:70] + bytes([good[70] ^ 255]) + good[71:], "CRC"),
        (lambda good: good.replace(b"NUMPY", b"MUMPY"), "CRC"),
        (lambda good: b"XX" + good[2:], "Bad magic number"),
    ],
    ids=["cut", "empty", "text", "pickle", "number", "header", "start"],
)
def test_a_damaged_file_is_refused_by_name(folder, damage, reason):
    path = folder / "flowers.npz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ValueError, match=rf"flowers\.npz is not a complete \.npz file .*: .*{reason}"
    ) as caught:
        load_npz("flowers", folder)
    assert "unsafely" not in str(caught.value)


def test_other_files_under_the_name_of_an_archive_are_refused(folder):
    with (folder / "flowers.npz").open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(ValueError, match=r"flowers\.npz is not a complete \.npz file"):
        load_npz("flowers", folder)
    with zipfile.ZipFile(folder / "flowers.npz", "w") as archive:
        archive.writestr("sheet.xml", "<table/>")
    with pytest.raises(
        ValueError, match=r"flowers\.npz is not an .*: member 'sheet\.xml' is not an array"
    ):
        load_npz("flowers", folder)


def test_a_missing_file_is_refused_with_those_that_are_there(folder):
    with pytest.raises(
        FileNotFoundError, match=r"No data set 'moons' in .*; .*folder: flowers, stars_test\.$"
    ):
        load_npz("moons", folder)
    with pytest.raises(FileNotFoundError, match=r"data sets in this folder: none\.$"):
        load_npz("moons", folder / "absent")


TABLE = {
    "num": np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0]]),
    "num_names": np.array(["age", "hours"]),
    "cat": np.array([[0, 1], [1, -1], [-1, 0]], dtype=np.int16),
    "cat_names": np.array(["job", "sex"]),
    "levels_job": np.array(["cook", "nurse"]),
    "levels_sex": np.array(["f", "m"]),
    "y": np.array(["no", "yes", "no"]),
}


@pytest.mark.parametrize("name", ["people", "people_test"])
def test_table_is_read_with_names_text_and_missing_values(tmp_path, name):
    np.savez(tmp_path / f"{name}.npz", **TABLE)
    X, y = load_table("people", tmp_path)
    assert X.columns.tolist() == ["age", "hours", "job", "sex"]
    assert X["job"].tolist() == ["cook", "nurse", None]
    assert X["sex"].tolist() == ["m", None, "f"]
    np.testing.assert_array_equal(X[["age", "hours"]].to_numpy(), TABLE["num"])
    assert y.tolist() == ["no", "yes", "no"]


def test_table_without_categories_is_read(tmp_path):
    none = {"cat": np.zeros((3, 0), dtype=np.int16), "cat_names": np.array([], dtype=str)}
    np.savez(tmp_path / "plain.npz", **{**TABLE, **none})
    assert load_table("plain", tmp_path)[0].columns.tolist() == ["age", "hours"]


def test_file_that_holds_no_table_is_refused_with_what_it_lacks(folder):
    with pytest.raises(
        ValueError, match=r"'flowers' is not a table: it lacks cat, cat_names, num,"
    ):
        load_table("flowers", folder)
    with pytest.raises(FileNotFoundError, match="No data set 'moons'"):
        load_table("moons", folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"levels_sex": None}, "it lacks levels_sex"),
        ({"cat": [[0, 1], [1, 2], [0, 0]]}, r"codes of 'sex' must be from -1 to 1, got \[2\]"),
        ({"cat": [[0, 1], [-2, 1], [0, 0]]}, r"codes of 'job' must be from -1 to 1, got \[-2\]"),
        ({"cat": [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]}, "codes of 'job' are float64, not integers"),
        ({"cat": [[0, 1], [1, 1]]}, r"cat has shape \(2, 2\) instead of \(3, 2\)"),
        ({"cat": [[0, 1]] * 4}, r"cat has shape \(4, 2\) instead of \(3, 2\)"),
        ({"cat_names": ["job"]}, r"cat has shape \(3, 2\) instead of \(3, 1\)"),
        ({"num_names": ["a", "b", "c"]}, r"num has shape \(3, 2\) instead of \(3, 3\)"),
        ({"num_names": "age"}, r"num has shape \(3, 2\) instead of \(3, 1\)"),
        ({"y": [0, 1]}, r"num has shape \(3, 2\) instead of \(2, 2\)"),
        ({"y": [[0], [1], [0]]}, r"y of shape \(3, 1\) is not one class per row"),
        ({"num_names": ["age", "job"]}, "several columns have the name 'job'"),
    ],
)
def test_a_table_whose_parts_do_not_fit_is_refused(tmp_path, changes, reason):
    arrays = {**TABLE, **changes}
    np.savez(tmp_path / "people.npz", **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(ValueError, match=rf"^Data set 'people' is not a table: {reason}"):
        load_table("people", tmp_path)


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
