"""Import of optional dependencies, with an error that names the extra to install."""

from __future__ import annotations

import platform
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from types import ModuleType


def import_optional(module: str, extra: str) -> ModuleType:
    """Import a module that only an extra of skuq installs.

    Parameters
    ----------
    module : str
        Dotted name of the module, such as ``"matplotlib.pyplot"``.
    extra : str
        Name of the extra that brings the package, such as ``"plot"``.

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


def _advice(package: str, extra: str) -> str:
    """The command that installs a package, or on which Pythons its extra can, if not on this."""
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
