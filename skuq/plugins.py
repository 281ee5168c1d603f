"""Discovery of estimators through the entry points of group ``skuq.estimators``.

Built-in and third-party estimators are registered in the same way. A plugin is imported on first
use, and one that cannot be imported is reported by name without affecting the others.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points

GROUP = "skuq.estimators"

__all__ = [
    "Plugin",
    "PluginWarning",
    "all_estimators",
    "discover",
    "estimator_names",
    "load",
    "registered",
]


class PluginWarning(UserWarning):
    """A plugin of group ``skuq.estimators`` could not be used."""


@dataclass(frozen=True)
class Plugin:
    """A registered estimator, its origin, and the class or the reason why it does not load.

    Attributes
    ----------
    name : str
        Name of the estimator, the name of its entry point.
    distribution : str
        Installed distribution that registered it.
    target : str
        ``module:attribute`` the entry point refers to.
    estimator : type or None
        The class; None if it was not loaded.
    error : str or None
        Why it cannot be loaded; None if nothing is known to be wrong.
    """

    name: str
    distribution: str
    target: str
    estimator: type | None = None
    error: str | None = None


@cache
def _registered() -> dict[str, list[EntryPoint]]:
    """Entry points by name; a name claimed by several distributions keeps them all."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        same = found.setdefault(entry.name, [])
        # A package that is visible twice on the path is still one package.
        if all(entry.value != other.value for other in same):
            same.append(entry)
    return found


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown distribution"


def _rivalry(name: str, entries: list[EntryPoint]) -> str:
    rivals = ", ".join(f"{_distribution(e)} ({e.value})" for e in entries)
    return (
        f"Estimator {name!r} is registered more than once: {rivals}. Uninstall all but one of them."
    )


def estimator_names() -> list[str]:
    """Names of all registered estimators, sorted; nothing is imported."""
    return sorted(_registered())


def load(name: str) -> type:
    """Import one registered estimator by name.

    Parameters
    ----------
    name : str
        Name of an entry point of group ``skuq.estimators``.

    Returns
    -------
    type
        The estimator class.

    Raises
    ------
    LookupError
        If no plugin, or more than one, has this name.
    ImportError
        If the plugin cannot be imported; the message names it and its distribution.
    TypeError
        If the registered object does not implement ``predict_uncertainty``.
    """
    entries = _registered().get(name, [])
    if not entries:
        known = ", ".join(estimator_names()) or "none"
        raise LookupError(f"No estimator {name!r} is registered; known: {known}.")
    if len(entries) > 1:
        raise LookupError(_rivalry(name, entries))
    (entry,) = entries
    try:
        estimator = entry.load()
    except Exception as error:
        # The import of a plugin may raise anything; the user needs the plugin's name.
        raise ImportError(
            f"Plugin {name!r} of {_distribution(entry)} ({entry.value}) cannot be "
            f"imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(estimator, type) or not hasattr(estimator, "predict_uncertainty"):
        raise TypeError(
            f"Plugin {name!r} of {_distribution(entry)} ({entry.value}) must be a class "
            f"with a method `predict_uncertainty`, got {estimator!r}."
        )
    return estimator


def registered() -> list[Plugin]:
    """List every registered estimator without importing any.

    Returns
    -------
    list of Plugin
        Sorted by name. None is loaded; ``error`` tells of names that are registered twice, and
        of nothing else.

    Examples
    --------
    >>> from skuq.plugins import registered
    >>> {plugin.name: plugin.target for plugin in registered()}["QUAMClassifier"]
    'skuq.quam:QUAMClassifier'
    """
    return [
        Plugin(
            name,
            ", ".join(map(_distribution, entries)),
            ", ".join(entry.value for entry in entries),
            error=_rivalry(name, entries) if len(entries) > 1 else None,
        )
        for name, entries in sorted(_registered().items())
    ]


def discover() -> list[Plugin]:
    """Load every registered estimator that can be loaded.

    Returns
    -------
    list of Plugin
        Sorted by name; ``error`` has the reason of those that failed.
    """
    plugins = []
    for plugin in registered():
        try:
            plugins.append(replace(plugin, estimator=load(plugin.name)))
        except (ImportError, LookupError, TypeError) as error:
            plugins.append(replace(plugin, error=str(error)))
    return plugins


def all_estimators() -> list[tuple[str, type]]:
    """List every estimator that can be used here, built-in or third-party.

    Returns
    -------
    list of (str, type)
        Name and class, sorted by name.

    Warns
    -----
    PluginWarning
        For each plugin that cannot be loaded, naming it and the reason.

    Examples
    --------
    >>> from skuq import all_estimators
    >>> "QUAMClassifier" in dict(all_estimators())
    True
    """
    usable = []
    for plugin in discover():
        if plugin.estimator is None:
            warnings.warn(f"{plugin.error}", PluginWarning, stacklevel=2)
        else:
            usable.append((plugin.name, plugin.estimator))
    return usable
