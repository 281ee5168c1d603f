"""Large parameters, such as graphs and fitted models, that clones share."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

from skuq.models import is_fitted


class SharedParametersMixin:
    """Cloning that keeps large parameters as they are.

    scikit-learn's `clone` would copy a graph, and reset an estimator that is fitted.
    """

    _shared: tuple[str, ...] = ("graph",)

    def __sklearn_clone__(self: Any) -> Any:
        params = self.get_params(deep=False)
        copied = {
            name: value if self._is_shared(name, value) else clone(value, safe=False)
            for name, value in params.items()
        }
        twin = type(self)(**copied)
        if hasattr(self, "_metadata_request"):
            twin._metadata_request = self._metadata_request
        return twin

    def _is_shared(self, name: str, value: Any) -> bool:
        """An estimator that is yet to be trained is copied: its settings may be searched."""
        untrained = hasattr(value, "get_params") and not is_fitted(value)
        return name in self._shared and not untrained
