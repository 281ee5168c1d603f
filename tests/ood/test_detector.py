"""OODDetector: what it combines for which model, and what it refuses."""

import pickle
import tracemalloc
import warnings
from copy import copy
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, load_iris, make_blobs
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler, normalize
from sklearn.utils.estimator_checks import parametrize_with_checks

from skuq import EvidentialProbe, OODDetector, QUAMClassifier
from skuq._networks import LeNet
from skuq.baselines import DeepEnsembleClassifier, MCDropoutClassifier, ReferenceClassifier
from skuq.datasets import make_node_classes
from skuq.quam import PoolSearch

LINEAR = LogisticRegression()


def network(n_outputs):
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, n_outputs)
    return torch.nn.Sequential(*layers)


def normal(n_rows, seed):
    return np.random.default_rng(seed).normal(size=(n_rows, 4))


@parametrize_with_checks([OODDetector()])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def embedded():
    """Unit-norm embeddings of 6 classes, held-out ones, new ones, and those of other classes."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(9, 40))
    y = np.arange(1800) % 9
    X = normalize(centres[y] + 1.2 * random.normal(size=(1800, 40)))
    known = y < 6
    names = ("X", "held_out", "new")
    data = dict(zip(names, np.split(X[known], [600, 900]), strict=True)) | {"ood": X[~known]}
    labels = np.split(np.array([*"abcdef"])[y[known]], [600, 900])
    return data | {"y": labels[0], "y_held_out": labels[1]}


@pytest.fixture(scope="module")
def model(embedded):
    return LogisticRegression().fit(embedded["X"], embedded["y"])


@pytest.fixture(scope="module")
def detector(embedded, model):
    detector = OODDetector(FrozenEstimator(model), random_state=0)
    return detector.fit(embedded["X"], embedded["y"], X_held_out=embedded["held_out"])


def auroc(detector, data, part=None):
    def score(X):
        return -detector.score_samples(X) if part is None else detector.single_scores(X)[part]

    scores = np.concatenate([score(data["new"]), score(data["ood"])])
    return roc_auc_score(np.arange(len(scores)) >= len(data["new"]), scores)


def test_embeddings_get_the_confidence_of_the_model_and_distances(detector, embedded):
    assert detector.scores_ == ["entropy", "energy", "neighbors", "mahalanobis", "length"]
    assert detector.n_held_out_ == 300
    best = max(auroc(detector, embedded, name) for name in detector.scores_)
    assert auroc(detector, embedded) > best - 0.01 > 0.9
    assert 0.02 < (detector.predict(embedded["new"]) < 0).mean() < 0.075
    assert (detector.predict(embedded["ood"]) < 0).mean() > 0.5


def test_decisions_are_those_of_p_values_and_of_the_offset(detector, embedded):
    X = np.concatenate([embedded["new"], embedded["ood"], embedded["held_out"]])
    p_values = detector.p_values(X)
    np.testing.assert_array_equal(detector.predict(X) < 0, p_values <= 0.05)
    scores = detector.score_samples(X)
    np.testing.assert_array_equal(detector.decision_function(X), scores - detector.offset_)
    order = np.argsort(scores)
    assert (np.diff(p_values[order]) >= 0).all()
    changed = copy(detector).set_params(false_alarm_rate=0.5)
    np.testing.assert_array_equal(changed.predict(X) < 0, p_values <= 0.5)
    far = np.full((3, X.shape[1]), [[1e30], [1e150], [1e200]])
    assert detector.predict(far).tolist() == [-1, -1, -1]


def test_single_scores_are_the_textbook_ones(detector, embedded, model):
    X = embedded["new"][:50]
    scores = detector.single_scores(X)
    proba, logits = model.predict_proba(X), model.decision_function(X)
    np.testing.assert_allclose(scores["entropy"], -(proba * np.log(proba)).sum(axis=1), rtol=1e-6)
    np.testing.assert_allclose(scores["energy"], -np.log(np.exp(logits).sum(axis=1)), rtol=1e-5)
    cosine = np.sort(np.linalg.norm(X[:, None] - embedded["X"][None], axis=2), axis=1)
    np.testing.assert_allclose(scores["neighbors"], cosine[:, :10].mean(axis=1), rtol=1e-6)


@pytest.mark.parametrize("seed", [49, 98])  # 9 or 11 neighbours would prefer the other metric
def test_the_metric_is_that_whose_ten_nearest_other_rows_predict_best(seed):
    random, y = np.random.default_rng(seed), np.arange(40) % 2
    X = random.normal(size=(40, 32)) + 1
    X[:, 0] += y
    metrics = [normalize, lambda rows: rows / X.std(axis=0)]
    errors = []
    for metric in metrics:
        distance = np.linalg.norm(metric(X)[:, None] - metric(X)[None], axis=2)
        np.fill_diagonal(distance, np.inf)
        errors.append((y[np.argsort(distance, axis=1)[:, :10]] != y[:, None]).mean())
    best = metrics[np.argmin(errors)]
    detector = OODDetector(LINEAR, scores=["neighbors"], false_alarm_rate=0.2)
    found = detector.fit(X, y, X_held_out=X[:9] + 1).single_scores(X + 1)["neighbors"]
    distance = np.sort(np.linalg.norm(best(X + 1)[:, None] - best(X)[None], axis=2), axis=1)
    np.testing.assert_allclose(found, distance[:, :10].mean(axis=1), rtol=1e-9)


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
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_columns_of_a_table_get_no_confidence_of_the_model():
    X, y = load_iris(return_X_y=True)
    detector = OODDetector(LogisticRegression(max_iter=1000), random_state=0).fit(X, y)
    assert detector.scores_ == ["neighbors", "support"]
    far = np.array([[5.1, 3.5, 1.4, 0.2], [50.0, 35.0, 14.0, 2.0]])
    assert detector.predict(far).tolist() == [1, -1]


def test_tables_with_texts_name_the_columns():
    random = np.random.default_rng(0)
    X = pd.DataFrame({"age": random.integers(20, 80, 500)})
    X["town"] = random.choice(["Ulm", "Linz", "Graz"], 500)
    y = (X["age"] > 50).to_numpy()
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LINEAR)
    detector = OODDetector(model, random_state=0).fit(X, y)
    new = pd.DataFrame({"age": [30, 360, 30], "town": ["Ulm", "Ulm", "Bonn"]}, index=[*"abc"])
    assert detector.predict(new).tolist() == [1, -1, -1]
    told = detector.explain(new)
    assert told.index.tolist() == [*"abc"]
    (_, age, town), (_, *kinds) = told["columns"], told["most_unusual"]
    assert (age[:9], town[:11], kinds) == ("age = 360", "town = Bonn", ["support"] * 2)
    assert (told["p_value"] == detector.p_values(new)).all()


CONFIDENCE, UNCERTAINTY = {"entropy", "energy"}, {"total", "epistemic"}
SEED = {"random_state": 0}
SMALL = MLPClassifier((10,), max_iter=10)
MODELS = {
    "trees": (HistGradientBoostingClassifier(max_iter=2), CONFIDENCE),
    "network": (MLPClassifier((30,), max_iter=20, **SEED), CONFIDENCE),
    "quam": (QUAMClassifier(LINEAR, **SEED), CONFIDENCE | UNCERTAINTY),
    "ensemble": (DeepEnsembleClassifier(SMALL, n_members=2, **SEED), {"entropy"} | UNCERTAINTY),
    "probe": (EvidentialProbe(LINEAR, max_epochs=2, **SEED), CONFIDENCE | UNCERTAINTY),
    "search": (GridSearchCV(LINEAR, {"C": [0.1, 1.0]}, cv=2), CONFIDENCE),
    "pipeline": (make_pipeline(StandardScaler(), LINEAR), CONFIDENCE),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_gets_its_scores(embedded, kind):
    model, expected = MODELS[kind]
    detector = OODDetector(model, random_state=0).fit(embedded["X"], embedded["y"])
    assert set(detector.scores_) == {"neighbors", "mahalanobis", "length"} | expected
    assert auroc(detector, embedded) > 0.85
    again, new = pickle.loads(pickle.dumps(detector)), embedded["new"][:50]
    np.testing.assert_array_equal(again.p_values(new), detector.p_values(new))


def test_images_are_compared_in_what_the_network_has_learned():
    digits = load_digits()
    X = np.zeros((len(digits.images), 1, 28, 28), np.float32)
    X[:, 0, 6:22, 6:22] = np.kron(digits.images / 16, np.ones((2, 2)))
    torch.manual_seed(0)
    network = LeNet().eval()
    detector = OODDetector(network, random_state=0)
    with pytest.warns(UserWarning, match="was trained on it"):
        detector.fit(X[:200], digits.target[:200])
    assert "neighbors" in detector.scores_
    assert detector.n_features_in_ == 1
    assert "columns" not in detector.explain(X[:3])
    ours = ReferenceClassifier(network).fit(X[:100], digits.target[:100])
    around = OODDetector(FrozenEstimator(ours), random_state=0)
    around.fit(X[:100], digits.target[:100], X_held_out=X[100:200])
    assert around.p_values(X[:5]).shape == (5,)


def test_regressors_get_distances_and_support():
    X, y = load_diabetes(return_X_y=True)
    forest = OODDetector(RandomForestRegressor(10, random_state=0), random_state=0).fit(X, y)
    assert forest.scores_ == ["neighbors", "support"]
    known, held_out = X[:300], X[300:]
    frozen = OODDetector(FrozenEstimator(Ridge().fit(known, y[:300])), random_state=0)
    frozen.fit(known, X_held_out=held_out)  # it predicts its own targets
    module = OODDetector(torch.nn.Linear(10, 1), random_state=0)
    module.fit(known, y[:300], X_held_out=held_out)
    assert frozen.scores_ == module.scores_ == ["neighbors", "support"]


VERBS = ("book", "cancel", "change", "show", "move")
THINGS = ("flight", "hotel", "train", "table", "car", "ticket")
TIMES = ("today", "tomorrow", "tonight", "next week", "on monday")
TEXTS = [f"{verb} my {thing} {time}" for verb, thing, time in product(VERBS, THINGS, TIMES)]


def test_texts_are_taken_as_they_are():
    y = np.array([text.split()[0] for text in TEXTS])
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())
    detector = OODDetector(pipeline, false_alarm_rate=0.1, random_state=0).fit(TEXTS, y)
    assert {"entropy", "energy", "neighbors", "length"} == set(detector.scores_)
    new = ["cancel my flight today", "who painted this old church"]
    assert detector.predict(new).tolist() == [1, -1]
    told = detector.explain(new)
    assert told["most_unusual"].isin(detector.scores_).all()
    assert {*told["words"].iloc[1].split("; ")} <= {*new[1].split()}


def length(X):
    return np.abs(np.asarray(X)).sum(axis=1)


def test_scores_are_chosen_by_name_or_given(embedded):
    detector = OODDetector(LINEAR, scores=["entropy", length], random_state=0)
    detector.fit(embedded["X"], embedded["y"])
    assert detector.scores_ == ["entropy", "length"]
    X = embedded["new"]
    np.testing.assert_allclose(detector.single_scores(X)["length"], length(X))


def named_p_value(X):
    return X[:, 0]


named_p_value.__name__ = "p_value"
REFUSED = [
    (OODDetector(LINEAR, scores=[]), {}, "empty"),
    (OODDetector(LINEAR, scores=["vacuity"]), {}, "Unknown"),
    (OODDetector(LINEAR, scores=["epistemic"]), {}, "predict_uncertainty"),
    (OODDetector(LINEAR, scores="entropy"), {}, "scores"),
    (OODDetector(LINEAR, scores=[lambda X: X]), {}, "one-dimensional"),
    (OODDetector(LINEAR, scores=[lambda X: [1.0]]), {}, None),
    (OODDetector(LINEAR, scores=[lambda X: X[:, 0], lambda X: X[:, 1]]), {}, "reserved"),
    (OODDetector(LINEAR, scores=["entropy", "entropy"]), {}, "reserved"),
    (OODDetector(LINEAR, scores=["entropy", named_p_value]), {}, "reserved"),
    (OODDetector(LINEAR, scores=["mahalanobis"]), {"X": np.eye(80)}, "60 rows"),
    (OODDetector(RandomForestRegressor(3), scores=["mahalanobis"]), {}, "classifier"),
    (OODDetector(LINEAR, false_alarm_rate=0.0), {}, "false_alarm_rate"),
    (OODDetector(LINEAR), {"y": None}, "requires y"),
    (OODDetector(LINEAR), {"y_held_out": np.arange(80) % 2}, "X_held_out"),
    (OODDetector(LINEAR), {"X_held_out": np.eye(80, 4), "y_held_out": [0, 1]}, None),
    (OODDetector(LINEAR, by_class=True), {"X_held_out": np.eye(80, 4)}, "y_held_out"),
    (OODDetector(None, by_class=True), {"y": np.arange(80) / 7}, "needs labels"),
    (OODDetector(Ridge(), by_class=True), {"y": np.arange(80) / 7}, "needs labels"),
]


@pytest.mark.parametrize(("detector", "data", "word"), REFUSED)
def test_what_cannot_be_is_refused(detector, data, word):
    data = {"X": normal(80, 0), "y": np.arange(80) % 2} | data
    with pytest.raises(ValueError, match=word):
        clone(detector).fit(**data)


def test_held_out_inputs_that_are_too_few_or_may_have_been_seen_are_warned_of(embedded, model):
    with pytest.warns(UserWarning, match="`X_held_out`"):
        OODDetector(FrozenEstimator(model)).fit(embedded["X"], embedded["y"])
    detector = OODDetector(LINEAR, false_alarm_rate=0.01)
    with pytest.warns(UserWarning, match="at least 99"):
        detector.fit(embedded["X"][:100], embedded["y"][:100])
    assert (detector.predict(embedded["ood"]) == 1).all()


def test_rates_hold_within_classes(embedded):
    data = {name: embedded[name] for name in ("X", "y", "y_held_out")}
    detector = OODDetector(LINEAR, by_class=True, random_state=0)
    detector.fit(**data, X_held_out=embedded["held_out"])
    rarest = np.unique(embedded["y_held_out"], return_counts=True)[1].min()
    assert detector.p_values(embedded["ood"]).min() == 1 / (1 + rarest)


def test_without_a_model_inputs_alone_are_judged_and_labels_as_with_one(embedded):
    detector = OODDetector(random_state=0).fit(embedded["X"])
    assert detector.scores_ == ["neighbors", "length"]
    assert detector.estimator_ is None
    assert auroc(detector, embedded) > 0.8
    for y in (np.zeros(600, int), np.arange(600) / 7):  # one label says nothing of classes
        assert OODDetector().fit(embedded["X"], y).scores_ == ["neighbors", "length"]
    frame = pd.DataFrame(embedded["X"]).rename(columns=str)
    assert OODDetector(random_state=0).fit(frame).feature_names_in_.tolist() == list(frame)
    parts = {name: embedded[name] for name in ("X", "y", "y_held_out")}
    parts["X_held_out"] = embedded["held_out"]
    alone, around = (OODDetector(each, by_class=True).fit(**parts) for each in (None, LINEAR))
    assert alone.scores_ == ["neighbors", "mahalanobis", "length"]
    found, expected = (each.single_scores(embedded["new"]) for each in (alone, around))
    pd.testing.assert_frame_equal(found, expected[alone.scores_])


def test_columns_that_a_step_reverses_or_leaves_out_are_those_of_the_step():
    X = np.random.default_rng(0).normal(size=(200, 40)) * np.linspace(1, 50, 40)
    for part in (slice(None, None, -1), slice(35)):
        step = FunctionTransformer(lambda rows, part=part: rows[:, part])  # a view
        detector = OODDetector(make_pipeline(step, LINEAR), scores=["neighbors"], random_state=0)
        plain = OODDetector(LINEAR, scores=["neighbors"], random_state=0)
        y = np.arange(200) % 2
        found = detector.fit(X, y, X_held_out=X[:50]).single_scores(X + 1)
        plain.fit(X[:, part].copy(), y, X_held_out=X[:50, part])
        pd.testing.assert_frame_equal(found, plain.single_scores(X[:, part] + 1))


@pytest.mark.parametrize("y", [None, np.arange(16_000) % 3])
def test_training_takes_little_memory_beside_the_inputs(y):
    X = np.random.default_rng(0).normal(size=(16_000, 64)).astype(np.float32)
    tracemalloc.start()
    OODDetector().fit(X, y, X_held_out=X[:50])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * X.nbytes


def test_false_alarms_keep_their_rate_with_a_trained_model():
    rates = []
    for seed in range(9):
        X, y = make_blobs(900, n_features=5, centers=4, cluster_std=2.5, random_state=seed)
        detector = OODDetector(LINEAR, false_alarm_rate=0.1, random_state=seed)
        rates.append((detector.fit(X[:500], y[:500]).predict(X[500:]) < 0).mean())
    error = np.std(rates) / 3
    assert 0.07 < np.mean(rates) < 0.1 + 3 * error


def test_logits_are_those_of_the_estimator_whatever_the_batch(embedded):
    dropout = OODDetector(MCDropoutClassifier(n_samples=5, random_state=0), random_state=0)
    dropout.fit(embedded["X"][:100], embedded["y"][:100])
    assert "energy" not in dropout.scores_
    for scale in (1.0, 0.2):
        assert dropout.predict(scale * embedded["new"]).shape == (len(embedded["new"]),)


def first_column(X):
    return np.asarray(X)[:, 0]


def test_rare_classes_are_held_out_as_often_as_others():
    y = np.repeat([0, 1, 2], [450, 45, 5])
    X = np.c_[y, np.random.default_rng(0).normal(size=500)]
    detector = OODDetector(LINEAR, scores=[first_column], random_state=0).fit(X, y)
    held_out = detector._combination.tails["first_column"].ordered.astype(int)
    assert np.bincount(held_out).tolist() == [90, 9, 1]


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


def test_constant_columns_are_the_same_in_another_precision_and_have_no_ellipses():
    X = np.c_[np.random.default_rng(0).normal(size=(400, 2)), np.full(400, 0.1)]
    detector = OODDetector(random_state=0).fit(X)
    assert (detector.predict(X.astype(np.float32)) < 0).mean() < 0.1
    X, y = np.eye(40)[np.arange(400) % 4], np.arange(400) % 4
    detector = OODDetector(LINEAR, random_state=0).fit(X, y)
    assert "mahalanobis" not in detector.scores_


def test_floats_that_look_like_labels_are_told():
    X, y = normal(200, 0), np.arange(200) % 2
    with pytest.warns(UserWarning, match="regression"):
        OODDetector(network(1)).fit(X, y.astype(float), X_held_out=normal(50, 1))
    with pytest.raises(ValueError, match="logits"):
        OODDetector(network(4)).fit(X, y.astype(float), X_held_out=normal(50, 1))


def test_named_columns_do_not_warn_of_names_and_an_array_is_scored_as_the_table():
    X = pd.DataFrame(normal(200, 0), columns=[*"abcd"])
    y = (X["a"] > 0).astype(int)
    detector = OODDetector(network(2)).fit(X, y, X_held_out=X.iloc[:50] + 0.1)
    quam = QUAMClassifier(network(2), search=PoolSearch(n_steps=2)).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "columns" in detector.explain(X[:2])
        quam.explain(X[:2])
    with pytest.warns(UserWarning, match="OODDetector"):
        found = detector.p_values(X[:9].to_numpy())
    np.testing.assert_array_equal(found, detector.p_values(X[:9]))


def test_state_dict_is_refused_without_its_weights():
    weights = network(2).state_dict()
    for estimator in (OODDetector(weights), QUAMClassifier(weights)):
        with pytest.raises(TypeError, match="state_dict") as told:
            estimator.fit(normal(20, 0), np.arange(20) % 2)
        assert "tensor(" not in str(told.value)


def test_held_out_nodes_are_checked_as_far_as_the_probe_knows_them():
    now, later = (make_node_classes(80, n_classes=2, random_state=seed) for seed in (0, 1))
    train, rest = np.arange(40), np.arange(40, 80)
    probe = EvidentialProbe(graph=now.graph, max_epochs=2, random_state=0)
    probe.fit(train, now.labels[train])
    with pytest.raises(ValueError, match=r"^No .* 20 "):
        OODDetector(FrozenEstimator(probe)).fit(train, now.labels[train])
    with pytest.raises(ValueError, match=r"^40 "):
        OODDetector(FrozenEstimator(probe)).fit(train, now.labels[train], X_held_out=train)
    moved = FrozenEstimator(probe.with_graph(later.graph))
    with pytest.warns(UserWarning, match="another graph"):
        OODDetector(moved).fit(train, later.labels[train], X_held_out=rest)
