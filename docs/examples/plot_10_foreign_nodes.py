"""
Nodes of a class that nobody taught
===================================

A graph network learned three topics of papers. The graph holds a fourth one, of which it has
never seen a label. Asked about such a node, it names one of the three.
:class:`~skuq.EvidentialProbe` tells how much evidence the network has for what it says, and
leaves the network as it is. This page needs DGL (extra ``graph``).
"""

# %%
# A graph with a left-out class
# -----------------------------
# The graph is generated: 1000 nodes of four classes, neighbours mostly of the same class. Class
# 3 is left out. Its nodes are in the graph, but nothing is told about them. Nodes of the other
# classes train the network, stop its training, set a threshold, or test.
import numpy as np

from skuq.datasets import make_node_classes

data = make_node_classes(1000, separation=0.3, homophily=0.7, random_state=0)
foreign = data.labels == 3
train, held_out, test = (np.flatnonzero(data.splits[0] == part) for part in range(3))
train, held_out = train[~foreign[train]], held_out[~foreign[held_out]]
stop, calibrate = held_out[:200], held_out[200:]
known_test, foreign_test = test[~foreign[test]], test[foreign[test]]
print(f"train {len(train)}, stop {len(stop)}, set the threshold {len(calibrate)}")
print(f"test: {len(known_test)} known nodes, {len(foreign_test)} of the class left out")

# %%
# The network plays the part of one that you already have. Estimators on graphs take node ids
# as ``X``.
from skuq.evidential import GraphClassifier

nodes = {
    "X": train,
    "y": data.labels[train],
    "X_val": stop,
    "y_val": data.labels[stop],
}
network = GraphClassifier(data.graph, random_state=0).fit(**nodes)
confidence = network.predict_proba(foreign_test).max(axis=1)
print(f"accuracy on known test nodes: {network.score(known_test, data.labels[known_test]):.3f}")
print(f"median confidence where the class was left out: {np.median(confidence):.3f}")

# %%
# The probe
# ---------
# So the network files foreign nodes under classes that it knows, and does not look unsure. Vacuity,
# the probe's epistemic part, is 1 without any evidence and goes to 0 as evidence grows.
from skuq import EvidentialProbe
from skuq.plotting import UncertaintyHistogramDisplay

probe = EvidentialProbe(network, random_state=0).fit(**nodes)
vacuity = probe.predict_uncertainty(np.arange(1000)).epistemic

display = UncertaintyHistogramDisplay.from_predictions(
    {"known classes": vacuity[known_test], "class left out": vacuity[foreign_test]},
    label="vacuity",
)

# %%
# A threshold
# -----------
# The level of vacuity is set by the parameter ``evidence_id``, so no fixed number separates
# known from foreign. A quantile over known nodes that trained nothing does: at the 95% quantile
# about one known node in twenty is flagged, wherever foreign nodes may lie.
threshold = np.quantile(vacuity[calibrate], 0.95)
print(f"threshold: {threshold:.4f}")
print(f"flagged, known nodes:    {(vacuity[known_test] > threshold).mean():.3f}")
print(f"flagged, class left out: {(vacuity[foreign_test] > threshold).mean():.3f}")

# %%
# Against other scores of the same network
# ----------------------------------------
# The AUROC is the chance that of one foreign and one known node, the foreign one gets the larger
# value. Entropy and energy look at one node at a time; GNNSafe smooths the energy over the graph.
from skuq.evidential import LogitUncertainty
from skuq.metrics import detection_metrics

methods = {
    "softmax entropy": LogitUncertainty(network, score="entropy"),
    "energy": LogitUncertainty(network, score="energy"),
    "GNNSafe": LogitUncertainty(network, score="energy", propagation="smoothing"),
    "energy, diffused": LogitUncertainty(network, score="energy", propagation="diffusion"),
    "probe, not propagated": EvidentialProbe(network, propagation=None, random_state=0),
    "probe": probe,
}
for name, method in methods.items():
    method.fit(**nodes)
    known, left_out = (
        method.predict_uncertainty(ids).epistemic for ids in (known_test, foreign_test)
    )
    print(f"{name:22} {detection_metrics(known, left_out).auroc:.3f}")

# %%
# By default the probe takes its evidence from the network's own logits, as the energy does, and
# what helps here is that neighbours share what they know: that helps the energy as well.
#
# This is a generated graph in which neighbours really are alike, and one split of it. On your own
# graph, leave out classes that you do know, in turn, and measure: :doc:`/guide/evidential_probe`.

# %%
# Where in the graph?
# -------------------
# The same on a smaller graph, which can be drawn, or rather its largest connected part. Squares
# are the nodes of the class left out.
import matplotlib.pyplot as plt
import networkx as nx
from matplotlib.colors import LogNorm

small = make_node_classes(180, mean_degree=4, separation=0.3, homophily=0.9, random_state=3)
foreign = small.labels == 3
train = np.flatnonzero((small.splits[0] == 0) & ~foreign)
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
for name, chosen, marker in (("known class", ~foreign, "o"), ("class left out", foreign, "s")):
    rows = chosen[ids]
    dots = ax.scatter(*xy[rows].T, c=vacuity[rows], marker=marker, s=70, zorder=3, **style)
    ax.scatter([], [], c="white", edgecolors="0.25", marker=marker, s=70, label=name)
fig.colorbar(dots, ax=ax, label="vacuity")
ax.legend(loc="upper left", frameon=False)
ax.set_axis_off()

# %%
# Vacuity is highest among the squares, and fades towards the circles. That is the smoothing:
# evidence passes along edges in both directions, so a foreign node among known ones is given some
# of theirs, and a known one among foreign ones loses some of its own.
