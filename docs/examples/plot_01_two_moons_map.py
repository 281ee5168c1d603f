"""
Where does the model not know?
==============================

A classifier predicts probabilities everywhere, even far from its training data. With two features,
we can draw the whole plane, and compare the entropy of a network's predictions with QUAM's
epistemic uncertainty.
"""

# %%
# The data are one hundred points in two half moons, and the model is a small network. The features
# are standardised in the pipeline, because training and search both need features of similar scale.
# As in the paper, a separate search is run for each point of the plane: the default around a small
# network.
from sklearn.datasets import make_moons
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import QUAMClassifier, predict_uncertainty

X, y = make_moons(100, noise=0.1, random_state=0)
clf = make_pipeline(StandardScaler(), QUAMClassifier(random_state=0)).fit(X, y)
print(f"Training accuracy: {clf.score(X, y):.2f}")

# %%
# The grid reaches well beyond the data. The left picture shows the entropy of the network's own
# probabilities, and the right picture shows the epistemic part of :func:`skuq.predict_uncertainty`.
# With ``setting="expected"``, this part is the mutual information between the label and the choice
# of the model. For two classes, it is at most ln 2, about 0.69 nats.
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import entr

from skuq.plotting import UncertaintyMapDisplay

xx0, xx1 = np.meshgrid(np.linspace(-3, 4, 20), np.linspace(-2, 2.5, 20))
grid = np.column_stack([xx0.ravel(), xx1.ravel()])
maps = {
    "entropy of the network": entr(clf.predict_proba(grid)).sum(axis=1),
    "QUAM's epistemic uncertainty": predict_uncertainty(clf, grid).epistemic,
}

fig, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
for ax, (label, values) in zip(axes, maps.items(), strict=True):
    UncertaintyMapDisplay.from_predictions(
        xx0, xx1, values.reshape(xx0.shape), X=X, y=y, label=label, unit="nats", ax=ax
    )

# %%
# The network's entropy is a band of nearly constant width along the decision boundary. It passes
# between the moons, where the data determine its position, and continues into the empty plane. On
# both sides of the band, the network is sure of its prediction, and it is as sure three units away
# from the data as next to them.
#
# QUAM's map looks different. It is dark on the moons, and brightest in two wide fans at the lower
# left and at the upper right, which extend far beyond the band. The decision boundary can be
# rotated through these fans, so there are models that explain the points and predict the other
# class there. The map is bright *between* the moons too, where the boundary could run a little
# higher or lower. Above and below the moons the map is less bright, and to the left and right of
# the moons it is darkest.
points = {
    "on the upper moon": (0.0, 1.0),
    "between the moons": (0.5, 0.25),
    "top left corner": (-3.0, 2.5),
    "lower left corner": (-3.0, -2.0),
}
u = predict_uncertainty(clf, list(points.values()))
print(u.to_frame(index=list(points)).round(3))

# %%
# Some things to keep in mind when you read such a map:
#
# - The map does not show a distance from the data. The wedge to the right of the lower moon is
#   empty and nevertheless dark. Dark means "no alternative was found with these settings", which is
#   weaker than "there is none".
# - The brightness depends on the settings of the search: with fewer steps or a stronger prior,
#   fewer alternatives are found. Compare only maps with equal settings.
# - In this setting, the aleatoric part is the entropy *averaged* over all models found. It is not
#   the entropy of the network, which the left picture shows.

# %%
# Around larger networks, the default solves the searches in closed form: ``search="quadratic"``
# approximates the training loss by a quadratic function. How good is that? ``check_search``
# compares the predicted excess loss of the models with their true one. Here most models lie far
# above the line, which is why small networks are searched by gradient steps.
closed = QUAMClassifier(FrozenEstimator(clf[-1].model_.module), search="quadratic")
found = closed.fit(clf[0].transform(X), y).check_search(clf[0].transform(grid[::10]))

fig, ax = plt.subplots(figsize=(4.5, 4), layout="constrained")
ax.loglog(found.predicted.ravel(), found.actual.ravel(), ".")
ax.axline((1, 1), (2, 2), color="black", linewidth=0.8)
ax.set(xlabel="predicted excess loss (nats)", ylabel="true excess loss (nats)")
ax.set(xlim=(1e-3, 50), ylim=(1e-3, 50))
