"""Imports of optional packages, and lazy imports of public names."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from types import ModuleType
from typing import Any


def import_optional(module: str, extra: str | None) -> ModuleType:
    """Import a module; if it is missing, raise an error that says how to install it.

    Parameters
    ----------
    module : str
        Dotted name of the module, such as ``"matplotlib.pyplot"``.
    extra : str or None
        Name of the extra of skuq that installs the package, such as ``"plot"``. None for a core
        dependency, which may still be missing after an installation without dependencies.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except (ImportError, OSError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            problem = "not installed"
        else:
            problem = f"installed but cannot be imported ({type(error).__name__}: {error})"
        raise ImportError(
            f"{package} is needed for this and is {problem}; {_advice(package, extra)}",
            name=package,
        ) from error


def lazy_names(
    package: str,
    modules: Mapping[str, Sequence[str]],
    *,
    load: Callable[[str], Any] = import_module,
) -> Callable[[str], Any]:
    """Make a ``__getattr__`` that imports the names of a package on first use.

    Parameters
    ----------
    package : str
        Name of the package: ``__name__`` in its ``__init__``.
    modules : mapping of str to sequence of str
        Each module and the names that it defines. Type checkers also need the imports of these
        names under ``if TYPE_CHECKING``.
    load : callable, default=importlib.import_module
        Function that imports a module by name.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(load(homes[name]), name)

    return get


def import_networks(module: str) -> ModuleType:
    """Import a module of skuq that needs torch; without torch, the error says how to install it."""
    import_optional("torch", extra=None)
    return import_module(module)


def _advice(package: str, extra: str | None) -> str:
    """Installation advice: a command, or the platforms for which the extra provides the package."""
    if extra is None:
        return f"install it with: pip install {package}"
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        stated = [Requirement(line) for line in requires("skuq") or []]
    except PackageNotFoundError:  # skuq is on the path, but was not installed
        stated = []
    ending = f' and extra == "{extra}"'
    conditional = [
        each.marker
        for each in stated
        if canonicalize_name(each.name) == canonicalize_name(package)
        and str(each.marker).endswith(ending)
    ]
    if conditional and not any(each.evaluate({"extra": extra}) for each in conditional if each):
        conditions = (str(each).removesuffix(ending).strip("()") for each in conditional)
        return (
            f"the extra {extra!r} does not provide it for Python {platform.python_version()} on "
            f"{sys.platform} ({platform.machine()}), only where {' or '.join(conditions)}"
        )
    # This works even if skuq is not on a package index: pip resolves extras of installed packages.
    return f"install it with: pip install 'skuq[{extra}]'"
