"""Metadata of the package: bounds, markers, the text that an index shows."""

import json
import re
import runpy
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# Of these, what setup.py asks for is in constraints.txt; of torch, `.ci/pythons` runs the lowest.
TOOLS = ["Sphinx", "numpydoc", "pydata-sphinx-theme", "sphinx-copybutton", "sphinx-design"]
TOOLS += ["sphinx-gallery", "torch"]
NO_RUN = {"pyod"}  # only a benchmark takes it


@pytest.fixture(scope="module")
def metadata():
    given = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", lambda **settings: given.update(settings))
        patch.chdir(ROOT)
        runpy.run_path("setup.py")
    return given


@pytest.fixture(scope="module")
def requirements(metadata):
    stated = [metadata["install_requires"], *metadata["extras_require"].values()]
    return [Requirement(each) for part in stated for each in part]


def pins(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_lower_bounds_are_the_versions_that_oldest_installs(requirements):
    oldest, tools = pins("constraints-oldest.txt"), pins("constraints.txt")
    for each in requirements:
        found = re.search(r"[>=]=([\d.]+)", str(each.specifier))[1]
        if each.name == "torch" or each.name in NO_RUN or "darwin" in str(each.marker):
            continue
        expected = tools if each.name in TOOLS else oldest
        assert found == expected[each.name], each.name


PLACES = {
    "linux": {"sys_platform": "linux", "platform_machine": "x86_64"},
    "arm": {"sys_platform": "linux", "platform_machine": "aarch64"},
    "mac": {"sys_platform": "darwin", "platform_machine": "arm64"},
    "windows": {"sys_platform": "win32", "platform_machine": "AMD64"},
}
# Packages without a wheel: where extras must not ask for them.
NO_WHEEL = {
    "dgl": {*product(["3.12", "3.13", "3.14"], PLACES), ("3.11", "windows")},
    "ezkl": {*product(["3.11", "3.12", "3.13", "3.14"], ["arm"])},
    "xgboost-cpu": {*product(["3.11", "3.12", "3.13", "3.14"], ["mac"])},
}


@pytest.mark.parametrize("name", NO_WHEEL)
def test_extras_ask_for_a_package_where_it_has_a_wheel(requirements, name):
    asked = [each.marker for each in requirements if each.name == name]
    assert len(asked) > 2  # extras contain extras
    for python, place in product(["3.11", "3.12", "3.13", "3.14"], PLACES):
        environment = {"python_version": python, **PLACES[place]}
        expected = (python, place) not in NO_WHEEL[name]
        assert {marker.evaluate(environment) for marker in asked} == {expected}, (python, place)


def test_one_of_the_two_builds_of_xgboost_is_asked_for(metadata):
    stated = map(Requirement, metadata["extras_require"]["boosting"])
    markers = [each.marker for each in stated if each.name.startswith("xgboost")]
    assert all(sum(each.evaluate(place) for each in markers) == 1 for place in PLACES.values())


def test_an_index_can_show_the_description_and_files_that_it_links_exist(metadata):
    text = metadata["long_description"]
    assert all(each.startswith("https:") for each in re.findall(r"\]\(([^)]*)\)", text))
    assert not re.search(r"`[\w./]+\.(rst|md)`", text)  # names of files that an index does not have
    assert text.startswith("# skuq\n")
    assert "Two moons. Left" not in text  # the caption of a picture that is not there
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = [each for each in re.findall(r"\]\(([^)]*)\)", text) if "://" not in each]
    assert len(targets) > 3
    assert not [each for each in targets if not (ROOT / each).exists()]


def test_classifiers_name_the_pythons_that_ran(metadata):
    runs = json.loads((ROOT / "docs" / "pythons.json").read_text(encoding="utf-8"))
    ran = ["3.11", *(each["python"].rpartition(".")[0] for each in runs)]
    version = "Programming Language :: Python :: 3."
    named = [each for each in metadata["classifiers"] if each.startswith(version)]
    assert [each.rpartition(" ")[2] for each in named] == ran
    # The record holds no failure, and nothing of the machine that it was made on.
    assert not re.search(r"https?:|/(?:home|root|var|tmp|work|usr)\b", json.dumps(runs))
    for run in runs:
        assert run["tests"]["failed"] == 0
        assert run["tests"]["passed"] > 4000


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("skuq --version", "skuq, version"),
        # Messages of missing packages name extras, and skuq is on no index.
        ("pip install --no-index --dry-run skuq[skops]", "already satisfied: skuq[skops]"),
    ],
)
def test_the_package_runs_as_a_module_and_pip_takes_its_extras_without_an_index(command, word):
    command = [sys.executable, "-m", *command.split()]
    assert word in subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
