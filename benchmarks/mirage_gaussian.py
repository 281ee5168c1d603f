"""Mirage on three Gaussian classes (Tables 1 and 2 of the paper), and the authors' released code.

As in Sec. 6.1 of the paper, the honest model is temperature-scaled before the attack. A tenth of
the training points is used for this, since the paper does not state which data it uses. Every
method is evaluated on 420 test points, as in the paper, and on 100,000 further points, where
sampling error is small; these are also audited in sets of 420, to measure how often an audit of
this size fails. The paper reports for epsilon 0.15: accuracy .9762 to .9758, accuracy in the region
1, ECE .0327 to .0910, error in the target bin .3721, overlap .02. Finished seeds are stored in
``--out``.
"""

import argparse

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.harness import finish, kept_run, parser, set_threads
from benchmarks.mirage import N_BINS, Table, figures, temperature_scaled
from skuq import CalibrationAuditor, MirageFineTuner
from skuq._networks import MLP
from skuq.calibration import region_mask
from skuq.datasets import GAUSSIAN_REGION, make_gaussian_classes

PAPER_EPSILONS = (0.0, 0.15, 0.5, 0.8)
EPOCHS, BATCH, LR = 200, 64, 5e-3
CLASSES = np.arange(3)
SET_SIZE = 420  # number of test points in the paper
HONEST = ("uncalibrated", "honest")  # do not depend on epsilon
METHODS = {
    "paper": {},  # Eq. 4, 5 and 7, our default
    "paper_equal_weight": {"lambda_": 0.5},  # Eq. 3
    "paper_no_warm_up": {"warm_up": 0},
    "forward_kl": {"warm_up": None},
}


def train(X: np.ndarray, y: np.ndarray, seed: int) -> NeuralNetClassifier:
    """Train the honest network: 2-100-3, Adam, 200 epochs."""
    torch.manual_seed(seed)
    net = NeuralNetClassifier(
        MLP(2, 3),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=1e-2,
        max_epochs=EPOCHS,
        batch_size=BATCH,
        train_split=None,
        iterator_train__shuffle=True,
        verbose=0,
    )
    return net.fit(X, y)


def released(
    net: NeuralNetClassifier, X: np.ndarray, y: np.ndarray, inside: np.ndarray, epsilon: float
) -> nn.Module:
    """Loss of the authors' notebook, with a different target, divergence and weighting.

    The target probability of the true class is 1/C + epsilon, the divergence is KL(target ||
    model), and the two parts of the loss are means over their own samples, with weights .1 and .9.
    """
    n_classes = len(CLASSES)
    network = MLP(2, n_classes)
    network.load_state_dict(net.module_.state_dict())
    target = torch.full((n_classes, n_classes), 1 / n_classes - epsilon / (n_classes - 1))
    target.fill_diagonal_(1 / n_classes + epsilon)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS, eta_min=1e-5)
    inputs, labels, mask = torch.tensor(X), torch.tensor(y), torch.tensor(inside)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs)).split(BATCH):
            log_proba = network(inputs[rows]).log_softmax(dim=-1)
            here = mask[rows]
            loss = 0.1 * nn.functional.nll_loss(log_proba[~here], labels[rows][~here])
            if here.any():
                aim = target[labels[rows][here]]
                loss = loss + 0.9 * nn.functional.kl_div(
                    log_proba[here], aim, reduction="batchmean"
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return network.eval()


def audited_share(y: np.ndarray, proba: np.ndarray, n_sets: int) -> float:
    """Share of disjoint reference sets of the paper's size that fail the audit."""
    failed = [
        not CalibrationAuditor.from_predictions(
            y[rows], proba[rows], classes=CLASSES, n_bins=N_BINS
        ).passed_
        for rows in (slice(k * SET_SIZE, (k + 1) * SET_SIZE) for k in range(n_sets))
    ]
    return float(np.mean(failed))


def measured(
    seed: int, n_sets: int, methods: str, epsilons: str, *, args: argparse.Namespace
) -> dict[str, list]:
    """Measure all figures for one seed."""
    tables = Table()
    fresh_X, fresh_y = make_gaussian_classes((47619, 47619, 4762), random_state=12345)
    order = np.random.default_rng(0).permutation(len(fresh_y))  # samples are sorted by class
    X, y = make_gaussian_classes(random_state=seed)
    X_train, X_test, y_train, y_test = train_test_split(
        X.astype(np.float32), y, test_size=0.2, stratify=y, random_state=42
    )
    groups = {
        "gaussian": (X_test, y_test),
        "gaussian_fresh": (fresh_X[order].astype(np.float32), fresh_y[order]),
    }
    X_fit, X_cal, y_fit, y_cal = train_test_split(
        X_train, y_train, test_size=0.1, stratify=y_train, random_state=seed
    )
    net = train(X_fit, y_fit, seed)
    honest = temperature_scaled(net, X_cal, y_cal)
    in_fit = region_mask(GAUSSIAN_REGION, X_fit)
    shares: dict[tuple[str, str], float] = {}
    for epsilon in map(float, epsilons.split("_")):
        predictors = {"uncalibrated": net.predict_proba, "honest": honest.predict_proba}
        for method in methods.split("-"):
            if method == "released":
                torch.manual_seed(seed)
                network = released(net, X_fit, y_fit, in_fit, epsilon)
                predictors[method] = lambda X, network=network: (
                    network(torch.tensor(X)).softmax(dim=-1).detach().numpy()
                )
                continue
            mirage = MirageFineTuner(
                honest,
                GAUSSIAN_REGION,
                epsilon=epsilon,
                max_epochs=EPOCHS,
                batch_size=BATCH,
                learning_rate=LR,
                random_state=seed,
                **METHODS[method],
            )
            predictors[method] = mirage.fit(X_fit, y_fit).predict_proba
        for name, (inputs, labels) in groups.items():
            inside = region_mask(GAUSSIAN_REGION, inputs)
            for method, predict in predictors.items():
                proba = predict(inputs)
                if not np.isfinite(proba).all():
                    print(f"{method}: NaN at epsilon {epsilon}, its target is not a distribution")
                    continue
                values = figures(labels, proba, CLASSES, inside, epsilon)
                tables.add(method, f"{name}_eps{epsilon:g}", values)
                if name == "gaussian_fresh" and n_sets:
                    which = (method, "" if method in HONEST else f"{epsilon:g}")
                    if which not in shares:
                        shares[which] = audited_share(labels, proba, n_sets)
                    found = {"audit_failed": shares[which]}
                    tables.add(method, f"gaussian_sets_eps{epsilon:g}", found)
    return {"figures": [[*key, value] for key, (value,) in tables.found.items()]}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-seeds", type=int, default=5)
    arguments.add_argument("--n-sets", type=int, default=100, help="reference sets of 420 points")
    arguments.add_argument("--epsilon", type=float, nargs="+", default=PAPER_EPSILONS)
    arguments.add_argument("--method", nargs="+", default=[*METHODS, "released"])
    args = arguments.parse_args()
    set_threads(args)
    tables = Table()
    for seed in range(args.seed, args.seed + args.n_seeds):
        methods, epsilons = "-".join(args.method), "_".join(map(str, args.epsilon))
        task = (seed, args.n_sets, methods, epsilons)
        tables.add_all(kept_run(measured, *task, args=args))
    finish("mirage_gaussian", args, list(tables.records(args.n_seeds)))


if __name__ == "__main__":
    main()
