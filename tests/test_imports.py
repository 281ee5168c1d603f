"""Optional imports: what comes back, and what the errors say."""

import importlib.metadata
import platform
import sys

import pytest

from skuq import imports
from skuq.imports import import_optional


def test_an_installed_module_or_submodule_is_returned():
    assert import_optional("importlib.metadata", extra="plot") is importlib.metadata


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
        ("1 / 0", ZeroDivisionError),
    ],
)
def test_a_package_that_is_present_but_broken_shows_the_cause(tmp_path, monkeypatch, line, cause):
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"broken_{cause.__name__.lower()}"
    (tmp_path / f"{name}.py").write_text(line, encoding="utf-8")
    if cause is ZeroDivisionError:  # no problem of an import
        with pytest.raises(cause):
            import_optional(name, extra="graph")
        return
    with pytest.raises(ImportError, match=rf"cannot be imported \({cause.__name__}: ") as caught:
        import_optional(name, extra="graph")
    assert type(caught.value.__cause__) is cause
    assert str(caught.value.__cause__) in str(caught.value)
    assert "skuq[graph]" in str(caught.value)
    assert "not installed" not in str(caught.value)


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
        raise importlib.metadata.PackageNotFoundError  # skuq is on the path, and not installed

    for stated, package, extra in (
        (lambda _: STATED, "other_package", "graph"),
        (lambda _: STATED, "absent_package", "plot"),
        (lambda _: STATED, "another_package", "graph"),
        (absent, "absent_package", "graph"),
    ):
        monkeypatch.setattr(imports, "requires", stated)
        with pytest.raises(ImportError, match=rf"pip install 'skuq\[{extra}\]'"):
            import_optional(package, extra=extra)
