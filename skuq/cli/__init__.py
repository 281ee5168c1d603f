"""The ``skuq`` command."""

from skuq.cli._main import main

__all__ = ["main"]
