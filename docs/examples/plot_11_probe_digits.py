"""
Evidence for the predictions of a digit classifier
==================================================

Evidential probes were proposed for graphs, but :class:`~skuq.EvidentialProbe` also works without a
graph. Here it estimates the evidence for the predictions of a fitted ``MLPClassifier`` on digits
and on out-of-distribution (OOD) inputs. The last section shows a limitation.
"""

# %%
# A fitted network
# ----------------
# The weight decay ``alpha`` is much larger than its default; the last section explains why.
import pandas as pd
from sklearn.neural_network import MLPClassifier

from skuq import EvidentialProbe
from skuq.datasets import load_digits_with_ood

data = load_digits_with_ood(random_state=0)
network = MLPClassifier((100,), alpha=1.0, max_iter=1000, random_state=0)
network.fit(data.X_train, data.y_train)
print(f"accuracy on the test digits: {network.score(data.X_test, data.y_test):.3f}")

# %%
# The probe
# ---------
# The fitted network and its predictions are not changed. Fit the probe on the training data of the
# network.
probe = EvidentialProbe(network, random_state=0).fit(data.X_train, data.y_train)
print("largest change of a probability:", end=" ")
print(f"{abs(probe.predict_proba(data.X_test) - network.predict_proba(data.X_test)).max():.0e}")
print(probe.predict_uncertainty(data.X_test[:5]).to_frame().round(3))

# %%
# The aleatoric part is 1 minus the largest probability. The epistemic part is vacuity: the number
# of classes divided by the sum of the Dirichlet concentrations, which is 1 without evidence.
from skuq.plotting import UncertaintyHistogramDisplay

kinds = {"digits": data.X_test, **data.ood}
vacuity = {name: probe.predict_uncertainty(X).epistemic for name, X in kinds.items()}
display = UncertaintyHistogramDisplay.from_predictions(
    {name: vacuity[name] for name in ("digits", "photographs", "rotated")}, label="vacuity"
)

# %%
# There is less evidence for photographs than for nearly all digits. For rotated digits, there is as
# much evidence as for digits, or even more, since they consist of the same strokes.
#
# Which representation?
# ---------------------
# By default, evidence is computed from the logits. With a `NetworkHead`, a small network is trained
# to compute it from any representation; ``layer=-2`` is the input of the last layer. The AUROC is
# the probability that an OOD input has a larger score than a digit.
from sklearn.frozen import FrozenEstimator

from skuq import ReferenceClassifier
from skuq.evidential import NetworkHead
from skuq.metrics import detection_metrics


def compare(network):
    methods = {
        "entropy": ReferenceClassifier(FrozenEstimator(network)),
        "probe": EvidentialProbe(network, random_state=0),
        "probe, layer=-2": EvidentialProbe(network, head=NetworkHead(layer=-2), random_state=0),
    }
    table = {}
    for name, method in methods.items():
        method.fit(data.X_train, data.y_train)
        known = -method.score_samples(data.X_test)
        table[name] = {
            kind: detection_metrics(known, -method.score_samples(X)).auroc
            for kind, X in data.ood.items()
        }
    return pd.DataFrame(table).round(3)


print(compare(network))

# %%
# No method is best for all kinds of OOD inputs, and each method is worse than chance (0.5) for at
# least one kind. Without a graph, uncertainty cannot be averaged over neighbours, and the entropy,
# which needs no training, is a strong baseline. Before you rely on a method, measure it on the kind
# of OOD inputs that you expect.
#
# A probe depends on its network
# ------------------------------
# Here is the same comparison for a network with the default weight decay, which is close to 0:
lax = MLPClassifier((100,), max_iter=1000, random_state=0).fit(data.X_train, data.y_train)
print(f"accuracy on the test digits: {lax.score(data.X_test, data.y_test):.3f}")
print(compare(lax))

# %%
# The accuracy is about the same, but all methods are worse. Pixels at the left and right border are
# blank in nearly all digits, so training hardly changes their weights. Without weight decay, these
# weights stay at their random initial values, and ink at the border causes large logits, which
# count as evidence. Setting these weights to 0 recovers part of the lost performance:
from copy import deepcopy

seldom = (data.X_train > 0).mean(axis=0) < 0.03
cut = deepcopy(lax)
cut.coefs_[0][seldom] = 0
print(f"accuracy on the test digits: {cut.score(data.X_test, data.y_test):.3f}")
print(compare(cut))

# %%
# A probe can only use the representation of the network. Regularise the network first.
