"""Lists phrases that a reader has to read twice; exits with 1 if there are any.

Looks at comments, docstrings and messages of skuq's modules, and at the pages of the documentation.
`python .ci/prose.py skuq/zk docs/guide/audit.rst` looks at these files and folders alone.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = ("skuq", "docs", "benchmarks", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
BANNED = {
    (
        r"(?<!there )\b(?:is|are|was|were)\s+no\b"
        r"(?!\s+(?:longer|more|less|fewer|better|worse|larger|smaller))"
    ): "is not a, has no, there is no",
    r"\banother\s+(?:\w+\s+)?than\b": "a different ... from",
    r"\bon\s+the\s+word\s+of\b": "because of",
    r"\bin\s+(?:the\s+)?company\b|\bcompany\s+of\b": "with other rows",
    r"\bflatter": "overstate",
    r"\bquestion(?:s|ed|ing)?\s+(?:a|an|the|its|your|their)\b": "analyse, evaluate",
    r"\bsay\s+as\s+much\b|\bin\s+so\s+many\s+words\b": "the fact itself",
    r"\bof\s+somebody\s+else\b": "external, pre-trained",
    r"\bthe\s+likes\s+of\b": "such as",
}
OPENING = re.compile(r"(?:What|Whatever|Whoever|How)\b")


def passages(path: Path) -> Iterator[tuple[int, str]]:
    """First line and text of each comment block, docstring and message, or of a whole page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, text
        return
    start, block = 0, []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != start + len(block):
                yield start, "\n".join(block)
                block = []
            start = start if block else token.start[0]
            block.append(token.string.lstrip("# "))
    yield start, "\n".join(block)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def docstring_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, kinds) and ast.get_docstring(node):
            yield node.body[0].lineno, node.body[0].value.value


def findings(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, phrase found, and what to write instead."""
    for line, text in passages(path):
        for pattern, better in BANNED.items():
            for match in re.finditer(pattern, text, re.IGNORECASE):
                before = text.count("\n", 0, match.start())
                yield line + before, " ".join(match[0].split()), better
    if path.suffix == ".py":
        for line, text in docstring_lines(path):
            if OPENING.match(text.lstrip()):
                yield line, text.split("\n")[0], "a noun phrase or an imperative"


def main(places: list[str]) -> int:
    paths = [ROOT / place for place in places or PLACES]
    files = [each for path in paths for each in ([path] if path.is_file() else path.rglob("*"))]
    found = 0
    for path in sorted(each for each in files if each.suffix in (".py", ".rst", ".md")):
        if {"_build", "gallery"} & set(path.parts):
            continue
        for line, phrase, better in findings(path):
            print(f"{path.relative_to(ROOT)}:{line}: {phrase!r}; write: {better}")
            found += 1
    print(f"{found} phrases to rewrite")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
