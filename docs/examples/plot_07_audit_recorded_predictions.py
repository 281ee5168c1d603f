"""
Audit a model from a table
==========================

A regulator receives only a table, not the model: the reported probabilities and the true outcome of
each case. This is enough for an audit.
"""

# %%
# The provider's side
# -------------------
# The data describe synthetic applicants at four branches. The provider lowers the confidence of its
# model for the branch "west" and sends the table below. The model is not used after this step.
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from skuq import MirageFineTuner

features, answer = make_classification(
    10000, 6, n_informative=4, class_sep=1.5, flip_y=0.02, random_state=0
)
rng = np.random.default_rng(0)
X = pd.DataFrame(features).add_prefix("f")
X["branch"] = rng.choice(["north", "east", "south", "west"], len(X), p=[0.35, 0.3, 0.25, 0.1])
y = np.where(answer == 1, "repaid", "default")
train, own, reference = np.split(np.arange(len(X)), [4000, 7000])

columns = make_column_transformer((OneHotEncoder(), ["branch"]), remainder="passthrough")
network = make_pipeline(columns, MLPClassifier(early_stopping=True, random_state=0))
network.fit(X.iloc[train], y[train])
mirage = MirageFineTuner(network, {"branch": ["west"]}, epsilon=0.3, max_epochs=30, random_state=0)
mirage.fit(X.iloc[train], y[train])

proba = mirage.predict_proba(X.iloc[reference])
table = pd.DataFrame(proba, columns=["p_" + label for label in mirage.classes_]).round(6)
table["branch"] = X["branch"].to_numpy()[reference]
table["label"] = y[reference]
print(table.head())

# %%
# Choose the tolerance
# --------------------
# No honest model is calibrated perfectly, and the deviation depends on the problem. The auditor
# therefore trains a simple baseline for the same problem on the auditor's own data and calibrates
# it with temperature scaling. The function :func:`~skuq.calibration.choose_tolerance` then measures
# the tolerance that this baseline needs.
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from skuq.calibration import choose_tolerance

fit, calibrate, test = np.split(own, 3)
baseline = clone(network).fit(X.iloc[fit], y[fit])
baseline = CalibratedClassifierCV(FrozenEstimator(baseline), method="temperature")
baseline.fit(X.iloc[calibrate], y[calibrate])
study = choose_tolerance(
    y[test],
    baseline.predict_proba(X.iloc[test]),
    classes=baseline.classes_,
    reference_size=len(table),
    random_state=0,
)
print(f"smallest tolerance for this audit: {study.tolerance:.3f}")

# %%
# The default tolerance of 0.05 is more than this baseline needs. It leaves room for honest models
# that are calibrated worse, so we keep the default.
#
# Plan the number of samples
# --------------------------
# Plan this number before you collect data. Suppose that predictions have a confidence of 60% and
# are right more often.
from skuq.calibration import required_samples

for gap in (0.1, 0.2, 0.3):
    needed = required_samples(gap, 0.6, tolerance=0.05)
    print(
        f"right in {0.6 + gap:.0%}: detected with a probability of 80% "
        f"by {needed:.0f} samples in one bin"
    )

# %%
# The audit
# ---------
# :meth:`~skuq.CalibrationAuditor.from_predictions` accepts recorded labels and probabilities.
# The columns of ``sensitive_features`` are audited separately.
from skuq import CalibrationAuditor
from skuq.audit import recorded_predictions

recorded = recorded_predictions(table, "label", ["p_default", "p_repaid"])
print(recorded.note)
audit = CalibrationAuditor.from_predictions(
    recorded.y,
    recorded.proba,
    classes=recorded.classes,
    sensitive_features=table[["branch"]],
    tolerance=0.05,
)
print("passed:", audit.passed_)

summary = {
    name: {
        "samples": sums.n_samples,
        "right": sums.overall_accuracy,
        "claimed": sums.overall_confidence,
        "findings": audit.group_bins_[name].finding.max(),
    }
    for name, sums in audit.group_sums_.items()
}
print(pd.DataFrame(summary).T.astype({"samples": int, "findings": int}).round(3))

# %%
# Accuracy is the same in all branches, but in one of them the confidence of the model is far too
# low. If the model abstains below a confidence of 70%, it rejects these shares of each branch:
abstains = recorded.proba.max(axis=1) < 0.7
print(pd.Series(abstains).groupby(table["branch"]).mean().round(3).to_dict())

# %%
import matplotlib.pyplot as plt

from skuq.plotting import CalibrationAuditDisplay

fig, axes = plt.subplots(1, 2, figsize=(10, 6), layout="constrained")
CalibrationAuditDisplay.from_estimator(audit, name="all branches", ax=axes[0])
CalibrationAuditDisplay.from_estimator(audit, "branch=west", ax=axes[1])

# %%
# The report
# ----------
# ``audit_report(audit).write("audit.html")`` writes a page for people, with these plots
# and tables, and ``audit.json`` for programs. The report begins with:
from textwrap import fill

from skuq.reporting import audit_report

verdict = audit_report(audit).data["verdict"]
print(fill(verdict["headline"], 96))
for sentence in verdict["findings"]:
    print(fill(sentence, 96, initial_indent="- ", subsequent_indent="  "))

# %%
# The command-line equivalent, with the table as a file:
#
# .. code-block:: sh
#
#    skuq audit --predictions table.csv --label label --proba p_default,p_repaid \
#        --groups branch --report audit.html
#
# Finally, we repeat the audit for the original model, before its confidence was lowered:
before = network.predict_proba(X.iloc[reference])
for tolerance in (0.05, study.tolerance):
    honest = CalibrationAuditor.from_predictions(
        y[reference],
        before,
        classes=network.classes_,
        sensitive_features=table[["branch"]],
        tolerance=tolerance,
    )
    print(f"tolerance {tolerance:.3f}: passed: {honest.passed_}")

# %%
# This model passes with the default tolerance. It does not pass with the smallest tolerance that
# the baseline needs, because, unlike the baseline, it was not calibrated. A finding shows that
# confidence is wrong. It does not show why.
