"""Detection of out-of-distribution inputs by single scores and by a combination of scores.

    python -m benchmarks.ood --dataset clinc150 clinc30 photos mnist adult --n-seeds 3

The models are logistic regression on embeddings of texts (CLINC150, with all intents, or with 30
random intents and the others as near-OOD) and of photographs, the QUAM paper's LeNets on MNIST, and
boosted trees on Adult. All methods have the same fitted model, training data and held-out inputs.
`OODDetector` is "detector", and "entropy" to "support" are its single scores. Baselines: "softmax",
"mahalanobis" (nearest class, shared covariance), "vim" (Wang et al., CVPR 2022) and
"feature-distance"; "ensemble" is the total uncertainty of ten models on bootstrap samples (for
MNIST, of ten LeNets); "quam" is the epistemic and "quam-total" the total part of models found on a
generated pool; "detector-quam" is the detector around QUAM.

AUROC, AUPR and FPR95 compare test inputs with each set of OOD inputs; "aurc" is the area under the
risk-coverage curve of the test inputs; "false_alarms" is the share of test inputs above the 95 %
quantile of held-out inputs, or flagged by `predict` of the detector. CPU seconds are for the fit
and all scores of a method. "behind_best" is the AUROC minus that of the best single score or
baseline; "mean_rank" is a mean over seeds and OOD sets.

"few" compares the detector with 19 to 200 held-out inputs ("detector-19") with the conformal rule
for one score ("energy-19"), over 50 draws of the held-out inputs.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import logsumexp
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.utils import resample

from benchmarks import quam_tables
from benchmarks.data_files import load_npz
from benchmarks.harness import finish, kept_run, parser, record, set_threads
from benchmarks.lenets import load_images, networks, sequential
from skuq import OODDetector, QUAMClassifier
from skuq.baselines import DeepEnsembleClassifier, FeatureDistanceClassifier
from skuq.calibration import conformal_p_values
from skuq.metrics import area_under_risk_coverage, detection_metrics
from skuq.ood import SCORES, Combination

DATASETS = ("clinc150", "clinc30", "photos", "mnist", "adult")
SINGLE = ("entropy", "energy", "neighbors", "mahalanobis-relative", "support")
PEERS = ("softmax", "mahalanobis", "vim", "feature-distance", "ensemble", "quam", "quam-total")
NETWORKS_ONLY = ("mahalanobis", "vim", "feature-distance")  # and linear models
COMBINED = ("detector", "detector-quam")
METHODS = (*SINGLE, *PEERS, *COMBINED, "few")
FEW = (19, 20, 50, 100, 200)
Score = Callable[[Any], np.ndarray]


class Task(NamedTuple):
    """A fitted model and its data; `members` are ten pre-trained models, if available."""

    model: Any
    X: Any
    y: np.ndarray
    X_held_out: Any
    X_test: Any
    y_test: np.ndarray
    ood: dict[str, Any]
    members: list[Any] | None = None


def embeddings(arrays: dict, known: np.ndarray, seed: int, ood: dict[str, np.ndarray]) -> Task:
    """Fit a logistic regression on nine tenths of the training rows of the known classes.

    The validation and test parts are pooled and split again into held-out and test inputs, so that
    the false alarm rate varies with the seed.
    """

    def part(name: str) -> tuple[np.ndarray, np.ndarray]:
        rows = np.isin(arrays[f"y_{name}"], known)
        return arrays[f"x_{name}"][rows].astype(np.float64), arrays[f"y_{name}"][rows]

    random = np.random.default_rng(seed)
    X, y = part("train")
    rows = random.permutation(len(X))[: 9 * len(X) // 10]
    X, y = X[rows], y[rows]
    model = LogisticRegression(max_iter=1000).fit(X, y)
    ood = {name: rows.astype(np.float64) for name, rows in ood.items()}
    (X_val, y_val), (X_test, y_test) = part("val"), part("test")
    others, labels = np.concatenate([X_val, X_test]), np.concatenate([y_val, y_test])
    held_out, test = np.split(random.permutation(len(others)), [len(X_val)])
    return Task(model, X, y, others[held_out], others[test], labels[test], ood)


def clinc(args, seed: int, n_intents: int) -> Task:
    arrays = load_npz("clinc150_minilm", args.data_dir)
    known = np.random.default_rng(seed).permutation(150)[:n_intents]
    ood = {"out_of_scope": arrays["x_oos_test"]}
    if n_intents < 150:
        ood["other_intents"] = arrays["x_test"][~np.isin(arrays["y_test"], known)]
    return embeddings(arrays, known, seed, ood)


def photos(args, seed: int) -> Task:
    arrays = load_npz("photo_features", args.data_dir)
    ood = {name.removeprefix("x_"): arrays[name] for name in arrays if name not in SPLITS}
    return embeddings(arrays, np.unique(arrays["y_train"]), seed, ood)


SPLITS = [f"{kind}_{part}" for kind in "xy" for part in ("train", "val", "test")]


def mnist(args, seed: int) -> Task:
    data = load_images(args.images, args.data_dir, args.n_images, seed)
    held_out = data.held_out[: args.n_held_out]
    nets = [sequential(net) for net in networks(load_npz("quam_lenet_mnist", args.data_dir), seed)]
    truth = load_npz("mnist", args.data_dir)["y_test"]
    order = np.random.default_rng(seed).permutation(len(truth))[: args.n_images]
    known = data.test.pop("mnist")
    return Task(nets[0], data.X, data.y, held_out, known, truth[order], data.test, nets)


def adult(args, seed: int) -> Task:
    sizes = {"n_train": 12_000, "n_test": 3000, "n_unusual": 1000}
    vars(args).update(sizes)
    task = quam_tables.load("adult_train", args, seed)
    n_held_out = 2000
    learner = HistGradientBoostingClassifier(random_state=seed)
    X, y = task.X[n_held_out:].reset_index(drop=True), task.y[n_held_out:]
    model = quam_tables.trees(learner).fit(X, y)
    ood = {name.replace(" ", "_"): rows for name, rows in task.unusual.items()}
    return Task(model, X, y, task.X[:n_held_out], task.X_test, task.y_test, ood)


LOADERS: dict[str, Callable[[Any, int], Task]] = {
    "clinc150": lambda args, seed: clinc(args, seed, 150),
    "clinc30": lambda args, seed: clinc(args, seed, 30),
    "photos": photos,
    "mnist": mnist,
    "adult": adult,
}

# --- methods -----------------------------------------------------------------------------------


def single(name: str) -> Callable[[Task, int], Score]:
    score = name.removesuffix("-relative")

    def make(task: Task, seed: int) -> Score:
        detector = fitted_detector(task, task.model, seed, scores=[score])
        return lambda X: detector.single_scores(X)[score].to_numpy()

    return make


def fitted_detector(task: Task, model: Any, seed: int, **options: Any) -> OODDetector:
    detector = OODDetector(FrozenEstimator(model), random_state=seed, **options)
    return detector.fit(task.X, task.y, X_held_out=task.X_held_out)


def softmax(task: Task, seed: int) -> Score:
    given = as_quam_does(task)
    return lambda X: 1 - given.predict_proba(X).max(axis=1)


def as_quam_does(task: Task) -> Any:
    """Return the model in a form with `predict_proba`."""
    if hasattr(task.model, "predict_proba"):
        return task.model
    return FeatureDistanceClassifier(FrozenEstimator(task.model)).fit(task.X[:2000], task.y[:2000])


def mahalanobis(task: Task, seed: int) -> Score:
    distance = FeatureDistanceClassifier(
        FrozenEstimator(task.model), distance="mahalanobis", layer="last"
    )
    return total_of(distance.fit(task.X, task.y))


def feature_distance(task: Task, seed: int) -> Score:
    distance = FeatureDistanceClassifier(FrozenEstimator(task.model))
    return total_of(distance.fit(task.X, task.y))


def total_of(model: Any) -> Score:
    return lambda X: model.predict_uncertainty(X).total


def vim(task: Task, seed: int) -> Score:
    """Virtual-logit matching, for linear models and the last layer of networks."""
    if hasattr(task.model, "coef_"):
        weight, bias, features = task.model.coef_, task.model.intercept_, np.asarray
    else:
        import torch

        *body, last = task.model
        weight, bias = (p.detach().numpy() for p in (last.weight, last.bias))
        body = torch.nn.Sequential(*body).eval()

        def features(X: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                parts = torch.from_numpy(X).split(1000)
                return torch.cat([body(part) for part in parts]).double().numpy()

    known = features(task.X)
    d = known.shape[1]
    n_principal = 1000 if d >= 2048 else 512 if d >= 768 else d // 2
    origin = -np.linalg.pinv(weight) @ bias
    centred = known - origin
    _, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    residual = directions[:, : d - n_principal]
    logits = known @ weight.T + bias
    alpha = logits.max(axis=1).mean() / np.linalg.norm(centred @ residual, axis=1).mean()

    def score(X: np.ndarray) -> np.ndarray:
        z = features(X)
        energy = logsumexp(z @ weight.T + bias, axis=1)
        return alpha * np.linalg.norm((z - origin) @ residual, axis=1) - energy

    return score


def ensemble(task: Task, seed: int) -> Score:
    if task.members is not None:
        members = [FrozenEstimator(member) for member in task.members]
        return total_of(DeepEnsembleClassifier(members=members).fit(task.X, task.y))
    if not hasattr(task.model, "coef_"):
        return quam_tables.bagged(
            task.model, quam_tables.Task(task.X, task.y, task.X_test, task.y_test, {}), seed
        )
    random = np.random.RandomState(seed)
    fitted = []
    for _ in range(10):
        X, y = resample(task.X, task.y, stratify=task.y, random_state=random)
        fitted.append(LogisticRegression(max_iter=1000).fit(X, y))

    def score(X: np.ndarray) -> np.ndarray:
        mean = np.mean([each.predict_proba(X) for each in fitted], axis=0)
        return -(mean * np.log(mean.clip(1e-12))).sum(axis=1)

    return score


def quam(task: Task, seed: int) -> QUAMClassifier:
    return QUAMClassifier(FrozenEstimator(task.model), random_state=seed).fit(task.X, task.y)


def detector(task: Task, seed: int) -> Score:
    fitted = fitted_detector(task, task.model, seed)
    return fitted.score_samples


MAKERS: dict[str, Callable[[Task, int], Score]] = {
    **{name: single(name) for name in SINGLE},
    "softmax": softmax,
    "mahalanobis": mahalanobis,
    "vim": vim,
    "feature-distance": feature_distance,
    "ensemble": ensemble,
}


def run_method(
    dataset: str, method: str, task: Task, seed: int
) -> Iterator[tuple[str, dict[str, dict]]]:
    """Measure one method, or the three methods that share the models found by QUAM."""
    start = time.process_time()
    if dataset == "adult" and method in NETWORKS_ONLY:
        return
    try:
        if method == "quam":
            found = quam(task, seed)
            scores = {
                "quam": lambda X: found.predict_uncertainty(X).epistemic,
                "quam-total": lambda X: found.predict_uncertainty(X).total,
            }
            around = fitted_detector(task, found, seed)
            scores["detector-quam"] = around
        elif method == "few":
            yield from few(task, seed)
            return
        elif method == "detector":
            scores = {method: fitted_detector(task, task.model, seed)}
        else:
            scores = {method: MAKERS[method](task, seed)}
    except (ValueError, TypeError) as error:
        print(f"{method}: {error}", flush=True)
        return
    for name, score in scores.items():
        yield name, figures(score, task, start)
        start = time.process_time()


def figures(score: Any, task: Task, start: float) -> dict[str, dict]:
    """Compute metrics by OOD set; metrics of the test inputs have the key "test"."""
    as_score = score if callable(score) else lambda X: -score.score_samples(X)
    known = as_score(task.X_test)
    found: dict[str, dict] = {}
    for name, X in task.ood.items():
        measured = detection_metrics(known, as_score(X))
        found[name] = measured._asdict()
    seconds = time.process_time() - start
    if callable(score):
        alarms = (known > np.quantile(as_score(task.X_held_out), 0.95)).mean()
    else:
        alarms = (score.predict(task.X_test) < 0).mean()
    predicted = predictions(task)
    found["test"] = {
        "false_alarms": alarms,
        "aurc": area_under_risk_coverage(task.y_test, predicted, known),
        "cpu_seconds": seconds,
    }
    return found


def few(task: Task, seed: int) -> Iterator[tuple[str, dict[str, dict]]]:
    """Measure the share of flagged inputs, ordinary and OOD, with few held-out ones in 50 draws."""
    fitted = fitted_detector(task, task.model, seed)
    groups = {name: SCORES[name].group for name in fitted.scores_}
    held_out = fitted.single_scores(task.X_held_out)
    inputs = {"test": task.X_test} | task.ood
    scores = {name: fitted.single_scores(X) for name, X in inputs.items()}
    random = np.random.default_rng(seed)
    for n in FEW:
        draws = [held_out.iloc[random.permutation(len(held_out))[:n]] for _ in range(50)]
        combined = [Combination.of(draw.to_dict("series"), groups) for draw in draws]
        one = "energy" if "energy" in held_out else "neighbors"
        flagged: dict[str, dict] = {f"detector-{n}": {}, f"{one}-{n}": {}}
        for name, of_inputs in scores.items():
            p_values = [
                [each.p_values(of_inputs.to_dict("series")) for each in combined],
                [conformal_p_values(of_inputs[one], draw[one]) for draw in draws],
            ]
            for method, values in zip(flagged, p_values, strict=True):
                flagged[method][name] = {"flagged": (np.array(values) <= 0.05).mean()}
        yield from flagged.items()


def predictions(task: Task) -> np.ndarray:
    if hasattr(task.model, "predict"):
        return task.model.predict(task.X_test)
    import torch

    with torch.no_grad():
        return task.model(torch.from_numpy(task.X_test)).argmax(1).numpy()


# --- runs and summaries ------------------------------------------------------------------------


def run(dataset: str, seed: int, *, args) -> dict:
    """Measure one data set and seed, by method and OOD set."""
    task = LOADERS[dataset](args, seed)
    found = {}
    for method in args.methods:
        if method in ("quam-total", "detector-quam"):
            continue  # measured with "quam"
        for name, values in run_method(dataset, method, task, seed):
            found[name] = values
            shown = {o: round(next(iter(v.values())), 4) for o, v in values.items() if o != "test"}
            rest = {key: round(float(v), 4) for key, v in values["test"].items()}
            print(dataset, seed, f"{name:20}", shown, rest, flush=True)
    return found


def summaries(runs: dict[tuple[str, int], dict]) -> list[dict]:
    """Summarise over seeds: mean and std, distance from the best single score, mean ranks."""
    rows = pd.DataFrame(
        [
            {"method": m, "dataset": f"{d}/{o}", "seed": s, "metric": k, "value": float(v)}
            for (d, s), by_method in runs.items()
            for m, by_ood in by_method.items()
            for o, values in by_ood.items()
            for k, v in values.items()
        ]
    )
    auroc = rows[rows["metric"] == "auroc"]
    cells = auroc.groupby(["dataset", "seed"])
    best = auroc[~auroc["method"].isin(COMBINED)].groupby(["dataset", "seed"])["value"].max()
    behind = auroc.copy()
    behind["metric"] = "behind_best"
    behind["value"] -= best.loc[list(zip(auroc["dataset"], auroc["seed"], strict=True))].to_numpy()
    means = pd.concat([rows, behind]).groupby(["method", "dataset", "metric"], sort=False)["value"]
    records = [
        record(*key, values.mean(), len(values), values.std(ddof=0)) for key, values in means
    ]
    ranks = cells["value"].rank(ascending=False)
    for method, of_method in ranks.groupby(auroc["method"], sort=False):
        mean, std = of_method.mean(), of_method.std(ddof=0)
        records.append(record(method, "all", "mean_rank", mean, len(of_method), std))
    return records


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--dataset", nargs="+", default=DATASETS, choices=DATASETS)
    arguments.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    arguments.add_argument("--n-seeds", type=int, default=3)
    arguments.add_argument("--n-images", type=int, default=2000, help="of each set of images")
    arguments.add_argument("--n-held-out", type=int, default=3000, help="images held out")
    arguments.add_argument(
        "--images", nargs="+", default=["fashion_mnist", "kmnist", "omniglot_latin"]
    )
    args = arguments.parse_args()
    set_threads(args)
    runs = {
        (dataset, seed): kept_run(run, dataset, seed, args=args)
        for dataset in args.dataset
        for seed in range(args.n_seeds)
    }
    finish("ood", args, summaries(runs))


if __name__ == "__main__":
    main()
