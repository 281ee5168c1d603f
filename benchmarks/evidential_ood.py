"""Detection of nodes of left-out classes (Tables 1, 4 and 10 to 13).

    python -m benchmarks.evidential_ood --dataset coraml --setting OS-1 --splits 5 --inits 5

Positives are test nodes of the left-out classes, scored by the epistemic uncertainty of each
method. The whole graph is available during training, without the labels of left-out classes.
"""

import argparse

from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks import evidential
from benchmarks.harness import finish, parser, set_threads

SETTINGS = ["OS-1", "OS-2", "OS-3", "OS-4", "OS-5"]


def detection(task: evidential.Task, scores: evidential.Scores) -> dict[str, float]:
    """Compute the AUROC and the area under the precision-recall curve for left-out classes."""
    return {
        "auroc": roc_auc_score(task.ood, scores.epistemic),
        "aupr": average_precision_score(task.ood, scores.epistemic),
    }


def main(args: argparse.Namespace) -> None:
    set_threads(args)
    rows = evidential.run(args, args.setting, detection)
    records = evidential.summary(rows)
    evidential.print_table(records, "auroc")
    ranked = evidential.ranks(records, "auroc") + evidential.ranks(records, "aupr")
    evidential.print_table(ranked, "rank_auroc", scale=1)
    averages = evidential.means(rows, "auroc") + evidential.means(rows, "aupr")
    for against in (name for name in args.against if name in args.methods):
        for metric in ("auroc", "aupr"):
            averages += evidential.differences(rows, metric, against)
    finish("evidential_ood", args, records + ranked + averages)


if __name__ == "__main__":
    arguments = parser(__doc__)
    evidential.arguments(arguments)
    arguments.add_argument("--setting", nargs="+", choices=SETTINGS, default=["OS-1"])
    arguments.add_argument(
        "--against",
        nargs="+",
        default=["energy-diffused", "epn-reg"],
        help="methods from which paired differences are taken",
    )
    main(arguments.parse_args())
