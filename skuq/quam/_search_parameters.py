"""The parameters of the search, which QUAM's classifier and regressor share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _num_samples
from tqdm.auto import tqdm

from skuq.models import resolve_device
from skuq.quam._search_problem import SearchProblem, SearchSettings, penalty_schedule


class Automatic(NamedTuple):
    """Values of parameters that are "auto".

    Attributes
    ----------
    n_steps : int
        Steps of each search.
    c0 : float or None
        First penalty; None is a tenth of the number of training samples.
    growth, decay : float
        Factors by which, over all steps, the penalty grows and the step size shrinks.
    batch_size : int
        Rows of a mini-batch.
    """

    n_steps: int
    c0: float | None
    growth: float
    decay: float
    batch_size: int


# With the mean over a pool, a penalty c gives the pool a weight of 1 / c of the training data. It
# falls from a tenth to a hundredth, while steps shorten tenfold so that the last models settle.
POOL = Automatic(n_steps=200, c0=10.0, growth=10.0, decay=10.0, batch_size=512)


@dataclass(kw_only=True, eq=False, repr=False)
class SearchParameters:
    """Parameters of the search, as `QUAMClassifier` documents them.

    A dataclass writes the `__init__` that scikit-learn's conventions ask for: one explicit
    keyword for each parameter, which it assigns and nothing else.
    """

    search: str = "pool"
    pool: Any = "auto"
    pool_shares: Any = (0.1, 0.3)
    setting: str = "expected"
    mixture: str = "trajectory"
    parameters: Any = "auto"
    n_steps: int | str = "auto"
    c0: float | str = "auto"
    eta: float | str = "auto"
    update_every: int = 1
    gamma: float = 0.01
    learning_rate: float = 0.1
    learning_rate_decay: float | str = "auto"
    prior_precision: float = 0.0
    temperature: float | str = "auto"
    train_batch_size: int | str = "auto"
    batch_size: int = 8
    device: str | torch.device = "auto"
    n_jobs: int | None = None
    random_state: Any = None
    verbose: int = 0

    # With c = n_samples in the end, a search for one test point minimises the negative log
    # posterior of the training set and one sample more, the point with the targeted class.
    _automatic: ClassVar[dict[str, Automatic]] = {
        "pointwise": Automatic(n_steps=100, c0=None, growth=10.0, decay=1.0, batch_size=256),
        "pool": POOL,
    }
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "search": [StrOptions({"pool", "pointwise"})],
        "pool": [StrOptions({"auto"}), callable],
        "pool_shares": ["array-like"],
        "setting": [StrOptions({"selected", "expected"})],
        "mixture": [StrOptions({"trajectory", "dirac"})],
        "parameters": [StrOptions({"auto", "all", "linear", "last", "bias", "norm"}), callable],
        "n_steps": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "c0": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "eta": [Interval(Real, 1, None, closed="left"), StrOptions({"auto"})],
        "update_every": [Interval(Integral, 1, None, closed="left")],
        "gamma": [Interval(Real, 0, None, closed="left")],
        "learning_rate": [Interval(Real, 0, 10, closed="right")],
        "learning_rate_decay": [Interval(Real, 1, None, closed="left"), StrOptions({"auto"})],
        "prior_precision": [Interval(Real, 0, None, closed="left")],
        "temperature": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "train_batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "device": [str, torch.device],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def _settings(self, problem: SearchProblem) -> SearchSettings:
        """Settings of the searches."""
        auto = self._automatic[self.search]
        n_steps = auto.n_steps if self.n_steps == "auto" else int(self.n_steps)
        c0 = float(self.c0) if self.c0 != "auto" else auto.c0 or problem.total_weight / 10
        updates = max((n_steps - 1) // self.update_every, 1)
        eta, decay = (
            auto_total ** (1 / updates) if given == "auto" else float(given)
            for given, auto_total in (
                (self.eta, auto.growth),
                (self.learning_rate_decay, auto.decay),
            )
        )
        schedule = penalty_schedule(
            n_steps,
            c0=c0,
            eta=eta,
            update_every=self.update_every,
            learning_rate=self.learning_rate,
            decay=decay,
        )
        device = resolve_device(self.device)
        return SearchSettings(schedule, self.prior_precision, self._train_batch_size, device)

    @property
    def _train_batch_size(self) -> int:
        size = self.train_batch_size
        return self._automatic[self.search].batch_size if size == "auto" else int(size)

    def _run(
        self, job: Callable[..., Any], batches: Sequence[Any], *arguments: Any
    ) -> list[NDArray[Any]]:
        """Call ``job(batch, *arguments)`` in `n_jobs` processes, and join the arrays it returns."""
        jobs = (delayed(job)(batch, *arguments) for batch in batches)
        n_points = sum(_num_samples(batch.x) for batch in batches)
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
