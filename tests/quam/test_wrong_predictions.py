"""Total uncertainty finds wrong predictions about as well as the model's own confidence."""

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import QUAMClassifier

LEARNERS = {
    # 32 bins: with sample weights, scikit-learn computes the quantile of each bin on its own.
    "boosting": HistGradientBoostingClassifier(max_iter=20, max_bins=32, random_state=0),
    "forest": RandomForestClassifier(random_state=0),
    "logistic": LogisticRegression(),
    "network": MLPClassifier(max_iter=40, random_state=0),
}


@pytest.fixture(scope="module")
def noisy():
    """Two classes, one label of ten at random: many predictions are wrong, for two reasons."""
    X, y = make_classification(4000, 10, n_informative=5, flip_y=0.1, class_sep=0.8, random_state=0)
    return train_test_split(X, y, train_size=1000, random_state=0)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize(
    "learner",
    [
        pytest.param("boosting", marks=pytest.mark.slow),
        pytest.param("network", marks=pytest.mark.slow),
        pytest.param("forest", marks=pytest.mark.slow),
        "logistic",
    ],
)
def test_total_ranks_wrong_predictions_as_the_confidence_does(noisy, learner):
    X, X_test, y, y_test = noisy
    model = make_pipeline(StandardScaler(), LEARNERS[learner])
    ahead = []
    for seed in range(3):  # one seed of a forest is .014 below to .015 above its confidence
        quam = QUAMClassifier(model, random_state=seed).fit(X, y)
        confidence = quam.predict_proba(X_test).max(axis=1)
        wrong = quam.predict(X_test) != y_test
        found = roc_auc_score(wrong, quam.predict_uncertainty(X_test).total)
        ahead.append(found - roc_auc_score(wrong, -confidence))
    assert np.mean(ahead) > -0.01
