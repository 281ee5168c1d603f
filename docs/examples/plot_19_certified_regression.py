"""
Does a prediction survive a measurement error?
==============================================

A regression predicts the progression of diabetes after one year from measurements. Body-mass index
and blood pressure are measured with an error. By how much can the error change the prediction?
Trying different values finds some changes, but never proves that there are no larger changes.
:class:`~skuq.RobustGPRegressor` provides this proof.
"""

# %%
# The features are age, body-mass index, blood pressure and a blood value of 442 patients. Each
# feature is divided by its standard deviation, so a radius of 0.5 means half a standard deviation
# of each feature.
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skuq import RobustGPRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X = X[["age", "bmi", "bp", "s5"]]
spread = X.std()
X = X / spread
kernel = RBF(np.ones(4), (0.1, 100)) + WhiteKernel(0.5)
gpr = RobustGPRegressor(kernel, random_state=0).fit(X, y)
print("kernel:", gpr.kernel_)

# %%
# One patient
# -----------
# Only body-mass index and blood pressure vary. The filled band is proven: no values within the
# radius have a prediction outside the band. The lines are predictions for values that the search
# found. The dotted lines mark a change of 10 points.
from skuq.plotting import CertifiedRangeDisplay

patient = X.iloc[[10]]
measured = {"features": ["bmi", "bp"], "tolerance": 10}
display = CertifiedRangeDisplay.from_estimator(
    gpr, patient, np.linspace(0, 1, 11), name="mean of progression (points)", **measured
)

# %%
# This is the certified radius in the units of the measurements:
radius = gpr.certified_radius(patient, **measured)
for name in ("bmi", "bp"):
    print(f"{name}: {(radius.lower[0] * spread[name]):.1f} either way is proven to be harmless")

# %%
# All patients
# ------------
# An error of half a standard deviation of both measurements can change the prediction of most
# patients by more than 10 points. Each "unsafe" comes with a counterexample.
found = gpr.certify(X[:20], radius=0.5, **measured)
for status in ("safe", "unsafe", "undecided"):
    print(f"{status:9} {np.sum(found.status == status):3} of {len(found.status)}")

# %%
# The guarantee concerns the fitted model. How far the true progression is from the prediction is a
# different question, which the standard deviation answers.
mean, std = gpr.predict(patient, return_std=True)
bounds = gpr.predict_bounds(patient, radius=0.5, features=["bmi", "bp"])
print(f"prediction {mean[0]:.0f}, standard deviation {std[0]:.0f}")
print(f"standard deviation of all values within the radius: at most {bounds.std.upper[0]:.0f}")
