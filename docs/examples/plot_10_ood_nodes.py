"""
Out-of-distribution nodes in a graph
====================================

A graph network was trained on three topics of papers. The graph also contains papers on a fourth
topic, whose labels were not in the training data, and the network assigns these nodes to the three
known topics. :class:`~skuq.EvidentialProbe` estimates how much evidence supports each prediction,
without changing the network.
"""

# %%
# A graph with a left-out class
# -----------------------------
# The synthetic graph has 1000 nodes of four classes; most neighbours have the same class. Class
# 3 is left out: its nodes are in the graph, but their labels are not used. Nodes of the other
# classes are split into training, early stopping, calibration of a threshold, and test.
import numpy as np

from skuq.datasets import make_node_classes

data = make_node_classes(1000, separation=0.3, homophily=0.7, random_state=0)
ood = data.labels == 3
train, held_out, test = (np.flatnonzero(data.splits[0] == part) for part in range(3))
train, held_out = train[~ood[train]], held_out[~ood[held_out]]
stop, calibrate = held_out[:200], held_out[200:]
known_test, ood_test = test[~ood[test]], test[ood[test]]
print(f"train {len(train)}, early stopping {len(stop)}, threshold {len(calibrate)}")
print(f"test: {len(known_test)} nodes of known classes, {len(ood_test)} of the class left out")

# %%
# The network in this example stands for your pre-trained network. For estimators on graphs, ``X``
# contains node ids.
from skuq.evidential import GraphClassifier

nodes = {
    "X": train,
    "y": data.labels[train],
    "X_val": stop,
    "y_val": data.labels[stop],
}
network = GraphClassifier(data.graph, random_state=0).fit(**nodes)
confidence = network.predict_proba(ood_test).max(axis=1)
print(f"accuracy on known test nodes: {network.score(known_test, data.labels[known_test]):.3f}")
print(f"median confidence on the class left out: {np.median(confidence):.3f}")

# %%
# The probe
# ---------
# The network assigns OOD nodes to known classes with high confidence. Vacuity, the epistemic part
# of the probe, is 1 without evidence and tends to 0 as evidence grows.
from skuq import EvidentialProbe
from skuq.plotting import UncertaintyHistogramDisplay

probe = EvidentialProbe(network, random_state=0).fit(**nodes)
vacuity = probe.predict_uncertainty(np.arange(1000)).epistemic

display = UncertaintyHistogramDisplay.from_predictions(
    {"known classes": vacuity[known_test], "class left out": vacuity[ood_test]},
    label="vacuity",
)

# %%
# A threshold
# -----------
# The level of vacuity depends on ``evidence_id``, a parameter of the loss, so the threshold must be
# calibrated on known nodes that were not used for training. If the threshold is the 95% quantile of
# the vacuity of these nodes, about 5% of the known nodes are flagged, independently of the OOD
# nodes.
threshold = np.quantile(vacuity[calibrate], 0.95)
print(f"threshold: {threshold:.4f}")
print(f"flagged, known classes:  {(vacuity[known_test] > threshold).mean():.3f}")
print(f"flagged, class left out: {(vacuity[ood_test] > threshold).mean():.3f}")

# %%
# Comparison with other scores of the same network
# ------------------------------------------------
# The AUROC is the probability that an OOD node has a larger score than a known node. The entropy is
# computed for each node separately; the detector's energy score is diffused over the graph.
from sklearn.frozen import FrozenEstimator

from skuq import OODDetector, ReferenceClassifier
from skuq.metrics import detection_metrics

fitted = FrozenEstimator(network)
methods = {
    "softmax entropy": ReferenceClassifier(fitted).fit(train, data.labels[train]),
    "energy, diffused": OODDetector(fitted, scores=["energy"]).fit(train, X_held_out=calibrate),
    "probe, not propagated": EvidentialProbe(network, propagation=None, random_state=0).fit(
        **nodes
    ),
    "probe": probe,
}
for name, method in methods.items():
    known, left_out = (-method.score_samples(ids) for ids in (known_test, ood_test))
    print(f"{name:22} {detection_metrics(known, left_out).auroc:.3f}")

# %%
# By default, both the probe's evidence and the energy are computed from the network's logits.
# Propagation over neighbours makes the difference.
#
# This is a single split of a synthetic graph with strong homophily. To compare methods on your own
# graph, leave out each known class in turn: :doc:`/guide/evidential_probe`.

# %%
# Where in the graph?
# -------------------
# The figure shows vacuity on the largest connected component of a smaller graph. Squares are nodes
# of the class left out.
import matplotlib.pyplot as plt
import networkx as nx
from matplotlib.colors import LogNorm

small = make_node_classes(180, mean_degree=4, separation=0.3, homophily=0.9, random_state=3)
ood = small.labels == 3
train = np.flatnonzero((small.splits[0] == 0) & ~ood)
network = GraphClassifier(small.graph, random_state=0).fit(train, small.labels[train])
probe = EvidentialProbe(network, random_state=0).fit(train, small.labels[train])

graph = nx.from_scipy_sparse_array(small.adjacency)
ids = np.array(sorted(max(nx.connected_components(graph), key=len)))
place = nx.kamada_kawai_layout(graph.subgraph(ids))
xy = np.array([place[node] for node in ids])
vacuity = probe.predict_uncertainty(ids).epistemic

fig, ax = plt.subplots(figsize=(8.6, 6.4), layout="constrained")
nx.draw_networkx_edges(graph.subgraph(ids), place, ax=ax, edge_color="0.75", width=0.7)
style = {"norm": LogNorm(vacuity.min(), vacuity.max()), "edgecolors": "0.25", "linewidths": 0.6}
for name, chosen, marker in (("known class", ~ood, "o"), ("class left out", ood, "s")):
    rows = chosen[ids]
    dots = ax.scatter(*xy[rows].T, c=vacuity[rows], marker=marker, s=70, zorder=3, **style)
    ax.scatter([], [], c="white", edgecolors="0.25", marker=marker, s=70, label=name)
fig.colorbar(dots, ax=ax, label="vacuity")
ax.legend(loc="upper left", frameon=False)
ax.set_axis_off()

# %%
# Vacuity is highest among the squares and decreases towards the circles. This is an effect of
# propagation, which averages uncertainty along edges: the evidence of an OOD node among known nodes
# increases, and the evidence of a known node among OOD nodes decreases.
