"""The parameters of the search, which QUAM's classifier and regressor share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor
from tqdm.auto import tqdm

from skuq.models import resolve_device
from skuq.quam._importance_sampling import ImportanceSampling
from skuq.quam._search_problem import (
    FittedSearch,
    SearchProblem,
    SearchSettings,
    penalty_schedule,
)


@dataclass(kw_only=True, eq=False, repr=False)
class SearchParameters:
    """Parameters of the search, as `QUAMClassifier` documents them.

    A dataclass writes the `__init__` that scikit-learn's conventions ask for: one explicit
    keyword for each parameter, which it assigns and nothing else.
    """

    setting: str = "selected"
    mixture: str = "trajectory"
    parameters: Any = "all"
    n_steps: int = 100
    c0: float | str = "auto"
    eta: float | str = "auto"
    update_every: int = 1
    gamma: float = 0.01
    learning_rate: float = 0.1
    learning_rate_decay: float = 1.0
    prior_precision: float = 0.0
    temperature: float | str = "auto"
    train_batch_size: int = 256
    batch_size: int = 8
    device: str | torch.device = "auto"
    n_jobs: int | None = None
    random_state: Any = None
    verbose: int = 0

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "setting": [StrOptions({"selected", "expected"})],
        "mixture": [StrOptions({"trajectory", "dirac"})],
        "parameters": [StrOptions({"all", "last", "bias", "norm"}), callable],
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "c0": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "eta": [Interval(Real, 1, None, closed="left"), StrOptions({"auto"})],
        "update_every": [Interval(Integral, 1, None, closed="left")],
        "gamma": [Interval(Real, 0, None, closed="left")],
        "learning_rate": [Interval(Real, 0, 10, closed="right")],
        "learning_rate_decay": [Interval(Real, 1, None, closed="left")],
        "prior_precision": [Interval(Real, 0, None, closed="left")],
        "temperature": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "train_batch_size": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "device": [str, torch.device],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def _settings(self, problem: SearchProblem) -> SearchSettings:
        """Settings of the searches."""
        # With c = total_weight a search minimises the negative log posterior of the training
        # set and one sample more, the test point with the targeted class.
        updates = max((self.n_steps - 1) // self.update_every, 1)
        schedule = penalty_schedule(
            self.n_steps,
            c0=problem.total_weight / 10 if self.c0 == "auto" else float(self.c0),
            eta=10 ** (1 / updates) if self.eta == "auto" else float(self.eta),
            update_every=self.update_every,
            learning_rate=self.learning_rate,
            decay=self.learning_rate_decay,
        )
        device = resolve_device(self.device)
        return SearchSettings(schedule, self.prior_precision, self.train_batch_size, device)

    def _importance_sampling(self, problem: SearchProblem) -> ImportanceSampling:
        """Weights of the models that the searches meet."""
        # The likelihood of a mini-batch, which is that of all samples if they fit into one.
        share = min(1, self.train_batch_size / len(problem.X))
        automatic = 1 / (share * problem.total_weight)
        temperature = automatic if self.temperature == "auto" else float(self.temperature)
        return ImportanceSampling(self.setting, self.mixture, temperature, self.gamma)

    def _batches(
        self, search: FittedSearch, inputs: Tensor, reference: Tensor
    ) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Test points as they reach the layers that move, and outputs of the reference model."""
        x = search.features(inputs, resolve_device(self.device)).numpy()
        outputs = reference.numpy()
        return [(x[rows], outputs[rows]) for rows in gen_batches(len(x), self.batch_size)]

    def _run(
        self, job: Callable[..., Any], batches: Sequence[Any], *arguments: Any
    ) -> list[NDArray[Any]]:
        """Call ``job(batch, *arguments)`` in `n_jobs` processes, and join the arrays it returns."""
        jobs = (delayed(job)(batch, *arguments) for batch in batches)
        n_points = sum(len(batch.x) for batch in batches)
        parts = []
        # Gradients need ordinary tensors.
        with (
            torch.inference_mode(False),
            tqdm(total=n_points, desc="QUAM", unit="input", disable=not self.verbose) as bar,
        ):
            for part in Parallel(n_jobs=self.n_jobs, return_as="generator")(jobs):
                bar.update(len(part[0]))
                parts.append(part)
        return list(map(np.concatenate, zip(*parts, strict=True)))
