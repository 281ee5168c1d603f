"""
A credit decision that can be defended
======================================

A bank predicts which loans will be late. Before it uses the predictions, four people ask: which
applications should a person decide? Is the confidence real, for everybody? Would an answer change
if the income were misstated by 5 %? And how does a client know that the model that answered is
the one that was examined? Each question has its estimator.
"""

# %%
# Loans with six columns, and a district that no model gets to see. In one district a local crisis
# makes loans late that would have been repaid.
import numpy as np
from sklearn.model_selection import train_test_split

from skuq.datasets import make_loans

rng = np.random.default_rng(0)
X, y = make_loans(6000, random_state=rng)
district = rng.choice(["north", "south", "west"], size=len(X), p=[0.2, 0.4, 0.4])
y[(district == "north") & (rng.uniform(size=len(X)) < 0.2)] = "late"
X_train, X_rest, y_train, y_rest, _, district = train_test_split(
    X, y, district, train_size=3000, random_state=0
)
X_ref, X_new, y_ref, y_new, district_ref, _ = train_test_split(
    X_rest, y_rest, district, train_size=2000, random_state=0
)

# %%
# Who should decide?
# ------------------
# :class:`~skuq.QUAMClassifier` around boosted trees: ``total`` is what speaks against a prediction,
# be it noise or a lack of data. The least certain fifth goes to a person.
from sklearn.ensemble import HistGradientBoostingClassifier

from skuq import QUAMClassifier
from skuq.plotting import RiskCoverageDisplay

trees = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, random_state=0)
quam = QUAMClassifier(trees, random_state=0).fit(X_train, y_train)
u, wrong = quam.predict_uncertainty(X_new), quam.predict(X_new) != y_new
refer = u.total > np.quantile(u.total, 0.8)
print(f"wrong among all: {wrong.mean():.1%}, among those that are not referred: ", end="")
print(f"{wrong[~refer].mean():.1%}, among those that are: {wrong[refer].mean():.1%}")
RiskCoverageDisplay.from_estimator(quam, X_new, y_new)

# %%
# Loans unlike all others are another matter: there the model has nothing to go on, whatever it
# says. The epistemic part finds them, and ``explain`` says why.
odd = X_new[:3].copy()
odd.loc[odd.index[1], "income"] *= 100  # stated in cents
odd.loc[odd.index[2], ["age", "years in job"]] = 22.0, 35.0  # in the job before birth
print(quam.predict_uncertainty(odd).epistemic.round(3))
print(quam.explain(odd[1:]).most_unusual(2))

# %%
# Is the confidence real, for everybody?
# --------------------------------------
# :class:`~skuq.CalibrationAuditor` compares confidence with what the labels of a reference set
# support, overall and within each district, and says what exceeds the tolerance by more than
# chance.
from skuq import CalibrationAuditor

audit = CalibrationAuditor(quam, alpha=0.05).fit(
    X_ref, y_ref, sensitive_features={"district": district_ref}
)
print("passed:", audit.passed_)
for name, bins in audit.group_bins_.items():
    directions = ", ".join(bins.direction[bins.significant])
    print(f"{name}: {bins.significant.sum()} bins deviate {directions}")

# %%
# The district was hidden from the model, and still the audit finds the one where confidence is too
# high. In north the bank decides by hand until the model has learnt about it.
#
# Would it change if the income were misstated?
# ---------------------------------------------
# :class:`~skuq.RobustGPC` answers with a proof or a counterexample. Incomes and amounts enter by
# their logarithms, so that 5 % is the same distance for everybody; only the income varies.
import pandas as pd

from skuq import RobustGPC


def numbers(X):
    return pd.DataFrame(
        {
            "years": X["years in job"] / 10,
            "income": np.log(X["income"]),
            "amount": np.log(X["amount"]),
            "owned": (X["home"] == "owned").astype(float),
        }
    )


some = slice(0, 250)
gpc = RobustGPC(random_state=0).fit(numbers(X_train[some]), y_train[some])
asked = numbers(X_new[:200])
found = gpc.certify(asked, radius=np.log(1.05), features=["income"], max_regions=200)
print(pd.Series(found.status).value_counts().to_string())
first = np.flatnonzero(found.status == "unsafe")[0]
change = np.exp(found.counterexample[first][1] - asked["income"].iloc[first]) - 1
print(f"Loan {first} is answered otherwise if the income differs by {change:+.1%}.")

# %%
# Is the model that answers the one that was examined?
# ----------------------------------------------------
# A provider that must not show its weights commits to them once, proves audits against the
# commitment, and attests single answers (``pip install 'skuq[zk]'``, networks of ReLU layers and
# logistic regression). The client checks the answer without having the model.
from importlib.util import find_spec
from tempfile import TemporaryDirectory

from sklearn.linear_model import LogisticRegression

if find_spec("ezkl") is not None:
    from skuq import zk

    small = LogisticRegression().fit(numbers(X_train), y_train)
    x = numbers(X_new[:1]).to_numpy()[0]
    with TemporaryDirectory() as folder:
        public = zk.commit(small, numbers(X_train), f"{folder}/model").folder
        answer = zk.attest(public, x, f"{folder}/answer.json", nonce="loan 17")
        # A string that was made here is for tests: real ones come from a public ceremony.
        checked = zk.check(answer, public, x=x, nonce="loan 17", allow_test_string=True)
        print(f"proven: {checked.label}, confidence {checked.confidence:.3f}")

# %%
# So the bank can say: a fifth of the applications goes to people, and these hold most of the
# errors. The confidence is not used in north; elsewhere the audit found nothing beyond 5 points
# and chance. Nearly all answers provably do not depend on a misstatement of 5 %, and the others are
# listed. And a client can check that the committed model answered.
