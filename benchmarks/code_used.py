"""Find the code on which a benchmark's figures depend, by following imports.

``from skuq.models import adopt`` depends on the module that defines `adopt`, but not on all modules
that the package `skuq.models` imports. A module whose name is in a string, for a lazy import,
counts as imported. Comments and docstrings are ignored. The analysis is static: it neither runs
code nor uses git.
"""

import ast
import functools
import hashlib
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
IN_STRING = r"skuq(?:\.\w+)+(?!\.?\w)(?!\.$)"  # a module named within a text
# Modules for writing files, running processes and recording results, which do not affect figures.
WITHOUT_FIGURES = {
    *("skuq._version", "skuq.files"),
    *("benchmarks.all", "benchmarks.code_used", "benchmarks.harness"),
}


def code_parts(benchmark: str, root: Path = ROOT) -> dict[str, str]:
    """Compute a digest of the modules that a benchmark uses, for each part of skuq.

    `benchmark` is a module's name, such as ``"benchmarks.quam_mnist"``.
    """
    tree = _SourceTree(root)
    digests = defaultdict(hashlib.sha256)
    for module in sorted(tree.used_by(benchmark) - WITHOUT_FIGURES):
        part = module.split(".")[1] if module.startswith("skuq.") else "benchmarks"
        code = _code_of(tree.paths[module].read_text(encoding="utf-8"))
        digests[part].update(f"{module}\n{code}\n".encode())
    return {part: digest.hexdigest()[:7] for part, digest in sorted(digests.items())}


class _SourceTree:
    """Modules of a folder, and the imports of each module."""

    def __init__(self, root: Path) -> None:
        self.paths = {
            ".".join(path.relative_to(root).with_suffix("").parts): path
            for package in ("skuq", "benchmarks")
            for path in (root / package).rglob("*.py")
            if path.name != "__init__.py"
        }
        self.packages = {
            ".".join(path.relative_to(root).parts[:-1]): path
            for package in ("skuq", "benchmarks")
            for path in (root / package).rglob("__init__.py")
        }

    def used_by(self, module: str) -> set[str]:
        """Return the module and all its direct and indirect imports.

        Modules that do not affect figures are omitted, and so are modules that only these import.
        """
        used, waiting = set(), {module} & set(self.paths)
        while waiting:
            used |= waiting
            followed = waiting - WITHOUT_FIGURES
            waiting = {to for each in followed for to in self._imported_by(each)} - used
        return used

    def _imported_by(self, module: str) -> Iterator[str]:
        names = _names_in(self.paths[module].read_bytes())
        for home, name in names.imported_from:
            yield from self._home(home, name)
        for name in names.imported:
            yield from self._all_of(name)
        for text in names.in_strings:
            yield from self._all_of(text)
            yield from self._all_of(f"{module.rpartition('.')[0]}.{text}")

    def _home(self, module: str, name: str) -> Iterator[str]:
        """Find the module that defines a name imported from a module or package."""
        if module not in self.packages:
            yield from self._all_of(module)
            return
        for home, imported in _names_in(self.packages[module].read_bytes()).imported_from:
            if imported == name:
                yield from self._home(home, name)
                return
        yield from self._all_of(f"{module}.{name}") or self._all_of(module)

    def _all_of(self, name: str) -> list[str]:
        """Return a module, or all modules of a package except the top-level package."""
        if name in self.paths:
            return [name]
        inside = f"{name}." if name in self.packages and "." in name else None
        return [module for module in self.paths if inside and module.startswith(inside)]


class _Names(NamedTuple):
    """Names in a file that may refer to modules."""

    imported_from: list[tuple[str, str]]  # module and name
    imported: list[str]
    in_strings: list[str]  # module names in strings, whole strings included


@functools.cache
def _names_in(source: bytes) -> _Names:
    """Find the names of modules in the source of a file, docstrings excluded."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    found = _Names([], [], [])
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found.imported_from.extend((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            found.imported.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and node not in docstrings:
            text = node.value if isinstance(node.value, str) else ""
            found.in_strings.extend(re.findall(IN_STRING, text))
            found.in_strings.extend(re.findall(r"\A[\w.]+\Z", text))
    return found


@functools.cache
def _code_of(text: str) -> str:
    """Return source text without comments, docstrings and empty lines."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            assert node.end_lineno is not None
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())
