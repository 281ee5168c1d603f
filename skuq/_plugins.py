"""Discovery of estimators through the entry points of group ``skuq.estimators``.

Built-in and third-party estimators are all registered in this group. A plugin is imported on first
use. If the import fails, the error names the plugin, and other plugins remain usable.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points

GROUP = "skuq.estimators"


class PluginWarning(UserWarning):
    """A plugin of group ``skuq.estimators`` could not be used."""


@dataclass(frozen=True)
class Plugin:
    """Registered estimator: its class, or the reason why it cannot be loaded.

    `distribution` registered `name` for the object `target`, written ``module:attribute``. Without
    `estimator` and `error`, it has not been loaded.
    """

    name: str
    distribution: str
    target: str
    estimator: type | None = None
    error: str | None = None


@cache
def _registered() -> dict[str, list[EntryPoint]]:
    """Entry points of each name: several if more than one distribution registers the name."""
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
    """Sorted names of all registered estimators; none of them is imported."""
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
    (entry,) = entries
    try:
        estimator = entry.load()
    except Exception as error:
        # Importing a plugin may raise any exception; the message must name the plugin.
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
    """Load every registered estimator; ``error`` is set for those that cannot be loaded."""
    plugins = []
    for plugin in registered():
        try:
            plugins.append(replace(plugin, estimator=load(plugin.name)))
        except (ImportError, LookupError, TypeError) as error:
            plugins.append(replace(plugin, error=str(error)))
    return plugins


def all_estimators() -> list[tuple[str, type]]:
    """List all built-in and third-party estimators that can be loaded.

    Returns
    -------
    list of (str, type)
        Name and class, sorted by name.

    Warns
    -----
    PluginWarning
        For each plugin that cannot be loaded, with its name and the reason.

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
