"""
Within what radius does a prediction hold?
==========================================

A classifier assigns a point to the upper moon. Does it classify all nearby points in the same way?
Sampling points, or following the gradient, may find a counterexample, but finding none proves
nothing. :class:`~skuq.RobustGPC` returns a proof or a counterexample.
"""

# %%
# The data are one hundred points in two half moons. The length-scale of the Gaussian process
# maximises the marginal likelihood.
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
# The region around a point contains all points whose coordinates differ by at most ``radius``.
# "safe" means that all of them are proven to have the same predicted class. "unsafe" comes with a
# counterexample.
found = gpc.certify(X[:5], radius=0.4)
for point, status, example in zip(X, found.status, found.counterexample, strict=False):
    print(f"{point.round(2)}  {status:9}  {'' if status == 'safe' else example.round(2)}")

# %%
# The range of one point
# ----------------------
# The figure shows the range of the probability as the region grows. The filled band is the proven
# range, and the lines are the extreme probabilities among the points that the search found. Where
# the lines coincide with the edges of the band, the range is exact. The dashed line is the result
# of the gradient attack "fgsm": one step from the centre to the boundary of the region, in the
# direction of decreasing probability.
from skuq.plotting import CertifiedRangeDisplay

display = CertifiedRangeDisplay.from_estimator(gpc, X[:1], np.linspace(0, 1, 41), attack="fgsm")

# %%
# The attack fails for all radii up to 1, which suggests that the point is safe. It is not safe,
# even in far smaller regions: steepest descent from the centre does not lead to the other class.
print(f"safe up to {display.safe_radius:.3f}, counterexample from {display.unsafe_radius:.3f}")
many_steps = gpc.attack(X[:1], radius=display.unsafe_radius, method="pgd")
print(f"success of an attack in many steps: {many_steps.success[0]}")

# %%
# A map of safety
# ---------------
# ``certified_radius`` bisects the radius, here in the Euclidean norm. ``lower`` is the proven
# radius, and ``upper`` is the distance to a counterexample. ``max_regions`` stops long searches;
# the proven radius is then smaller than it could be, but still valid.
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
# The white line is the decision boundary. The certified radius grows with the distance from this
# boundary, as expected, but does not detect out-of-distribution points: it is also large where
# there are no data, because the probability is close to 1/2 there, and the boundary is far away.
# The epistemic uncertainty does detect these points.
from skuq import predict_uncertainty

points = {"on the upper moon": (0.0, 1.0), "between": (0.5, 0.25), "far away": (-1.5, -1.0)}
table = predict_uncertainty(gpc, list(points.values())).to_frame(index=list(points))
at = gpc.certified_radius(list(points.values()), norm="l2", precision=0.02, max_regions=300)
print(table.assign(certified_radius=at.lower).round(3))

# %%
# Bounds at any time
# ------------------
# If a search is stopped early, its bounds are wider, but still valid.
for max_regions in (1, 3, 10, 100):
    bounds = gpc.predict_proba_bounds(X[:1], 0.45, class_=0, max_regions=max_regions, tol=1e-3)
    print(
        f"{max_regions:4} boxes: the smallest probability is between {bounds.min_lower[0, 0]:.3f} "
        f"and {bounds.min_upper[0, 0]:.3f}"
    )
