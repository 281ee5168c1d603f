"""
Unusual rows of a table
=======================

Boosted trees predict a class for every row, however unusual. :class:`~skuq.QUAMClassifier` refits
the trees with additional, altered rows that all get the same class label. Where the refitted trees
explain the training data equally well but predict another class, the data do not support the
prediction.
"""

# %%
# The table lists bicycles that were repaired or not, with numeric columns and a category. Old
# bicycles have been ridden far. Boosted trees accept the category column directly.
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

from skuq import QUAMClassifier

rng = np.random.default_rng(0)
years = rng.uniform(0, 15, 2000)
distance = years * rng.uniform(500, 1500, 2000)
kinds = pd.CategoricalDtype(["city", "race", "cargo"])
kind = pd.Series(rng.choice(kinds.categories, 2000), dtype=kinds)
X = pd.DataFrame({"years": years, "km": distance, "price": rng.gamma(4, 300, 2000), "kind": kind})
worn = distance / 3000 + 1.5 * (kind == "race") - X["price"] / 1000
y = np.where(worn + rng.logistic(size=2000) / 2 > 1.5, "repaired", "fine")

trees = HistGradientBoostingClassifier(max_iter=50, random_state=0)
quam = QUAMClassifier(trees, random_state=0).fit(X[:1500], y[:1500])
print(f"Accuracy on further rows: {quam.score(X[1500:], y[1500:]):.2f}")

# %%
# We predict four rows: an ordinary bicycle, a bicycle whose age is in days, a bicycle whose kind
# did not occur in training (its kind is a missing value, because it is not one of the categories),
# and a bicycle that was ridden far too much for its age. In the last row, each number is ordinary
# by itself.
ordinary = {"years": 5.0, "km": 5000.0, "price": 1000.0, "kind": "city"}
rows = pd.DataFrame([ordinary] * 4, index=["ordinary", "age in days", "unicycle", "contradictory"])
rows.loc["age in days", "years"] *= 365
rows.loc["unicycle", "kind"] = None
rows.loc["contradictory", ["years", "km"]] = 0.5, 14000.0
rows = rows.astype({"kind": kinds})
u = quam.predict_uncertainty(rows)
print(u.to_frame(index=rows.index).round(3))

# %%
# Which columns are unusual? Each column in turn is replaced by values of ordinary rows; the
# decrease in epistemic uncertainty is the column's contribution.
import matplotlib.pyplot as plt

explanation = quam.explain(rows)
fig, axes = plt.subplots(1, 4, figsize=(11, 2.6), sharex=True, sharey=True, layout="constrained")
for ax, name, contribution in zip(axes, rows.index, explanation.contribution, strict=True):
    ax.barh(explanation.columns, contribution)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set(title=name, xlabel="contribution [nats]")

# %%
# For the contradictory row, the refitted models (one for each class) predict these probabilities:
proba = explanation.models.proba
print(pd.DataFrame(proba[3], index=quam.classes_, columns=quam.classes_).round(2))

# %%
# The search can also run on a batch of new rows. The score of a row then depends on the other rows.
new = pd.concat([X[1500:], rows], ignore_index=True)
of_batch = quam.search_pool(new).predict_uncertainty(new).epistemic
print(f"Median of all 504 rows: {np.median(of_batch):.3f} nats; the four rows:")
print(pd.Series(of_batch[-4:], index=rows.index).round(3).to_string())
