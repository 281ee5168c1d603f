"""What holds on other systems than Linux is held by reading the sources."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("skuq", "tests", "benchmarks", "docs", ".ci")
SCRIPTS = [ROOT / "setup.py", ROOT / "conftest.py", ROOT / ".ci" / "pythons"]
MADE = {"_build", "gallery", "generated"}  # by Sphinx
FOUND = (each for folder in FOLDERS for each in (ROOT / folder).rglob("*.py"))
# A source distribution has no `.ci`.
SOURCES = [path for path in (*FOUND, *SCRIPTS) if path.exists() and MADE.isdisjoint(path.parts)]


def opens_text(call):
    """Whether a call opens a file as text; a method `open` does if it is given no more than how."""
    function, arguments = call.func, call.args
    if isinstance(function, ast.Name) and function.id == "open":
        arguments = arguments[1:]
    elif not (isinstance(function, ast.Attribute) and function.attr == "open"):
        return False
    if any(each.arg not in ("mode", "newline", "errors") for each in call.keywords):
        return False
    modes = [*arguments, *(each.value for each in call.keywords if each.arg == "mode")]
    mode = modes[0].value if modes and isinstance(modes[0], ast.Constant) else None
    return not modes or (isinstance(mode, str) and set(mode) <= set("rwaxt+"))


def without_encoding(source):
    """Lines that read or write text in the encoding of the machine, which on Windows is another."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or any(k.arg == "encoding" for k in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if opens_text(node) or len(node.args) < {"read_text": 1, "write_text": 2}.get(name, 0):
            yield node.lineno


def test_text_without_encoding_is_seen_and_bytes_need_none():
    text = ["open(p)", "open(p, 'w')", "p.open()", "p.open('a')", "p.read_text()"]
    for line in [*text, "p.write_text(t)"]:
        assert list(without_encoding(line)) == [1], line
        named = line.replace(")", ", encoding='utf-8')").replace("(, ", "(")
        assert not list(without_encoding(named)), named
    for line in ("open(p, 'rb')", "p.open('wb')", "Image.open(p)", "tarfile.open(fileobj=f)"):
        assert not list(without_encoding(line)), line


def test_text_is_read_and_written_in_a_named_encoding():
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        if re.search(r"open\(|_text\(", source):  # parsing all takes long
            assert not list(without_encoding(source)), path
