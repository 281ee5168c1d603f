"""Counts of proofs and pads, proofs at the same time, and calls of the proof system."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
from filelock import FileLock
from joblib import cpu_count

from skuq.zk import _ezkl as backend
from skuq.zk import _private_commitment as private_side
from skuq.zk._files import read_json, write_json
from skuq.zk._private_commitment import KINDS, Ledger, results_of, simultaneous_proofs

LOCK = "ledger.lock"
BUDGETS = {"audits": 2, "attestations": 1, "pads": 5}


@pytest.fixture
def ledger(tmp_path):
    write_json(tmp_path / "ledger.json", dict.fromkeys(KINDS, 0))
    return Ledger(tmp_path, BUDGETS)


def test_each_kind_has_a_budget_of_its_own(ledger, tmp_path):
    with pytest.raises(RuntimeError, match="left"):
        ledger.take("audits", 3)  # and no lock is left
    assert [ledger.take("audits"), ledger.take("audits")] == [0, 1]
    assert [ledger.take("pads", 3), ledger.take("pads", 2)] == [0, 3]
    for kind, n in (("audits", 1), ("pads", 1), ("attestations", 2)):
        with pytest.raises(RuntimeError, match="left"):
            ledger.take(kind, n)
    assert ledger.take("attestations") == 0
    assert read_json(tmp_path / "ledger.json") == BUDGETS
    ledger.check("attestations", 1)
    with pytest.raises(RuntimeError, match="older"):
        ledger.check("attestations", 2)


def test_a_call_that_was_killed_while_it_counted_is_in_nobodys_way(ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(private_side, "LONGEST_WAIT", 0.0)
    code = f"import filelock, os; filelock.FileLock({LOCK!r}).acquire(); os._exit(9)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == 9
    assert ledger.take("audits") == 0
    with FileLock(tmp_path / LOCK), pytest.raises(RuntimeError, match="locked"):
        ledger.take("audits")


def test_calls_at_the_same_time_take_different_pads(ledger, tmp_path):
    with ThreadPoolExecutor(5) as pool:
        taken = pool.map(lambda _: Ledger(tmp_path, BUDGETS).take("pads"), range(5))
    assert sorted(taken) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("n_jobs", "in_memory", "expected"),
    [(None, 0, 1), (1, 0, 1), (5, 3.5, 3), (5, 0.5, 1), (3, 9, 3), (-1, 1e6, cpu_count())],
)
def test_as_many_proofs_are_made_at_once_as_memory_holds(monkeypatch, n_jobs, in_memory, expected):
    monkeypatch.setattr(private_side, "available_memory", lambda: int(in_memory * 2**31))
    assert simultaneous_proofs(n_jobs, 2.0) == expected


def test_results_are_in_order_whichever_comes_first():
    second_is_done = threading.Event()

    def first():
        assert second_is_done.wait(10)
        return "first"

    assert results_of([first, second_is_done.set], 2, iter) == ["first", None]


@pytest.mark.parametrize("n_threads", [1, 2])
def test_after_an_error_no_further_call_begins_and_those_begun_end(n_threads):
    begun, ended, fails = [], [], threading.Event()

    def call(k):
        begun.append(k)
        if k == 0 and n_threads == 2:
            assert fails.wait(10)
            threading.Event().wait(0.2)  # the error is seen meanwhile
        if k == 1:
            fails.set()
            threading.Event().wait(0.01)
            raise KeyboardInterrupt
        if k > 1:
            threading.Event().wait(0.2)
        ended.append(k)

    with pytest.raises(KeyboardInterrupt):
        results_of([partial(call, k) for k in range(9)], n_threads, iter)
    assert {0, 1} <= set(begun) <= {0, 1, 2}
    assert set(ended) == set(begun) - {1}


def test_look_up_tables_are_in_a_fresh_folder_of_each_call(monkeypatch, tmp_path):
    """Those of the home folder are not checked: an altered one changes every confidence."""
    monkeypatch.setenv(backend.OWN_FOLDER, str(tmp_path))
    seen = []

    def keep(command, env, **_):
        seen.append(env[backend.OWN_FOLDER])
        assert os.listdir(seen[-1]) == []
        return SimpleNamespace(communicate=lambda timeout: ("", ""), poll=lambda: 0, returncode=0)

    monkeypatch.setattr(backend.subprocess, "Popen", keep)
    for _ in range(2):
        backend._run("setup")
    assert (
        len({*seen, os.environ[backend.OWN_FOLDER], str(tmp_path)}) == 4
    )  # also within this process
    assert not any(map(os.path.exists, seen))


def test_output_is_heard_again_after_calls_in_two_threads(capfd):
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))

    def second():
        first_is_in.wait(10)
        with backend._quiet():
            second_is_in.set()
            first_is_out.wait(10)

    thread = threading.Thread(target=second)
    thread.start()
    with backend._quiet():
        first_is_in.set()
        os.write(1, b"native")
        second_is_in.wait(0.2)  # unless it waits for its turn
    first_is_out.set()
    thread.join(10)
    os.write(1, b"heard")
    assert capfd.readouterr().out == "heard"


def test_whoever_verifies_loads_no_networks_and_the_proof_system_when_it_is_needed():
    code = "import sys, skuq.zk; sys.exit(bool({'torch', 'ezkl', 'onnx'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
