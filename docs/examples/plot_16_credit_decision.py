"""
A credit decision that can be defended
======================================

A bank predicts which loans will be late. Before it uses the predictions, it has to answer four
questions. Is the confidence right for every group? Which applications should a person decide?
Would a decision change if the income were misstated by 5 %? How can a client verify that the
decision was made by the audited model? A different tool answers each question.
"""

# %%
# The data are loans in three districts; the district is not a feature of the models. In the north,
# a local crisis makes loans late that would have been repaid elsewhere. Incomes and amounts enter
# as logarithms, so that 5 % is the same distance for everybody.
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq.datasets import make_loans

rng = np.random.default_rng(0)
loans, y = make_loans(10_000, random_state=rng)
X = pd.DataFrame(
    {
        "age": loans["age"] / 10,
        "years in job": loans["years in job"] / 10,
        "income": np.log(loans["income"]),
        "amount": np.log(loans["amount"]),
        "owned": (loans["home"] == "owned").astype(float),
        "self-employed": (loans["job"] == "self-employed").astype(float),
    }
)
district = rng.choice(["north", "south", "west"], size=len(X), p=[0.2, 0.4, 0.4])
y[(district == "north") & (rng.uniform(size=len(X)) < 0.2)] = "late"

# %%
# Split the data into training rows, reference rows for two audits, and new applications. An audit
# needs rows that were not used to build the model. The second audit needs rows of its own, because
# the result of the first audit changes the model.
train, first, second, new = np.split(np.arange(len(X)), [4000, 7000, 9000])
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X.iloc[train], y[train])

# %%
# Is the confidence right for every group?
# ----------------------------------------
# :class:`~skuq.CalibrationAuditor` compares confidence with accuracy on the reference rows, overall
# and within each district, and reports significant deviations beyond the tolerance.
from sklearn.frozen import FrozenEstimator

from skuq import CalibrationAuditor


def audited(model, rows):
    audit = CalibrationAuditor(FrozenEstimator(model), tolerance=0.05)
    return audit.fit(X.iloc[rows], y[rows], sensitive_features={"district": district[rows]})


audit = audited(model, first)
print("passed:", audit.passed_)
for name, bins in audit.group_bins_.items():
    for found in np.flatnonzero(bins.significant):
        print(
            f"{name}: {bins.count[found]} answers with a confidence of "
            f"{bins.confidence[found]:.2f} have an accuracy of {bins.accuracy[found]:.2f}"
        )

# %%
# The audit detects an effect that the model cannot represent: confidence is too high in the north
# and, since the training data include the north, too low elsewhere. In the north, the bank
# therefore decides by hand. For the other districts, it trains and audits a new model on their data
# alone.
served = district != "north"
train, second, new = (rows[served[rows]] for rows in (train, second, new))
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X.iloc[train], y[train])
audit = audited(model, second)
print("passed:", audit.passed_)
for lower, gap in zip(audit.bins_.lower, audit.bins_.detectable_underconfidence, strict=True):
    if np.isfinite(gap):
        print(
            f"confidence {lower:.1f} to {lower + 0.1:.1f}: "
            f"detects underconfidence of {gap:.2f} or more"
        )
shift = audit.bins_.detectable_underconfident_shift
print(f"all together: detects a shift of {shift:.2f} or more")

# %%
# A passed audit only excludes deviations that it could have detected, so the report states their
# size. Deviations of this size are detected with a probability of 80 %; smaller deviations may
# exist.
#
# Who should decide?
# ------------------
# :class:`~skuq.QUAMClassifier` uses the trained model without changing it. ``total`` is the
# uncertainty of a prediction due to noise and to a lack of data. A person decides the most
# uncertain fifth of the applications.
from skuq import QUAMClassifier
from skuq.plotting import RiskCoverageDisplay

quam = QUAMClassifier(FrozenEstimator(model), random_state=0).fit(X.iloc[train], y[train])
X_new, y_new = X.iloc[new], y[new]
u, wrong = quam.predict_uncertainty(X_new), quam.predict(X_new) != y_new
refer = u.total > np.quantile(u.total, 0.8)
print(f"wrong among all: {wrong.mean():.1%}, among those that are not referred: ", end="")
print(f"{wrong[~refer].mean():.1%}, among those that are: {wrong[refer].mean():.1%}")
print(f"share of all errors that people get to see: {wrong[refer].sum() / wrong.sum():.0%}")
RiskCoverageDisplay.from_estimator(quam, X_new, y_new)

# %%
# Here the uncertainty is mostly due to noise, because a linear model of six columns is well
# determined. To detect out-of-distribution rows, use the epistemic part with a more flexible model:
# :ref:`sphx_glr_gallery_plot_04_ood_inputs.py`.
#
# Would a decision change if the income were misstated?
# -----------------------------------------------------
# :class:`~skuq.RobustGPC` returns a proof or a counterexample. It is a second model, and its
# certificates hold for this second model only. They are therefore used only where both models
# predict the same class.
from skuq import RobustGPC

gpc = RobustGPC(random_state=0).fit(X.iloc[train[:500]], y[train[:500]])
asked = X_new[:300]
found = gpc.certify(asked, radius=np.log(1.05), features=["income"], max_regions=200)
same = gpc.predict(asked) == model.predict(asked)
by = [np.where(refer[:300], "referred", "answered"), np.where(same, "same answer", "another")]
print(pd.crosstab(by, found.status, rownames=["", ""], colnames=["5 % of income"]))
for row in np.flatnonzero(found.status != "safe")[:3]:
    text = "undecided"
    if found.status[row] == "unsafe":
        change = np.exp(found.counterexample[row][2] - asked["income"].iloc[row]) - 1
        text = f"different answer if the income differs by {change:+.1%}"
    print(f"loan {asked.index[row]}: {text}")

# %%
# Was the decision made by the audited model?
# -------------------------------------------
# A provider with secret weights commits to the weights once. This needs ``pip install '.[zk]'``,
# and is possible for ReLU networks and for logistic regression. The provider reports all
# confidences on the auditor's rows, proves those in a random sample that the auditor draws, and
# attests single predictions. Auditor and client verify the proofs against the same published
# commitment, without access to the model. The reference string that is generated here is for tests
# only; a real reference string comes from a public ceremony.
from importlib.util import find_spec
from tempfile import TemporaryDirectory

if find_spec("ezkl") is not None:
    from skuq import zk

    X_ref, y_ref = X.iloc[second], y[second]
    with TemporaryDirectory() as folder:
        public = zk.commit(model, X.iloc[train], f"{folder}/provider").folder
        reports, drawn = f"{folder}/reports", f"{folder}/challenge.json"
        question = {
            "level": "predictions",
            "tolerance": 0.05,
            "n_bins": 10,
            "confidence_level": 0.95,
        }
        zk.prove(public, X_ref, y_ref, reports, **question)
        zk.challenge(reports, public, X_ref, y_ref, drawn, false_share=0.05, error=0.05)
        zk.prove(public, X_ref, y_ref, reports, challenge=drawn, **question)
        question |= {"classes": ["late", "repaid"], "challenge": drawn}
        proven = zk.verify(reports, X_ref, y_ref, public, allow_test_string=True, **question)
        print("the committed model passed:", proven.passed)
        print(proven.notes[3])

        x = X_new[~refer].to_numpy()[0]
        answer = zk.attest(public, x, f"{folder}/answer.json", nonce="loan 17")
        checked = zk.check(answer, public, x=x, nonce="loan 17", allow_test_string=True)
        print(f"and says {checked.label}, with a confidence of {checked.confidence:.3f}")

# %%
# In summary, people decide in the north. Elsewhere, people decide a fifth of the applications,
# which include most of the errors. The model that decides the remaining applications passed an
# audit in both districts, and the report states which deviations the audit could have missed. For
# the decisions listed as safe, a second model makes the same decision, and its decision is proven
# not to change if the income is misstated by 5 %; the other decisions are listed as well. A client
# can verify that a decision was made by the audited model.
