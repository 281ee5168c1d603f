"""Regions of the inputs with separate verdicts: leaves of a small public decision tree."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.tree import DecisionTreeRegressor

from skuq.base import FloatArray, IntArray
from skuq.validation import check_same_length, finite, finite_columns
from skuq.zk._files import FORMAT, VerificationError, check_format, read_form, write_json

KIND = "skuq audit regions"
MAX_REGIONS = 64
ROUNDING = 1e-9  # least decrease of the gaps' variance by a split; less may be a rounding error
MOST_DIGITS = 17  # maximum number of digits of a threshold; 17 digits identify every double
Tree = Sequence[Any] | None  # [column, threshold, tree below, tree above], or None for a leaf


class Regions(NamedTuple):
    """Leaves of a decision tree, numbered from the left.

    In a tree ``[column, threshold, below, above]``, rows whose value in that column (counted from
    0) is at most the threshold belong to the tree ``below``, other rows to ``above``. Each subtree
    is a tree of the same form, or None, which stands for a region.
    """

    tree: Any

    @property
    def paths(self) -> list[tuple[tuple[int, str, float], ...]]:
        """Conditions (column, "<=" or ">", threshold) of each region."""
        return list(_paths(self.tree, ()))

    def assign(self, X: ArrayLike) -> IntArray:
        """Return, for each row, the number of its region, shape (n_samples,)."""
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
        """Describe each region, as "age <= 30 and income > 2" (default names: x0, x1, ...)."""
        return [
            " and ".join(
                f"{f'x{column}' if names is None else names[column]} {sign} {threshold:.15g}"
                for column, sign, threshold in path
            )
            for path in self.paths
        ]


def choose_regions(
    X: ArrayLike, gap: ArrayLike, out: str | Path, *, max_regions: int = 8, min_samples: int = 100
) -> Regions:
    """Choose the regions that an audit with proofs will test, and write them to a file.

    The regions are the leaves of a regression tree for `gap` (Breiman et al., "Classification and
    Regression Trees", 1984). These regions show where confidence appears to be wrong. The audit
    then tests on separate reference data whether chance explains the gap.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The auditor's own inputs, in the committed form, disjoint from the reference data.
    gap : array-like of shape (n_samples,)
        Correctness of each prediction (1 or 0) minus its confidence.
    out : str or Path
        JSON file to write, for the provider and for `verify`.
    max_regions : int, default=8
        Maximum number of regions, from 2 to 64. With more regions, each contains less evidence.
    min_samples : int, default=100
        Minimum number of samples of a region.

    Raises
    ------
    FileExistsError
        If `out` exists, because regions must be chosen only once.

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
    out = Path(out)
    if out.exists():
        raise FileExistsError(
            f"{out} exists already; choose a new file for the regions of another audit."
        )
    values, gaps = finite_columns(X, "X"), finite(gap, "gap")
    check_same_length(X=values, gap=gaps)
    model = DecisionTreeRegressor(
        max_leaf_nodes=max_regions,
        min_samples_leaf=min_samples,
        min_impurity_decrease=ROUNDING,  # no split if gaps differ only by rounding errors
        random_state=0,
    )
    regions = Regions(_tree(model.fit(values, gaps).tree_, 0, values))
    if regions.tree is None:
        raise ValueError(
            f"Fewer than two regions were found in {len(values)} samples: the gap between accuracy "
            f"and confidence is the same everywhere, or min_samples={min_samples} is too large."
        )
    write_json(out, {"kind": KIND, "format": FORMAT, "tree": regions.tree})
    return regions


def load_regions(path: str | Path, n_columns: int) -> Regions:
    """Read the auditor's file of regions, and check it against the number of input columns."""
    path = Path(path)
    record = read_form(path, {"kind": str, "format": int, "tree": list | None})
    if record["kind"] != KIND:
        raise VerificationError(f"{path.name} does not hold the regions of an audit.")
    check_format(record, path.name)
    if not valid_tree(record["tree"], n_columns):
        raise VerificationError(
            f"{path.name} does not hold 2 to {MAX_REGIONS} regions over {n_columns} columns."
        )
    return Regions(record["tree"])


def valid_tree(tree: Any, n_columns: int) -> bool:
    """Whether JSON data are a tree of 2 to `MAX_REGIONS` regions in the required form."""
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
    """Divide rows into chunks for proofs of sums: at most `size` rows of a single region each."""
    chunks = []
    for k in range(int(region.max(initial=0)) + 1):
        rows = np.flatnonzero(region == k)
        chunks += [rows[start : start + size] for start in range(0, len(rows), size)]
    return chunks


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
    below, above = int(fitted.children_left[node]), int(fitted.children_right[node])
    if below < 0:
        return None
    column = int(fitted.feature[node])
    threshold = _short(float(fitted.threshold[node]), values[:, column])
    return [column, threshold, _tree(fitted, below, values), _tree(fitted, above, values)]


def _short(threshold: float, values: FloatArray) -> float:
    """Find the shortest decimal number that splits the values as `threshold` does."""
    below = values <= threshold
    rounded = (float(f"{threshold:.{digits}g}") for digits in range(1, MOST_DIGITS))
    return next((short for short in rounded if ((values <= short) == below).all()), threshold)
