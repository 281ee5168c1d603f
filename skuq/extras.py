"""Imports that wait: of packages that may be missing, and of names until they are used."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from types import ModuleType
from typing import Any


def import_optional(module: str, extra: str | None) -> ModuleType:
    """Import a module that may be missing, such as one that only an extra of skuq installs.

    Parameters
    ----------
    module : str
        Dotted name of the module, such as ``"matplotlib.pyplot"``.
    extra : str or None
        Name of the extra that brings the package, such as ``"plot"``; None for a package of the
        core, which is missing all the same where somebody left it out.

    Returns
    -------
    module
        The imported module.

    Raises
    ------
    ImportError
        If the package is missing, or present but broken (some packages then raise
        `OSError` for a library they cannot load). The original error is its cause.
        Where the extra cannot bring the package on this Python and platform, the message says
        on which it does.

    Examples
    --------
    >>> from skuq.extras import import_optional
    >>> import_optional("no_such_package.part", extra="plot")
    Traceback (most recent call last):
    ImportError: no_such_package is needed for this and is not installed; install it with: \
pip install 'skuq[plot]'
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
    """Make the ``__getattr__`` of a package, some of whose names are imported on first use.

    Parameters
    ----------
    package : str
        The package, ``__name__`` in its ``__init__``.
    modules : mapping of str to sequence of str
        Names by the module that has them. Type checkers need an import of the same names under
        ``if TYPE_CHECKING``.
    load : callable, default=importlib.import_module
        Imports a module by its name.

    Returns
    -------
    callable
        It returns the object of a name, or raises `AttributeError`.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(load(homes[name]), name)

    return get


def import_networks(module: str) -> ModuleType:
    """Import a module of skuq that computes with torch, or tell that torch is missing."""
    import_optional("torch", extra=None)
    return import_module(module)


def _advice(package: str, extra: str | None) -> str:
    """The command that installs a package, or on which Pythons its extra can, if not on this."""
    if extra is None:
        return f"install it with: pip install {package}"
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        stated = [Requirement(line) for line in requires("skuq") or []]
    except PackageNotFoundError:  # the files are on the path, but were not installed
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
            f"the extra {extra!r} has no build of it for Python {platform.python_version()} on "
            f"{sys.platform} ({platform.machine()}), only where {' or '.join(conditions)}"
        )
    # It works though skuq is on no index: pip takes the extras of a package that is installed.
    return f"install it with: pip install 'skuq[{extra}]'"
