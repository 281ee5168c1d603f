"""Acceptance cases of a working day with messy tables and users' own models.

    python -m benchmarks.working_day --data-dir DIR
    python -m benchmarks.working_day --only titanic ames telco used_cars bengaluru

Every case performs a task of a user and checks the result: 1 if it passes, 0 if it fails. Cases
about tables run the commands on each data set, with at most 5,000 training rows and 2,000 new rows.
Cases about messy files run on synthetic tables (`benchmarks.messy_tables`). Cases about audits and
models run once. ``seconds`` is the CPU time of a case. A case that raises an error fails, and the
error is printed.
"""

import json
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from click.testing import CliRunner
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from benchmarks.data_files import load_npz, load_table
from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.messy_tables import MESSY_TABLES
from skuq import (
    CalibrationAuditor,
    EvidentialProbe,
    QUAMClassifier,
    RobustGPC,
    cross_val_predict_uncertainty,
    predict_uncertainty,
)
from skuq.cli import main as skuq
from skuq.imports import import_optional
from skuq.metrics import expected_calibration_error
from skuq.quam import PoolSearch
from skuq.tables import TableModel

DATASETS = ("adult_train", "german_credit", "loan_credit", "spambase")
AUDITS_AND_MODELS = ("audits", "models")
N_TRAIN, N_NEW = 5000, 2000
N_MESSY, N_NEXT = 800, 200
MARGIN = 0.01  # largest accepted AUROC deficit of `total` relative to the confidence
FAILED = 10  # exit code of a failed audit
WRONG_INPUT = 2

Case = Callable[[], bool]


class Day:
    """A user's table: files with a target, an id, and new rows, in one folder."""

    def __init__(self, name: str, folder: Path, args) -> None:
        table = with_target(name, args)
        order = np.random.default_rng(args.seed).permutation(len(table))
        table = table.iloc[order].reset_index(drop=True)
        table.insert(0, "key", [f"k{row}" for row in range(len(table))])
        n_new = min(N_NEW, len(table) // 4)
        self.folder, self.seed = folder, args.seed
        self.train = table[: min(N_TRAIN, len(table) - n_new)]
        new = table[-n_new:].reset_index(drop=True)
        self.new, self.truth = new.drop(columns="target"), new["target"]
        self.train.to_csv(folder / "train.csv", index=False)
        self.new.to_csv(folder / "new.csv", index=False)
        self.column = next(c for c in self.new if self.new[c].dtype.kind in "if")

    def run(self, command: str) -> int:
        """Run a command in the folder, and return its exit code."""
        here = [word.replace("@", f"{self.folder}/") for word in command.split()]
        done = CliRunner().invoke(skuq, here)
        self.said = done.output
        return done.exit_code

    def scored(self, name: str = "u.csv") -> pd.DataFrame:
        """A table that a command wrote."""
        return pd.read_csv(self.folder / name, keep_default_na=False)

    def covers(self, inside) -> bool:
        """Whether the coverage is .9 up to three standard errors.

        It varies with the calibration rows, a fifth of the training rows, and with the new rows.
        """
        allowed = 3 * np.sqrt(0.09 / len(inside) + 0.09 / (len(self.train) / 5))
        return np.mean(inside) > 0.9 - allowed

    # --- cases ---------------------------------------------------------------------------

    def one_command(self) -> bool:
        """One command writes a table with uncertainty, a report and a model."""
        command = "quantify --train @train.csv --target target --predict @new.csv --id key"
        code = self.run(f"{command} --out @u.csv --report @r.html --save @model")
        return code == 0 and self.scored()["key"].tolist() == self.new["key"].tolist()

    def total_finds_errors(self) -> bool:
        """`total` detects wrong predictions as well as the confidence."""
        rows = self.scored()
        wrong = rows["prediction"].astype(str).to_numpy() != self.truth.astype(str).to_numpy()
        by_total = roc_auc_score(wrong, rows["total"])
        return by_total > roc_auc_score(wrong, -rows["confidence"]) - MARGIN

    def sets_cover(self) -> bool:
        """Prediction sets have about the requested coverage."""
        pairs = zip(
            self.scored()["prediction_set"].astype(str), self.truth.astype(str), strict=True
        )
        return self.covers(np.array([truth in found.split("; ") for found, truth in pairs]))

    def next_week(self) -> bool:
        """The saved model returns the same numbers for the same rows."""
        before = self.scored()
        code = self.run("quantify --load @model --predict @new.csv --out @again.csv")
        after = self.scored("again.csv")
        return code == 0 and np.allclose(after["epistemic"], before["epistemic"], rtol=1e-5)

    def damaged_rows(self) -> bool:
        """Numbers in the wrong unit and unseen categories are flagged, with a reason."""
        damaged = self.new[:50].copy()
        damaged[self.column] = 12 * damaged[self.column].max()
        texts = [c for c in damaged if c != "key" and damaged[c].dtype.kind == "O"]
        damaged.loc[25:, texts[:1]] = "never seen"
        damaged.to_csv(self.folder / "damaged.csv", index=False)
        code = self.run("quantify --load @model --predict @damaged.csv --out @d.csv")
        rows = self.scored("d.csv")
        named = all(self.column in reason for reason in rows["out_of_range"])
        unseen = not texts or all(texts[0] in cell for cell in rows["unseen"][25:])
        return code == 0 and named and unseen and (rows["conformal_p_value"] < 0.05).mean() > 0.9

    def european_file(self) -> bool:
        """A file with semicolons, decimal commas and cp1252 is read correctly."""
        self.new.to_csv(
            self.folder / "euro.csv", index=False, sep=";", decimal=",", encoding="cp1252"
        )
        code = self.run("quantify --load @model --predict @euro.csv --out @e.csv")
        return code == 0 and np.allclose(self.scored("e.csv")["total"], self.scored()["total"])

    def parquet(self) -> bool:
        """Parquet input and output give the same numbers."""
        self.new.to_parquet(self.folder / "new.parquet")
        code = self.run("quantify --load @model --predict @new.parquet --out @p.parquet")
        found = pd.read_parquet(self.folder / "p.parquet")
        return code == 0 and np.allclose(found["total"], self.scored()["total"])

    def quantity(self) -> bool:
        """A numeric target is predicted with intervals that have the requested coverage."""
        target = self.train[self.column].astype(float) + 0.5
        table = self.train.assign(target=target)
        table.to_csv(self.folder / "quantity.csv", index=False)
        command = "quantify --train @quantity.csv --target target --predict @new.csv --id key"
        code = self.run(f"{command} --drop {self.column} --out @q.csv")
        rows, truth = self.scored("q.csv"), self.new[self.column] + 0.5
        return code == 0 and self.covers((rows["lower"] <= truth) & (truth <= rows["upper"]))

    def wrong_input(self) -> bool:
        """Invalid requests end with an error of one sentence."""
        command = "quantify --train @train.csv --predict @new.csv --out @x.csv --target"
        wrong = ["Target", "target --seed -1", "target --drop target", "target --model nosuch"]
        codes = [self.run(f"{command} {more}") for more in wrong]
        return codes == [WRONG_INPUT] * len(wrong) and "Traceback" not in self.said


def with_target(name: str, args) -> pd.DataFrame:
    """Load a data set as one table."""
    if name == "spambase":
        arrays = load_npz(name, args.data_dir)
        X, y = pd.DataFrame(arrays["x"], columns=arrays["feature_names"].tolist()), arrays["y"]
    else:
        X, y = load_table(name, args.data_dir)
    return X.assign(target=y)


OF_TABLES = (
    "one_command",
    "total_finds_errors",
    "sets_cover",
    "next_week",
    "damaged_rows",
    "european_file",
    "parquet",
    "quantity",
    "wrong_input",
)


# --- messy files ------------------------------------------------------------------------------


class File:
    """A table with a known target, and a later file with a bad cell."""

    def __init__(self, name: str, folder: Path, args) -> None:
        self.form, self.folder = MESSY_TABLES[name], folder
        table, self.target = self.form.make(np.random.default_rng(args.seed), N_MESSY + N_NEXT)
        table[:N_MESSY].to_csv(folder / "train.csv", index=False)
        self.new, self.truth = table[N_MESSY:].drop(columns=self.target), table[self.target]
        self.new.to_csv(folder / "new.csv", index=False)

    def run(self, command: str):
        """Run a command in the folder, and return its result with its output."""
        here = [word.replace("@", f"{self.folder}/") for word in command.split()]
        return CliRunner().invoke(skuq, here)

    def scored(self, name: str) -> pd.DataFrame:
        """A table that a command wrote."""
        return pd.read_csv(self.folder / name, keep_default_na=False)

    # --- cases ---------------------------------------------------------------------------

    def one_try(self) -> bool:
        """A command with only the target as an option gives a useful model and scores all rows."""
        command = f"quantify --train @train.csv --target {self.target} --predict @new.csv"
        done = self.run(f"{command} --out @u.csv --save @model")
        return done.exit_code == 0 and len(self.scored("u.csv")) == N_NEXT

    def numbers_are_numbers(self) -> bool:
        """Numeric columns are recognised, also if numbers are inside text."""
        model = TableModel.load(self.folder / "model")
        return set(self.form.numbers) <= set(model.columns_.numbers_)

    def names_are_left_out(self) -> bool:
        """Columns that only identify rows are not used, with a note."""
        model = TableModel.load(self.folder / "model")
        said = " ".join(note for note in model.notes_ if "were dropped" in note)
        left = [name for name in self.form.names if name not in model.feature_names_in_]
        return left == [*self.form.names] and all(name in said for name in left)

    def bad_cell(self) -> bool:
        """A bad cell excludes only its own row, which is reported with its line number."""
        name = self.form.numbers[0]
        before = self.run("quantify --load @model --predict @new.csv --out @before.csv")
        bad = self.new.astype({name: object})
        row = int(np.flatnonzero((self.scored("before.csv")["prediction"] != "").to_numpy())[7])
        bad.iloc[row, bad.columns.get_loc(name)] = self.form.bad
        bad.to_csv(self.folder / "bad.csv", index=False)
        done = self.run("quantify --load @model --predict @bad.csv --out @after.csv")
        strict = self.run("quantify --load @model --predict @bad.csv --out @x.csv --strict")
        old, new = (
            pd.to_numeric(self.scored(f"{each}.csv")["total"]) for each in ("before", "after")
        )
        same = np.isclose(old, new, rtol=1e-5, equal_nan=True)
        reason = self.scored("after.csv")["reasons"][row]
        return (
            [before.exit_code, done.exit_code, strict.exit_code] == [0, 0, WRONG_INPUT]
            and np.flatnonzero(~same).tolist() == [row]
            and reason.startswith(f"not scored: line {row + 2}: {name} is {self.form.bad!r}")
            and "not scored" in done.stdout.splitlines()[0]
        )


OF_FILES = ("one_try", "numbers_are_numbers", "names_are_left_out", "bad_cell")


# --- audits ----------------------------------------------------------------------------------


def audit_cases(folder: Path, args) -> Iterator[tuple[str, Case]]:
    """Yield audits of a forest on Adult, of groups that are not features, and of split files."""
    X, y = load_table("adult_train", args.data_dir)
    y = np.asarray(y)
    people = X[["sex"]]
    inputs = X.drop(columns="sex").select_dtypes("number")
    forest = RandomForestClassifier(50, min_samples_leaf=5, random_state=0)
    forest.fit(inputs[:10_000], y[:10_000])
    rest = slice(10_000, 22_000)
    proba = forest.predict_proba(inputs[rest])

    def unseen_groups() -> bool:
        audit = CalibrationAuditor(forest)
        audit.fit(inputs[rest], y[rest], sensitive_features=people[rest])
        return sorted(audit.group_bins_) == ["sex=Female", "sex=Male"]

    def parts() -> bool:
        table = pd.DataFrame(proba, columns=["p0", "p1"]).assign(label=y[rest])
        table[:7000].to_csv(folder / "part-1.csv", index=False)
        table[7000:].to_csv(folder / "part-2.csv", index=False)
        words = ["audit", "--predictions", f"{folder}/part-*.csv", "--label", "label"]
        words += ["--proba", "p0,p1", "--json", f"{folder}/audit.json"]
        code = CliRunner().invoke(skuq, words).exit_code
        found = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        whole = CalibrationAuditor.from_predictions(y[rest], proba)
        return code == (0 if whole.passed_ else FAILED) and f"{len(table)}" in json.dumps(found)

    def hidden_underconfidence() -> bool:
        mirage = proba.copy()
        hit = (inputs[rest]["education_num"] >= 13) & (inputs[rest]["age"] <= 32)
        certain = mirage[hit.to_numpy()]
        mirage[hit.to_numpy()] = np.where(certain > 0.5, 0.57, 0.43)
        audit = CalibrationAuditor.from_predictions(y[rest], mirage, X=X[rest], search_regions=True)
        return not audit.passed_ and len(audit.regions_) > 0

    def honest_model_passes() -> bool:
        labels = np.random.default_rng(args.seed).random(len(proba)) < proba[:, 1]
        audit = CalibrationAuditor.from_predictions(
            labels.astype(int), proba, X=X[rest], search_regions=True
        )
        return audit.passed_

    yield "audit of groups that the model does not see", unseen_groups
    yield "audit of files in parts", parts
    yield "audit finds hidden underconfidence", hidden_underconfidence
    yield "audit of a calibrated model passes", honest_model_passes


# --- models ----------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """A recurrent network that reads the rows of a digit one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self.out(self.rows(X)[0][:, -1])


class Probabilities(nn.Module):
    """A network that returns probabilities instead of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(30, 2)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self.out(X).softmax(dim=1)


def model_cases(args) -> Iterator[tuple[str, Case]]:
    """Yield cases with users' models, to which uncertainty is added."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    X = X.assign(size=pd.cut(X["mean area"], 4, labels=["s", "m", "l", "xl"]).astype(str))
    numbers = X.drop(columns="size")
    linear = make_pipeline(StandardScaler(), LogisticRegression())
    digits, labels = load_digits(return_X_y=True)

    def finite(uncertainty) -> bool:
        return bool(np.isfinite(uncertainty.total).all() and (uncertainty.epistemic >= -1e-9).all())

    def first_pipeline() -> bool:
        columns = make_column_transformer(
            (OneHotEncoder(), ["size"]),
            (StandardScaler(), make_column_selector(dtype_include="number")),
            sparse_threshold=1.0,
        )
        model = make_pipeline(columns, QUAMClassifier(random_state=0)).fit(X, y)
        return finite(predict_uncertainty(model, X[:50]))

    def trees() -> bool:
        model = FrozenEstimator(HistGradientBoostingClassifier().fit(numbers, y))
        quam = QUAMClassifier(model, random_state=0).fit(numbers, y)
        far = numbers[:20] * 50
        found, own = (quam.predict_uncertainty(rows).epistemic for rows in (far, numbers[:20]))
        return bool(found.mean() > own.mean())

    def recurrent_network() -> bool:
        rows = digits.reshape(-1, 8, 8).astype(np.float32) / 16
        quam = QUAMClassifier(
            Recurrent(), search=PoolSearch(parameters="all", n_steps=20), random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about an untrained model
            return finite(quam.fit(rows[:500], labels[:500]).predict_uncertainty(rows[500:550]))

    def transformer() -> bool:
        transformers = import_optional("transformers", extra="transformers")
        config = transformers.BertConfig(
            vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, num_labels=2,
        )  # fmt: skip
        torch.manual_seed(0)
        bert = transformers.BertForSequenceClassification(config).eval()
        tokens = np.random.default_rng(0).integers(0, 30, size=(80, 6))
        texts = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            quam = QUAMClassifier(bert, search=PoolSearch(n_steps=10), random_state=0).fit(
                texts, tokens[:, 0] % 2
            )
        return finite(quam.predict_uncertainty(texts))

    def softmax_is_noticed() -> bool:
        net = Probabilities()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            QUAMClassifier(net, search=PoolSearch(n_steps=2)).fit(numbers.to_numpy(np.float32), y)
        return any("probabilities" in str(each.message) for each in caught)

    def rows_of_uncertainty() -> bool:
        quam = QUAMClassifier(linear, random_state=0).fit(numbers, y)
        u = quam.predict_uncertainty(numbers[100:150])
        kept = u[u.epistemic > np.median(u.epistemic)]
        return len(kept) == 25 and u.to_frame().index.equals(numbers.index[100:150])

    def out_of_fold() -> bool:
        model = make_pipeline(
            StandardScaler(), QUAMClassifier(search=PoolSearch(n_steps=20), random_state=0)
        )
        return len(cross_val_predict_uncertainty(model, numbers, y, cv=3)) == len(y)

    def weighted_metric() -> bool:
        proba = linear.fit(numbers, y).predict_proba(numbers)
        weight = np.arange(len(y)) % 3
        repeated = np.repeat(np.arange(len(y)), weight)
        return np.isclose(
            expected_calibration_error(y, proba, sample_weight=weight),
            expected_calibration_error(y.to_numpy()[repeated], proba[repeated]),
        )

    def evidence_without_a_graph() -> bool:
        net = nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 2))
        scaled = StandardScaler().fit_transform(numbers).astype(np.float32)
        return finite(
            EvidentialProbe(net, max_epochs=10).fit(scaled, y).predict_uncertainty(scaled)
        )

    def guaranteed_ranges() -> bool:
        gpc = make_pipeline(StandardScaler(), RobustGPC(random_state=0)).fit(numbers[:300], y[:300])
        scaled = gpc[0].transform(numbers[300:305])
        return set(gpc[-1].certify(scaled, radius=0.05).status) <= {"safe", "unsafe"}

    cases = (
        first_pipeline, trees, recurrent_network, transformer, softmax_is_noticed,
        rows_of_uncertainty, out_of_fold, weighted_metric, evidence_without_a_graph,
        guaranteed_ranges,
    )  # fmt: skip
    for case in cases:
        yield case.__name__.replace("_", " "), case


def held(case: Case) -> tuple[bool, float]:
    """Run a case; return whether it passed, and its CPU seconds."""
    start = time.process_time()
    try:
        result = bool(case())
    except Exception:
        traceback.print_exc()
        result = False
    return result, time.process_time() - start


def all_cases(folder: Path, args) -> Iterator[tuple[str, str, Case]]:
    """Yield the name of each case, its subject, and the case."""
    for name in args.only:
        if name in AUDITS_AND_MODELS:
            continue
        own = folder / name
        own.mkdir()
        table, cases = (File, OF_FILES) if name in MESSY_TABLES else (Day, OF_TABLES)
        day = table(name, own, args)
        yield from ((case.replace("_", " "), name, getattr(day, case)) for case in cases)
    if "audits" in args.only:
        yield from ((name, "audits", case) for name, case in audit_cases(folder, args))
    if "models" in args.only:
        yield from ((name, "models", case) for name, case in model_cases(args))


def main() -> None:
    arguments = parser(__doc__)
    every = [*DATASETS, *MESSY_TABLES, *AUDITS_AND_MODELS]
    arguments.add_argument("--only", nargs="+", default=every, choices=every)
    args = arguments.parse_args()
    set_threads(args)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for name, about, case in all_cases(Path(folder), args):
            result, seconds = held(case)
            print(f"{about:16} {name:46} {'held' if result else 'DID NOT HOLD':14}{seconds:6.1f} s")
            records.append(record(name, about, "held", result, 1))
            records.append(record(name, about, "seconds", seconds, 1))
    finish("working_day", args, records)


if __name__ == "__main__":
    main()
