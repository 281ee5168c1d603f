"""The reference lists what can be imported from the public packages, and nothing else."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import skuq

DOCS = Path(__file__).parent.parent / "docs"
API = DOCS / "api.rst"
# Pages that explain what packages offer, to users and to each other.
PAGES = [*DOCS.glob("*.rst"), *DOCS.glob("guide/*.rst"), *DOCS.glob("examples/*.py")]
MODULE = re.compile(r"^\.\. (?:module|currentmodule):: (\S+)$")
DATA = re.compile(r"^\.\. py:data:: (\S+)$")
NAME = re.compile(r"^   (\w+)$")


def listed():
    """Names in the reference by package."""
    names, package = {}, None
    for line in API.read_text(encoding="utf-8").splitlines():
        if found := MODULE.match(line):
            package = found[1]
            names.setdefault(package, set())
        elif found := DATA.match(line) or NAME.match(line):
            names[package].add(found[1])
    return names


@pytest.mark.parametrize("package", sorted(listed()))
def test_the_reference_lists_what_a_package_exports(package):
    names = set(import_module(package).__all__)
    if package != "skuq":
        names -= set(skuq.__all__)  # listed once, where users import them from
    assert listed()[package] == names


def test_every_public_package_is_in_the_reference():
    folder = Path(skuq.__file__).parent
    packages = {f"skuq.{path.parent.name}" for path in folder.glob("[a-z]*/__init__.py")}
    assert packages - {"skuq.cli", "skuq.baselines"} <= set(
        listed()
    )  # a command; estimators of skuq


@pytest.mark.parametrize("package", sorted(listed()))
def test_a_page_explains_every_public_name(package):
    pages = [page for page in (*PAGES, DOCS.parent / "README.md") if page != API]
    words = set(re.findall(r"\w+", " ".join(page.read_text(encoding="utf-8") for page in pages)))
    assert not set(import_module(package).__all__) - words
