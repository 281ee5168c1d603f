"""Detection of OOD images by the probe of an MNIST classifier (Appendix D.4).

    python -m benchmarks.evidential_images --ood omniglot_latin fashion_mnist

The pre-trained networks are the LeNets of ``quam_lenet_mnist.npz``. In each run, the first network
is probed, and all networks are the deep ensemble.
"""

import argparse
import time

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks.data_files import load_npz
from benchmarks.evidential_methods import LogitUncertainty
from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.lenets import images, networks
from skuq import EvidentialProbe, MCDropoutClassifier
from skuq._networks import LeNet
from skuq.evidential import EvidenceLoss


def methods(net: LeNet, seed: int) -> dict:
    """Build all methods for one network."""
    return {
        "entropy": LogitUncertainty(net, method="entropy"),
        "max-score": LogitUncertainty(net, method="max-score"),
        "energy": LogitUncertainty(net, method="energy"),
        "dropout": MCDropoutClassifier(
            FrozenEstimator(net), n_samples=10, setting="max-score", random_state=seed
        ),
        "epn": EvidentialProbe(
            net, loss=EvidenceLoss(ice_weight=0, pcl_weight=0), random_state=seed
        ),
        "epn-ice": EvidentialProbe(net, loss=EvidenceLoss(pcl_weight=0), random_state=seed),
        "epn-reg": EvidentialProbe(net, random_state=seed),
    }


def ensemble_score(nets: list[LeNet], X: np.ndarray) -> np.ndarray:
    """Compute 1 minus the largest mean probability of the members."""
    with torch.no_grad():
        proba = sum(net(torch.tensor(X)).softmax(dim=1) for net in nets) / len(nets)
    return 1 - proba.max(dim=1).values.numpy()


def detection(known: np.ndarray, ood: np.ndarray) -> dict[str, float]:
    """Compute the AUROC and the area under the precision-recall curve for OOD images."""
    truth = np.repeat([False, True], [len(known), len(ood)])
    score = np.concatenate([known, ood])
    return {
        "auroc": roc_auc_score(truth, score),
        "aupr": average_precision_score(truth, score),
    }


def main(args: argparse.Namespace) -> None:
    set_threads(args)
    mnist = load_npz("mnist", args.data_dir)
    rng = np.random.default_rng(args.seed)
    chosen = rng.permutation(len(mnist["x_train"]))[: args.n_train + 5000]
    fitted_on, held_out = np.split(chosen, [args.n_train])
    X, y = images(mnist["x_train"][fitted_on]), mnist["y_train"][fitted_on]
    X_val, y_val = images(mnist["x_train"][held_out]), mnist["y_train"][held_out]
    X_test, y_test = images(mnist["x_test"]), mnist["y_test"]
    ood = {}
    for name in args.ood:
        arrays = load_npz(name, args.data_dir)
        ood[name] = images(arrays.get("x_test", arrays.get("x")))
    weights = load_npz("quam_lenet_mnist", args.data_dir)
    found: dict[tuple[str, str, str], list[float]] = {}
    for run in range(len(weights["seeds"])):
        nets = networks(weights, run)
        scored = {}
        for name, method in methods(nets[0], args.seed + run).items():
            start = time.perf_counter()
            method.fit(X, y, X_val=X_val, y_val=y_val)
            found.setdefault((name, "mnist", "seconds_fit"), []).append(time.perf_counter() - start)
            scored[name] = lambda X, method=method: -method.score_samples(X)
            accuracy = (method.predict(X_test) == y_test).mean()
            found.setdefault((name, "mnist", "accuracy"), []).append(accuracy)
        scored["ensemble"] = lambda X, nets=nets: ensemble_score(nets, X)
        for name, score in scored.items():
            known = score(X_test)
            for dataset, others in ood.items():
                for metric, value in detection(known, score(others)).items():
                    found.setdefault((name, dataset, metric), []).append(value)
            print(run, name, {d: round(found[name, d, "auroc"][-1], 4) for d in ood})
    records = [
        record(name, dataset, metric, np.mean(values), len(values), np.std(values))
        for (name, dataset, metric), values in found.items()
    ]
    finish("evidential_images", args, records)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--ood", nargs="+", default=["omniglot_latin", "fashion_mnist"])
    arguments.add_argument("--n-train", type=int, default=20_000)
    main(arguments.parse_args())
