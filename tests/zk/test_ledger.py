"""Counts of proofs and pads, with budgets of their own."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from skuq.zk._files import read_json
from skuq.zk._private_commitment import Ledger, start_ledger

BUDGETS = {"audits": 2, "attestations": 1, "pads": 5}


@pytest.fixture
def private(tmp_path):
    folder = tmp_path / "private"
    folder.mkdir()
    start_ledger(folder)
    return folder


def ledger_of(private):
    return Ledger(private, BUDGETS)


def test_each_kind_has_a_budget_of_its_own(private):
    ledger = ledger_of(private)
    assert [ledger.take("audits"), ledger.take("audits")] == [0, 1]
    assert ledger.take("pads", 3) == 0
    assert ledger.take("pads", 2) == 3
    for kind, n in (("audits", 1), ("pads", 1), ("attestations", 2)):
        with pytest.raises(RuntimeError, match="left"):
            ledger.take(kind, n)
    assert ledger.take("attestations") == 0
    assert read_json(private / "ledger.json") == BUDGETS


def test_a_call_that_was_killed_while_it_counted_is_in_nobodys_way(private):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom skuq.zk._private_commitment import Ledger\n"
        f"with Ledger(Path(sys.argv[1]), {BUDGETS})._locked():\n    os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(private)], check=False)
    assert done.returncode == 9
    assert ledger_of(private).take("audits") == 0


def test_calls_at_the_same_time_take_different_pads(private):
    with ThreadPoolExecutor(5) as pool:
        taken = pool.map(lambda _: ledger_of(private).take("pads"), range(5))
    assert sorted(taken) == [0, 1, 2, 3, 4]


def test_a_count_that_is_held_too_long_is_named(private, monkeypatch):
    monkeypatch.setattr("skuq.zk._private_commitment.LONGEST_WAIT", 0.0)
    ledger = ledger_of(private)
    with ledger._locked(), pytest.raises(RuntimeError, match="is locked by another process"):
        ledger.take("audits")


def test_what_was_seen_elsewhere_is_compared(private):
    ledger = ledger_of(private)
    ledger.take("attestations")
    ledger.check("attestations", 1)
    with pytest.raises(RuntimeError, match="is an older copy"):
        ledger.check("attestations", 2)


def test_an_error_leaves_no_lock(private):
    with pytest.raises(RuntimeError, match="left"):
        ledger_of(private).take("audits", 3)
    assert ledger_of(private).take("audits", 2) == 0
