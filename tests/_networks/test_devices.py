"""Choice of devices, seeds, memory, and what is kept on a device, as far as no GPU is needed."""

import pickle
from copy import copy, deepcopy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from skuq._networks import HeldOnDevice, on_device, resolve_device, seeded, within_memory


def test_a_seed_holds_inside_the_block_alone_and_starts_no_gpu_that_nobody_uses(monkeypatch):
    state, drawn = torch.get_rng_state(), []
    for _ in range(2):
        with seeded(1):
            drawn.append(torch.rand(3))
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*drawn)

    def start(*_):
        raise AssertionError("CUDA was started")

    seeds = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", start)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    torch.manual_seed(7)
    with seeded(1):
        pass
    assert seeds[-2:] == [1, 7]  # should it start later, it has the user's seed


@pytest.mark.parametrize(("n_hidden", "expected"), [(100, "cpu"), (10_000, "cuda")])
def test_auto_depends_on_the_size_of_a_network(monkeypatch, n_hidden, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    net = nn.Sequential(nn.Linear(4, n_hidden), nn.Linear(n_hidden, 3))
    assert resolve_device("auto", net).type == expected
    assert resolve_device("auto").type == "cuda"
    assert resolve_device("cpu", net).type == "cpu"
    monkeypatch.undo()
    assert (resolve_device("auto").type == "cuda") == torch.cuda.is_available()


def test_what_is_held_on_a_device_is_made_once_has_its_own_memory_and_is_not_copied_along():
    values = np.zeros(3)
    tensor = on_device(values, "cpu")
    values[:] = 1
    assert not tensor.any()
    held = Held((1.0, 2.0))
    assert held.on("cpu") is held.on(torch.device("cpu"))
    for other in (copy(held), deepcopy(held), pickle.loads(pickle.dumps(held))):
        assert other.values == held.values
        assert other.on("cpu") is not held.on("cpu")
    assert replace(held, values=(3.0,)).on("cpu").tolist() == [3.0]
    assert vars(held) == {"values": (1.0, 2.0)}


def test_work_starts_again_with_half_the_memory_until_it_fits():
    tried = []

    def work(n_bytes):
        tried.append(n_bytes)
        if n_bytes > 3 * 2**20:
            raise torch.OutOfMemoryError("out of memory")
        return n_bytes

    with pytest.warns(UserWarning, match="ran out") as warned:
        assert within_memory(work, "cpu") == 2**21
    assert [n / 2**20 for n in tried] == [16, 8, 4, 2]
    assert len(warned) == 3


ALLOCATION = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"


@pytest.mark.filterwarnings("ignore:The memory of")
@pytest.mark.parametrize(
    ("said", "error", "n_tries"),
    [(ALLOCATION, torch.OutOfMemoryError, 5), ("shapes", RuntimeError, 1)],
)
def test_work_that_never_fits_names_what_to_set_and_other_errors_are_raised(said, error, n_tries):
    def work(n_bytes):
        tried.append(n_bytes)
        raise RuntimeError(said)

    tried = []
    with pytest.raises(error, match="device='cpu'" if n_tries > 1 else said) as raised:
        within_memory(work, "cpu")
    assert type(raised.value) is error
    assert len(tried) == n_tries


@dataclass(frozen=True)
class Held(HeldOnDevice):
    values: tuple

    def _copy_to(self, device):
        return torch.tensor(self.values, device=device)
