"""
Intervals that fit each row?
============================

Intervals with a coverage of 90% on average can still be wrong for most rows: too wide for cheap
flats and too narrow for expensive ones. One metric and four plots show whether this is the case.
"""

# %%
# Flats and their rents
# ---------------------
# Rents, in euros, increase with the size of a flat and with the floor. Their noise increases with
# the rent, as is typical of prices.
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
# *One width*: boosted trees, with intervals of one width, which is derived from the errors on
# held-out flats (split conformal prediction). *Own width*: boosted trees that predict the quantiles
# 0.05 and 0.95. *QUAM*: the noise of each flat is predicted from errors in cross-validation, so no
# held-out flats are needed; the interval is wider where other models, which fit equally well,
# disagree.


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
# Metrics
# -------
# Coverage is the share of rents inside their intervals. The interval score, in euros, is the width
# of the interval. If the rent is outside the interval, a penalty is added, which is proportional to
# the distance of the rent from the interval. A smaller score is better.
import pandas as pd

from skuq.metrics import interval_coverage, interval_score

table = pd.DataFrame(
    {
        name: {
            "coverage": interval_coverage(true, *limits),
            "mean width": np.mean(limits[1] - limits[0]),
            "interval score": interval_score(true, *limits, coverage=0.9),
        }
        for name, limits in intervals.items()
    }
)
print(table.round(2))

# %%
# Coverage by predicted rent
# --------------------------
# The plots show the coverage of the same flats in deciles of the predicted rent. The lines are
# exact binomial confidence limits that hold simultaneously for all ten groups.
from skuq.plotting import CoverageBySizeDisplay, IntervalsByWidthDisplay

fig, axes = plt.subplots(1, 3, figsize=(17, 4.6), layout="constrained")
for ax, (name, limits) in zip(axes, intervals.items(), strict=True):
    CoverageBySizeDisplay.from_predictions(true, *limits, predicted, unit="euros", name=name, ax=ax)
    ax.set_ylim(0.55, 1.02)

# %%
# With one width, the intervals contain nearly all cheap rents but too few expensive ones. The
# average coverage hides this.
#
# Widths
# ------
# The next plots show all intervals, centred at their midpoints and sorted from the narrowest to the
# widest:
fig, axes = plt.subplots(1, 3, figsize=(17, 4.6), layout="constrained")
for ax, (name, limits) in zip(axes, intervals.items(), strict=True):
    IntervalsByWidthDisplay.from_predictions(true, *limits, unit="euros", name=name, ax=ax)

# %%
# With one width, the plot is a rectangle, and the width is not informative. In the other plots, the
# width is informative: the rents on the left are predicted precisely, and those on the right are
# not.
#
# Between the bounds
# ------------------
# Five quantiles define a coarse distribution. If they are correct, each decile of this distribution
# contains a tenth of the rents, up to sampling error.
from skuq.metrics import pinball_loss
from skuq.plotting import PITDisplay

PITDisplay.from_quantiles(true, quantiles, levels, name="five quantiles")
print(f"Pinball loss: {pinball_loss(true, quantiles, levels):.1f} euros")

# %%
# The outer bars are the highest, but still just inside the band. The outer quantiles are slightly
# too close together, as the coverage above also shows; this is common without calibration.
#
# Leave uncertain flats to people
# -------------------------------
# The width ranks the flats: accept predictions with a narrow interval, and refer the other flats to
# an expert.
from skuq.plotting import RiskCoverageDisplay

lower, upper = intervals["own width"]
RiskCoverageDisplay.from_predictions(
    true, predicted, upper - lower, loss="absolute_error", unit="euros", name="width"
)

# %%
# Intervals of equal width cannot rank flats: their curve would be the dashed line.
#
# For the choice of metrics, including those for samples or Gaussian predictions, see
# :doc:`/guide/metrics`.
