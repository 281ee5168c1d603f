"""Imports: of optional packages, of public names on first use, and of registered estimators.

Estimators, both built-in and third-party, are plugins: entry points of the group
``skuq.estimators``. A plugin is imported on first use. If the import fails, the error names the
plugin, and other plugins remain usable.
"""

from __future__ import annotations

import platform
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires
from types import ModuleType
from typing import Any


def shown(value: object, length: int | None = 300) -> str:
    """Format a value from an external source as one line; cut it after `length` characters.

    Control and directional characters are escaped, so that no value can imitate other output.
    """
    text = str(value)
    text = text if length is None or len(text) <= length else f"{text[:length]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def import_optional(module: str, extra: str | None) -> ModuleType:
    """Import a module; if that fails, the error says to install `extra`, or the package if None."""
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
    """Make a ``__getattr__`` that imports names on first use; `modules` lists them by module.

    Type checkers also need the imports of these names under ``if TYPE_CHECKING``.
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


GROUP = "skuq.estimators"


class PluginWarning(UserWarning):
    """A plugin of group ``skuq.estimators`` could not be used."""


@dataclass(frozen=True)
class Plugin:
    """Registered estimator; if `estimator` and `error` are None, it has not been loaded."""

    name: str
    distribution: str
    target: str  # module:attribute
    estimator: type | None = None
    error: str | None = None  # why it cannot be loaded


@cache
def _registered() -> dict[str, list[EntryPoint]]:
    """Find the entry points of each name; more than one distribution may register a name."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        same = found.setdefault(entry.name, [])
        # The same package may be found twice on the path.
        if all(entry.value != other.value for other in same):
            same.append(entry)
    return found


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown distribution"


def _conflict(name: str, entries: list[EntryPoint]) -> str:
    origins = ", ".join(f"{_distribution(e)} ({e.value})" for e in entries)
    return (
        f"Estimator {name!r} is registered more than once: {origins}. Uninstall all but one of "
        "these packages."
    )


def estimator_names() -> list[str]:
    return sorted(_registered())


def load(name: str) -> type:
    """Import one registered estimator by name.

    Raises LookupError if no plugin, or more than one, has this name, ImportError if it cannot be
    imported, and TypeError if it does not implement ``predict_uncertainty``.
    """
    entries = _registered().get(name, [])
    if not entries:
        known = ", ".join(estimator_names()) or "none"
        raise LookupError(f"No estimator {name!r} is registered; known: {known}.")
    if len(entries) > 1:
        raise LookupError(_conflict(name, entries))
    plugin = f"Plugin {name!r} of {_distribution(entries[0])} ({entries[0].value})"
    try:
        estimator = entries[0].load()
    except Exception as error:  # importing a plugin may raise any exception
        reason = f"{type(error).__name__}: {error}"
        raise ImportError(f"{plugin} cannot be imported: {reason}") from error
    if not isinstance(estimator, type) or not hasattr(estimator, "predict_uncertainty"):
        raise TypeError(
            f"{plugin} must be a class with a method `predict_uncertainty`, got {estimator!r}."
        )
    return estimator


def registered() -> list[Plugin]:
    """List every registered estimator, sorted by name, without importing any."""
    return [
        Plugin(
            name,
            ", ".join(map(_distribution, entries)),
            ", ".join(entry.value for entry in entries),
            error=_conflict(name, entries) if len(entries) > 1 else None,
        )
        for name, entries in sorted(_registered().items())
    ]


def discover() -> list[Plugin]:
    """Load every registered estimator; set ``error`` for estimators that cannot be loaded."""
    plugins = []
    for plugin in registered():
        try:
            plugins.append(replace(plugin, estimator=load(plugin.name)))
        except (ImportError, LookupError, TypeError) as error:
            plugins.append(replace(plugin, error=shown(error, None)))
    return plugins


def all_estimators() -> list[tuple[str, type]]:
    """List all built-in and third-party estimators that can be loaded.

    The list contains pairs (name, class), sorted by name. A `PluginWarning` names each plugin that
    cannot be loaded, and the reason.

    Examples
    --------
    >>> from skuq import all_estimators
    >>> "QUAMClassifier" in dict(all_estimators())
    True
    """
    usable = []
    for plugin in discover():
        if plugin.estimator is None:
            warnings.warn(str(plugin.error), PluginWarning, stacklevel=2)
        else:
            usable.append((plugin.name, plugin.estimator))
    return usable
