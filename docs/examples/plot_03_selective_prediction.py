"""
Refuse to answer when unsure
============================

A classifier that abstains when it is uncertain can be far more reliable on the samples that it
answers. This requires that its uncertainty is large for its mistakes. Measure whether this is the
case: the most elaborate measure of uncertainty is not always the best for this purpose.
"""

# %%
# We use scikit-learn's breast cancer data, of which 200 rows are held out, and a logistic
# regression.
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import QUAMClassifier, predict_uncertainty

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=200, stratify=y, random_state=0)
clf = make_pipeline(
    StandardScaler(),
    QUAMClassifier(LogisticRegression(), search="pointwise", setting="selected", random_state=0),
)
clf.fit(X_train, y_train)
predicted = clf.predict(X_test)
u = predict_uncertainty(clf, X_test)
print(f"{(predicted != y_test).sum()} of {len(y_test)} predictions are wrong")

# %%
# The risk-coverage curve
# -----------------------
# Answer only the least uncertain share of the rows (coverage), and count the errors among them
# (risk). The area under the curve, AURC, summarises the curve; smaller is better.
import matplotlib.pyplot as plt

from skuq.metrics import misclassification_auroc
from skuq.plotting import ReliabilityDisplay, RiskCoverageDisplay

fig, ax = plt.subplots(figsize=(7, 4.4), layout="constrained")
for part in ("total", "aleatoric", "epistemic"):
    RiskCoverageDisplay.from_predictions(y_test, predicted, getattr(u, part), name=part, ax=ax)
    auroc = misclassification_auroc(y_test, predicted, getattr(u, part))
    print(f"{part:9}  AUROC of finding the wrong predictions: {auroc:.3f}")

# %%
# All three parts are far better than chance. The *aleatoric* part, which here is the entropy of the
# model's own probabilities, finds the mistakes best. This is to be expected: the test rows have the
# same distribution as the training rows, and most mistakes lie near the decision boundary, where a
# good model is uncertain. QUAM adds information about inputs for which the training data do not
# determine the prediction, see :ref:`sphx_glr_gallery_plot_04_ood_inputs.py`. Besides, there are
# only a few mistakes, so chance can explain the difference between the parts.
#
# Choosing a threshold
# --------------------
# The curve's ``threshold`` is the uncertainty up to which samples are answered. Here we choose the
# largest coverage at which at most 1 in 100 answers is wrong.
from skuq.metrics import risk_coverage_curve

curve = risk_coverage_curve(y_test, predicted, u.total)
best = (curve.risk <= 0.01).nonzero()[0][-1]
print(f"Answer if total uncertainty <= {curve.threshold[best]:.3f} nats:")
print(f"coverage {curve.coverage[best]:.2f}, error rate {curve.risk[best]:.3f}")

# %%
# A threshold looks better on the rows on which it was chosen than on new rows. Choose the threshold
# on one set and report the error rate on another.
#
# Are the probabilities themselves right?
# ---------------------------------------
# This question concerns calibration, which is a property of the model: QUAM leaves the
# probabilities as they are.
display = ReliabilityDisplay.from_estimator(clf, X_test, y_test, n_bins=5, name="5 bins")

# %%
# Nearly all rows are in the last bin. As the counts below the diagram show, each of the other bars
# is based on a few samples, so its gap means little.
print(display.table.to_frame().round(3))
