"""
Explaining and attacking a prediction
=====================================

Which pixels distinguish this 3 from an 8, and how large a change makes the classifier
predict an 8? The last part explains predictions for a table: which measurements are evidence of a
malignant tumour?
"""

# %%
# Threes and eights
# -----------------
# The data are images of 8 x 8 pixels, scaled to [0, 1], with held-out test images.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from skuq import RobustGPC

X, y = load_digits(return_X_y=True)
chosen = np.isin(y, (3, 8))
X, y = X[chosen] / 16, y[chosen]
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=100, stratify=y, random_state=0)

gpc = RobustGPC(random_state=0).fit(X_train, y_train)
print("test accuracy:", gpc.score(X_test, y_test))

# %%
# Effect of each pixel
# --------------------
# Each pixel in turn is made brighter and darker by up to ``gamma``, here a quarter of the scale,
# within the limits 0 and 1. The resulting ranges of the probability are compared. Unlike a
# gradient, these ranges account for all values between the darkened and the brightened pixel.
# Red pixels increase the probability of the class; blue pixels decrease it. The black line is the
# outline of the image.
pictures = [np.flatnonzero(y_test == digit)[0] for digit in (3, 8)]
fig, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for ax, row in zip(axes, pictures, strict=True):
    effects = gpc.explain(X_test[row : row + 1], gamma=0.25, class_=y_test[row], domain=(0, 1))
    largest = np.abs(effects.local).max()
    image = ax.imshow(effects.local.reshape(8, 8), cmap="RdBu_r", vmin=-largest, vmax=largest)
    ax.contour(X_test[row].reshape(8, 8), [0.5], colors="black")
    ax.set(xticks=[], yticks=[], title=f"why this is a {y_test[row]}")
    fig.colorbar(image, ax=ax, label=f"effect on the probability of class {y_test[row]}")

# %%
# The blue pixels on the left of the 3 would close its loops if they were darker. In the 8, the
# same pixels are red. No single pixel has a large effect, because the classifier uses all of
# them. The next section changes all pixels together.

# %%
# Largest harmless change
# -----------------------
# All pixels may change together, each by up to ``radius``. For every test image, ``certify`` finds
# a proof or a counterexample. The last two columns are the numbers of successful gradient attacks,
# with one step and with forty steps.
print("radius   safe  unsafe  undecided   one step  forty steps")
for radius in (0.08, 0.10, 0.12, 0.14, 0.16):
    status = gpc.certify(X_test, radius=radius, domain=(0, 1), max_time=20).status
    counts = [np.sum(status == name) for name in ("safe", "unsafe", "undecided")]
    broken = [
        gpc.attack(X_test, radius=radius, domain=(0, 1), method=method).success.sum()
        for method in ("fgsm", "pgd")
    ]
    print(f"{radius:6.2f} {counts[0]:6} {counts[1]:7} {counts[2]:10} {broken[0]:10} {broken[1]:12}")

# %%
# The attack with one step misses counterexamples. The attack with forty steps finds all of them,
# but cannot prove that no others exist. The next figure shows an image for which one step fails.
radius = 0.14
found = gpc.certify(X_test, radius=radius, domain=(0, 1))
one_step = gpc.attack(X_test, radius=radius, domain=(0, 1), method="fgsm")
row = np.flatnonzero((found.status == "unsafe") & ~one_step.success)[0]

images = {
    f"test image, a {y_test[row]}": X_test[row],
    "after one step": one_step.points[row],
    "counterexample": found.counterexample[row],
}
fig, axes = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
for ax, (title, image) in zip(axes, images.items(), strict=True):
    p = gpc.predict_proba(image[None])[0]
    ax.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[], title=title, xlabel=f"p(3) = {p[0]:.3f}, p(8) = {p[1]:.3f}")

# %%
# A table
# -------
# ``overall`` is the average effect over several rows. The measurements are standardised, so
# ``gamma=1`` is one standard deviation up or down. The error bars are the proven error bounds.
data = load_breast_cancer(as_frame=True)
diagnosis = np.array(data.target_names)[data.target]
parts = train_test_split(data.data, diagnosis, test_size=150, stratify=diagnosis, random_state=0)
scaler = StandardScaler().set_output(transform="pandas").fit(parts[0])
tumours = RobustGPC(random_state=0).fit(scaler.transform(parts[0]), parts[2])
print(f"test accuracy: {tumours.score(scaler.transform(parts[1]), parts[3]):.3f}")

effects = tumours.explain(scaler.transform(parts[1])[:40], gamma=1.0, class_="malignant")
order = np.argsort(np.abs(effects.overall))[-12:]
fig, ax = plt.subplots(figsize=(6, 4.2), layout="constrained")
ax.barh(data.data.columns[order], effects.overall[order], xerr=effects.error.mean(axis=0)[order])
ax.set_xlabel("effect on the probability of class malignant (the 12 largest of 30)")

# %%
# These effects describe the classifier, not tumours. Measurements such as radius, perimeter and
# area are nearly redundant, and the data do not determine how the classifier divides their joint
# effect among them.
