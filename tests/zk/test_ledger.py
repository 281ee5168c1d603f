"""Counts of proofs and pads: budgets of their own, kept in two places."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from skuq.zk._files import read_json, write_json
from skuq.zk._private_commitment import STATE_HOME, Ledger, start_ledger

BUDGETS = {"audits": 2, "attestations": 1, "pads": 5}


@pytest.fixture
def private(tmp_path, monkeypatch):
    monkeypatch.setenv(STATE_HOME, str(tmp_path / "state"))
    folder = tmp_path / "private"
    folder.mkdir()
    start_ledger(folder)
    return folder


def ledger_of(private):
    return Ledger(private, "0" * 64, BUDGETS)


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


def test_a_folder_restored_from_a_backup_counts_nothing_more(private, tmp_path):
    backup = shutil.copytree(private, tmp_path / "backup")
    ledger_of(private).take("audits")
    with pytest.raises(RuntimeError, match="is an older copy"):
        ledger_of(backup).take("attestations")
    ledger_of(private).take("attestations")


def test_a_count_that_was_interrupted_before_the_second_place_goes_on(private):
    write_json(private / "ledger.json", {"audits": 1, "attestations": 0, "pads": 0})
    assert ledger_of(private).take("audits") == 1


def test_a_call_that_was_killed_while_it_counted_is_in_nobodys_way(private):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom skuq.zk._private_commitment import Ledger\n"
        f"with Ledger(Path(sys.argv[1]), 'x', {BUDGETS})._locked():\n    os._exit(9)"
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


def test_a_second_place_that_cannot_be_written_to_is_said(private, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(STATE_HOME, str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="second copy of the proof ledger cannot be written"):
        assert ledger_of(private).take("audits") == 0


def test_an_error_leaves_no_lock(private):
    with pytest.raises(RuntimeError, match="left"):
        ledger_of(private).take("audits", 3)
    assert ledger_of(private).take("audits", 2) == 0
