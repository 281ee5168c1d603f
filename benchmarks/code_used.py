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

ROOT = Path(__file__).parents[1]
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
        digests[part].update(f"{module}\n{_code_of(tree.paths[module])}\n".encode())
    return {part: digest.hexdigest()[:7] for part, digest in sorted(digests.items())}


class _SourceTree:
    """Modules of a folder, and the imports of each module."""

    def __init__(self, root: Path) -> None:
        self.nodes = functools.cache(_nodes)
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
        for node in self.nodes(self.paths[module]):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield from self._home(node.module or "", alias.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._all_of(alias.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                for name in re.findall(r"skuq(?:\.\w+)+(?!\.?\w)(?!\.$)", node.value):
                    yield from self._all_of(name)
                yield from self._all_of(f"{module.rpartition('.')[0]}.{node.value}")

    def _home(self, module: str, name: str) -> Iterator[str]:
        """Find the module that defines a name imported from a module or package."""
        if module not in self.packages:
            yield from self._all_of(module)
            return
        for node in self.nodes(self.packages[module]):
            if isinstance(node, ast.ImportFrom) and name in (each.name for each in node.names):
                yield from self._home(node.module or "", name)
                return
        yield from self._all_of(f"{module}.{name}") or self._all_of(module)

    def _all_of(self, name: str) -> list[str]:
        """Return a module, or all modules of a package except the top-level package."""
        if name in self.paths:
            return [name]
        inside = f"{name}." if name in self.packages and "." in name else None
        return [module for module in self.paths if inside and module.startswith(inside)]


def _nodes(path: Path) -> list[ast.AST]:
    """List the syntax nodes of a file, without docstrings."""
    found = list(ast.walk(ast.parse(path.read_bytes())))
    docstrings = {node.value for node in found if isinstance(node, ast.Expr)}
    return [node for node in found if node not in docstrings]


def _code_of(path: Path) -> str:
    """Return the source of a file without comments, docstrings and empty lines."""
    text = path.read_text(encoding="utf-8")
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
