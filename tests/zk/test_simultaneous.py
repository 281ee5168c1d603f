"""Several proofs at the same time: their number, their threads, and what an error stops."""

import threading
from functools import partial

import pytest
from joblib import cpu_count

from skuq.zk import _private_commitment as simultaneous


@pytest.mark.parametrize(
    ("n_jobs", "proofs_in_memory", "expected"),
    [(None, 0, 1), (1, 0, 1), (5, 3.5, 3), (5, 0.5, 1), (3, 9, 3), (-1, 1e6, cpu_count())],
)
def test_as_many_proofs_are_made_at_once_as_memory_holds(
    monkeypatch, n_jobs, proofs_in_memory, expected
):
    monkeypatch.setattr(simultaneous, "available_memory", lambda: int(proofs_in_memory * 2**31))
    assert simultaneous.simultaneous_proofs(n_jobs, 2.0) == expected


@pytest.mark.parametrize(("cores", "n_jobs", "share"), [(8, 1, None), (8, 3, 2), (2, 4, 1)])
def test_proofs_at_once_share_the_cores(monkeypatch, cores, n_jobs, share):
    monkeypatch.setattr(simultaneous, "cpu_count", lambda: cores)
    assert simultaneous.threads_of_each(n_jobs) == share


def test_results_are_in_order_whichever_comes_first():
    second_is_done = threading.Event()

    def first():
        assert second_is_done.wait(10)
        return "first"

    def second():
        second_is_done.set()
        return "second"

    assert simultaneous.results_of([first, second], 2, iter) == ["first", "second"]


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
        simultaneous.results_of([partial(call, k) for k in range(9)], n_threads, iter)
    assert {0, 1} <= set(begun) <= {0, 1, 2}
    assert set(ended) == set(begun) - {1}
