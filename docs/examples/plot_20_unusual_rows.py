"""
Unusual rows of a table
=======================

A model predicts a class for every row, also for rows unlike its training rows. Boosted trees are
trained on loans. A detector then tells ordinary loans from four kinds of unusual ones: an income in
cents, a job that never occurred in training, a contradiction between two columns, and a group of
people that is absent from training.
"""

# %%
# No training row has a person over 60 who shares a home.
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator

from skuq import OODDetector, QUAMClassifier
from skuq.datasets import make_loans
from skuq.metrics import detection_metrics
from skuq.plotting import OODDisplay

X, y = make_loans(1700, random_state=0)
absent = (X["age"] > 60) & (X["home"] == "shared")
group, X, y = X[absent], X[~absent], y[~absent]
train, held_out, test = slice(0, 1000), slice(1000, 1300), slice(1300, 1500)

trees = HistGradientBoostingClassifier(max_iter=20, random_state=0)
quam = QUAMClassifier(trees, random_state=0).fit(X[train], y[train])

# %%
# Each kind of unusual rows is made from ordinary ones. pandas stores a value outside the categories
# of a column as missing.
ordinary = X[test].reset_index(drop=True)
some = ordinary[:40]
contradiction = {"age": some["age"].clip(upper=25), "years in job": 35.0}
unusual = {
    "income in cents": some.assign(income=some["income"] * 100),
    "unseen job": some.assign(job=pd.Series(index=some.index, dtype=some["job"].dtype)),
    "longer in job than alive": some.assign(**contradiction),
    "absent group": group,
}

# %%
# QUAM refits the trees with a few altered rows under another class. If the refitted trees explain
# the training data equally well but predict a different class, the data do not support the
# prediction. :class:`~skuq.OODDetector` combines this uncertainty with distances and values out of
# range. The scores are compared by their AUROC: 1 is perfect, 0.5 is guessing.
detector = OODDetector(FrozenEstimator(quam), random_state=0)
detector.fit(X[train], y[train], X_held_out=X[held_out])


def scores(rows):
    proba = quam.predict_proba(rows)
    return {
        "entropy": -(proba * np.log(proba)).sum(axis=1),
        "QUAM": quam.predict_uncertainty(rows).epistemic,
        "detector": -detector.score_samples(rows),
    }


known = scores(ordinary)
aurocs = {
    kind: {
        name: detection_metrics(known[name], values).auroc for name, values in scores(rows).items()
    }
    for kind, rows in unusual.items()
}
print(pd.DataFrame(aurocs).T.round(3))

# %%
# The conformal p-value of a row is the share of held-out rows that are at least as unusual. Rows to
# the right of the line are flagged; at most 5 % of ordinary rows are expected there.
p_values = {kind: detector.p_values(rows) for kind, rows in {"test": ordinary, **unusual}.items()}
OODDisplay(p_values, false_alarm_rate=detector.false_alarm_rate).plot()

# %%
# Why is a row unusual? The value of each column in turn is replaced by values of ordinary rows. In
# a contradictory row, two columns carry the uncertainty, although the value of each is within the
# range of the training data.
contradictory = unusual["longer in job than alive"]
row = quam.predict_uncertainty(contradictory).epistemic.argmax()
explanation = quam.explain(contradictory.iloc[[row]])
print(pd.Series(explanation.contribution[0], explanation.columns).round(3))
