"""Memory that is free."""

from types import SimpleNamespace

import psutil

from skuq import devices
from skuq.devices import available_memory


def test_free_memory_is_that_of_the_machine_or_less(monkeypatch):
    machine = psutil.virtual_memory()
    assert 1e6 < available_memory() <= machine.total
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine._replace(available=12_345))
    assert available_memory() == 12_345
    monkeypatch.setattr(devices, "resource", None)  # as on Windows
    assert available_memory() == 12_345


def test_a_limit_of_addresses_is_a_limit_of_memory(monkeypatch):
    limit = psutil.Process().memory_info().vms + 10**8
    resource = SimpleNamespace(RLIMIT_AS=9, RLIM_INFINITY=-1, getrlimit=lambda _: (limit, limit))
    monkeypatch.setattr(devices, "resource", resource)
    assert 0 < available_memory() <= 10**8
