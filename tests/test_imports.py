"""Optional imports: what comes back, and what the errors say."""

import math
import platform
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from skuq import imports
from skuq.imports import import_optional


@pytest.fixture
def broken_package(tmp_path, monkeypatch):
    """A function that writes an importable package whose import runs the given line."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, line):
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text(line + "\n", encoding="utf-8")
        return name

    return write


def test_an_installed_module_or_submodule_is_returned():
    assert import_optional("math", extra="plot") is math
    assert import_optional("importlib.metadata", extra="plot").__name__ == "importlib.metadata"


def test_a_missing_package_names_the_extra_and_chains_the_cause():
    expected = r"absent_package .*not installed; .*pip install 'skuq\[graph\]'"
    with pytest.raises(ImportError, match=expected) as caught:
        import_optional("absent_package.inner", extra="graph")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert caught.value.name == "absent_package"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("raise OSError('libtorch_9.so not found')", OSError),
        ("raise FileNotFoundError('no C library')", FileNotFoundError),
        ("from math import nothing_there", ImportError),
        ("import absent_dependency", ModuleNotFoundError),
    ],
)
def test_a_package_that_is_present_but_broken_shows_the_cause(broken_package, line, cause):
    name = broken_package(f"broken_{cause.__name__.lower()}", line)
    with pytest.raises(ImportError, match=rf"cannot be imported \({cause.__name__}: ") as caught:
        import_optional(name, extra="graph")
    assert type(caught.value.__cause__) is cause
    assert str(caught.value.__cause__) in str(caught.value)
    assert "skuq[graph]" in str(caught.value)
    assert "not installed" not in str(caught.value)


def test_a_bug_in_the_package_is_not_disguised_as_an_import_problem(broken_package):
    with pytest.raises(ZeroDivisionError):
        import_optional(broken_package("buggy_package", "1 / 0"), extra="graph")


STATED = [
    'absent-package<2; (python_version < "3") and extra == "graph"',
    'absent-package<2; (python_version < "3") and extra == "all"',
    'other-package; (python_version >= "3") and extra == "graph"',
    'absent-package; extra == "plot"',
]


def test_no_command_is_named_where_the_extra_cannot_bring_the_package(monkeypatch):
    monkeypatch.setattr(imports, "requires", lambda _: STATED)
    place = f"Python {platform.python_version()} on {sys.platform} ({platform.machine()})"
    with pytest.raises(ImportError, match=r"'graph' .*only where python_version < \"3\"") as caught:
        import_optional("absent_package", extra="graph")
    assert place in str(caught.value)
    assert "pip install" not in str(caught.value)


def test_a_command_is_named_where_it_works_or_nothing_is_known(monkeypatch):
    def absent(_):
        raise PackageNotFoundError  # skuq is on the path, and not installed

    for stated, package, extra in (
        (lambda _: STATED, "other_package", "graph"),
        (lambda _: STATED, "absent_package", "plot"),
        (lambda _: STATED, "another_package", "graph"),
        (absent, "absent_package", "graph"),
    ):
        monkeypatch.setattr(imports, "requires", stated)
        with pytest.raises(ImportError, match=rf"pip install 'skuq\[{extra}\]'"):
            import_optional(package, extra=extra)
