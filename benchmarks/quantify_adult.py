"""``skuq quantify`` with its defaults on Adult: time, wrong predictions, unusual rows, coverage.

    python -m benchmarks.quantify_adult --data-dir DIR

The command trains on 5,000 rows and scores 2,000 other rows in a separate process, whose CPU
seconds are measured, including imports ("command"). The same model in Python then scores 100
unusual rows of each kind: age in months, a doctorate after one year of school, one unseen category,
four unseen categories, and every column from a different row. AUROC is for distinguishing them from
the 2,000 ordinary rows by the epistemic part; ``flagged`` is the share with a p-value of at most
.05. Wrong predictions are detected by `total` and by 1 minus the confidence. "set" is the coverage
of 90 % prediction sets on the 2,000 rows. ``--models`` selects further learners.
"""

import resource
import subprocess
import sys
from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.quam_tables import Task, auroc, load
from skuq.tables import TableModel

CLASSES = np.array(["<=50K", ">50K"])
Figures = dict[tuple[str, str, str], float]  # (method, rows, metric)


def one_unseen(X: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    """Replace the category of one column by an unseen one."""
    texts = np.flatnonzero([dtype.kind == "O" for dtype in X.dtypes])
    values = X.to_numpy(dtype=object, copy=True)
    values[np.arange(len(X)), random.choice(texts, size=len(X))] = "never seen"
    return pd.DataFrame(values, columns=X.columns).astype(X.dtypes)


def run_command(task: Task, seed: int) -> Figures:
    """Measure CPU seconds and accuracy of the command, with only files and target as options."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("known.csv", "new.csv", "out.csv")]
        task.X.assign(income=CLASSES[task.y]).to_csv(paths[0], index=False)
        task.X_test.to_csv(paths[1], index=False)
        given = ["--train", paths[0], "--target", "income", "--predict", paths[1]]
        code = "from skuq.cli import main; main()"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", code, "quantify", *given, "--out", paths[2]]
        subprocess.run([*command, "--seed", str(seed)], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = pd.read_csv(paths[2])
    used = sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))
    right = (rows["prediction"] == CLASSES[task.y_test]).mean()
    return {
        ("command", "all rows", "cpu_seconds"): used,
        ("command", "all rows", "accuracy"): right,
    }


def run_model(name: str, task: Task, seed: int) -> Figures:
    """Measure a learner on ordinary and unusual rows."""
    model = TableModel(name, random_state=seed)
    model.fit(task.X.assign(income=CLASSES[task.y]), "income")
    print(f"{name}: {model.notes_[-1]}", flush=True)
    rows = model.predict(task.X_test, n_explained=0)
    wrong = (rows["prediction"] != CLASSES[task.y_test]).to_numpy()
    doubt = 1 - rows["confidence"]
    covered = [
        label in labels.split("; ")
        for label, labels in zip(CLASSES[task.y_test], rows["prediction_set"], strict=True)
    ]
    figures = {
        (name, "all rows", "accuracy"): 1 - wrong.mean(),
        (name, "all rows", "mean_confidence"): rows["confidence"].mean(),
        (name, "all rows", "flagged"): (rows["conformal_p_value"] <= 0.05).mean(),
        (name, "all rows", "set_coverage"): np.mean(covered),
        (name, "all rows", "set_size"): rows["prediction_set"].str.count(";").mean() + 1,
        (name, "held-out rows", "set_coverage"): model.measured_coverage(0.9)[0],
        (name, "wrong predictions by total", "auroc"): auroc(
            rows["total"][~wrong], rows["total"][wrong]
        ),
        (name, "wrong predictions by confidence", "auroc"): auroc(doubt[~wrong], doubt[wrong]),
    }
    random = np.random.default_rng(seed)
    unusual = {kind: X for kind, X in task.unusual.items() if kind != "left out"}
    unusual["one unseen"] = one_unseen(task.X_test[: len(unusual["unseen"])], random)
    for kind, X in unusual.items():
        scored = model.predict(X, n_explained=0)
        figures[name, kind, "auroc"] = auroc(rows["epistemic"], scored["epistemic"])
        figures[name, kind, "flagged"] = (scored["conformal_p_value"] <= 0.05).mean()
    return figures


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--models", nargs="+", default=["auto"])
    arguments.add_argument("--n-seeds", type=int, default=1)
    arguments.add_argument("--n-train", type=int, default=5000)
    arguments.add_argument("--n-test", type=int, default=2000, help="ordinary rows")
    arguments.add_argument("--n-unusual", type=int, default=100, help="rows of each kind")
    args = arguments.parse_args()
    set_threads(args)
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for seed in range(args.seed, args.seed + args.n_seeds):
        task = load("adult_train", Namespace(**vars(args)), seed)
        figures: dict[Any, float] = run_command(task, seed)
        for name in args.models:
            figures |= run_model(name, task, seed)
        for key, value in figures.items():
            found[key].append(value)
            print(f"seed {seed}  {key[0]:9}{key[1]:33}{key[2]:16}{value:8.4f}", flush=True)
    records = [
        record(method, f"adult_train {rows}", metric, np.mean(v), len(v), np.std(v))
        for (method, rows, metric), v in found.items()
    ]
    finish("quantify_adult", args, records)


if __name__ == "__main__":
    main()
