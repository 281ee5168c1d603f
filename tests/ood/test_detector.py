"""OODDetector: what it combines for which model, and what it refuses."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, load_iris, make_blobs
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, normalize
from sklearn.utils.estimator_checks import parametrize_with_checks

from skuq import EvidentialProbe, OODDetector, QUAMClassifier
from skuq._networks import LeNet
from skuq.baselines import DeepEnsembleClassifier, MCDropoutClassifier, ReferenceClassifier
from skuq.datasets import make_node_classes
from skuq.quam import PoolSearch


@parametrize_with_checks([OODDetector(), OODDetector(scores=["neighbors"])])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def embedded():
    """Unit-norm embeddings of 6 classes, held-out ones, new ones, and those of other classes."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(9, 40))
    y = np.arange(3000) % 9
    X = normalize(centres[y] + 1.2 * random.normal(size=(3000, 40)))
    known = y < 6
    X_known, y_known = X[known], np.array([*"abcdef"])[y[known]]
    return {
        "X": X_known[:1200],
        "y": y_known[:1200],
        "held_out": X_known[1200:1600],
        "y_held_out": y_known[1200:1600],
        "new": X_known[1600:],
        "ood": X[~known],
    }


@pytest.fixture(scope="module")
def detector(embedded):
    model = LogisticRegression().fit(embedded["X"], embedded["y"])
    detector = OODDetector(FrozenEstimator(model), random_state=0)
    return detector.fit(embedded["X"], embedded["y"], X_held_out=embedded["held_out"])


def auroc(detector, data, part=None):
    def score(X):
        return -detector.score_samples(X) if part is None else detector.single_scores(X)[part]

    new, ood = score(data["new"]), score(data["ood"])
    return roc_auc_score(np.repeat([0, 1], [len(new), len(ood)]), np.concatenate([new, ood]))


def test_embeddings_get_the_confidence_of_the_model_and_distances(detector, embedded):
    assert detector.scores_ == ["neighbors", "entropy", "energy", "mahalanobis", "length"]
    assert detector.n_held_out_ == 400
    best = max(auroc(detector, embedded, name) for name in detector.scores_)
    assert auroc(detector, embedded) > best - 0.01 > 0.9
    assert 0.03 < (detector.predict(embedded["new"]) < 0).mean() < 0.075
    assert (detector.predict(embedded["ood"]) < 0).mean() > 0.5


def test_decisions_are_those_of_p_values_and_of_the_offset(detector, embedded):
    X = np.concatenate([embedded["new"], embedded["ood"], embedded["held_out"]])
    p_values = detector.p_values(X)
    np.testing.assert_array_equal(detector.predict(X) < 0, p_values <= 0.05)
    scores = detector.score_samples(X)
    np.testing.assert_array_equal(detector.decision_function(X), scores - detector.offset_)
    order = np.argsort(scores)
    assert (np.diff(p_values[order]) >= 0).all()


def test_single_scores_are_the_textbook_ones(detector, embedded):
    X = embedded["new"]
    scores = detector.single_scores(X)
    proba = FrozenEstimator(embedded_model(embedded)).predict_proba(X)
    np.testing.assert_allclose(scores["entropy"], -(proba * np.log(proba)).sum(axis=1), rtol=1e-6)
    logits = embedded_model(embedded).decision_function(X)
    np.testing.assert_allclose(scores["energy"], -np.log(np.exp(logits).sum(axis=1)), rtol=1e-5)
    cosine = np.sort(np.linalg.norm(X[:, None] - embedded["X"][None], axis=2), axis=1)
    np.testing.assert_allclose(scores["neighbors"], cosine[:, :10].mean(axis=1), rtol=1e-6)


def embedded_model(embedded):
    return LogisticRegression().fit(embedded["X"], embedded["y"])


def test_relative_mahalanobis_is_the_difference_of_two_distances():
    X, y = make_blobs(4000, n_features=5, centers=3, cluster_std=3.0, random_state=0)
    detector = OODDetector(LogisticRegression(max_iter=300), scores=["mahalanobis"])
    detector.fit(X, y, X_held_out=X[:50])
    new = X[:20] + 3.0
    means = np.stack([X[y == k].mean(axis=0) for k in range(3)])
    within = np.linalg.inv(np.cov((X - means[y]).T, bias=True))
    overall = np.linalg.inv(np.cov(X.T, bias=True))

    def squared(residual, precision):
        return np.einsum("...i,ij,...j", residual, precision, residual)

    to_class = squared(new[:, None] - means, within).min(axis=1)
    expected = to_class - squared(new - X.mean(axis=0), overall)
    found = detector.single_scores(new)["mahalanobis"]
    assert (np.abs(found - expected) < 0.05 * to_class + 0.05).all()  # ours are shrunk a little


def test_columns_of_a_table_get_no_confidence_of_the_model():
    X, y = load_iris(return_X_y=True)
    detector = OODDetector(LogisticRegression(max_iter=1000), random_state=0).fit(X, y)
    assert detector.scores_ == ["neighbors", "support"]
    far = np.array([[5.1, 3.5, 1.4, 0.2], [50.0, 35.0, 14.0, 2.0]])
    assert detector.predict(far).tolist() == [1, -1]


def test_tables_with_texts_name_the_columns():
    random = np.random.default_rng(0)
    X = pd.DataFrame(
        {"age": random.integers(20, 80, 500), "town": random.choice(["Ulm", "Linz", "Graz"], 500)},
        index=[f"row {k}" for k in range(500)],
    )
    y = (X["age"] > 50).to_numpy()
    encoder = OneHotEncoder(handle_unknown="ignore")
    detector = OODDetector(make_pipeline(encoder, LogisticRegression()), random_state=0)
    detector.fit(X, y)
    new = pd.DataFrame({"age": [30, 360, 30], "town": ["Ulm", "Ulm", "Bonn"]}, index=[*"abc"])
    assert detector.predict(new).tolist() == [1, -1, -1]
    told = detector.explain(new)
    assert told.index.tolist() == [*"abc"]
    assert told["columns"].iloc[1].startswith("age = 360")
    assert told["columns"].iloc[2].startswith("town = Bonn")
    assert told["most_unusual"].iloc[1:].tolist() == ["support", "support"]
    assert (told["p_value"] == detector.p_values(new)).all()


MODELS = {
    "trees": HistGradientBoostingClassifier(max_iter=10),
    "network": MLPClassifier((30,), max_iter=20, random_state=0),
    "quam": QUAMClassifier(LogisticRegression(), random_state=0),
    "ensemble": DeepEnsembleClassifier(MLPClassifier((10,), max_iter=10), n_members=2),
    "probe": EvidentialProbe(LogisticRegression(), max_epochs=2, random_state=0),
    "search": GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
}
EXPECTED = {
    "trees": {"entropy", "energy"},
    "network": {"entropy", "energy"},
    "quam": {"entropy", "energy", "total", "epistemic"},
    "ensemble": {"entropy", "total", "epistemic"},
    "probe": {"entropy", "energy", "total", "epistemic"},
    "search": {"entropy", "energy"},
    "pipeline": {"entropy", "energy"},
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_gets_its_scores(embedded, kind):
    detector = OODDetector(MODELS[kind], random_state=0).fit(embedded["X"], embedded["y"])
    assert EXPECTED[kind] | {"neighbors"} <= set(detector.scores_)
    assert ("total" in detector.scores_) == ("total" in EXPECTED[kind])
    assert ("energy" in detector.scores_) == ("energy" in EXPECTED[kind])
    assert auroc(detector, embedded) > 0.85
    again = pickle.loads(pickle.dumps(detector))
    np.testing.assert_array_equal(
        again.p_values(embedded["new"]), detector.p_values(embedded["new"])
    )


def test_images_are_compared_in_what_the_network_has_learned():
    digits = load_digits()
    X = np.zeros((len(digits.images), 1, 28, 28), np.float32)
    X[:, 0, 6:22, 6:22] = np.kron(digits.images / 16, np.ones((2, 2)))
    torch.manual_seed(0)
    network = LeNet().eval()
    detector = OODDetector(network, random_state=0)
    with pytest.warns(UserWarning, match="was trained on it"):
        detector.fit(X[:600], digits.target[:600])
    assert {"entropy", "energy", "neighbors"} <= set(detector.scores_) | {"entropy", "energy"}
    assert detector.n_features_in_ == 1
    assert "columns" not in detector.explain(X[:3])
    ours = ReferenceClassifier(network).fit(X[:300], digits.target[:300])
    around = OODDetector(FrozenEstimator(ours), random_state=0)
    around.fit(X[:300], digits.target[:300], X_held_out=X[300:600])
    assert around.p_values(X[:5]).shape == (5,)


def test_regressors_get_distances_and_support():
    X, y = load_diabetes(return_X_y=True)
    forest = OODDetector(RandomForestRegressor(10, random_state=0), random_state=0).fit(X, y)
    assert forest.scores_ == ["neighbors", "support"]
    frozen = OODDetector(FrozenEstimator(Ridge().fit(X[:300], y[:300])), random_state=0)
    frozen.fit(X[:300], X_held_out=X[300:])  # it predicts its own targets
    assert frozen.p_values(X[:5]).shape == (5,)
    module = OODDetector(torch.nn.Linear(10, 1), random_state=0)
    module.fit(X[:300], y[:300], X_held_out=X[300:])
    assert module.scores_ == ["neighbors", "support"]


TEXTS = [f"{verb} my {thing} {when}" for verb in ("book", "cancel", "change", "show", "move")
         for thing in ("flight", "hotel", "train", "table", "car", "ticket")
         for when in ("today", "tomorrow", "tonight", "next week", "on monday")]  # fmt: skip


def test_texts_are_taken_as_they_are():
    y = np.array([text.split()[0] for text in TEXTS])
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())
    detector = OODDetector(pipeline, false_alarm_rate=0.1, random_state=0).fit(TEXTS, y)
    assert {"entropy", "energy", "neighbors", "length"} == set(detector.scores_)
    new = ["cancel my flight today", "who painted this old church"]
    assert detector.predict(new).tolist() == [1, -1]
    told = detector.explain(new)
    assert told["most_unusual"].isin(detector.scores_).all()
    assert set(told["words"].iloc[1].split("; ")) <= set(new[1].split())
    assert told["words"].iloc[1]


def length(X):
    return np.abs(np.asarray(X)).sum(axis=1)


def test_scores_are_chosen_by_name_or_given(embedded):
    X, y = embedded["X"], embedded["y"]
    detector = OODDetector(LogisticRegression(), scores=["entropy", length], random_state=0)
    detector.fit(X, y)
    assert detector.scores_ == ["entropy", "length"]
    np.testing.assert_allclose(detector.single_scores(X[:5])["length"], length(X[:5]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scores": []}, "`scores` is empty"),
        ({"scores": ["vacuity"]}, "Unknown score .vacuity..*.epistemic."),
        ({"scores": ["epistemic"]}, "'epistemic' needs an estimator with"),
        ({"scores": "entropy"}, "'scores' parameter"),
        ({"scores": [lambda X: X]}, "must be one-dimensional"),
        ({"scores": [lambda X: [1.0]]}, "inconsistent numbers of samples"),
        ({"false_alarm_rate": 0.0}, "'false_alarm_rate'"),
        ({"held_out_share": 1.0}, "'held_out_share'"),
    ],
)
def test_bad_parameters_are_refused(embedded, options, message):
    detector = OODDetector(LogisticRegression(), **options)
    with pytest.raises(ValueError, match=message):
        detector.fit(embedded["X"], embedded["y"])


def test_scores_that_cannot_be_made_say_what_they_need():
    X, y = load_iris(return_X_y=True)
    detector = OODDetector(RandomForestRegressor(3), scores=["mahalanobis"])
    with pytest.raises(ValueError, match="needs a classifier"):
        detector.fit(X, y.astype(float))
    few = OODDetector(LogisticRegression(), scores=["mahalanobis"])
    X, y = load_digits(return_X_y=True)
    with pytest.raises(ValueError, match=r"5 training rows per feature .* 80 rows for 64"):
        few.fit(X[:100], y[:100])


def test_a_model_that_is_to_be_trained_needs_targets(embedded):
    with pytest.raises(ValueError, match="requires y"):
        OODDetector(LogisticRegression()).fit(embedded["X"])
    with pytest.raises(NotFittedError):
        OODDetector(LogisticRegression()).predict(embedded["X"])


def test_a_frozen_model_warns_if_it_may_have_seen_what_is_held_out(embedded):
    model = FrozenEstimator(embedded_model(embedded))
    with pytest.warns(UserWarning, match="`X_held_out`"):
        OODDetector(model).fit(embedded["X"], embedded["y"])


def test_too_few_held_out_inputs_are_told(embedded):
    detector = OODDetector(LogisticRegression(), false_alarm_rate=0.01)
    with pytest.warns(UserWarning, match=r"No input can be flagged .*Pass at least 99"):
        detector.fit(embedded["X"][:100], embedded["y"][:100])
    assert (detector.predict(embedded["ood"]) == 1).all()
    assert detector.offset_ == -np.inf


def test_rates_within_classes_need_their_labels(embedded):
    X, y = embedded["X"], embedded["y"]
    by_class = OODDetector(LogisticRegression(), by_class=True, random_state=0)
    with pytest.raises(ValueError, match="pass `y_held_out`"):
        by_class.fit(X, y, X_held_out=embedded["held_out"])
    by_class.fit(X, y, X_held_out=embedded["held_out"], y_held_out=embedded["y_held_out"])
    overall = clone(by_class).set_params(by_class=False)
    overall.fit(X, y, X_held_out=embedded["held_out"])
    new = embedded["new"]
    assert (by_class.predict(new) < 0).mean() <= (overall.predict(new) < 0).mean()


def test_random_state_makes_fits_equal(embedded):
    X, y = embedded["X"], embedded["y"]
    first, second = (
        OODDetector(LogisticRegression(), random_state=3).fit(X, y).p_values(X) for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


def test_inputs_alone_are_judged_without_a_model(embedded):
    detector = OODDetector(random_state=0).fit(embedded["X"])
    assert detector.scores_ == ["neighbors", "length"]
    assert detector.estimator_ is None
    assert auroc(detector, embedded) > 0.8
    frame = pd.DataFrame(embedded["X"]).rename(columns=str)
    assert OODDetector(random_state=0).fit(frame).feature_names_in_.tolist() == list(frame)


def test_false_alarms_keep_their_rate_with_a_trained_model():
    rates = []
    for seed in range(25):
        X, y = make_blobs(900, n_features=5, centers=4, cluster_std=2.5, random_state=seed)
        detector = OODDetector(LogisticRegression(), false_alarm_rate=0.1, random_state=seed)
        rates.append((detector.fit(X[:500], y[:500]).predict(X[500:]) < 0).mean())
    error = np.std(rates) / 5
    assert 0.07 < np.mean(rates) < 0.1 + 3 * error


def test_logits_are_those_of_the_estimator_whatever_the_batch(embedded):
    dropout = OODDetector(MCDropoutClassifier(), random_state=0)
    dropout.fit(embedded["X"][:300], embedded["y"][:300])
    assert "energy" not in dropout.scores_
    for scale in (1.0, 0.2):
        assert dropout.predict(scale * embedded["new"]).shape == (len(embedded["new"]),)


def test_rare_classes_are_held_out_as_often_as_others():
    rates = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        centres = np.concatenate([2 * random.normal(size=(5, 6)), 8 * random.normal(size=(60, 6))])
        rare = random.uniform(size=2500) < 0.15
        y = np.where(rare, random.integers(5, 65, 2500), random.integers(0, 5, 2500))
        X = centres[y] + random.normal(size=(2500, 6))
        detector = OODDetector(RandomForestClassifier(5), random_state=seed)
        rates.append((detector.fit(X[:500], y[:500]).predict(X[500:]) < 0).mean())
    assert np.mean(rates) < 0.05 + 3 * np.std(rates) / np.sqrt(8)


def test_dates_are_numbers_and_rare_categories_are_not_far_away():
    random = np.random.default_rng(0)
    days = pd.date_range("2020-01-01", "2020-12-31")
    X = pd.DataFrame({"day": random.choice(days, 800), "v": random.normal(size=800)})
    detector = OODDetector(random_state=0).fit(X)
    new = pd.DataFrame({"day": pd.to_datetime(["2020-06-01", "2031-06-01"]), "v": [0.0, 0.0]})
    assert detector.predict(new).tolist() == [1, -1]
    ids = [f"c{k}" for k in np.minimum(random.zipf(1.3, 2000), 3000)]
    table = pd.DataFrame({"id": ids, "v": random.normal(size=2000)})
    detector = OODDetector(random_state=0).fit(table)
    asked = pd.DataFrame({"id": ["c1", "unseen"], "v": 0.0})
    distance = detector.single_scores(asked)["neighbors"]
    assert distance[0] < distance[1] <= 1
    assert (detector.predict(table) < 0).mean() < 0.05


@pytest.mark.parametrize("method", ["predict", "p_values", "score_samples", "decision_function"])
def test_methods_need_fit(method):
    with pytest.raises(NotFittedError):
        getattr(OODDetector(), method)([[1.0]])


@pytest.mark.parametrize(
    "scores", [[lambda X: X[:, 0], lambda X: X[:, 1]], ["entropy", "entropy"], ["entropy", length]]
)
def test_scores_need_names_of_their_own(embedded, scores, monkeypatch):
    if scores[-1] is length:
        monkeypatch.setattr(length, "__name__", "p_value")
    with pytest.raises(ValueError, match="used twice or reserved"):
        OODDetector(LogisticRegression(), scores=scores).fit(embedded["X"], embedded["y"])


def test_constant_columns_are_the_same_in_another_precision():
    X = np.c_[np.random.default_rng(0).normal(size=(400, 2)), np.full(400, 0.1)]
    detector = OODDetector(random_state=0).fit(X)
    assert (detector.predict(X.astype(np.float32)) < 0).mean() < 0.1


def test_features_without_variation_within_classes_have_no_ellipses():
    X, y = np.eye(40)[np.arange(400) % 4], np.arange(400) % 4
    detector = OODDetector(LogisticRegression(), random_state=0).fit(X, y)
    assert "mahalanobis" not in detector.scores_


@pytest.mark.parametrize("size", [1e30, 1e150, 1e200])
def test_huge_inputs_are_unusual_and_no_error(embedded, detector, size):
    far = np.full((1, embedded["X"].shape[1]), size)
    assert detector.predict(far).tolist() == [-1]


def test_the_rate_can_be_changed_after_fit(embedded, detector):
    changed = pickle.loads(pickle.dumps(detector)).set_params(false_alarm_rate=0.5)
    new = embedded["new"]
    np.testing.assert_array_equal(changed.predict(new) < 0, changed.p_values(new) <= 0.5)


def test_labels_of_held_out_inputs_come_with_them(embedded):
    X, y = embedded["X"], embedded["y"]
    with pytest.raises(ValueError, match="passed without `X_held_out`"):
        OODDetector(LogisticRegression()).fit(X, y, y_held_out=y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        OODDetector(LogisticRegression()).fit(
            X, y, X_held_out=embedded["held_out"], y_held_out=["a", "b"]
        )
    for estimator in (None, Ridge()):
        with pytest.raises(ValueError, match="by_class=True needs a classifier"):
            OODDetector(estimator, by_class=True).fit(X, np.arange(len(X)) / 7)


def network(n_outputs):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, n_outputs)
    )


def normal(n_rows, seed):
    return np.random.default_rng(seed).normal(size=(n_rows, 4))


def test_floats_that_look_like_labels_are_told():
    X, y = normal(200, 0), np.arange(200) % 2
    with pytest.warns(UserWarning, match="Floats are targets of a regression") as told:
        OODDetector(network(1)).fit(X, y.astype(float), X_held_out=normal(50, 1))
    assert {each.filename for each in told} == {__file__}
    with pytest.raises(ValueError, match=r"logits of classes.*y.astype\(int\)"):
        OODDetector(network(4)).fit(X, y.astype(float), X_held_out=normal(50, 1))


def test_explanations_of_named_columns_do_not_warn_of_names():
    X = pd.DataFrame(normal(200, 0), columns=[*"abcd"])
    y = (X["a"] > 0).astype(int)
    detector = OODDetector(network(2)).fit(X, y, X_held_out=X.iloc[:50] + 0.1)
    quam = QUAMClassifier(network(2), search=PoolSearch(n_steps=2)).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "columns" in detector.explain(X[:2])
        quam.explain(X[:2])


def test_state_dict_is_refused_without_its_weights():
    for estimator in (
        OODDetector(network(2).state_dict()),
        QUAMClassifier(network(2).state_dict()),
    ):
        with pytest.raises(TypeError, match=r"OrderedDict\. A state_dict holds weights") as told:
            estimator.fit(normal(20, 0), np.arange(20) % 2)
        assert "tensor(" not in str(told.value)


def test_held_out_nodes_are_checked_as_far_as_the_probe_knows_them():
    now, later = (make_node_classes(120, n_classes=2, random_state=seed) for seed in (0, 1))
    train, rest = np.arange(40), np.arange(40, 120)
    probe = EvidentialProbe(graph=now.graph, max_epochs=2, random_state=0)
    probe.fit(train, now.labels[train])
    with pytest.raises(ValueError, match=r"^No `X_held_out` was given, so 20 of the nodes in `X`"):
        OODDetector(FrozenEstimator(probe)).fit(train, now.labels[train])
    with pytest.raises(ValueError, match=r"^40 of the held-out nodes were used for training"):
        OODDetector(FrozenEstimator(probe)).fit(train, now.labels[train], X_held_out=train)
    moved = FrozenEstimator(probe.with_graph(later.graph))
    with pytest.warns(UserWarning, match="trained on another graph, so it cannot be checked"):
        OODDetector(moved).fit(train, later.labels[train], X_held_out=rest)


def test_an_array_after_a_table_is_scored_as_the_table():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 2)), columns=["a", "b"])
    detector = OODDetector(LogisticRegression()).fit(X, (X["a"] > 0).astype(int))
    expected = detector.p_values(X[:9])
    with pytest.warns(UserWarning, match="OODDetector was fitted with feature names"):
        found = detector.p_values(X[:9].to_numpy())
    np.testing.assert_array_equal(found, expected)
