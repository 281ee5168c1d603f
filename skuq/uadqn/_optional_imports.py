"""Import of the modules that need stable-baselines3, when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from skuq.extras import import_optional


def rl_module(name: str) -> Any:
    """Import ``skuq.uadqn.<name>``.

    Raises
    ------
    ImportError
        If a package of extra ``rl`` is missing; the message names the extra.
    """
    for package in ("gymnasium", "stable_baselines3", "sb3_contrib"):
        import_optional(package, extra="rl")
    return import_module(f"skuq.uadqn.{name}")
