"""
Tune a model for the quality of its uncertainty
===============================================

Grid search maximises a given score. If your model must be well calibrated, or must abstain when it
is uncertain, pass a matching score as ``scoring``.
"""

# %%
# The scorers of :mod:`skuq.metrics` are ordinary scikit-learn scorers, so larger values are better.
# Some scorers need only probabilities. Scorers that need uncertainty run QUAM's search on every
# validation row of every candidate, so keep the grid small, or ``n_steps`` low.
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import QUAMClassifier, predict_uncertainty
from skuq.metrics import (
    area_under_risk_coverage,
    neg_expected_calibration_error_scorer,
    neg_log_likelihood_scorer,
    uncertainty_scorer,
)
from skuq.quam import PointwiseSearch

X, y = load_wine(return_X_y=True)
X = X[:, [0, 1, 2]]  # alcohol, malic acid and ash only: hard enough to make mistakes
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=58, stratify=y, random_state=0)

# %%
# ``estimator__C`` is the parameter C of the logistic regression inside ``QUAMClassifier``;
# a large C means little regularisation.
search = GridSearchCV(
    make_pipeline(
        StandardScaler(),
        QUAMClassifier(
            LogisticRegression(),
            search=PointwiseSearch(n_steps=25),
            setting="selected",
            random_state=0,
        ),
    ),
    {"quamclassifier__estimator__C": [0.003, 0.03, 0.3, 3.0, 30.0]},
    scoring={
        "accuracy": "accuracy",
        "log_likelihood": neg_log_likelihood_scorer,
        "calibration": neg_expected_calibration_error_scorer,
        "risk_coverage": uncertainty_scorer(area_under_risk_coverage, greater_is_better=False),
    },
    refit="log_likelihood",
    cv=3,
)
search.fit(X_train, y_train)

# %%
import pandas as pd

results = pd.DataFrame(search.cv_results_)
columns = {f"mean_test_{name}": name for name in search.scoring}
table = results.rename(columns=columns)[list(columns.values())]
table.index = pd.Index(search.param_grid["quamclassifier__estimator__C"], name="C")
print(table.round(3))

# %%
# The best C depends on the score. This is the best C for each score:
print(table.idxmax())

# %%
import matplotlib.pyplot as plt

fig, axes = plt.subplots(1, 4, figsize=(11, 2.8), layout="constrained")
for ax, (name, values) in zip(axes, table.items(), strict=True):
    ax.semilogx(table.index, values, marker="o", color="#0072B2")
    ax.set(title=name.replace("_", " "), xlabel="C")

# %%
# Accuracy, log-likelihood and risk-coverage are best at an intermediate value of C here;
# calibration is best with hardly any regularisation. But the table shows that these differences are
# small: the rows from C = 0.3 on differ very little, and are based on only 120 wines and three
# folds. Strong regularisation clearly hurts: at C = 0.003 the model is underconfident, makes more
# mistakes, and ranks its mistakes badly.
#
# The expected calibration error alone is a poor target: a model that predicts
# the class frequencies for every row is perfectly calibrated and useless. The log-likelihood
# rewards both calibration and accuracy, so ``refit`` uses it above.

# %%
# The search object is a fitted classifier, and :func:`skuq.predict_uncertainty` finds the best
# ``QUAMClassifier`` inside it, after the pipeline's scaler.
print(f"Mean log likelihood of the test rows: {search.score(X_test, y_test):.3f} nats")
print(predict_uncertainty(search, X_test[:5]).to_frame().round(3))
