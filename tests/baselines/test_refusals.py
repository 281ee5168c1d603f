"""What the baselines refuse, with a word of the message."""

import importlib.util

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import skuq
from skuq import DeepEnsembleClassifier, FeatureDistanceClassifier, LaplaceClassifier
from skuq._networks import MLP
from tests.baselines.oracles import seeded_module
from tests.written import Written


class Bent(nn.Linear):
    def forward(self, X):
        return super().forward(X).tanh()


def functional():
    return Written(lambda self, X: self.layer(X).tanh(), layer=nn.Linear(4, 3))


def pooled():
    body, layers = nn.Linear(2, 6), (nn.Linear(6, 3), nn.Flatten(), nn.AvgPool1d(2))
    head = nn.Sequential(*layers)
    return Written(lambda self, X: self.head(self.body(X.reshape(-1, 2, 2))), body=body, head=head)


def frozen(build):
    return FrozenEstimator(seeded_module(lambda: build().double()))


def tail(layer):
    return frozen(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), layer))


UNLIKE = [LogisticRegression().fit([[0.0], [1.0], [2.0]], y) for y in ([0, 1, 2], [0, 1, 1])]
CODES = np.arange(150)
CONSTANT = {"X": np.eye(3)[CODES % 3], "y": CODES % 3}
VALIDATION = {"X_val": np.zeros((2, 4)), "y_val": [0, 1]}
REFUSED = [
    (skuq.ReferenceClassifier(SVC()), {}, "SVC", TypeError),
    (DeepEnsembleClassifier(SVC()), {}, "SVC", TypeError),
    (skuq.ReferenceClassifier(KNeighborsClassifier(), device="cpu:0"), {}, "KNeighborsClassifier"),
    (DeepEnsembleClassifier(KNeighborsClassifier(), device="cpu:0"), {}, "KNeighborsClassifier"),
    (skuq.ReferenceClassifier(KNeighborsClassifier()), VALIDATION, "X_val", TypeError),
    (DeepEnsembleClassifier(KNeighborsClassifier()), VALIDATION, "X_val", TypeError),
    (LaplaceClassifier(), VALIDATION, "X_val", TypeError),
    (skuq.MCDropoutClassifier(), VALIDATION, "X_val", TypeError),
    (skuq.MCDropoutClassifier(), {"y": np.zeros(150)}, "one class"),
    (skuq.MCDropoutClassifier(LogisticRegression()), {}, "dropout"),
    (skuq.MCDropoutClassifier(frozen(lambda: MLP(4, 3, dropout=0.0))), {}, "dropout"),
    (LaplaceClassifier(tail(nn.Tanh())), {}, "linear"),
    (LaplaceClassifier(tail(nn.BatchNorm1d(3))), {}, "BatchNorm1d"),
    (LaplaceClassifier(frozen(functional)), {}, "Linear"),
    (LaplaceClassifier(frozen(lambda: Bent(4, 3))), {}, "Bent"),
    (LaplaceClassifier(frozen(pooled)), {}, "several times"),
    (FeatureDistanceClassifier(DecisionTreeClassifier()), {}, "DecisionTreeClassifier", TypeError),
    (FeatureDistanceClassifier(distance="energy"), {}, "distance"),
    (FeatureDistanceClassifier(n_neighbors=0), {}, "n_neighbors"),
    (FeatureDistanceClassifier(layer=-1), {}, "layer"),
    (FeatureDistanceClassifier(LogisticRegression(), distance="mahalanobis"), CONSTANT, "vary"),
    (DeepEnsembleClassifier(frozen(lambda: MLP(4, 3))), {}, "members", TypeError),
    (DeepEnsembleClassifier(members=[]), {}, "Pass either"),
    (DeepEnsembleClassifier(LogisticRegression(), members=[MLP(4, 3)]), {}, "Pass either"),
    (DeepEnsembleClassifier(members=[MLP(4, 3), MLP(4, 4)]), {"y": [*"abc"] * 50}, "4 logits"),
    (DeepEnsembleClassifier(members=UNLIKE), {"X": np.ones((150, 1)), "y": CODES % 2}, "member 1"),
]
if importlib.util.find_spec("posteriors"):
    REFUSED += [
        (skuq.SGMCMCClassifier(n_cycles=3), {}, "n_cycles"),
        (skuq.SGMCMCClassifier(learning_rate=1e6, n_chains=2), {}, "diverged"),
    ]


REFUSED = [(*row, ValueError)[:4] for row in REFUSED]


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize(("model", "data", "word", "error"), REFUSED)
def test_what_cannot_be_is_refused(iris, model, data, word, error):
    with pytest.raises(error, match=word):
        model.fit(**{"X": iris[0], "y": iris[1], **data})
    with pytest.raises(NotFittedError):
        model.predict(iris[0])


def test_parameters_are_checked_after_fit_too(iris):
    laplace = LaplaceClassifier(LogisticRegression()).fit(*iris).set_params(setting="both")
    distance = FeatureDistanceClassifier(LogisticRegression()).fit(*iris)
    distance.set_params(distance="energy")
    for predict in (laplace.predict_uncertainty, laplace.predict_proba, distance.score_samples):
        with pytest.raises(ValueError, match=r"setting|distance"):
            predict(iris[0])
