"""OOD scores of inputs; larger is more unusual."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.sparse.linalg import norm as sparse_norm
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler, normalize

from skuq._information import centred, entropy, has_conventional_offset, logsumexp
from skuq.base import FloatArray
from skuq.explanations import TrainingValues, as_table, number_columns
from skuq.features import Whitening, fit_whitening
from skuq.ood._outputs import RowOutputs

N_NEIGHBORS = 10
MOST_REFERENCES = 50_000  # maximum number of training rows in the nearest-neighbour index
_ROWS_PER_FEATURE = 5  # minimum number of rows per feature for estimating a covariance
_FEWEST_DIRECTIONS = 32  # minimum number of features of embeddings
_N_CHOICE = 2000  # maximum number of rows on which metrics are compared
# Embeddings have equal lengths if the standard deviation of the lengths, divided by their mean, is
# at most this number, which suffices for half precision.
_SAME_LENGTH = 1e-2


@dataclass(frozen=True)
class Training:
    """Training rows that scores are fitted to."""

    rows: RowOutputs
    are_columns: bool  # the features are probably table columns with different units
    codes: NDArray[np.int64] | None  # class codes, (n_samples,)
    targets: FloatArray | None  # targets of a regression, (n_samples,)
    random: np.random.RandomState  # draws rows


class Score(ABC):
    """Base class of scores that are fitted to training rows."""

    name: ClassVar[str]
    #: Name of the score's group. The surprises of a group's scores are averaged, so that the group
    #: counts as one score.
    group: ClassVar[str]

    @classmethod
    @abstractmethod
    def lacks(cls, training: Training) -> str:
        """Describe what the model or rows lack for this score; empty if the score applies."""

    @classmethod
    def of(cls, training: Training) -> Self:
        """Fit the score to training rows."""
        return cls()

    @abstractmethod
    def __call__(self, rows: RowOutputs) -> FloatArray:
        """Score rows, (n_samples,)."""


class Entropy(Score):
    """Entropy of the predicted probabilities, in nats."""

    name, group = "entropy", "model"

    @classmethod
    def lacks(cls, training: Training) -> str:
        return "" if training.rows.log_proba is not None else "a classifier"

    def __call__(self, rows: RowOutputs) -> FloatArray:
        return np.asarray(entropy(rows.log_proba))


@dataclass(frozen=True)
class Energy(Score):
    """Energy of the logits: minus the logarithm of their summed exponentials.

    Liu, Wang, Owens, Li, "Energy-based Out-of-distribution Detection", NeurIPS 2020.
    """

    name, group = "energy", "model"
    is_centred: bool  # subtract the mean logit, if the offset of logits is arbitrary

    @classmethod
    def lacks(cls, training: Training) -> str:
        known = training.rows.logits is not None or training.rows.energy is not None
        return "" if known else "a classifier with logits"

    @classmethod
    def of(cls, training: Training) -> Self:
        logits = training.rows.logits
        return cls(logits is not None and has_conventional_offset(logits))

    def __call__(self, rows: RowOutputs) -> FloatArray:
        if rows.energy is not None:
            return rows.energy
        logits = centred(rows.logits) if self.is_centred else rows.logits
        return np.asarray(-logsumexp(logits))


class _Part(Score):
    """A part of the uncertainty from a skuq estimator."""

    group = "model"

    @classmethod
    def lacks(cls, training: Training) -> str:
        if training.rows.uncertainty is None:
            return "an estimator with `predict_uncertainty`"
        return ""

    def __call__(self, rows: RowOutputs) -> FloatArray:
        part: FloatArray = getattr(rows.uncertainty, self.name)
        return part


class Total(_Part):
    """Total uncertainty."""

    name = "total"


class Epistemic(_Part):
    """Epistemic uncertainty."""

    name = "epistemic"

    @classmethod
    def lacks(cls, training: Training) -> str:
        uncertainty = training.rows.uncertainty
        if uncertainty is not None and np.isnan(uncertainty.epistemic).any():
            return "an estimator whose epistemic uncertainty is not NaN"
        return super().lacks(training)


@dataclass(frozen=True)
class Neighbors(Score):
    """Mean distance to the ten nearest training rows.

    Sun, Ming, Zhu, Li, "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022, but
    with the mean of the ten distances instead of the largest one.
    """

    name, group = "neighbors", "distance"
    embed: Callable[[Any], Any]
    search: NearestNeighbors

    @classmethod
    def lacks(cls, training: Training) -> str:
        return "" if training.rows.features is not None else "numeric features for distances"

    @classmethod
    def of(cls, training: Training) -> Self:
        chosen = training.random.permutation(training.rows.features.shape[0])[:MOST_REFERENCES]
        rows = np.sort(chosen)
        features = training.rows.features[rows]
        y = training.codes if training.codes is not None else training.targets
        metrics = [metric(features) for metric in _metrics(training)]
        if len(metrics) > 1:
            metrics = [_best_metric(metrics, features, None if y is None else y[rows], training)]
        embed = metrics[0]
        search = NearestNeighbors(n_neighbors=min(N_NEIGHBORS, features.shape[0]))
        return cls(embed, search.fit(embed(features)))

    def __call__(self, rows: RowOutputs) -> FloatArray:
        distances, _ = self.search.kneighbors(self.embed(rows.features))
        mean: FloatArray = distances.mean(axis=1, dtype=np.float64)
        return mean


def unit_length(features: Any) -> Callable[[Any], Any]:
    """Euclidean distances between vectors scaled to unit length."""
    return normalize


class Standardised:
    """Euclidean distances in units of each feature's standard deviation.

    Indicator features of categories all have the same scale, even if the category is rare: two rows
    that differ only in one category have a distance of 1.
    """

    def __init__(self, features: Any):
        # Distances do not depend on the mean, and centring would make sparse features dense.
        self.scaler = StandardScaler(with_mean=False).fit(features)
        is_indicator = np.asarray((features != features.astype(bool)).sum(axis=0) == 0).ravel()
        self.scaler.scale_[is_indicator] = np.sqrt(2)

    def __call__(self, features: Any) -> Any:
        return self.scaler.transform(features)


def _metrics(training: Training) -> list[Any]:
    """Candidate metrics for the features."""
    if training.are_columns:
        return [Standardised]
    if issparse(training.rows.features):
        return [unit_length]
    return [unit_length, Standardised]


def are_columns(rows: RowOutputs, *, learned: bool) -> bool:
    """Whether features are probably table columns: not learned, and either few or with texts."""
    if learned or rows.features is None:
        return False
    has_texts = isinstance(rows.X, pd.DataFrame) and rows.X.shape[1] > len(number_columns(rows.X))
    few = not issparse(rows.features) and rows.features.shape[1] < _FEWEST_DIRECTIONS
    return few or (has_texts and rows.X.shape[1] > 1)


def automatic(training: Training) -> dict[str, Score]:
    """Fit all informative scores that apply to the model and the inputs.

    On standardised table columns, Mahalanobis distances and scores based on the model's confidence
    are left out, because models are often most certain far from all data.
    """
    made: dict[str, Score] = {}
    chosen = [kind for kind in SCORES.values() if not kind.lacks(training)]
    if Neighbors not in chosen:
        chosen = [kind for kind in chosen if kind is not Length]
    else:
        made[Neighbors.name] = near = Neighbors.of(training)
        if isinstance(near.embed, Standardised):
            chosen = [kind for kind in chosen if kind in (Epistemic, Support)]
        else:  # with many features, even ordinary inputs have features outside the training range
            chosen = [kind for kind in chosen if kind is not Support]
    return made | {kind.name: kind.of(training) for kind in chosen if kind is not Neighbors}


def _best_metric(
    metrics: Sequence[Any], features: FloatArray, y: NDArray[Any] | None, training: Training
) -> Any:
    """Select the metric for which the nearest neighbours best predict targets of left-out rows."""
    if y is None or len(features) <= N_NEIGHBORS:
        lengths = np.linalg.norm(features, axis=1)
        return metrics[0 if lengths.std() <= _SAME_LENGTH * lengths.mean() else 1]
    some = training.random.permutation(len(features))[:_N_CHOICE]
    losses = []
    for embed in metrics:
        search = NearestNeighbors(n_neighbors=N_NEIGHBORS + 1).fit(embed(features))
        nearest = search.kneighbors(embed(features[some]), return_distance=False)[:, 1:]
        if training.codes is not None:
            losses.append((y[nearest] != y[some, None]).mean())
        else:
            losses.append(((y[nearest].mean(axis=1) - y[some]) ** 2).mean())
    return metrics[int(np.argmin(losses))]


@dataclass(frozen=True)
class RelativeMahalanobis(Score):
    """Squared Mahalanobis distance to the nearest class, minus the distance to all training rows.

    Ren, Fort, Liu, Guha Roy, Padhy, Lakshminarayanan, "A Simple Fix to Mahalanobis Distance for
    Improving Near-OOD Detection", 2021 (arXiv:2106.09022).
    """

    name, group = "mahalanobis", "distance"
    class_means: FloatArray  # whitened by `of_classes`
    of_classes: Whitening
    of_all: Whitening

    @classmethod
    def lacks(cls, training: Training) -> str:
        features, codes = training.rows.features, training.codes
        if codes is None or features is None or issparse(features):
            return "a classifier with dense numeric features"
        n, d = features.shape
        if n < _ROWS_PER_FEATURE * d or len(np.unique(codes)) < 2:
            return (
                f"{_ROWS_PER_FEATURE} training rows per feature and two classes; there are {n} "
                f"rows for {d} features and {len(np.unique(codes))} classes"
            )
        varies = any(np.ptp(features[codes == code], axis=0).any() for code in np.unique(codes))
        return "" if varies else "features that vary within classes"

    @classmethod
    def of(cls, training: Training) -> Self:
        features, codes = training.rows.features, training.codes
        assert codes is not None
        means, of_classes = fit_whitening(features, codes)
        _, of_all = fit_whitening(features, np.zeros_like(codes))
        return cls(of_classes([means]), of_classes, of_all)

    def __call__(self, rows: RowOutputs) -> FloatArray:
        own = self.of_classes([rows.features])
        # |own - m|^2 - |own|^2 for all class means m; |own|^2 is added below.
        to_class = (self.class_means**2).sum(1) - 2 * own @ self.class_means.T
        background = (self.of_all([rows.features]) ** 2).sum(axis=1)
        distance: FloatArray = (own**2).sum(axis=1) + to_class.min(axis=1) - background
        return distance


@dataclass(frozen=True)
class Support(Score):
    """Number of columns with an unseen category or a number far out of range."""

    name, group = "support", "support"
    values: TrainingValues

    @classmethod
    def lacks(cls, training: Training) -> str:
        X = training.rows.X
        return "" if np.ndim(X) == 2 and not issparse(X) else "table rows"

    @staticmethod
    def table(rows: RowOutputs) -> pd.DataFrame:
        """Columns whose values are compared with those of training rows."""
        return as_table(rows.X)

    @classmethod
    def of(cls, training: Training) -> Self:
        table = cls.table(training.rows)
        return cls(TrainingValues.of_rows(table, number_columns(table)))

    def __call__(self, rows: RowOutputs) -> FloatArray:
        marks = self.values.unsupported(self.table(rows))
        return marks.to_numpy().sum(axis=1).astype(np.float64)


class Length(Support):
    """1 if the norm of the features is far out of the training inputs' range, else 0.

    Distances between vectors of unit length do not depend on the norm.
    """

    name = "length"

    @classmethod
    def lacks(cls, training: Training) -> str:
        return "" if training.rows.features is not None else "numeric features with a norm"

    @staticmethod
    def table(rows: RowOutputs) -> pd.DataFrame:
        norm = sparse_norm if issparse(rows.features) else np.linalg.norm
        return pd.DataFrame({"length": np.asarray(norm(rows.features, axis=1), dtype=np.float64)})


_ALL = (Entropy, Energy, Total, Epistemic, Neighbors, RelativeMahalanobis, Support, Length)
SCORES: dict[str, type[Score]] = {score.name: score for score in _ALL}
