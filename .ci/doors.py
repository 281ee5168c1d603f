"""Lists imports across packages of private modules and names, circles of imports, and unused names.

Exits with 1 if there are any.

A package is entered through its `__init__`. Inside `skuq.NAME`, and in `tests/NAME`, the private
modules of `skuq.NAME` may be imported; nobody else may import them, nor names with an underscore.
Private packages, such as `skuq._networks`, promise nothing to users; this repository enters them
through their `__init__` like the others. A circle counts even if its imports are inside functions,
or for types only. A public name must occur in a benchmark, the README or a page of the
documentation other than the list of names.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("skuq", "tests", "benchmarks", "docs")


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a module imports, names included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def is_closed(name: str, home: str) -> bool:
    """Whether a name lies behind the door of a package that is not `home`, such as "skuq.quam"."""
    parts = name.split(".")
    if parts[0] != "skuq" or not any(map(is_private, parts)):
        return False
    inside = parts[2:] if is_private(parts[1]) else parts[1:]  # a private package has a door too
    return any(map(is_private, inside)) and home.split(".")[:2] != parts[:2]


def home_of(path: Path) -> str:
    """The package that a file belongs to, or whose tests it holds."""
    top, *folders = path.relative_to(ROOT).parts[:-1]
    return ".".join(["skuq", *folders]) if top in ("skuq", "tests") else top


def import_graph() -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports, anywhere in its text."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "skuq").rglob("*.py")
    }
    graph = {}
    for name, path in modules.items():
        names = (each for _, each in imports(ast.parse(path.read_text(encoding="utf-8"))))
        found = {each if each in modules else each.rpartition(".")[0] for each in names}
        graph[name] = found & modules.keys() - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that import one another, directly or through others."""
    reached = {name: set() for name in graph}
    for name, seen in reached.items():
        pending = [name]
        while pending:
            for each in graph[pending.pop()] - seen:
                seen.add(each)
                pending.append(each)
    groups = {frozenset(b for b in seen if a in reached[b]) for a, seen in reached.items()}
    return sorted(sorted(group) for group in groups if group)


def unused_names() -> list[str]:
    """Public names that nobody is shown how to use."""
    pages = [path for path in (ROOT / "docs").rglob("*.rst") if path.name != "api.rst"]
    paths = [ROOT / "README.md", *pages, *(ROOT / "benchmarks").rglob("*.py")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in paths)))
    unused = []
    for path in (ROOT / "skuq").rglob("__init__.py"):
        package = path.parent.relative_to(ROOT)
        if not any(map(is_private, package.parts)):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    names = set(ast.literal_eval(node.value)) - words
                    unused += [".".join([*package.parts, name]) for name in names]
    return sorted(unused)


def main() -> int:
    found = 0
    for path in sorted(each for folder in FOLDERS for each in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, name in imports(tree):
            if is_closed(name, home_of(path)):
                print(f"{path.relative_to(ROOT)}:{line}: {name}")
                found += 1
    rings, unused = circles(import_graph()), unused_names()
    for ring in rings:
        print("circle:", ", ".join(ring))
    for name in unused:
        print("in no benchmark and on no page:", name)
    print(
        f"{found} private imports across packages, {len(rings)} circles, {len(unused)} unused names"
    )
    return int(bool(found or rings or unused))


if __name__ == "__main__":
    sys.exit(main())
