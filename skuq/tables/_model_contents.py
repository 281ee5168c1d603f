"""Checks of a model loaded from a file: nothing may read files, run forever or exhaust memory.

Skops only creates objects of types on its list of trusted types. Some estimators of these types are
dangerous nevertheless: a text vectorizer can read the files that its input names, a cache loads
pickles, and a regular expression can backtrack forever. These checks refuse such parameters. All
other parameters only affect the results and the running time.
"""

from __future__ import annotations

import io
import json
import math
import re
from functools import partial
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]  # parser of regular expressions
from string import Formatter
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any
from zipfile import ZipFile

import numpy as np
from scipy import sparse
from sklearn.pipeline import Pipeline

from skuq.stored import MARK
from skuq.tables._model_trees import is_damaged
from skuq.tables._validation import TableError

# For each attribute, its only allowed value and the reason to refuse other values. The names omit
# the leading and trailing underscores of fitted attributes.
ALLOWED = {
    "in_fit": (False, "which skips the checks of input rows"),
    "input": ("content", "which reads the files named in the table"),
    "memory": (None, "which writes a cache and loads pickles from it"),
    "preprocessor": (None, "which passes on rows that are not checked"),
}
# Largest allowed values of attributes that are numbers of iterations, processes or columns.
LARGEST = {
    "max_doc_update_iter": 100_000,
    "max_iter": 100_000,
    "n_estimators": 100_000,
    "n_features": 2**22,  # for hashing vectorizers
    "n_features_out": 2**22,
    "n_features_outs": 2**22,
    "n_jobs": 256,
    "n_out_full": 10**6,
    "n_output_features": 10**6,
    "n_steps": 100_000,
    "ngram_range": 64,
    "sample_steps": 1_000,
    "transform_max_iter": 100_000,
}
LARGEST_INTEGER = 10**7  # for integer attributes without a limit of their own
# Integers that do not affect the cost of prediction: seeds, replacement values, limits that apply
# only to fitting, numbers of rows, and an object id.
UNLIMITED = re.compile(
    r"categories|classes|random_state|(random_)?seed|fill_value|missing_values"
    r"|encoded_missing_value|unknown_value|(pos|neg)_label|constant"
    r"|max_(depth|features|leaf_nodes|samples|fun)|min_\w+|subsample|batch_size|cache_size"
    r"|n_samples\w*|stop_words_id|t"
)
LARGEST_POLYNOMIAL = 10**6  # maximum number of terms
LARGEST_MODEL = 10**7  # maximum number of objects, counted once per reference
LARGEST_EXPANSION = 100  # maximum number of bytes in memory for each byte of the file
# Maximum number of bytes of JSON. The objects made from it need about twenty times as many bytes.
LARGEST_SCHEMA = 2**26
# A model with at most this number of bytes in memory may exceed LARGEST_EXPANSION.
SMALL_MODEL = 2**28
# Maximum number of characters of a pattern. It is also the maximum number of ways to match the
# parts of a pattern, unbounded repetitions not counted.
LARGEST_PATTERN = 1_000
UNBOUNDED = 64  # a repetition counts as unbounded if its maximum is at least this number
_ONE_CHARACTER = {"LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY"}
_REPEATS = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}


class _Refused(Exception):
    """Reason to refuse an untrusted model."""


def check_contents(path: Path, model: Any) -> None:
    """Refuse a model from a file if a part of it may read files, call functions or run forever.

    Parameters
    ----------
    path : Path
        The file.
    model : object
        Estimator, or container of estimators, loaded by skops from trusted types only.

    Raises
    ------
    TableError
        If a part of the model is refused; the message names the step and its parameter.
    """
    try:
        _Contents().visit(model, (), None)
    except RecursionError:
        raise _error(path, "The model is nested too deeply") from None
    except _Refused as refused:
        raise _error(path, str(refused)) from None


def check_archive(path: Path) -> None:
    """Refuse a skops file whose contents would take much more memory than the size of the file."""
    largest = max(SMALL_MODEL, LARGEST_EXPANSION * path.stat().st_size)
    with ZipFile(path) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        if sizes.get("schema.json", 0) > LARGEST_SCHEMA:
            n_bytes = f"{sizes['schema.json']:,} bytes, more than {LARGEST_SCHEMA:,}"
            raise _error(path, f"The description of the model (schema.json) takes {n_bytes}")
        _check_size(path, sum(sizes.values()), largest)
        for name in sizes:
            if name.endswith(".npz"):  # a nested archive
                with ZipFile(io.BytesIO(archive.read(name))) as inner:
                    sizes[name] += sum(info.file_size for info in inner.infolist())
        used: list[int] = []  # one entry per reference, since each reference loads the file again

        def count(record: dict[str, Any]) -> None:
            used.append(sizes.get(str(record.get("file")), 0))

        json.loads(archive.read("schema.json"), object_hook=count)
    _check_size(path, sum(used), largest)


def _check_size(path: Path, n_bytes: int, largest: int) -> None:
    if n_bytes > largest:
        raise _error(path, f"The model would take {n_bytes / 2**30:,.1f} GiB of memory")


def _error(path: Path, reason: str) -> TableError:
    return TableError(
        f"{path}: {reason}. Loading a model can run code; if you trust its source, pass "
        "`trust=True`."
    )


class _Contents:
    """Visitor that checks each object of a model, once for each number of columns (`width`)."""

    def __init__(self) -> None:
        # Keep visited objects alive; otherwise, a new object could get the id of a visited one.
        self._sizes: dict[tuple[int, int | None], tuple[Any, int]] = {}

    def visit(self, value: Any, steps: tuple[str, ...], width: int | None) -> int:
        """Check an object within pipeline `steps`; return the number of objects it refers to.

        `width` is the number of columns passed to trees by an enclosing estimator.
        """
        if value is None or isinstance(value, bool | int | float | str | bytes | type | np.ufunc):
            return 0
        key = id(value), width
        if key not in self._sizes:
            self._sizes[key] = value, 1
            self._sizes[key] = value, 1 + self._visit_parts(value, steps, width)
        size = self._sizes[key][1]
        if size > LARGEST_MODEL:
            raise _Refused("The model refers to its parts so often that it would run forever")
        return size

    def _visit_parts(self, value: Any, steps: tuple[str, ...], width: int | None) -> int:
        if isinstance(value, FunctionType | BuiltinFunctionType | partial):
            raise _Refused(f"A custom function{_within(steps)} would be called")
        if isinstance(value, MethodType):
            if not (isinstance(value.__self__, Pipeline) and value.__name__ == "transform"):
                raise _Refused(f"The method {value.__name__}{_within(steps)} would be called")
            return self.visit(value.__self__, steps, width)
        if isinstance(value, np.ndarray):
            if type(value) is not np.ndarray:  # a subclass could hide its values from the checks
                raise _Refused(f"An array{_within(steps)} is a {type(value).__name__}")
            parts = value.ravel().tolist() if value.dtype.hasobject else []
            return sum(self.visit(part, steps, width) for part in parts)
        if isinstance(value, list | tuple | set):
            # A (name, estimator) pair of a pipeline.
            if len(value) > 1 and isinstance(value, tuple) and isinstance(value[0], str):
                steps = (*steps, value[0]) if hasattr(value[1], "get_params") else steps
            return sum(self.visit(part, steps, width) for part in value)
        if isinstance(value, dict):
            if MARK in value:
                _check_attributes(value, str(value[MARK]), steps)
            parts = [*value, *value.values()]
            return sum(self.visit(part, steps, width) for part in parts)
        return self._visit_object(value, steps, width)

    def _visit_object(self, value: Any, steps: tuple[str, ...], width: int | None) -> int:
        name, attributes = type(value).__name__, getattr(value, "__dict__", {})
        widths = [each for each in (width, attributes.get("n_features_in_")) if each is not None]
        width = min(widths, default=0)
        _check_attributes(attributes, name, steps, default=LARGEST_INTEGER)
        if is_damaged(value, width):
            raise _Refused(f"A tree{_within(steps)} is damaged")
        if sparse.issparse(value) and value.format in ("csr", "csc", "bsr"):
            try:
                value.check_format(full_check=True)
            except ValueError as error:
                raise _Refused(f"An array{_within(steps)} is damaged: {error}") from error
        # The trees of gradient boosting do not check the number of columns of their input; other
        # estimators do.
        has_trees = name.startswith("GradientBoosting") or {"tree_", "_predictors"} & {*attributes}
        passed = width if has_trees else None
        return sum(self.visit(part, steps, passed) for part in attributes.values())


def _check_attributes(
    attributes: dict[str, Any], owner: str, steps: tuple[str, ...], default: float = math.inf
) -> None:
    """Refuse dangerous attribute values; `default` limits integers with names not in `LARGEST`."""
    for name, value in attributes.items():
        reason = _problem(name.strip("_"), value, attributes, default)
        if reason:
            shown = repr(value) if len(repr(value)) < 80 else f"{repr(value)[:76]} ..."
            raise _Refused(f"{owner}{_within(steps)} has {name}={shown}, {reason}")


def _within(steps: tuple[str, ...]) -> str:
    return f" in step {' of '.join(map(repr, reversed(steps)))}" if steps else ""


def _problem(name: str, value: Any, attributes: dict[str, Any], default: float) -> str:
    """Return the reason to refuse an attribute's value, or ""; `name` has no outer underscores."""
    if name in ALLOWED:
        allowed, reason = ALLOWED[name]
        return "" if type(value) is type(allowed) and value == allowed else reason
    # Arrays are checked only under the names in LARGEST: other arrays may contain class labels,
    # which may be arbitrarily large integers.
    largest = _largest(value, of_arrays=name in LARGEST)
    limit = LARGEST.get(name, math.inf if UNLIMITED.fullmatch(name) else default)
    if largest > limit:
        return f"more than {limit:,}"
    if name in ("degree", "max_degree") and "interaction_only" in attributes:
        width = attributes.get("n_features_in_", 1)
        # The minimum with 20 limits the computation; comb(40, 20) is above the limit.
        n_terms = math.comb(width + largest, min(width, largest, 20))
        if n_terms > LARGEST_POLYNOMIAL:
            return f"which makes more than {LARGEST_POLYNOMIAL:,} columns"
    if name.endswith("pattern") and value is not None:
        return pattern_problem(value)
    if name == "verbose_feature_names_out" and isinstance(value, str):
        fields = [field[1:] for field in Formatter().parse(value) if field[1] is not None]
        plain = all(field == (field[0], "", None) for field in fields)
        return "" if plain else "a format that may need unlimited memory"
    return ""


def _largest(value: Any, *, of_arrays: bool) -> int:
    """Largest integer in a value: a number, a list or (if `of_arrays`) an array; else 0."""
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist() if of_arrays or value.size == 1 else 0
    if isinstance(value, list | tuple):
        return max((_largest(each, of_arrays=of_arrays) for each in value), default=0)
    return int(value) if isinstance(value, int | np.integer) else 0


# --- regular expressions -------------------------------------------------------------------------


def pattern_problem(pattern: Any) -> str:
    """Return the reason why a regular expression may backtrack forever, or "".

    A search tries all ways to match. The number of ways stays small if at most one repetition is
    unbounded and no group is repeated.
    """
    try:
        if len(pattern) > LARGEST_PATTERN:
            return f"a pattern of more than {LARGEST_PATTERN:,} characters"
        n_unbounded, n_ways = _ways(_parser.parse(pattern))
    except (re.error, TypeError, ValueError, RecursionError) as error:
        return f"which is not a pattern that can be checked ({error})"
    except _Refused as refused:
        return str(refused)
    if n_unbounded > 1:
        return f"a pattern with {n_unbounded} unbounded repetitions, which can search forever"
    if n_ways > LARGEST_PATTERN:
        return "a pattern with so many alternatives that it can search forever"
    return ""


def _ways(pattern: Any) -> tuple[int, int]:
    """Number of unbounded repetitions, and number of ways to match all other parts."""
    n_unbounded, n_ways = 0, 1
    for operation, argument in pattern:
        name = str(operation)
        if name in _REPEATS:
            low, high, repeated = argument
            if high > 1 and [str(each[0]) in _ONE_CHARACTER for each in repeated] != [True]:
                raise _Refused("a pattern that repeats a group, which can search forever")
            is_bounded = high <= UNBOUNDED
            n_unbounded += not is_bounded
            n_ways *= high - low + 1 if is_bounded else 1
        elif name == "BRANCH":
            n_ways *= len(argument[1])
        for inner in _inner(argument):
            more, times = _ways(inner)
            n_unbounded, n_ways = n_unbounded + more, n_ways * times
    return n_unbounded, n_ways


def _inner(argument: Any) -> list[Any]:
    """Subpatterns in the argument of an operation."""
    if isinstance(argument, _parser.SubPattern):
        return [argument]
    if isinstance(argument, list | tuple):
        return [inner for each in argument for inner in _inner(each)]
    return []
