"""Maximisation of the marginal likelihood, shared by `RobustGPC` and `RobustGPRegressor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import Kernel
from tqdm.auto import tqdm

from skuq.gpc.inference._hyperparameters import (
    Maximum,
    evidence_at,
    evidence_of_kernels,
    maximise_evidence,
)
from skuq.gpc.inference._laplace import Evidence
from skuq.validation import refuse_ineffective, warn_user

_NOTED_JITTER = 1e-6  # relative to the mean of the diagonal; larger jitter causes a warning


class EvidenceSearchMixin:
    """Optimisation of the kernel's hyperparameters, and attributes that the optimisation sets."""

    optimizer: str | None
    max_iter: int
    n_restarts: int
    verbose: int

    def _refuse_ineffective(self, kernel: Kernel) -> None:
        """Reject limits of the hyperparameter search if there is nothing to optimise."""
        context = None
        if self.optimizer is None:
            context = "with optimizer=None, which keeps the kernel fixed; use optimizer='lbfgs'."
        elif not len(kernel.theta):
            context = "with a kernel whose hyperparameters are all fixed; set bounds for some."
        if context is not None:
            refuse_ineffective(self, ["max_iter", "n_restarts"], context)

    def _search(
        self,
        kernel: Kernel,
        evidence: Callable[..., Evidence],
        prior: Callable[[Any], Any],
        random: np.random.RandomState,
    ) -> Maximum:
        """Maximise the evidence over kernels; without an optimizer, evaluate the given kernel."""
        total = self.max_iter * (1 + self.n_restarts)
        with tqdm(total=total, desc=type(self).__name__, disable=not self.verbose) as bar:
            objective = evidence_of_kernels(evidence, prior, self.optimizer is not None, bar)
            if self.optimizer is None:
                return Maximum(kernel, evidence_at(objective, kernel), 1, "")
            return maximise_evidence(
                objective,
                kernel,
                max_iter=self.max_iter,
                n_restarts=self.n_restarts,
                rng=np.random.default_rng(random.randint(np.iinfo(np.int32).max)),
            )

    def _keep(self, best: Maximum) -> None:
        evidence = best.evidence
        self.kernel_ = best.kernel
        self.log_marginal_likelihood_ = float(evidence.value)
        self.n_iter_, self.jitter_ = best.n_evaluations, float(evidence.jitter)
        if not evidence.converged:
            warn_user(
                "The approximation of the posterior did not converge, and predictions may be "
                "inaccurate. Try a different kernel or inference='laplace'.",
                ConvergenceWarning,
            )
        if self.jitter_ > _NOTED_JITTER:
            warn_user(
                f"The covariance is close to singular: {self.jitter_:.0e} of its diagonal was "
                "added to factorise it. Check for duplicate inputs and very long length-scales.",
                ConvergenceWarning,
            )
