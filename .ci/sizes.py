"""The budget of sizes in `.ci/sizes.toml`: prints what exceeds it; exits with 1 if anything does.

`python .ci/sizes.py` checks the budget, `python .ci/sizes.py --table` prints all sizes beside it.
Lines are those of `wc -l`. A number rises only in a commit that lowers another one as much.
"""

import ast
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


def tracked(*patterns: str) -> list[Path]:
    """Files that git tracks, or that are new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
    paths = {ROOT / name for name in listed.stdout.split("\0") if name}
    return sorted(path for path in paths if path.is_file())


def package_of(path: Path) -> str:
    """The package of a module; "top" for the modules of `skuq` itself."""
    _, *folders = path.relative_to(ROOT).parts[:-1]
    return folders[0] if folders else "top"


class Lines(NamedTuple):
    """Lines of a file by kind; `total` includes blank lines."""

    total: int
    docstring: int
    comment: int
    code: int
    imports: int
    raises: int


def lines_of(path: Path) -> Lines:
    """Count the lines of a module."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    docstring, imports, raises = set(), set(), 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.Raise):
            raises += 1
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            docstring.update(range(node.lineno, node.end_lineno + 1))
    code, comment = set(), set()
    passed = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                comment.add(token.start[0])
            elif token.type not in passed:
                code.update(range(token.start[0], token.end[0] + 1))
    code -= docstring
    sizes = (len(docstring), len(comment - code), len(code), len(imports), raises)
    return Lines(text.count("\n"), *sizes)


def public_names() -> int:
    """Number of distinct objects that packages without an underscore export."""
    names = set()
    for path in tracked("skuq/__init__.py", "skuq/*/__init__.py"):
        if not package_of(path).startswith("_"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    names.update(ast.literal_eval(node.value))
    return len(names)


def options() -> int:
    """Number of options of the command line, each command's own, `--help` aside."""
    import click

    from skuq.cli import main

    def count(command: click.Command) -> int:
        if isinstance(command, click.Group):
            context = click.Context(command)
            names = command.list_commands(context)
            return sum(count(command.get_command(context, name)) for name in names)
        return sum(isinstance(each, click.Option) for each in command.params)

    return count(main)


def private_imports() -> int:
    """Number of private names of the package that tests import: only oracle tests need them."""
    private = 0
    for path in tracked("tests/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skuq"):
                inside = "._" in node.module.removeprefix("skuq").replace("._networks", "", 1)
                private += sum(inside or each.name.startswith("_") for each in node.names)
    return private


def words(paths: list[Path]) -> int:
    """Number of words of pages."""
    return sum(len(re.findall(r"\S+", path.read_text(encoding="utf-8"))) for path in paths)


def sizes() -> dict[str, dict[str, float]]:
    """All sizes, by the sections of the budget."""
    found, packages = [], Counter()
    for path in tracked("skuq/*.py"):
        found.append(lines := lines_of(path))
        packages[package_of(path)] += lines.total
    total = Lines(*map(sum, zip(*found, strict=True)))
    length = {
        name: sum(path.read_bytes().count(b"\n") for path in tracked(f"{name}/*.py"))
        for name in ("tests", "benchmarks")
    }
    return {
        "lines": dict(packages),
        "whole": {
            "files": len(found),
            "package_lines": total.total,
            "package_docstring_lines": total.docstring,
            "package_comment_lines": total.comment,
            "package_code_lines": total.code,
            "import_percent": round(100 * total.imports / total.total, 1),
            "raises_per_100_lines": round(100 * total.raises / total.total, 2),
            "tests_lines": length["tests"],
            "tests_percent_of_package": round(100 * length["tests"] / total.total),
            "tests_private_imports": private_imports(),
            "benchmarks_lines": length["benchmarks"],
            "docs_words": words([*tracked("docs/*.rst", "*.md")]),
            "public_names": public_names(),
            "options": options(),
        },
    }


def main(arguments: list[str]) -> int:
    budget = tomllib.loads((ROOT / ".ci" / "sizes.toml").read_text(encoding="utf-8"))
    above = 0
    for section, found in sizes().items():
        for name, value in found.items():
            limit = budget[section].get(name)
            exceeds = section == "lines" if limit is None else value > limit
            above += exceeds
            if exceeds or "--table" in arguments:
                print(f"{name:24} {value:9,} of {limit:9,}" if limit else f"{name:24} {value:9,}")
                if exceeds:
                    print(f"    above the budget by {value - (limit or 0):,.4g}")
    print(f"{above} sizes above the budget of .ci/sizes.toml")
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
