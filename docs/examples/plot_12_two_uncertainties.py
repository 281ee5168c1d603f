"""
Noise or lack of data
=====================

A regressor can be uncertain for two reasons: the target is noisy, or there is a lack of training
data. More data reduce only the second kind of uncertainty. :class:`~skuq.AnchoredQuantileRegressor`
separates the two kinds.
"""

# %%
# A sensor with a gap
# -------------------
# The data are measurements in two ranges of temperature, with a gap in between. The noise of the
# sensor grows with the temperature. Temperatures are in degrees and the signal is in millivolts;
# the regressor standardises both internally.
import matplotlib.pyplot as plt
import numpy as np

from skuq import AnchoredQuantileRegressor


def signal(temperature):
    return 300 + 40 * np.sin(temperature / 6)


def noise(temperature):
    return 2 + 0.5 * temperature


rng = np.random.default_rng(0)
temperature = np.concatenate([rng.uniform(0, 15, 300), rng.uniform(28, 40, 300)])
y = signal(temperature) + noise(temperature) * rng.normal(size=600)
X = temperature[:, None]

model = AnchoredQuantileRegressor(random_state=0).fit(X, y)

# %%
# Two networks predict the same 50 quantiles, each regularised towards different random initial
# weights. The part of the spread over quantiles that both networks have in common is the noise;
# differences between the networks indicate a lack of data. Both parts of the uncertainty are
# variances in squared units of the target, here square millivolts.
u = model.predict_uncertainty([[7.0], [21.0], [35.0], [55.0]])
print(u.to_frame(index=["cold", "in the gap", "warm", "beyond"]).round(0))

# %%
# In a picture
# ------------
# The upper plot shows the data, the mean, and the interval between the quantiles 0.1 and 0.9. The
# lower plot shows both parts as standard deviations, in units of the signal.
grid = np.linspace(-8, 52, 200)
u = model.predict_uncertainty(grid[:, None])
low, high = model.predict_quantiles(grid[:, None], [0.1, 0.9]).T
blue, orange = "#0072b2", "#d55e00"

fig, (top, bottom) = plt.subplots(2, sharex=True, figsize=(8, 6.4), layout="constrained")
top.scatter(temperature, y, s=8, color="0.6", label="data")
top.fill_between(grid, low, high, color=blue, alpha=0.25, linewidth=0, label="quantiles 0.1 to 0.9")
top.plot(grid, model.predict(grid[:, None]), color=blue, label="mean")
top.plot(grid, signal(grid), ":", color="black", label="true mean")
top.set_ylabel("signal [mV]")
bottom.plot(grid, np.sqrt(u.aleatoric), color=blue, label="aleatoric")
bottom.plot(grid, np.sqrt(u.epistemic), "--", color=orange, label="epistemic")
inside = (grid >= 0) & (grid <= 40)
bottom.plot(grid[inside], noise(grid[inside]), ":", color="black", label="true noise")
bottom.set(xlabel="temperature [degrees]", ylabel="standard deviation [mV]")
for ax in (top, bottom):
    ax.axvspan(15, 28, color="0.94", zorder=0)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)

# %%
# Near the data, the aleatoric part follows the noise and the epistemic part is small. In the
# gap and outside, the epistemic part is larger: more measurements *there* would help. At
# 40 degrees, more measurements would not help, but a better sensor would.
#
# The interval represents the noise only. It is too narrow where there are no data, as the epistemic
# part shows. The aleatoric part is meaningless there, because without data the noise cannot be
# estimated.
#
# Coverage
# --------
# The learned quantiles have no guaranteed coverage. We test them on new measurements, at
# temperatures within the training range and in the gap:
for name, (start, end) in {"warm": (28, 40), "in the gap": (16, 27)}.items():
    fresh = rng.uniform(start, end, 2000)
    measured = signal(fresh) + noise(fresh) * rng.normal(size=2000)
    low, high = model.predict_quantiles(fresh[:, None], [0.1, 0.9]).T
    covered = (low <= measured) & (measured <= high)
    print(f"{name}: the 80% interval contains {covered.mean():.0%} of the measurements")

# %%
# If you need guaranteed coverage, calibrate the interval on held-out data (conformal prediction).
# This guarantee, too, holds only for data with the same distribution:
# :doc:`/guide/anchored_quantiles`.
