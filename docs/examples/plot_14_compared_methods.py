"""
Ways to look for other models
=============================

Deep ensembles, dropout, the Laplace approximation and Markov chains sample models that
explain the training data, and measure their disagreement. QUAM searches for models that
disagree. This example applies all of them to the same network and the same two half moons.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn, optim

from skuq import (
    DeepEnsembleClassifier,
    LaplaceClassifier,
    MCDropoutClassifier,
    QUAMClassifier,
    SGMCMCClassifier,
)
from skuq.quam import PointwiseSearch

X, y = make_moons(200, noise=0.1, random_state=0)
X = StandardScaler().fit_transform(X).astype(np.float32)

# %%
# Weight decay acts as a Gaussian prior on the weights; the precision of the prior is the weight
# decay times the number of samples. QUAM needs this precision, because it determines which models
# are plausible.
WEIGHT_DECAY = 1e-3


def network():  # a function, so that each member of the ensemble starts from other weights
    layers = [nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 2)]
    return nn.Sequential(*layers)


net = NeuralNetClassifier(
    network,
    criterion=nn.CrossEntropyLoss,
    max_epochs=150,
    lr=1e-2,
    optimizer=optim.Adam,
    optimizer__weight_decay=WEIGHT_DECAY,
    iterator_train__shuffle=True,
    train_split=None,
    verbose=0,
)
fixed = {"setting": "expected", "random_state": 0}
methods = {
    "QUAM": QUAMClassifier(
        net, search=PointwiseSearch(prior_precision=WEIGHT_DECAY * len(X), batch_size=64), **fixed
    ),
    "Deep ensemble": DeepEnsembleClassifier(net, n_members=10, **fixed),
    "MC dropout": MCDropoutClassifier(**fixed),
    "Laplace": LaplaceClassifier(net, **fixed),
    "SG-MCMC": SGMCMCClassifier(net, **fixed),
}

# %%
# The maps share one scale: in this setting the epistemic part is at most ln 2. QUAM is brightest
# where the boundary can vary most, and about half as bright in the other regions without data.
# Ensemble, dropout and Laplace show little uncertainty away from the boundary, because their models
# agree with the network there; short Markov chains show some uncertainty there. The guide compares
# all methods with Hamiltonian Monte Carlo.
side = np.linspace(-3, 3, 24, dtype=np.float32)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
fig, axes = plt.subplots(1, len(methods), figsize=(13, 3), layout="constrained")
for ax, (name, method) in zip(axes, methods.items(), strict=True):
    epistemic = method.fit(X, y).predict_uncertainty(grid).epistemic
    shown = ax.imshow(
        epistemic.reshape(24, 24), origin="lower", extent=(-3, 3, -3, 3), vmin=0, vmax=np.log(2)
    )
    for label, marker in ((0, "o"), (1, "^")):
        ax.scatter(*X[y == label].T, marker=marker, s=8, edgecolors="black", linewidths=0.3)
    ax.set(title=name, xticks=[], yticks=[])
fig.colorbar(shown, ax=axes, label="epistemic (nats)")
plt.show()
