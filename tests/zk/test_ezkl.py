"""The proof system: loaded when it is needed, and in a folder of its own, not the home folder."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("ezkl")

from skuq.zk import _ezkl as backend


def test_look_up_tables_are_in_a_fresh_folder_of_each_call(monkeypatch, tmp_path):
    """Those of the home folder are not checked: an altered one changes every confidence."""
    monkeypatch.setenv(backend.OWN_FOLDER, str(tmp_path))
    seen = []

    def keep(command, env, **_):
        folder = env[backend.OWN_FOLDER]
        seen.append((folder, os.listdir(folder)))
        return SimpleNamespace(communicate=lambda timeout: ("", ""), poll=lambda: 0, returncode=0)

    monkeypatch.setattr(backend.subprocess, "Popen", keep)
    for _ in range(2):
        backend._run("setup")
    (first, files), (second, _) = seen
    assert first != second
    assert files == []
    assert not os.path.exists(first)
    assert not os.path.exists(second)
    own = os.environ[backend.OWN_FOLDER]  # of calls within this process
    assert own not in (str(tmp_path), first, second)


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
