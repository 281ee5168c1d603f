"""
How far does a prediction hold?
===============================

A classifier says "upper moon" for a point. Does it say so for all points nearby as well? One
can try many of them, and follow the gradient to look for a bad one. If none is found, that
proves nothing. :class:`~skuq.RobustGPC` gives a proof or a counterexample.
"""

# %%
# One hundred points in two half moons, and a Gaussian process whose length-scale is chosen by
# its marginal likelihood.
import numpy as np
from sklearn.datasets import make_moons

from skuq import RobustGPC

X, y = make_moons(100, noise=0.15, random_state=0)
gpc = RobustGPC(random_state=0).fit(X, y)
print("kernel:", gpc.kernel_)
print("training accuracy:", gpc.score(X, y))

# %%
# A proof, or a counterexample
# ----------------------------
# The region around a point are all points of which no coordinate differs by more than
# ``radius``. "safe" is a proof that all of them belong to the same class as the point. For
# "unsafe" there is a witness.
found = gpc.certify(X[:5], radius=0.4)
for point, status, witness in zip(X, found.status, found.counterexample, strict=False):
    print(f"{point.round(2)}  {status:9}  {'' if status == 'safe' else witness.round(2)}")

# %%
# The range of one point
# ----------------------
# How sure may the classifier become, and how unsure, as the region grows? The filled band is
# proven, the lines are probabilities of points that were found. Where band and lines
# touch, the range is known. The dashed line is the result of the gradient attack "fgsm": one step
# to the border of the region, in the direction in which the probability falls at its centre.
from skuq.plotting import CertifiedRangeDisplay

display = CertifiedRangeDisplay.from_estimator(gpc, X[:1], np.linspace(0, 1, 41), attack="fgsm")

# %%
# The attack never leaves the class, up to a radius of 1, which suggests that the point is safe. It
# is not, even in far smaller regions: the other class does not lie downhill from the centre.
print(f"safe up to {display.safe_radius:.3f}, another class from {display.unsafe_radius:.3f}")
many_steps = gpc.attack(X[:1], radius=display.unsafe_radius, method="pgd")
print(f"success of an attack in many steps: {many_steps.success[0]}")

# %%
# A map of safety
# ---------------
# ``certified_radius`` bisects the radius, here in the Euclidean norm. Its lower end is proven,
# its upper end is the distance of a counterexample. ``max_regions`` ends a search that
# takes too long; the result is then smaller than it could be, but never wrong.
from skuq.plotting import UncertaintyMapDisplay

xx0, xx1 = np.meshgrid(np.linspace(-1.5, 2.5, 17), np.linspace(-1, 1.5, 13))
grid = np.column_stack([xx0.ravel(), xx1.ravel()])
radius = gpc.certified_radius(grid, norm="l2", max_radius=0.8, precision=0.05, max_regions=300)

display = UncertaintyMapDisplay.from_predictions(
    xx0, xx1, radius.lower.reshape(xx0.shape), X=X, y=y, label="certified radius"
)
fine = np.meshgrid(np.linspace(-1.5, 2.5, 120), np.linspace(-1, 1.5, 90))
proba = gpc.predict_proba(np.column_stack([part.ravel() for part in fine]))[:, 1]
display.ax_.contour(*fine, proba.reshape(fine[0].shape), [0.5], colors="white", linewidths=2)

# %%
# The white line is the decision boundary. The radius grows with the distance from it, as it
# should, but it does not detect out-of-distribution points: bright areas reach far into the
# plane, where there are no data and the probability is close to 1/2 on one side of a boundary
# that is far away. The epistemic uncertainty does.
from skuq import predict_uncertainty

points = {"on the upper moon": (0.0, 1.0), "between": (0.5, 0.25), "far away": (-1.5, -1.0)}
table = predict_uncertainty(gpc, list(points.values())).to_frame(index=list(points))
at = gpc.certified_radius(list(points.values()), norm="l2", precision=0.02, max_regions=300)
print(table.assign(certified_radius=at.lower).round(3))

# %%
# Bounds at any time
# ------------------
# Bounds of a search that is stopped early are wider, and still valid.
for max_regions in (1, 3, 10, 100):
    bounds = gpc.predict_proba_bounds(X[:1], 0.45, class_=0, max_regions=max_regions, tol=1e-3)
    print(
        f"{max_regions:4} boxes: the smallest probability is between {bounds.min_lower[0, 0]:.3f} "
        f"and {bounds.min_upper[0, 0]:.3f}"
    )
