"""Accuracy, calibration and detection of misclassified nodes (Tables 8 and 9).

    python -m benchmarks.evidential_misclassification --dataset coraml --splits 5 --inits 5

No class is left out. Positives are misclassified test nodes, scored by the aleatoric uncertainty of
each method.
"""

import argparse

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks import evidential
from benchmarks.harness import finish, parser, set_threads
from skuq.metrics import brier_score, expected_calibration_error


def misclassification(task: evidential.Task, scores: evidential.Scores) -> dict[str, float]:
    """Compute accuracy, Brier score, calibration error, and metrics of error detection."""
    true = task.labels[task.test]
    wrong = scores.labels != true
    classes = np.unique(task.labels[task.train])
    return {
        "mis_auroc": roc_auc_score(wrong, scores.aleatoric),
        "mis_aupr": average_precision_score(wrong, scores.aleatoric),
        "accuracy": 1 - wrong.mean(),
        "brier": brier_score(true, scores.proba, classes=classes),
        "ece": expected_calibration_error(true, scores.proba, classes=classes),
    }


def main(args: argparse.Namespace) -> None:
    set_threads(args)
    records = evidential.summary(evidential.run(args, [None], misclassification))
    for metric in ("mis_auroc", "accuracy", "ece"):
        evidential.print_table(records, metric)
    ranked = evidential.ranks(records, "mis_auroc") + evidential.ranks(records, "mis_aupr")
    evidential.print_table(ranked, "rank_mis_auroc", scale=1)
    finish("evidential_misclassification", args, records + ranked)


if __name__ == "__main__":
    arguments = parser(__doc__)
    evidential.arguments(arguments)
    main(arguments.parse_args())
