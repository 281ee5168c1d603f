"""Synthetic data sets of the papers, and a synthetic table of loans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import validate_params

from skuq.base import FloatArray

# Uncertainty region in `make_gaussian_classes`: lower and upper bound of each feature.
GAUSSIAN_REGION = {0: (2.0, 2.75), 1: (0.0, 1.5)}
_JOBS, _HOMES = ("office", "workshop", "care", "self-employed"), ("owned", "rented", "shared")


@validate_params(
    {"n_samples": ["array-like"], "random_state": ["random_state"]},
    prefer_skip_nested_validation=True,
)
def make_gaussian_classes(
    n_samples: tuple[int, int, int] = (1000, 1000, 100), *, random_state: Any = None
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Draw the three Gaussian classes of the Mirage paper (Appendix D.1).

    Parameters
    ----------
    n_samples : tuple of int, default=(1000, 1000, 100)
        Number of samples of each class.
    random_state : int, RandomState instance or None, default=None
        Source of randomness.

    Returns
    -------
    X : ndarray of shape (n_samples, 2), float64
        Inputs. Samples of class 0 in `GAUSSIAN_REGION` are far from the other classes.
    y : ndarray of shape (n_samples,), int64
        Classes 0 to 2.

    References
    ----------
    Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse of Model
    Abstention", ICML 2025.

    Examples
    --------
    >>> from skuq.datasets import make_gaussian_classes
    >>> X, y = make_gaussian_classes(random_state=0)
    >>> X.shape, y.shape
    ((2100, 2), (2100,))
    """
    if np.shape(n_samples) != (3,):
        raise ValueError(f"`n_samples` must be three integers, one per class, got {n_samples}.")
    rng = check_random_state(random_state)
    means = [(3.0, 2.0), (5.0, 5.0), (3.0, 4.0)]
    covariances = [[[1.0, 0.8], [0.8, 1.0]], [[1.0, -0.8], [-0.8, 1.0]], 0.1 * np.eye(2)]
    classes = [
        rng.multivariate_normal(mean, covariance, n)
        for mean, covariance, n in zip(means, covariances, n_samples, strict=True)
    ]
    return np.concatenate(classes), np.repeat(np.arange(3), n_samples)


def make_heteroscedastic(
    n_samples: int = 1000, *, random_state: Any = None
) -> tuple[FloatArray, FloatArray]:
    """Draw the heteroscedastic regression data of the Mirage paper (Eq. 17 to 19).

    Parameters
    ----------
    n_samples : int, default=1000
        Number of samples.
    random_state : int, RandomState instance or None, default=None
        Source of randomness.

    Returns
    -------
    X : ndarray of shape (n_samples, 1), float64
        Inputs, uniform on [-4, 4].
    y : ndarray of shape (n_samples,), float64
        ``sin(2 x) + 0.3 x^2 - 0.4 x + 1`` with noise of standard deviation
        ``0.2 + 0.8 exp(-(x / 1.5)^2)``.

    References
    ----------
    Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse of Model
    Abstention", ICML 2025, Appendix C.4.2. The paper does not state the range of the inputs.

    Examples
    --------
    >>> from skuq.datasets import make_heteroscedastic
    >>> X, y = make_heteroscedastic(50, random_state=0)
    >>> X.shape, y.shape
    ((50, 1), (50,))
    """
    rng = check_random_state(random_state)
    x = rng.uniform(-4, 4, size=n_samples)
    noise = (0.2 + 0.8 * np.exp(-((x / 1.5) ** 2))) * rng.normal(size=n_samples)
    return x[:, None], np.sin(2 * x) + 0.3 * x**2 - 0.4 * x + 1 + noise


def make_loans(
    n_samples: int = 1000, *, random_state: int | np.random.Generator | None = None
) -> tuple[pd.DataFrame, NDArray[np.str_]]:
    """Draw a synthetic table of loans, classified by whether they were repaid in time.

    The log-odds of being late increase with the ratio of amount to income and decrease with the
    years in the job. They are 1.5 higher for homeowners and 1.5 lower for the self-employed.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of rows.
    random_state : int, Generator or None, default=None
        Source of randomness.

    Returns
    -------
    X : DataFrame of shape (n_samples, 6)
        Numeric columns: age, years in the job, monthly income and amount. Categorical columns: kind
        of job and home.
    y : ndarray of shape (n_samples,), str
        "repaid" or "late".

    Examples
    --------
    >>> X, y = make_loans(200, random_state=0)
    >>> list(X), sorted(set(y.tolist()))
    (['age', 'years in job', 'income', 'amount', 'job', 'home'], ['late', 'repaid'])
    """
    random = np.random.default_rng(random_state)
    age = random.uniform(18, 75, size=n_samples)
    years = (age - 18) * random.beta(1.5, 2.5, size=n_samples)
    job, home = (random.choice(names, size=n_samples) for names in (_JOBS, _HOMES))
    income = np.exp(random.normal(7.6 + 0.015 * years + 0.2 * (job == "office"), 0.25))
    amount = income * random.gamma(3, 1.5, size=n_samples)
    burden = amount / income - 4.5 + 1.5 * (home == "owned") - 1.5 * (job == "self-employed")
    late = random.uniform(size=n_samples) < 1 / (1 + np.exp(2 - burden + 0.1 * years))
    X = pd.DataFrame(
        {"age": age, "years in job": years, "income": income, "amount": amount}
        | {"job": job, "home": home}
    )
    categories = {"job": pd.CategoricalDtype([*_JOBS]), "home": pd.CategoricalDtype([*_HOMES])}
    return X.round(1).astype(categories), np.where(late, "late", "repaid")
