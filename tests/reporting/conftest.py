"""An audit of faked confidence."""

import pytest

from tests.reporter import drawn_audit


@pytest.fixture(scope="module")
def faked():
    return drawn_audit("third")
