"""Import of optional dependencies, with an error that names the extra to install."""

from __future__ import annotations

from importlib import import_module
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
            f"{package} is needed for this and is {problem}; "
            f"install it with: pip install 'skuq[{extra}]'",
            name=package,
        ) from error
