"""Errors of tables."""


class TableError(ValueError):
    """The table cannot be used as it is; the message says what to change."""
