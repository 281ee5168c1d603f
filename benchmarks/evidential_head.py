"""Layer and activation of the paper's evidence network (Table 5).

    python -m benchmarks.evidential_head --splits 3

The probe is that of the other benchmarks with a learned layer (``epn-free``). It reads the logits
("last") or the input of the last layer ("second-to-last"), and its evidence is an exponential or a
softplus. All variants of a split use the same pre-trained network.
"""

import argparse
from itertools import product

import numpy as np
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from benchmarks import evidential
from benchmarks.evidential_methods import comparison_methods
from benchmarks.harness import finish, kept_run, parser, record, set_threads
from skuq.evidential import GraphClassifier

LAYERS = {"last": -1, "second-to-last": -2}
ACTIVATIONS = ("exp", "softplus")


def measure(name: str, setting: str, split: int, *, args: argparse.Namespace) -> dict[str, float]:
    """Compute the AUROC of the left-out classes for each variant."""
    task = evidential.read_task(name, args.data_dir, setting, split)
    data = task.labelled()
    settings = {"random_state": args.seed + 1000 * split, **evidential.TRAINING}
    model = GraphClassifier(task.graph, **settings).fit(**data)
    probe = comparison_methods(task.graph, model, **settings)["epn-free"]
    found = {}
    for (layer, position), activation in product(LAYERS.items(), ACTIVATIONS):
        own = clone(probe).set_params(head__layer=position, head__activation=activation)
        score = -own.fit(**data).score_samples(task.test)
        found[f"{layer}, {activation}"] = roc_auc_score(task.ood, score)
    print(name, split, {variant: round(x, 4) for variant, x in found.items()}, flush=True)
    return found


def main(args: argparse.Namespace) -> None:
    set_threads(args)
    records = []
    for name in args.dataset:
        runs = [
            kept_run(measure, name, args.setting, split, args=args) for split in range(args.splits)
        ]
        for variant in runs[0]:
            values = [run[variant] for run in runs]
            dataset = f"{name} {args.setting}"
            figures = np.mean(values), len(values), np.std(values)
            records.append(record(variant, dataset, "auroc", *figures))
    finish("evidential_head", args, records)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--dataset", nargs="+", default=evidential.FULL)
    arguments.add_argument("--setting", default="OS-1")
    arguments.add_argument("--splits", type=int, default=3)
    main(arguments.parse_args())
