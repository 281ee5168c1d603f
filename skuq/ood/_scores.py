"""OOD scores of inputs (larger is more unusual), and their combination."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.sparse.linalg import norm as sparse_norm
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.utils import check_consistent_length, gen_batches

from skuq._information import centred, entropy, has_conventional_offset, logsumexp
from skuq.base import FloatArray
from skuq.calibration import conformal_p_values, count_at_least, first_at_least
from skuq.explanations import TrainingValues, as_table, number_columns
from skuq.features import BATCH_SIZE, SAMPLES_PER_FEATURE, Whitening, fit_whitening
from skuq.files import stored
from skuq.ood._outputs import RowOutputs
from skuq.validation import finite, independent_counts

N_NEIGHBORS = 10
MOST_REFERENCES = 50_000  # maximum number of training rows in the nearest-neighbour index
_FEWEST_DIRECTIONS = 32  # fewer features than this do not count as an embedding
_N_CHOICE = 2000  # maximum number of rows on which metrics are compared
# Embeddings have equal lengths if the standard deviation of the lengths, divided by their mean, is
# at most this number.
_SAME_LENGTH = 1e-2
_SHARE_OF_TAIL = 0.1
_LARGEST = 1e100  # largest score and largest surprise; replaces NaN and larger values
_N_FOLDS = 10  # number of cross-validation folds of the held-out inputs


@dataclass(frozen=True)
class Training:
    """Training rows that scores are fitted to."""

    rows: RowOutputs
    are_columns: bool  # whether the features are probably table columns, with different units
    codes: NDArray[np.int64] | None  # class codes, (n_samples,)
    targets: FloatArray | None  # targets of a regression, (n_samples,)
    random: np.random.RandomState  # generator with which scores draw subsets of rows


class Score:
    """Base class of scores that are fitted to training rows."""

    name: str
    # The surprises of a group's scores are averaged, so that the group counts as one score.
    group: str

    @classmethod
    def lacks(cls, training: Training) -> str:
        """Describe what the model or rows lack for this score; empty if the score applies."""
        raise NotImplementedError

    @classmethod
    def of(cls, training: Training) -> Self:
        """Fit the score to training rows."""
        return cls()

    def __call__(self, rows: RowOutputs) -> FloatArray:
        """Score rows, (n_samples,)."""
        raise NotImplementedError


@dataclass(frozen=True)
class OfUser(Score):
    """Score that a user's function of the inputs returns; it forms its own group."""

    name: str
    function: Callable[[Any], Any]

    @property
    def group(self) -> str:  # type: ignore[override]
        return f"given: {self.name}"

    def __call__(self, rows: RowOutputs) -> FloatArray:
        values = finite(self.function(rows.X), f"the score {self.name}")
        check_consistent_length(rows.X, values)
        return values


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
    is_centred: bool  # whether to subtract the mean logit, which removes an arbitrary offset

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


class Total(Score):
    """Total uncertainty from a skuq estimator."""

    name, group = "total", "model"

    @classmethod
    def lacks(cls, training: Training) -> str:
        has_parts = training.rows.uncertainty is not None
        return "" if has_parts else "an estimator with `predict_uncertainty`"

    def __call__(self, rows: RowOutputs) -> FloatArray:
        part: FloatArray = getattr(rows.uncertainty, self.name)
        return part


class Epistemic(Total):
    """Epistemic uncertainty from a skuq estimator."""

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
        features, n_rows = training.rows.features, training.rows.features.shape[0]
        rows: Any = np.sort(training.random.permutation(n_rows)[:MOST_REFERENCES])
        rows = rows if len(rows) < n_rows else slice(None)  # a slice avoids a copy
        features = features[rows]
        if training.are_columns:
            embed: Any = Standardised(features)
        elif issparse(features):
            embed = normalize  # scale to unit length, for distances that depend only on angles
        else:
            y = training.codes if training.codes is not None else training.targets
            embed = _best_metric(features, None if y is None else y[rows], training)
        search = NearestNeighbors(n_neighbors=min(N_NEIGHBORS, features.shape[0]))
        return cls(embed, search.fit(embed(features)))

    def __call__(self, rows: RowOutputs) -> FloatArray:
        distances, _ = self.search.kneighbors(self.embed(rows.features))
        mean: FloatArray = distances.mean(axis=1, dtype=np.float64)
        return mean


class Standardised:
    """Scale columns to unit variance, and indicator columns so that categories have distance 1."""

    def __init__(self, features: Any):
        # Distances do not depend on the mean, and centring would make sparse features dense.
        self.scaler, n_others = StandardScaler(with_mean=False), 0
        for rows in gen_batches(features.shape[0], BATCH_SIZE // 8):
            self.scaler.partial_fit(features[rows])
            n_others += (features[rows] != features[rows].astype(bool)).sum(axis=0)
        self.scaler.scale_[np.asarray(n_others == 0).ravel()] = np.sqrt(2)

    def __call__(self, features: Any) -> Any:
        return self.scaler.transform(features)


def are_columns(rows: RowOutputs, *, learned: bool) -> bool:
    """Whether features are probably table columns: not learned, and either few or partly texts."""
    if learned or rows.features is None:
        return False
    has_texts = isinstance(rows.X, pd.DataFrame) and rows.X.shape[1] > len(number_columns(rows.X))
    few = not issparse(rows.features) and rows.features.shape[1] < _FEWEST_DIRECTIONS
    return few or (has_texts and rows.X.shape[1] > 1)


def automatic(training: Training) -> dict[str, Score]:
    """Fit all informative scores that apply to the model and the inputs.

    On table columns, Mahalanobis distances and scores based on the model's confidence are left out,
    because models are often most certain far from all data.
    """
    chosen = [kind for kind in SCORES.values() if not kind.lacks(training)]
    if training.are_columns:
        chosen = [kind for kind in chosen if kind in (Neighbors, Epistemic, Support)]
    elif Neighbors in chosen:  # some of many features are out of range for ordinary inputs, too
        chosen = [kind for kind in chosen if kind is not Support]
    return {kind.name: kind.of(training) for kind in chosen}


def _best_metric(features: FloatArray, y: NDArray[Any] | None, training: Training) -> Any:
    metrics = [normalize, Standardised(features)]
    if y is None or len(features) <= N_NEIGHBORS:
        lengths = np.linalg.norm(features, axis=1)
        return metrics[int(lengths.std() > _SAME_LENGTH * lengths.mean())]
    some = training.random.permutation(len(features))[:_N_CHOICE]
    losses = []
    for embed in metrics:
        search = NearestNeighbors(n_neighbors=N_NEIGHBORS + 1).fit(embed(features))
        nearest = search.kneighbors(embed(features[some]), return_distance=False)[:, 1:]
        del search  # free the copy of the features in it, before the next copy is made
        if training.codes is not None:
            losses.append((y[nearest] != y[some, None]).mean())
        else:
            losses.append(((y[nearest].mean(axis=1) - y[some]) ** 2).mean())
    return metrics[int(np.argmin(losses))]


@dataclass(frozen=True)
class RelativeMahalanobis(Score):
    """Squared Mahalanobis distance to the nearest class mean, minus that to the overall mean.

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
        if n < SAMPLES_PER_FEATURE * d or len(np.unique(codes)) < 2:
            return (
                f"{SAMPLES_PER_FEATURE} training rows per feature and two classes; there are {n} "
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
        batches = gen_batches(len(rows.features), BATCH_SIZE // 8)
        return np.concatenate([self._distance(rows.features[batch]) for batch in batches])

    def _distance(self, features: FloatArray) -> FloatArray:
        own = self.of_classes([features])
        # |own - m|^2 - |own|^2 for all class means m; |own|^2 is added below.
        to_class = (self.class_means**2).sum(1) - 2 * own @ self.class_means.T
        background = (self.of_all([features]) ** 2).sum(axis=1)
        distance: FloatArray = (own**2).sum(axis=1) + to_class.min(axis=1) - background
        return distance


@dataclass(frozen=True)
class Support(Score):
    """Number of columns with an unseen category, or a number far outside the training range."""

    name, group = "support", "support"
    values: TrainingValues

    @classmethod
    def lacks(cls, training: Training) -> str:
        X = training.rows.X
        return "" if np.ndim(X) == 2 and not issparse(X) else "table rows"

    @staticmethod
    def table(rows: RowOutputs) -> pd.DataFrame:
        """Return the columns whose values are compared with values of training rows."""
        return as_table(rows.X)

    @classmethod
    def of(cls, training: Training) -> Self:
        table = cls.table(training.rows)
        return cls(TrainingValues.of_rows(table, number_columns(table)))

    def __call__(self, rows: RowOutputs) -> FloatArray:
        marks = self.values.marks(self.table(rows)).unsupported
        return marks.sum(axis=1).astype(np.float64)


class Length(Support):
    """1 if the norm is far outside the training range, else 0; unit vectors do not show norms."""

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


def _bounded(scores: FloatArray) -> FloatArray:
    """Clip scores to finite values; replace NaN and overflow by the most unusual score."""
    known = np.nan_to_num(np.asarray(scores, np.float64), nan=_LARGEST)
    return known.clip(-_LARGEST, _LARGEST)


@stored("ood.tail")
@dataclass(frozen=True)
class Tail:
    """Surprise at a score: the negative log of its p-value among the held-out scores.

    Beyond their 90 % quantile, the surprise grows linearly, as if the largest tenth were
    exponentially distributed. Scores above all held-out scores thus have different surprises.
    """

    ordered: NDArray[np.float64]  # scores of the held-out inputs, ascending, (n_held_out,)
    start: float  # score at which the tail starts
    share: float  # fraction of the held-out scores in the tail
    scale: float  # mean distance of the tail's scores from `start`

    @classmethod
    def of(cls, held_out: FloatArray) -> Self:
        """Fit the tail to the scores of held-out inputs, (n_held_out,)."""
        ordered = np.sort(_bounded(held_out))
        start = float(np.quantile(ordered, 1 - _SHARE_OF_TAIL))
        above = ordered[ordered > start]
        share = (len(above) + 1) / (len(ordered) + 1)
        if len(above):
            return cls(ordered, start, share, float((above - start).mean()))
        # Here, all scores in the tail are equal, which can happen with counts.
        return cls(ordered, start, share, float(ordered.std()) or 1.0)

    def surprise(self, scores: FloatArray) -> FloatArray:
        """Compute the surprise at each score, (n,), in nats."""
        scores, n = _bounded(scores), len(self.ordered)
        at_least = 1 + n - first_at_least(scores, self.ordered)
        with np.errstate(over="ignore"):
            beyond = (scores - self.start) / self.scale - np.log(self.share)
        surprise = np.where(scores > self.start, beyond, -np.log(at_least / (1 + n)))
        return np.minimum(surprise, _LARGEST)


@stored("ood.combination")
@dataclass(frozen=True)
class Combination:
    """A statistic of several scores, compared with the statistic of held-out inputs.

    The mean squared surprise of each group of scores (such as all scores computed from logits) is
    summed over groups. One large surprise outweighs small surprises in all groups.

    An input is compared with the held-out inputs of each fold by tails fitted without this fold;
    neither the input nor the fold affects these tails (CV+). `single_p_values` uses no folds.
    """

    groups: dict[str, str]  # group of each score
    tails: dict[str, Tail]  # tail for each score, which computes its surprise
    folds: NDArray[np.int64]  # fold of each held-out input, (n_held_out,)
    tails_of_folds: list[dict[str, Tail]]  # for each fold, tails fitted to all other folds
    held_out: NDArray[np.float64]  # statistic of the held-out inputs, (n_held_out,)
    counts: FloatArray  # number of independent samples that each held-out input counts as
    # Classes of the held-out inputs; the false alarm rate holds within each of them.
    codes: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        scores: Mapping[str, FloatArray],
        groups: Mapping[str, str],
        codes: NDArray[np.int64] | None = None,
        weight: FloatArray | None = None,
        units: NDArray[np.int64] | None = None,
    ) -> Self:
        """Fit to scores of held-out inputs, (n_held_out,) each; equal `units` are in one fold."""
        n_rows = len(next(iter(scores.values())))
        units = np.arange(n_rows) if units is None else np.unique(units, return_inverse=True)[1]
        counts = independent_counts(weight, units)
        codes = np.zeros(n_rows, dtype=np.int64) if codes is None else codes
        tails, folds = {n: Tail.of(each) for n, each in scores.items()}, units % _N_FOLDS
        whole = cls(dict(groups), tails, folds, [], np.empty(0), counts, codes)
        held_out = np.full(n_rows, _LARGEST**2)
        # Cross-validation needs two folds. With a single fold, statistics stay at their maximum.
        for fold in np.unique(folds):
            own = folds == fold
            if own.all():
                whole.tails_of_folds.append(tails)
                break
            whole.tails_of_folds.append({n: Tail.of(each[~own]) for n, each in scores.items()})
            part = {n: each[own] for n, each in scores.items()}
            held_out[own] = whole._statistic(part, whole.tails_of_folds[-1])
        return replace(whole, held_out=held_out)

    def statistic(self, scores: Mapping[str, FloatArray]) -> FloatArray:
        """Sum, over groups, the mean squared surprise within each group, (n,)."""
        return self._statistic(scores, self.tails)

    def _statistic(self, scores: Mapping[str, FloatArray], tails: Mapping[str, Tail]) -> FloatArray:
        by_group: dict[str, list[FloatArray]] = {}
        for name, tail in tails.items():
            by_group.setdefault(self.groups[name], []).append(tail.surprise(scores[name]) ** 2)
        total: FloatArray = np.sum([np.mean(each, axis=0) for each in by_group.values()], axis=0)
        return total

    def surprises(self, scores: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Compute the surprise at each score separately, (n,) each, in nats."""
        return {name: tail.surprise(scores[name]) for name, tail in self.tails.items()}

    def p_values(self, scores: Mapping[str, FloatArray]) -> FloatArray:
        """Compute p-values, (n,): the largest over classes if there are several classes."""
        classes = np.unique(self.codes)
        at_least = np.ones((len(classes), len(next(iter(scores.values())))))
        for fold, tails in zip(np.unique(self.folds), self.tails_of_folds, strict=True):
            statistic = self._statistic(scores, tails)
            for row, code in enumerate(classes):
                own = (self.folds == fold) & (self.codes == code)
                at_least[row] += count_at_least(statistic, self.held_out[own], self.counts[own])
        return np.max([row / n for row, n in zip(at_least, self._totals, strict=True)], axis=0)

    def ranks(self, scores: Mapping[str, FloatArray]) -> FloatArray:
        """Lower p-values, (n,), by less than 1e-9 so that the statistic breaks ties."""
        surprise = np.log1p(self.statistic(scores))
        return self.p_values(scores) - 1e-9 * (surprise / (1 + surprise))

    def single_p_values(self, scores: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Compute conformal p-values of each score separately, (n,) each."""
        tails = self.tails.items()
        return {n: conformal_p_values(_bounded(scores[n]), tail.ordered) for n, tail in tails}

    @property
    def smallest_p_value(self) -> float:
        """Smallest possible p-value of an input."""
        return float(1 / min(self._totals))

    @property
    def _totals(self) -> list[Any]:
        return [1 + self.counts[self.codes == code].sum() for code in np.unique(self.codes)]
