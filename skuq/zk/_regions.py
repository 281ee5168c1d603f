"""Regions of the inputs in which an audit is judged one by one: leaves of a small public tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.tree import DecisionTreeRegressor

from skuq.base import FloatArray, IntArray
from skuq.validation import check_same_length, finite, finite_columns
from skuq.zk._files import FORMAT, VerificationError, read_json, write_json

KIND = "skuq audit regions"
MAX_REGIONS = 64
ROUNDING = 1e-9  # of squared gaps
MOST_DIGITS = 17  # of a threshold: with so many, every double differs from every other one
Tree = Sequence[Any] | None  # [column, threshold, where at most, where above], or None for a leaf


class Regions(NamedTuple):
    """Regions of the inputs: leaves of a tree of thresholds, numbered from the left.

    Attributes
    ----------
    tree : list or None
        ``[column, threshold, below, above]``: rows whose number in that column, from 0, is at most
        the threshold are in the tree ``below``, others in the one ``above``; None is a region.
    """

    tree: Any

    @property
    def paths(self) -> list[tuple[tuple[int, str, float], ...]]:
        """Conditions (column, "<=" or ">", threshold) of each region."""
        return list(_paths(self.tree, ()))

    def assign(self, X: ArrayLike) -> IntArray:
        """Number of the region of each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Finite numbers.

        Returns
        -------
        ndarray of shape (n_samples,), int64
        """
        values = np.asarray(X, dtype=np.float64)
        region = np.zeros(len(values), np.int64)
        for k, path in enumerate(self.paths):
            inside = np.ones(len(values), bool)
            for column, sign, threshold in path:
                below = values[:, column] <= threshold
                inside &= below if sign == "<=" else ~below
            region[inside] = k
        return region

    def rules(self, names: Sequence[str] | None = None) -> list[str]:
        """Each region in words, such as "age <= 30 and income > 2".

        Parameters
        ----------
        names : sequence of str, default=None
            Names of the columns. Default: ``x0``, ``x1`` and so on.

        Returns
        -------
        list of str
        """
        return [
            " and ".join(
                f"{f'x{column}' if names is None else names[column]} {sign} {threshold:.15g}"
                for column, sign, threshold in path
            )
            for path in self.paths
        ]


def choose_regions(
    X: ArrayLike,
    gap: ArrayLike,
    out: str | Path,
    *,
    max_regions: int = 8,
    min_samples: int = 100,
) -> Regions:
    """Choose the regions in which an audit with proofs will look, and write them to a file.

    The regions are the leaves of a regression tree for `gap` (Breiman et al., "Classification and
    Regression Trees", 1984). They are where confidence seems to be wrong, on data that only serve
    to choose: the audit takes other reference data, and says whether chance explains it.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Inputs of the auditor's own, as the committed model takes them; no part of the reference
        data.
    gap : array-like of shape (n_samples,)
        For each of them 1 if the model's answer is right, else 0, minus its confidence.
    out : str or Path
        JSON file to write, for the provider and for `verify`.
    max_regions : int, default=8
        Most regions, from 2 to 64. More of them find smaller groups, and each has less evidence.
    min_samples : int, default=100
        Least number of samples of a region, among these.

    Returns
    -------
    Regions

    Raises
    ------
    ValueError
        If an argument is out of range, or there are too few samples for two regions.
    FileExistsError
        If `out` exists: regions are chosen once.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from skuq import zk
    >>> X = np.linspace(0, 1, 400)[:, None]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     regions = zk.choose_regions(X, 0.3 * (X[:, 0] > 0.5), f"{folder}/regions.json")
    >>> regions.rules()
    ['x0 <= 0.5', 'x0 > 0.5']
    """
    if not 2 <= max_regions <= MAX_REGIONS:
        raise ValueError(f"`max_regions` must be from 2 to {MAX_REGIONS}, got {max_regions}.")
    if min_samples < 1:
        raise ValueError(f"`min_samples` must be at least 1, got {min_samples}.")
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} exists already; the regions of an audit are chosen once.")
    values, gaps = finite_columns(X, "X"), finite(gap, "gap")
    check_same_length(X=values, gap=gaps)
    model = DecisionTreeRegressor(
        max_leaf_nodes=max_regions,
        min_samples_leaf=min_samples,
        min_impurity_decrease=ROUNDING,  # else equal gaps are divided by their rounding errors
        random_state=0,
    )
    regions = Regions(_tree(model.fit(values, gaps).tree_, 0, values))
    if regions.tree is None:
        raise ValueError(
            f"No two regions were found in {len(values)} samples: the gap is the same everywhere, "
            f"or a region of at least min_samples={min_samples} samples is too much to ask."
        )
    write_json(out, {"kind": KIND, "format": FORMAT, "tree": regions.tree})
    return regions


def load_regions(path: str | Path, n_columns: int) -> Regions:
    """Read the auditor's file of regions, for inputs with so many columns."""
    path = Path(path)
    record = read_json(path)
    entries = set(record) if isinstance(record, dict) else None
    if entries != {"kind", "format", "tree"} or record["kind"] != KIND:
        raise VerificationError(f"{path.name} does not hold the regions of an audit.")
    if type(record["format"]) is not int or record["format"] != FORMAT:
        raise VerificationError(f"{path.name} has format {record['format']}, expected {FORMAT}.")
    if not valid_tree(record["tree"], n_columns):
        raise VerificationError(
            f"{path.name} does not hold a tree of 2 to {MAX_REGIONS} regions over {n_columns} "
            "columns."
        )
    return Regions(record["tree"])


def valid_tree(tree: Any, n_columns: int) -> bool:
    """Whether JSON is a tree of at least two regions, in the one form that is allowed."""
    waiting, n_regions = [tree], 0
    while waiting and n_regions + len(waiting) <= MAX_REGIONS:
        node = waiting.pop()
        if node is None:
            n_regions += 1
            continue
        if not isinstance(node, list) or len(node) != 4:
            return False
        column, threshold, below, above = node
        if type(column) is not int or not 0 <= column < n_columns or type(threshold) is not float:
            return False
        waiting += [below, above]
    return not waiting and n_regions >= 2


def rows_of_chunks(size: int, region: IntArray) -> list[IntArray]:
    """Rows of each proof of sums: those of one region in their order, `size` at a time."""
    chunks = []
    for k in range(int(region.max(initial=0)) + 1):
        rows = np.flatnonzero(region == k)
        chunks += [rows[start : start + size] for start in range(0, len(rows), size)]
    return chunks


def group_confidence_level(confidence_level: float, n_groups: int) -> float:
    """Compute the confidence level of each audit such that several have a joint one.

    Each of the audits may wrongly fail a model within alpha; all of them together do so with at
    most the sum of these probabilities (Bonferroni), whatever the groups have in common.

    Parameters
    ----------
    confidence_level : float
        Least probability, in (0, 1), that a model within alpha in every group passes them all.
    n_groups : int
        Number of audits.

    Returns
    -------
    float
        The `confidence_level` to prove and to verify each audit with.

    Examples
    --------
    >>> from skuq.zk import group_confidence_level
    >>> group_confidence_level(0.95, 4)
    0.9875
    """
    if not 0 < confidence_level < 1:
        raise ValueError(f"`confidence_level` must be in (0, 1), got {confidence_level}.")
    if int(n_groups) != n_groups or n_groups < 1:
        raise ValueError(f"`n_groups` must be an integer of at least 1, got {n_groups}.")
    # So many digits that both parties have the same number.
    return round(1 - (1 - confidence_level) / n_groups, 12)


def _paths(
    tree: Tree, path: tuple[tuple[int, str, float], ...]
) -> Iterator[tuple[tuple[int, str, float], ...]]:
    if tree is None:
        yield path
        return
    column, threshold, below, above = tree
    yield from _paths(below, (*path, (column, "<=", threshold)))
    yield from _paths(above, (*path, (column, ">", threshold)))


def _tree(fitted: Any, node: int, values: FloatArray) -> Any:
    """Tree of thresholds of scikit-learn, as lists."""
    below, above = int(fitted.children_left[node]), int(fitted.children_right[node])
    if below < 0:
        return None
    column = int(fitted.feature[node])
    threshold = _short(float(fitted.threshold[node]), values[:, column])
    return [column, threshold, _tree(fitted, below, values), _tree(fitted, above, values)]


def _short(threshold: float, values: FloatArray) -> float:
    """The threshold with the fewest digits that divides the values alike, for people to read."""
    below = values <= threshold
    rounded = (float(f"{threshold:.{digits}g}") for digits in range(1, MOST_DIGITS))
    return next((short for short in rounded if ((values <= short) == below).all()), threshold)
