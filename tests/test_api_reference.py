"""The reference lists what can be imported from the public packages, and nothing else."""

import re
from importlib import import_module
from pathlib import Path

import skuq

DOCS = Path(__file__).parent.parent / "docs"
API = DOCS / "api.rst"
MODULE = re.compile(r"^\.\. (?:module|currentmodule):: (\S+)$")
DATA = re.compile(r"^\.\. py:data:: (\S+)$")
NAME = re.compile(r"^   (\w+)$")


def listed():
    names, package = {}, None
    for line in API.read_text(encoding="utf-8").splitlines():
        if found := MODULE.match(line):
            package = found[1]
            names.setdefault(package, set())
        elif found := DATA.match(line) or NAME.match(line):
            names[package].add(found[1])
    return names


def test_the_reference_lists_what_packages_export():
    exported = {package: set(import_module(package).__all__) for package in listed()}
    for package in exported.keys() - {"skuq"}:
        exported[package] -= exported["skuq"]  # listed once, where users import them from
    assert listed() == exported


def test_every_public_package_is_in_the_reference():
    folder = Path(skuq.__file__).parent
    packages = {f"skuq.{path.parent.name}" for path in folder.glob("[a-z]*/__init__.py")}
    # One is a command, and the estimators of the other are names of skuq.
    assert packages - {"skuq.cli", "skuq.baselines"} <= set(listed())
