"""Optional imports: what comes back, and what the errors say."""

import math
import platform
import re
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


def test_an_installed_module_is_returned():
    assert import_optional("math", extra="plot") is math


def test_a_submodule_is_returned_and_not_its_package():
    assert import_optional("importlib.metadata", extra="plot").__name__ == "importlib.metadata"


def test_a_missing_package_names_the_extra_and_chains_the_cause():
    expected = (
        "absent_package is needed for this and is not installed; "
        "install it with: pip install 'skuq[graph]'"
    )
    with pytest.raises(ImportError, match=f"^{re.escape(expected)}$") as caught:
        import_optional("absent_package.inner", extra="graph")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert caught.value.name == "absent_package"


@pytest.mark.parametrize(
    ("line", "cause", "shown"),
    [
        ("raise OSError('libtorch_9.so not found')", OSError, "OSError: libtorch_9.so not found"),
        (
            "raise FileNotFoundError('no C library')",
            FileNotFoundError,
            "FileNotFoundError: no C library",
        ),
        ("from math import nothing_there", ImportError, "ImportError: cannot import name"),
        (
            "import absent_dependency",
            ModuleNotFoundError,
            "ModuleNotFoundError: No module named 'absent_dependency'",
        ),
    ],
)
def test_a_package_that_is_present_but_broken_shows_the_cause(broken_package, line, cause, shown):
    name = broken_package(f"broken_{cause.__name__.lower()}", line)
    with pytest.raises(ImportError, match=re.escape(f"cannot be imported ({shown}")) as caught:
        import_optional(name, extra="graph")
    assert type(caught.value.__cause__) is cause
    assert "skuq[graph]" in str(caught.value)
    assert "not installed" not in str(caught.value)


def test_a_bug_in_the_package_is_not_disguised_as_an_import_problem(broken_package):
    name = broken_package("buggy_package", "1 / 0")
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        import_optional(name, extra="graph")


STATED = [
    'absent-package<2; (python_version < "3") and extra == "graph"',
    'absent-package<2; (python_version < "3") and extra == "all"',
    'other-package; (python_version >= "3") and extra == "graph"',
    'absent-package; extra == "plot"',
]


def test_no_command_is_named_where_the_extra_cannot_bring_the_package(monkeypatch):
    monkeypatch.setattr(imports, "requires", lambda _: STATED)
    expected = (
        f"'graph' does not provide it for Python {platform.python_version()} on {sys.platform} "
        f'({platform.machine()}), only where python_version < "3"'
    )
    with pytest.raises(ImportError, match=re.escape(expected)) as caught:
        import_optional("absent_package", extra="graph")
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize(
    ("package", "extra"),
    [("other_package", "graph"), ("absent_package", "plot"), ("another_package", "graph")],
)
def test_a_command_is_named_where_it_works_or_nothing_is_known(monkeypatch, package, extra):
    monkeypatch.setattr(imports, "requires", lambda _: STATED)
    with pytest.raises(ImportError, match=re.escape(f"pip install 'skuq[{extra}]'")):
        import_optional(package, extra=extra)


def test_a_command_is_named_where_skuq_is_on_the_path_and_not_installed(monkeypatch):
    def absent(_):
        raise PackageNotFoundError

    monkeypatch.setattr(imports, "requires", absent)
    with pytest.raises(ImportError, match=re.escape("pip install 'skuq[graph]'")):
        import_optional("absent_package", extra="graph")
