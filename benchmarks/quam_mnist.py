"""Detection of OOD images around the QUAM paper's own LeNets.

    python -m benchmarks.quam_mnist --protocol mixed --share .5 --ood fashion_mnist --n 500

For each run of ``quam_lenet_mnist.npz`` the first network is the base model, and all ten are the
deep ensemble. A batch contains ``2 n`` images (fewer if a data set is too small): a share from a
data set NAME, and MNIST's test images. There are two protocols:

- ``mixed``: QUAM searches on the unlabelled batch itself (`search_pool`), never on a single data
  set;
- ``inductive``: QUAM's models were found by `fit` on a pool generated from the training images, or,
  as "quam-pool-NAME" with ``--other-pools``, on a pool of ``n`` images of NAME and as many held-out
  images; the batch is new.

"auroc", "aupr" and "fpr95", with OOD images as positives, use the epistemic part for QUAM and the
total for all other methods. "energy" is the energy of the logits; "neighbours" and "mahalanobis"
are `FeatureDistanceClassifier`, with distances from the training images in the inputs of the first
linear layer and of the last layer. "auroc_total", "auroc_epistemic" and so on use the other part,
and "auroc_selected" uses the epistemic part by the paper's Eq. 2, relative to the base model, in
batches that are half OOD. "sg-mcmc" is one chain of cyclical Hamiltonian Monte Carlo: five cycles,
each a pass over the training images, with four models each. Batches with small shares are repeated
until a hundred OOD images have been scored. "quam-pointwise" searches for each image separately, at
.7 seconds each, "quam-pointwise-equal" likewise with equal effort, steps that shrink and the
default temperature, "quam-quadratic" in closed form, "quam-quadratic-N" only for the N most
probable classes, and "mola" is a mixture of "laplace" around each of the ten networks; these run
only on request. ``mean_rank`` is over runs, data sets and shares, without quam-pool-NAME; ``n`` is
the number of values in a mean. With ``--out`` the result for each base model is stored.

At share 0 the batch has no OOD images: ``false_alarms`` is the share of the batch whose score
exceeds the 95 % quantile of held-out images, which are from MNIST's training set but not from the
training data. A search changes the scores of the images in its pool, so the held-out images are
part of the pool, as they would be in practice; ``false_alarms_outside`` is the rate if they are
not.
"""

import hashlib
import math
import time
from copy import copy
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import entropy
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator

from benchmarks.data_files import load_npz
from benchmarks.evidential_methods import LogitUncertainty
from benchmarks.harness import finish, kept_run, parser, record, set_threads
from benchmarks.lenets import Images, in_linear_layers, load_images, networks, sequential
from skuq import QUAMClassifier, Uncertainty, UncertaintyMixin
from skuq.baselines import (
    DeepEnsembleClassifier,
    FeatureDistanceClassifier,
    LaplaceClassifier,
    MCDropoutClassifier,
    ReferenceClassifier,
    SGMCMCClassifier,
)
from skuq.metrics import detection_metrics
from skuq.quam import PointwiseSearch, PoolSearch

METHODS = (
    "quam-pool",
    "entropy",
    "ensemble",
    "energy",
    "mahalanobis",
    "neighbours",
    "mc-dropout",
    "laplace",
    "sg-mcmc",
)
N_TARGETS = {f"quam-quadratic-{n}": n for n in (1, 2, 3, 5)}
ON_REQUEST = ("quam-pointwise", "quam-pointwise-equal", "quam-quadratic", *N_TARGETS, "mola")
AUROC = r"auroc(_share_.*)?"
FEWEST_OOD = 100  # minimum number of OOD images for a reliable AUROC
CELL = ["run", "dataset", "share", "repeat"]
# As recorded: a constant step size, and a temperature for the likelihood of a mini-batch.
POINTWISE = PointwiseSearch(
    parameters=in_linear_layers,
    n_steps=100,
    train_batch_size=128,
    learning_rate_decay=1.0,
    prior_precision=0.0,
)
# Cyclical SG-HMC (Zhang et al., ICLR 2020), as in the paper's comparison.
CYCLES = {"n_chains": 1, "n_cycles": 5, "n_samples": 20, "train_batch_size": 128}


class LaplaceMixture(UncertaintyMixin, BaseEstimator):
    """Mixture of Laplace approximations around fitted networks (Eschenhagen et al., 2021)."""

    def __init__(self, nets: list, random_state: int):
        self.nets = nets
        self.random_state = random_state

    def fit(self, X, y):
        given = (LaplaceClassifier(FrozenEstimator(net)) for net in self.nets)
        self.members_ = [
            each.set_params(random_state=self.random_state + k).fit(X, y)
            for k, each in enumerate(given)
        ]
        return self

    def predict_uncertainty(self, X):
        proba = np.mean([each.predict_proba(X) for each in self.members_], axis=0)
        parts = [each.predict_uncertainty(X).aleatoric for each in self.members_]
        aleatoric = np.mean(parts, axis=0)
        return Uncertainty.from_parts(aleatoric, entropy(proba, axis=1) - aleatoric)


def make(method: str, nets: list, seed: int, setting: str = "expected"):
    """Build a method around the first of some networks, all of which are the ensemble."""
    given = FrozenEstimator(nets[0])
    fixed = {"random_state": seed}
    sampled = {"setting": setting, **fixed}
    members = [FrozenEstimator(net) for net in nets]
    makers = {
        "quam-pool": lambda: QUAMClassifier(given, search="pool", **sampled),
        "quam-pointwise": lambda: QUAMClassifier(
            given, search=POINTWISE, temperature=1 / 128, **sampled
        ),
        "quam-pointwise-equal": lambda: QUAMClassifier(
            given, search=PointwiseSearch(parameters=in_linear_layers, effort="equal"), **sampled
        ),
        "quam-quadratic": lambda: QUAMClassifier(given, search="quadratic", **sampled),
        **{
            name: lambda n=n: QUAMClassifier(given, search="quadratic", n_targets=n, **sampled)
            for name, n in N_TARGETS.items()
        },
        "entropy": lambda: ReferenceClassifier(given),
        "ensemble": lambda: DeepEnsembleClassifier(members=members, setting=setting),
        "energy": lambda: LogitUncertainty(given, method="energy"),
        "mahalanobis": lambda: FeatureDistanceClassifier(
            given, distance="mahalanobis", layer="last"
        ),
        "neighbours": lambda: FeatureDistanceClassifier(given),
        "mc-dropout": lambda: MCDropoutClassifier(given, **sampled),
        "laplace": lambda: LaplaceClassifier(given, **sampled),
        "mola": lambda: LaplaceMixture(nets, seed),
        "sg-mcmc": lambda: SGMCMCClassifier(given, **CYCLES, **sampled),
    }
    return makers[method]()


def fit_all(nets: list, data: Images, args) -> dict:
    """Fit all methods around the networks of one run."""
    models = {}
    for method in args.methods:
        model = make(method, nets, args.seed)
        models[method] = model.fit(data.X, data.y)
        if method == "quam-pool" and args.protocol == "inductive":
            for name in args.ood if args.other_pools else ():
                pool = np.concatenate([data.test[name][: args.n], data.held_out[: args.n]])
                other = make(method, nets, args.seed).fit(data.X, data.y, X_pool=pool)
                models[f"{method}-{name}"] = other
    return models


class Batch(NamedTuple):
    """Images that are scored together, and whether each is OOD."""

    dataset: str
    share: float
    repeat: int
    X: np.ndarray
    is_ood: np.ndarray


def draw(
    name: str, share: float, repeat: int, data: Images, n: int, random: np.random.Generator
) -> Batch:
    """Draw a batch of test images without replacement."""
    parts = [(data.test["mnist"], 1 - share), (data.test[name], share)]
    size = min(2 * n, *(int(len(X) / part) for X, part in parts if part))
    n_ood = round(share * size)
    drawn = [
        X[random.permutation(len(X))[:number]]
        for (X, _), number in zip(parts, (size - n_ood, n_ood), strict=True)
    ]
    return Batch(name, share, repeat, np.concatenate(drawn), np.arange(size) >= size - n_ood)


def searched(model, pool: np.ndarray, args):
    """Return the model unchanged, or QUAM with the models that it finds on a pool."""
    searches = args.protocol == "mixed" and isinstance(getattr(model, "search_", None), PoolSearch)
    return model.search_pool(pool) if searches else model


def parts_of(model) -> tuple[str, str]:
    """Return the part of uncertainty used for ranking, and the other part."""
    parts = ("epistemic", "total")
    return parts if isinstance(model, QUAMClassifier) else parts[::-1]


def detect(model, batch: Batch, args) -> dict[str, float]:
    """Measure detection by both parts, and CPU seconds including the search."""
    start = time.process_time()
    after = searched(model, batch.X, args)
    uncertainty = after.predict_uncertainty(batch.X)
    found = {"seconds_per_image": (time.process_time() - start) / len(batch.X)}
    ranking, other = parts_of(model)
    scores = {"": getattr(uncertainty, ranking), f"_{other}": getattr(uncertainty, other)}
    if batch.share == 0.5 and hasattr(model, "setting"):
        of_given = copy(after).set_params(setting="selected")
        scores["_selected"] = of_given.predict_uncertainty(batch.X).epistemic
    for suffix, values in scores.items():
        if np.isnan(values).any():
            continue  # the method does not estimate this part
        measured = detection_metrics(values[~batch.is_ood], values[batch.is_ood])
        found |= {f"{metric}{suffix}": value for metric, value in measured._asdict().items()}
    return found


def alarms(model, batch: Batch, held_out: np.ndarray, args) -> dict[str, float]:
    """Measure the rate of in-distribution images above the 95 % quantile of held-out images."""
    both = np.concatenate([batch.X, held_out])
    found = {}
    for metric, pool in (("false_alarms", both), ("false_alarms_outside", batch.X)):
        after = searched(model, pool, args)
        if after is model and found:
            break  # methods without a search
        scores = getattr(after.predict_uncertainty(both), parts_of(model)[0])
        limit = np.quantile(scores[len(batch.X) :], 0.95)
        found[metric] = np.mean(scores[: len(batch.X)] > limit)
    return found


def batches(data: Images, args, run: int) -> list[Batch]:
    """Draw all batches of one run."""
    random = np.random.default_rng([args.seed, run])
    unusual = [
        (name, share, repeat)
        for share in args.share
        if share > 0
        for name in args.ood
        for repeat in range(math.ceil(FEWEST_OOD / (2 * args.n * share)))
    ]
    ordinary = [("mnist", 0.0, 0)] if 0 in args.share else []
    return [draw(*each, data, args.n, random) for each in (*unusual, *ordinary)]


def measure(weights: dict, data: Images, protocol: str, run: int, *_, args) -> dict:
    """Measure all methods on all batches of one run."""
    nets = [sequential(net) for net in networks(weights, run)]
    models, rows = fit_all(nets, data, args), []
    for batch in batches(data, args, run):
        for method, model in models.items():
            if method == f"quam-pool-{batch.dataset}":
                continue  # this data set was in its pool
            if batch.share:
                found = detect(model, batch, args)
            else:
                found = alarms(model, batch, data.held_out[-2 * args.n :], args)
            shown = {metric: round(float(value), 4) for metric, value in found.items()}
            print(run, *batch[:3], f"{method:14}", shown, flush=True)
            for metric, value in found.items():
                cell = dict(zip(CELL, (run, *batch[:3]), strict=True))
                rows.append({"method": method, "metric": metric, "value": float(value), **cell})
    return {"rows": rows}


def summaries(rows: pd.DataFrame, args) -> list[dict]:
    """Compute means over runs and draws, and the mean rank of each method by AUROC."""
    if len(args.share) > 1:  # otherwise the name of the metric has no share
        shares = "_share_" + rows["share"].map("{:g}".format)
        rows["metric"] += shares.where(rows["share"] > 0, "")
    keys = ["method", "dataset", "metric"]
    means = rows.groupby(keys, sort=False)["value"]
    records = [
        record(*key, values.mean(), len(values), values.std(ddof=0)) for key, values in means
    ]
    compared = rows[rows["method"].isin(args.methods) & rows["metric"].str.fullmatch(AUROC)]
    ranks = compared.groupby(CELL)["value"].rank(ascending=False)
    for method, of_method in ranks.groupby(compared["method"], sort=False):
        mean, std = of_method.mean(), of_method.std(ddof=0)
        records.append(record(method, "all", "mean_rank", mean, len(of_method), std))
    return records


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--protocol", choices=["mixed", "inductive"], default="mixed")
    arguments.add_argument("--share", type=float, nargs="+", default=[0.5], help="of OOD images")
    arguments.add_argument(
        "--ood", nargs="+", default=["fashion_mnist", "kmnist", "omniglot_latin"]
    )
    arguments.add_argument("--other-pools", action="store_true", help="quam-pool-NAME, too")
    arguments.add_argument("--n", type=int, default=500, help="half of a batch")
    arguments.add_argument("--n-runs", type=int, default=3, help="given models")
    arguments.add_argument(
        "--methods",
        nargs="+",
        default=METHODS,
        choices=[*METHODS, *ON_REQUEST],
    )
    args = arguments.parse_args()
    set_threads(args)
    data = load_images(args.ood, args.data_dir, None, args.seed)
    weights = load_npz("quam_lenet_mnist", args.data_dir)
    asked = repr((args.methods, args.ood, args.share, args.n, args.other_pools, args.seed))
    name = hashlib.sha256(asked.encode()).hexdigest()[:7]
    rows = []
    for run in range(args.n_runs):
        one = kept_run(partial(measure, weights, data), args.protocol, run, name, args=args)
        rows += one["rows"]
    finish("quam_mnist", args, summaries(pd.DataFrame(rows), args))


if __name__ == "__main__":
    main()
