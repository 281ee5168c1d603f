"""
Inputs that the model was never meant for
=========================================

Ask a digit classifier about a photograph, and it names a digit. Its probabilities are no
warning: they compare the ten digits with each other and have no way to say "none of them".
"""

# %%
# :func:`~skuq.datasets.load_digits_with_ood` takes scikit-learn's digits and makes four
# kinds of out-of-distribution inputs of the same shape. The sets are kept small here, so that
# this page builds in seconds.
from skuq.datasets import load_digits_with_ood

data = load_digits_with_ood(n_test=40, n_ood=8, random_state=0)

import matplotlib.pyplot as plt

pictures = {"digits": data.X_test, **data.ood}
fig, axes = plt.subplots(1, 5, figsize=(8, 2))
for ax, (name, images) in zip(axes, pictures.items(), strict=True):
    ax.imshow(images[2].reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
    ax.set(title=name, xticks=[], yticks=[])

# %%
# The model is a logistic regression, which makes a search for each image cheap. Fewer steps,
# and fewer training digits per step, make it cheaper still.
from sklearn.linear_model import LogisticRegression

from skuq import QUAMClassifier, predict_uncertainty
from skuq.quam import PointwiseSearch

clf = QUAMClassifier(
    LogisticRegression(max_iter=1000),
    search=PointwiseSearch(n_steps=50, train_batch_size=128),
    setting="selected",
    random_state=0,
)
clf.fit(data.X_train, data.y_train)
print(f"Accuracy on the test digits: {clf.score(data.X_test, data.y_test):.3f}")

# %%
# Two scores for each input: the entropy of the model's probabilities (for
# ``setting="selected"`` that is the aleatoric part) and QUAM's epistemic part. The AUROC is
# the chance that of one out-of-distribution (OOD) input and one digit, the OOD input gets the
# larger value.
import pandas as pd

from skuq.metrics import detection_metrics

u = {name: predict_uncertainty(clf, images) for name, images in pictures.items()}
auroc = {
    name: {
        "entropy of the model": detection_metrics(u["digits"].aleatoric, u[name].aleatoric).auroc,
        "QUAM, epistemic": detection_metrics(u["digits"].epistemic, u[name].epistemic).auroc,
    }
    for name in data.ood
}
print(pd.DataFrame(auroc).T.round(3))

# %%
# On rotated digits the entropy is worse than guessing: the model is *surer* of them than of
# real digits. QUAM separates all four kinds without a mistake in this run. Before you
# carry that over to your data, note that there are eight inputs of each kind, that they
# are crudely out of distribution, and that the default settings of ``QUAMClassifier`` were
# chosen by looking at these digits. It shows what the method can do, not what it will do for you.
from skuq.plotting import UncertaintyHistogramDisplay

display = UncertaintyHistogramDisplay.from_predictions(
    {name: result.epistemic for name, result in u.items()},
    label="epistemic uncertainty",
    unit="nats",
)

# %%
# Through scikit-learn
# --------------------
# ``score_samples`` is minus the epistemic part, so larger means more like the training
# data. That is the convention of scikit-learn's outlier detectors, and it passes through a
# plain pipeline. scikit-learn's own metrics take it as it is:
import numpy as np
from sklearn.metrics import roc_auc_score

few = np.concatenate([data.X_test[:10], data.ood["photographs"]])
is_digit = np.arange(len(few)) < 10
print(f"AUROC by score_samples: {roc_auc_score(is_digit, clf.score_samples(few)):.3f}")
