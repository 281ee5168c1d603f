"""Data sets of the benchmarks: files are read as they are, and pickles in them are refused."""

import numpy as np
import pytest
from scipy import sparse

from benchmarks.data_files import load_graph, load_npz, load_table
from skuq.datasets import make_node_classes


@pytest.fixture
def folder(tmp_path):
    np.savez(tmp_path / "flowers.npz", X=np.eye(3), y=np.arange(3))
    np.savez_compressed(tmp_path / "stars_test.npz", X=np.ones(2))
    (tmp_path / "notes.txt").write_text("no data", encoding="utf-8")
    return tmp_path


def test_missing_files_are_refused_with_those_that_are_there_and_pickles_never_run(folder):
    there = r"No data set 'moons' in .*; .*folder: flowers, stars_test\.$"
    for place, word in ((folder, there), (folder / "absent", r"in this folder: none\.$")):
        with pytest.raises(FileNotFoundError, match=word):
            load_npz("moons", place)

    class Bomb:
        def __reduce__(self):
            return (open, (str(folder / "exploded"), "w"))

    np.savez(folder / "trap.npz", X=np.array([Bomb()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_npz("trap", folder)
    assert not (folder / "exploded").exists()


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
    none = {"cat": np.zeros((3, 0), dtype=np.int16), "cat_names": np.array([], dtype=str)}
    np.savez(tmp_path / "plain.npz", **{**TABLE, **none})
    assert load_table("plain", tmp_path)[0].columns.tolist() == ["age", "hours"]


ARRAYS = {
    "adj_indptr": np.array([0, 1, 3, 4], dtype=np.int64),
    "adj_indices": np.array([1, 0, 2, 1], dtype=np.uint16),
    "feat_indptr": np.array([0, 1, 1, 3]),
    "feat_indices": np.array([4, 0, 2]),
    "feat_data": np.array([0.5, 1.0, 2.0]),
    "feat_shape": np.array([3, 5]),
    "labels": np.array([1, 0, 1], dtype=np.int8),
    "split": np.array([[0, 1, 2], [2, 1, 0]], dtype=np.int8),
    "ood_os1": np.array([1]),
    "ood_os2": np.array([0]),
}


def write(folder, arrays, name="tiny"):
    np.savez(folder / f"{name}.npz", **arrays)


@pytest.mark.parametrize("file", ["tiny", "tiny_test"])
def test_file_is_read_as_it_is(tmp_path, file):
    write(tmp_path, ARRAYS, file)
    data = load_graph("tiny", str(tmp_path))
    assert data.adjacency.toarray().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    expected = [[0, 0, 0, 0, 0.5], [0, 0, 0, 0, 0], [1, 0, 2, 0, 0]]
    assert data.features.toarray().tolist() == expected
    assert data.features.dtype == np.float32
    assert data.labels.tolist() == [1, 0, 1]
    for matrix in (data.adjacency, data.features):
        assert matrix.indices.dtype == matrix.indptr.dtype == np.int32
    assert data.splits.tolist() == ARRAYS["split"].tolist()
    left_out = {name: left.tolist() for name, left in data.left_out.items()}
    assert left_out == {"OS-1": [1], "OS-2": [0]}
    write(tmp_path, {k: v for k, v in ARRAYS.items() if k != "split" and k[:3] != "ood"}, "less")
    data = load_graph("less", tmp_path)
    assert (data.splits.shape, data.left_out) == ((0, 3), {})


def test_what_is_drawn_comes_back_from_a_file(tmp_path):
    drawn = make_node_classes(60, random_state=0)
    features = sparse.csr_array(drawn.features)
    parts = (("adj", drawn.adjacency), ("feat", features))
    arrays = {f"{p}_{k}": getattr(m, k) for p, m in parts for k in ("indptr", "indices", "data")}
    arrays |= {"feat_shape": features.shape, "labels": drawn.labels, "split": drawn.splits}
    write(tmp_path, arrays, "drawn")
    again = load_graph("drawn", tmp_path)
    assert (again.adjacency != drawn.adjacency).nnz == 0
    np.testing.assert_array_equal(again.features.toarray(), drawn.features)


@pytest.mark.parametrize("wrong", [3, -1, 2**32 + 2])
def test_neighbours_that_do_not_exist_are_refused(tmp_path, wrong):
    write(tmp_path, {**ARRAYS, "adj_indices": [1, 0, wrong, 1]})
    with pytest.raises(ValueError, match="`adj_indices`"):
        load_graph("tiny", tmp_path)
