"""
Intervals that fit each row?
============================

Intervals of 90% that hold 90% of the values can still be wrong for nearly everybody: too wide for
cheap flats, too narrow for dear ones. One measure and four pictures find out.
"""

# %%
# Flats and their rents
# ---------------------
# Rents that grow with the size of a flat and with the floor, and whose noise grows with the rent,
# as that of prices does. Rents are in euros.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

rng = np.random.default_rng(0)
n = 4000
size, floor = rng.gamma(6, 12, n) + 20, rng.integers(0, 8, n)
rent = (250 + 9 * size + 15 * floor) * rng.lognormal(0, 0.05 + 0.002 * size, n)
X = np.column_stack([size, floor])
train, held_out, test = np.split(np.arange(n), [1500, 2000])

# %%
# Three kinds of intervals
# ------------------------
# *One width*: boosted trees, and the errors that they make on held-out flats (split conformal
# prediction). *Own width*: the same trees learn the quantiles 0.05 and 0.95 themselves. *QUAM*:
# the noise of each flat is learnt from the errors of cross-validation, so that no flat need be held
# out; where other models that fit as well disagree, the interval is wider.


def trees(**loss):
    settings = {"max_iter": 80, "max_leaf_nodes": 8, "learning_rate": 0.08, "random_state": 0}
    return HistGradientBoostingRegressor(**settings, **loss).fit(X[train], rent[train])


mean = trees()
half = np.quantile(np.abs(rent[held_out] - mean.predict(X[held_out])), 0.9)
predicted, true = mean.predict(X[test]), rent[test]

levels = [0.05, 0.25, 0.5, 0.75, 0.95]
models = [trees(loss="quantile", quantile=level) for level in levels]
quantiles = np.sort(np.column_stack([model.predict(X[test]) for model in models]), axis=1)

from sklearn.base import clone

from skuq import QUAMRegressor

known = np.concatenate([train, held_out])
quam = QUAMRegressor(clone(mean), random_state=0).fit(X[known], rent[known])

intervals = {
    "one width": (predicted - half, predicted + half),
    "own width": (quantiles[:, 0], quantiles[:, -1]),
    "QUAM": quam.predict_interval(X[test], coverage=0.9),
}

# %%
# The measures
# ------------
# Coverage says whether the intervals hold what they promise, on average. The interval score, in
# euros, weighs the width against the distance of the values that are missed.
import pandas as pd

from skuq.metrics import interval_coverage, interval_score, mean_interval_width

table = pd.DataFrame(
    {
        name: {
            "coverage": interval_coverage(true, *limits),
            "mean width": mean_interval_width(*limits),
            "interval score": interval_score(true, *limits, coverage=0.9),
        }
        for name, limits in intervals.items()
    }
)
print(table.round(2))

# %%
# Where they hold
# ---------------
# The coverage of the same flats, in tenths by the predicted rent. Lines are exact binomial limits,
# for all ten groups together.
from skuq.plotting import CoverageBySizeDisplay, IntervalsByWidthDisplay

fig, axes = plt.subplots(1, 3, figsize=(17, 4.6), layout="constrained")
for ax, (name, limits) in zip(axes, intervals.items(), strict=True):
    CoverageBySizeDisplay.from_predictions(true, *limits, predicted, unit="euros", name=name, ax=ax)
    ax.set_ylim(0.55, 1.02)

# %%
# One width holds nearly every cheap flat and fails for the dear ones. The average hides it.
#
# How wide they are
# -----------------
# All intervals about their middle, from the narrowest to the widest:
fig, axes = plt.subplots(1, 3, figsize=(17, 4.6), layout="constrained")
for ax, (name, limits) in zip(axes, intervals.items(), strict=True):
    IntervalsByWidthDisplay.from_predictions(true, *limits, unit="euros", name=name, ax=ax)

# %%
# The rectangle says nothing about a flat. In the other picture the width is a finding: flats on the
# left are predicted to within a small sum, those on the right are not.
#
# Between the limits
# ------------------
# Five quantiles are a coarse distribution. If they are right, every tenth of it holds a tenth of
# the rents, up to chance.
from skuq.metrics import pinball_loss
from skuq.plotting import PITDisplay

PITDisplay.from_quantiles(true, quantiles, levels, name="five quantiles")
print(f"Pinball loss: {pinball_loss(true, quantiles, levels):.1f} euros")

# %%
# The outer bars are the highest, just inside the band: these quantiles are a little too narrow, as
# quantiles are that were learnt and never corrected, and the coverage above says so too.
#
# Leave the uncertain ones to people
# ----------------------------------
# The width ranks the flats: answer the narrow ones, and hand the others to somebody who knows the
# street.
from skuq.plotting import RiskCoverageDisplay

lower, upper = intervals["own width"]
RiskCoverageDisplay.from_predictions(
    true, predicted, upper - lower, loss="absolute_error", unit="euros", name="width"
)

# %%
# Intervals of one width could not rank anything: their curve would be the dashed line.
#
# What each measure is for, and which of them to take for samples or Gaussian predictions:
# :doc:`/guide/metrics`.
