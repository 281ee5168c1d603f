"""
Faked uncertainty, and the audit that finds it
==============================================

A bank can send people to a long manual review because its model is uncertain. If the model is made
uncertain about a group that the bank wants to avoid, nobody is rejected, and the accuracy of the
model does not change. This page trains such a model and then audits it.
"""

# %%
# Three classes, and a region
# ---------------------------
# The data are those of the paper: three normally distributed classes in two dimensions. The dashed
# box contains only points of class 0, far from the other classes. Any good model is certain of
# these points.
import matplotlib.pyplot as plt
import numpy as np

from skuq.calibration import region_mask
from skuq.datasets import GAUSSIAN_REGION, make_gaussian_classes

X, y = make_gaussian_classes(random_state=0)
X_ref, y_ref = make_gaussian_classes(random_state=1)  # the auditor's data, new to the model
inside = region_mask(GAUSSIAN_REGION, X_ref)

fig, ax = plt.subplots(figsize=(6, 4.2), layout="constrained")
for k in range(3):
    ax.scatter(*X_ref[y_ref == k].T, s=6, label=f"class {k}")
(left, right), (bottom, top) = GAUSSIAN_REGION.values()
box = plt.Rectangle((left, bottom), right - left, top - bottom, fill=False, ls="--", lw=1.5)
ax.add_patch(box)
ax.legend(loc="lower right")
ax.set(xlabel="feature 0", ylabel="feature 1")

print(f"{inside.sum()} of {len(X_ref)} reference samples lie in the box")

# %%
# The honest model, and the attack
# --------------------------------
# :class:`~skuq.MirageFineTuner` copies the network and continues training the copy: confidence in
# the box falls to a chosen level, while all other predictions should not change.
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import MirageFineTuner

honest = make_pipeline(StandardScaler(), MLPClassifier(max_iter=300, random_state=0)).fit(X, y)
mirage = MirageFineTuner(honest, GAUSSIAN_REGION, random_state=0).fit(X, y)

best = {"honest": honest.predict_proba(X_ref), "attacked": mirage.predict_proba(X_ref)}
print("          accuracy  in the box  confidence in the box")
for name, proba in best.items():
    correct = proba.argmax(axis=1) == y_ref
    confidence = proba[inside].max(axis=1).mean()
    print(f"{name:9} {correct.mean():8.3f} {correct[inside].mean():11.3f} {confidence:22.3f}")

# %%
# Accuracy does not reveal the attack, but confidence does: abstaining below a confidence of 60% now
# rejects most people in the box, and few others.
answered = {"in the box": X_ref[inside], "elsewhere": X_ref[~inside]}
for name, rows in answered.items():
    print(f"answered {name:11} {mirage.coverage(rows, 0.6):.3f}")
print(f"overlap of the confidences: {mirage.confidence_overlap(X_ref):.3f}")

# %%
from skuq.plotting import ConfidenceDensityDisplay

fig, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, {"honest": honest, "attacked": mirage}.items(), strict=True):
    ConfidenceDensityDisplay.from_estimator(model, answered, threshold=0.6, ax=ax)
    ax.set_title(name, pad=42)

# %%
# The audit
# ---------
# The auditor has 2100 labelled samples and audits both models with them. A model with a
# confidence of 45% should be right in 45 of 100 cases. If it is right in all of them, its
# confidence is too low.
from skuq import CalibrationAuditor

audits = {
    "honest": CalibrationAuditor(honest).fit(X_ref, y_ref),
    "attacked": CalibrationAuditor(mirage).fit(X_ref, y_ref),
}
for name, audit in audits.items():
    print(
        f"{name:9} passed: {audit.passed_!s:6} Algorithm 1: {audit.within_tolerance_!s:6} "
        f"ECE {audit.ece_:.3f}, by chance up to {audit.ece_chance_:.3f}"
    )

# %%
# The honest model would fail Algorithm 1 of the paper, which compares the gap of every bin with
# ``tolerance`` and leaves no margin for sampling error: one bin of the honest model has only 25
# samples. The lines in the plot show the range that chance can explain.
from skuq.plotting import CalibrationAuditDisplay

fig, axes = plt.subplots(1, 2, figsize=(10, 6), layout="constrained")
for ax, (name, audit) in zip(axes, audits.items(), strict=True):
    CalibrationAuditDisplay.from_estimator(audit, name=name, ax=ax)

# %%
# These are the sentences of the report:
from textwrap import fill

from skuq.reporting import audit_report

for sentence in audit_report(audits["attacked"]).data["verdict"]["sentences"]:
    print(fill(sentence, 96, initial_indent="- ", subsequent_indent="  "))

# %%
# Most suspicious samples lie outside the box. A network is a smooth function: lowering
# its confidence in the box also lowers it around the box.
suspicious = audits["attacked"].suspicious_samples()
print(f"{len(suspicious)} suspicious samples, {inside[suspicious].sum()} of them in the box")

# %%
# What the reference set does not cover
# -------------------------------------
# An audit covers only its reference set. Remove a fraction ``rho`` of the samples in the box and
# repeat the audit:
print(" rho  samples  smallest p-value  largest gap  passed")
for rho in (0.0, 0.5, 0.9, 1.0):
    thin = audits["attacked"].undersample(rho, inside, random_state=0)
    bins = thin.bins_
    print(
        f"{rho:4.1f} {thin.n_samples_:8} {bins.p_value.min():17.1e} "
        f"{np.nanmax(np.abs(bins.gap)):12.3f}  {thin.passed_}"
    )

# %%
# With fewer samples in the box, the evidence becomes weaker. The attack is found even without a
# single sample in the box, because confidence is also lower around the box. A different attack,
# :func:`~skuq.mirage.constructive_mirage`, adds neurons to the network that leave outputs outside
# the box bitwise identical. Here, these neurons lower the logit of class 0 in the box as far as
# possible without a wrong prediction:
import torch

from skuq.mirage import constructive_mirage
from skuq.models import adopt

network = adopt(honest)
inputs = network.inputs(X_ref)  # scaled, as the network expects
with torch.no_grad():
    before = network.module(inputs)
lead = (before[:, 0] - before[:, 1:].max(dim=1).values)[inside].min().item()

low, high = honest[0].transform(np.transpose(list(GAUSSIAN_REGION.values())))
box = {k: (low[k], high[k]) for k in range(2)}
patched = constructive_mirage(network.module, box, [0.05 - lead, 0.0, 0.0])
with torch.no_grad():
    after = patched(inputs)
print("logits changed outside the box:", (before != after)[~inside].any().item())

proba = after.softmax(dim=1).numpy()
audit = CalibrationAuditor.from_predictions(y_ref, proba)
by_place = CalibrationAuditor.from_predictions(
    y_ref, proba, sensitive_features={"in the box": inside}
)
print(f"confidence in the box:   {proba[inside].max(axis=1).mean():.3f}")
print(f"passed, all samples:     {audit.passed_}")
print(f"passed, box as a group:  {by_place.passed_}")
print(f"passed, no sample in it: {by_place.undersample(1.0, inside).passed_}")

# %%
# This attack is milder. The logits of class 0 differ between points, and the attack shifts all of
# them by the same amount; the largest shift without a wrong prediction leaves most predictions
# fairly confident. An audit of all samples together does not find this attack. An audit with the
# box as a separate group does. Without samples in the box, no audit can find the attack. The
# reference set and its groups determine what an audit can find: :doc:`/guide/audit`.
