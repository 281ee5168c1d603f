"""Situations that users of neighbouring packages reported in public, tried here."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn import ensemble
from sklearn.base import BaseEstimator, ClassifierMixin, clone, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_iris, make_moons
from sklearn.feature_selection import RFE
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.fixes import parse_version
from torch import nn

import skuq
from skuq.calibration import bin_edges, choose_tolerance, region_mask, top_label_predictions
from skuq.evidential import NodeBatches
from skuq.metrics import (
    area_under_risk_coverage,
    brier_score,
    calibration_table,
    expected_calibration_error,
    neg_log_likelihood_scorer,
    negative_log_likelihood,
)
from skuq.plotting import ReliabilityDisplay
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch
from tests.test_common import FIRST, REFITTED
from tests.written import Written

pyplot = pytest.importorskip("matplotlib.pyplot")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

IRIS = load_iris(return_X_y=True)
FROZEN = FrozenEstimator(LogisticRegression(max_iter=999).fit(*IRIS))
LABELS = np.array(["low", "mid", "high"])  # which sort as high, low, mid
PROBA = np.random.default_rng(0).dirichlet([1, 1, 1], 400)
DRAWN = LABELS[(np.random.default_rng(1).random((400, 1)) > PROBA.cumsum(1)[:, :2]).sum(axis=1)]
NAMED = pd.DataFrame(PROBA, columns=LABELS)
X60 = np.random.default_rng(0).normal(size=(60, 4))

TABLES = [
    *(NAMED, NAMED.rename(columns="p({})".format), NAMED.to_records(index=False)),
    *(pl.DataFrame(NAMED.to_dict("list")), pa.table(NAMED.to_dict("list"))),
]

audited = skuq.CalibrationAuditor.from_predictions


def drawn(*args, **options):
    display = ReliabilityDisplay.from_predictions(*args, **options)
    pyplot.close(display.figure_)
    return display.table.gap


READERS = {
    "nll": negative_log_likelihood,
    "brier": brier_score,
    "ece": expected_calibration_error,
    "table": lambda *args, **kw: calibration_table(*args, **kw).count,
    "top label": lambda *args, **kw: top_label_predictions(*args, **kw).correct,
    "auditor": lambda *args, **kw: (audited(*args, **kw).ece_, audited(*args, **kw).passed_),
    "threshold": lambda *args, **kw: choose_tolerance(*args, **kw, n_repeats=2, random_state=0),
    "display": drawn,
}


@pytest.mark.parametrize("reader", READERS)
def test_labelled_columns_are_read_by_their_names_or_refused(reader):
    """Columns of probabilities in another order than labels are sorted (stackoverflow 36681449)."""
    read = READERS[reader]
    expected = read(DRAWN, PROBA[:, [2, 0, 1]])
    for table in TABLES:
        np.testing.assert_equal(read(DRAWN, table), expected)
        np.testing.assert_equal(read(DRAWN, table, classes=np.sort(LABELS)), expected)
    for names in (["a", "b", "c"], ["p_low", "p_mid", "p_high"], ["low", "low", "high"]):
        with pytest.raises(ValueError, match="columns"):
            read(DRAWN, pd.DataFrame(PROBA, columns=names))


@pytest.mark.parametrize("kind", [int, str, float, bool])
def test_columns_without_names_stand_for_sorted_labels(kind):
    proba, y = np.array([[0.1, 0.9], [0.7, 0.3], [0.4, 0.6]]), np.array([1, 0, 1]).astype(kind)
    turned = pd.DataFrame(proba, columns=np.unique(y)).iloc[:, ::-1]
    named = pl.DataFrame(turned.rename(columns=str).to_dict("list"))
    for table in (proba, pd.DataFrame(proba), pl.DataFrame(proba), turned, named):
        assert brier_score(y, table) == brier_score([1, 0, 1], proba)
    if kind in (int, float):
        assert brier_score(y + 1, pd.DataFrame(proba)) == brier_score([1, 0, 1], proba)


def test_a_column_of_a_label_that_no_sample_has_keeps_its_place():
    """A class is missing among the true labels (sklearn#6703, verified_calibration#2)."""
    some = DRAWN != "mid"
    expected = brier_score(DRAWN[some], PROBA[some], classes=LABELS)
    assert brier_score(DRAWN[some], NAMED[some]) == pytest.approx(expected, rel=1e-12)
    numbers = pd.DataFrame(PROBA, columns=[7, 9, 8])
    assert audited([7] * 400, numbers).classes_.tolist() == [7, 8, 9]


class TurnedTable(ClassifierMixin, BaseEstimator):
    def fit(self, X, y, sample_weight=None):
        self.inside_ = LogisticRegression().fit(X, y, sample_weight)
        self.classes_, self.n_features_in_ = self.inside_.classes_, np.shape(X)[1]
        return self

    def predict(self, X):
        return self.inside_.predict(X)

    def predict_proba(self, X):
        proba = pd.DataFrame(self.inside_.predict_proba(X), columns=self.classes_)
        return proba[self.classes_[::-1]]


@pytest.mark.parametrize(
    "estimator", [skuq.CalibrationAuditor(None), skuq.QUAMClassifier(None, random_state=0)]
)
def test_probabilities_that_a_model_returns_as_a_table_are_read_by_name(estimator):
    """A model returns a labelled table in place of an array (skorch#494)."""
    X, y = make_moons(80, noise=0.3, random_state=0)
    y = np.array(["yes", "no"])[y]
    plain, table = LogisticRegression().fit(X, y), TurnedTable().fit(X, y)
    frozen = FrozenEstimator(plain), FrozenEstimator(table)
    one, two = (clone(estimator).set_params(estimator=each).fit(X, y) for each in frozen)
    np.testing.assert_allclose(one.predict_proba(X), two.predict_proba(X), atol=1e-6)
    scorer = neg_log_likelihood_scorer
    assert scorer(one, X, y) == pytest.approx(scorer(two, X, y), abs=1e-6)
    assert scorer(table, X, y) == scorer(plain, X, y)


def test_confidence_that_no_reference_sample_supports_has_no_parts():
    """A bin without samples is drawn as a bin that is right (calibration-framework#52)."""
    X = np.random.default_rng(0).normal(size=(400, 2))
    y = (X[:, 0] > 0).astype(int)
    audit = skuq.CalibrationAuditor(LogisticRegression(C=0.05).fit(X, y)).fit(X[:60] * 0.1, y[:60])
    u = audit.predict_uncertainty(np.array([[0.0, 0.0], [100.0, 0.0]]))
    np.testing.assert_array_equal(np.isnan(u.parts), [[False, False], [False, True], [False, True]])
    assert u.total[1] < 1e-3


@pytest.mark.usefixtures("short_training")
def test_a_detector_does_not_rank_by_a_part_that_nobody_measured():
    X, y = make_moons(200, noise=0.3, random_state=0)
    detector = skuq.OODDetector(skuq.ReferenceClassifier(random_state=0), random_state=0).fit(X, y)
    assert "epistemic" not in detector.explain(X).columns
    with pytest.raises(ValueError, match="epistemic"):
        detector.set_params(scores=["epistemic"]).fit(X, y)
    scorer = skuq.metrics.uncertainty_scorer(skuq.metrics.misclassification_auroc, part="epistemic")
    with pytest.raises(ValueError, match="epistemic"):
        scorer(skuq.ReferenceClassifier(random_state=0).fit(X, y), X, y)


HALF = [
    lambda proba: proba.astype(np.float16),
    lambda proba: np.divide(half := proba.astype(np.float16), half.sum(1)[:, None]),
    lambda proba: proba.astype(pytest.importorskip("ml_dtypes").bfloat16),
    lambda proba: torch.as_tensor(proba).half().requires_grad_(),
    lambda proba: torch.as_tensor(proba).bfloat16().requires_grad_(),
]


@pytest.mark.parametrize("n_classes", [3, 1000])
def test_probabilities_of_half_precision_are_scored_as_others(n_classes):
    rng = np.random.default_rng(0)
    proba = torch.as_tensor(3 * rng.normal(size=(300, n_classes))).softmax(dim=1).numpy()
    y = proba.argmax(axis=1)
    y[::3] = rng.integers(n_classes, size=100)
    for score in (negative_log_likelihood, brier_score, expected_calibration_error):
        expected = score(y, proba, classes=range(n_classes))
        for rounded in HALF:
            # Half a spacing of bfloat16, relative; the likelihood of a class that half precision
            # rounds to zero is one of a few.
            found = score(y, rounded(proba), classes=range(n_classes))
            assert found == pytest.approx(expected, rel=0.01, abs=4e-3)


@pytest.mark.parametrize(
    ("estimator", "counts"),
    [
        (skuq.EvidentialProbe(FROZEN, max_epochs=5), False),
        (skuq.FeatureDistanceClassifier(FROZEN, n_neighbors=5), True),
        (skuq.FeatureDistanceClassifier(FROZEN, distance="mahalanobis"), False),
        (skuq.LaplaceClassifier(FROZEN, n_samples=20), True),
        (skuq.AnchoredQuantileRegressor(max_epochs=5, batch_size=999), True),
    ],
    ids=lambda each: "".join(str(each).split()),
)
def test_a_weight_of_2_is_the_sample_twice(estimator, counts):
    X, kinds = IRIS[0][::3], IRIS[1][::3]
    y = X[:, 3] + 0.1 * kinds if is_regressor(estimator) else kinds
    data = [(X, y, np.ones(50)), (X, y, np.full(50, 2.0)), (X.repeat(2, axis=0), y.repeat(2), None)]
    estimator.set_params(random_state=0)
    fitted = [clone(estimator).fit(*rows, sample_weight=weight) for *rows, weight in data]
    once, heavier, repeated = (each.predict_uncertainty(X).epistemic for each in fitted)
    np.testing.assert_allclose(heavier, repeated, rtol=1e-4, atol=1e-6)
    assert np.allclose(once, heavier, rtol=1e-3) is not counts


def test_the_area_under_risk_and_coverage_warns_of_proportions():
    given = [0, 1, 1, 0], [0, 1, 1, 1], [0.1, 0.3, 0.2, 0.8]
    with pytest.warns(UserWarning, match="number of samples"):
        area_under_risk_coverage(*given, sample_weight=[0.02, 0.03, 0.02, 0.03])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        area_under_risk_coverage(*given, sample_weight=[0.1, 0.1, 0.1, 0.1])
        # What is left out does not count in the mean.
        area_under_risk_coverage(*given, sample_weight=[0, 0, 0, 1.0])


def _asked(model):
    if sklearn.get_config()["enable_metadata_routing"]:
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    return model


def _scaler():
    scaler, routes = StandardScaler(), sklearn.get_config()["enable_metadata_routing"]
    return scaler.set_fit_request(sample_weight=False) if routes else scaler


FORMS = {
    "bare": _asked,
    "pipeline": lambda model: make_pipeline(_scaler(), _asked(model)),
    "search": lambda model: GridSearchCV(_asked(model), {}, cv=2),
    "search of pipelines": lambda model: GridSearchCV(FORMS["pipeline"](model), {}, cv=2),
}
LOGISTIC, TREES = LogisticRegression(), ensemble.HistGradientBoostingClassifier(max_iter=3)
BOOSTED = ensemble.HistGradientBoostingRegressor(max_iter=3)
WRAPPERS = {
    "QUAM, network": (LOGISTIC, skuq.QUAMClassifier(search=PoolSearch(n_steps=2))),
    "QUAM, refit": (TREES, skuq.QUAMClassifier()),
    "QUAM, points": (LOGISTIC, skuq.QUAMClassifier(search=PointwiseSearch(n_steps=2))),
    "QUAM, quantities": (BOOSTED, skuq.QUAMRegressor(noise="homoscedastic", noise_cv=2)),
    "probe": (LOGISTIC, skuq.EvidentialProbe(None, max_epochs=2)),
    "reference": (LOGISTIC, skuq.ReferenceClassifier()),
    "Laplace": (LOGISTIC, skuq.LaplaceClassifier(n_samples=2)),
    "ensemble": (LOGISTIC, skuq.DeepEnsembleClassifier(n_members=2)),
    "distance": (LOGISTIC, skuq.FeatureDistanceClassifier()),
    "chains": (LOGISTIC, skuq.SGMCMCClassifier(n_chains=2, n_samples=1, steps_per_sample=1)),
}


@pytest.mark.parametrize(
    ("wrapper", "form"),
    [*zip(WRAPPERS, [*FORMS] * 3, strict=False), *(("QUAM, network", each) for each in FORMS)],
)
def test_weights_reach_the_model_inside_whether_or_not_metadata_are_routed(wrapper, form):
    """A pipeline inside a meta-estimator lost its weights (scikit-learn#18159, #21134)."""
    if wrapper == "chains":
        pytest.importorskip("posteriors")
    if form == "search of pipelines" and parse_version(sklearn.__version__) < parse_version("1.7"):
        pytest.skip("scikit-learn 1.6 routes no weights to the score of a pipeline in a search")
    X, y = IRIS[0][::2], IRIS[1][::2]
    weight, (model, around) = np.where(y == 1, 5.0, 1.0), WRAPPERS[wrapper]

    def fitted(**params):
        inside = FORMS[form](clone(model))
        return clone(around).set_params(estimator=inside, random_state=0).fit(X, y, **params)

    def outputs(model):
        return getattr(model, "predict_proba", model.predict)(X)

    found = []
    for routes in (False, True):
        with sklearn.config_context(enable_metadata_routing=routes):
            found.append(fitted(sample_weight=weight))
    np.testing.assert_array_equal(*map(outputs, found))
    np.testing.assert_array_equal(*(m.predict_uncertainty(X[::9]).epistemic for m in found))
    plain = fitted()
    assert np.abs(outputs(plain) - outputs(found[0])).max() > 1e-3


STACK = ensemble.StackingClassifier([("a", LogisticRegression())], cv=2)
ELIMINATION = RFE(LogisticRegression(), n_features_to_select=2)


@pytest.mark.parametrize(
    "learner",
    [
        CalibratedClassifierCV(SVC(), cv=2),
        ensemble.AdaBoostClassifier(DecisionTreeClassifier(max_depth=1), n_estimators=2),
        ensemble.BaggingClassifier(LogisticRegression(), n_estimators=2),
        ensemble.VotingClassifier([("a", LogisticRegression()), ("b", "drop")], voting="soft"),
        *(STACK, make_pipeline(StandardScaler(), ELIMINATION)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_weights_of_the_search_need_no_request_of_the_user(learner):
    """Models inside were asked for a request of weights that nobody gave (scikit-learn#30818)."""
    X, y = IRIS[0][::2], IRIS[1][::2]
    with sklearn.config_context(enable_metadata_routing=True):
        quam = skuq.QUAMClassifier(learner, n_targets=2, random_state=0).fit(X, y)
    assert quam.predict_uncertainty(X[::9]).epistemic.max() > 0


VOTES = ensemble.VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], voting="soft")


@pytest.mark.parametrize("learner", [VOTES, STACK, ELIMINATION], ids=lambda x: type(x).__name__)
def test_learners_that_pass_weights_on_are_given_them(learner):
    """Voting and stacking have no `sample_weight` in their signature (scikit-learn PR 27584)."""
    X, y = IRIS
    weight = np.where(y == 1, 9.0, 1.0)
    quam = skuq.QUAMClassifier(learner, random_state=0).fit(X, y, sample_weight=weight)
    expected = clone(learner).fit(X, y, sample_weight=weight).predict_proba(X)
    np.testing.assert_allclose(quam.predict_proba(X), expected, atol=1e-9)


@pytest.mark.parametrize("requests", [None, False])
def test_a_model_that_does_not_request_weights_is_told_how(requests):
    """A missing request ended in an error that named internals (scikit-learn#30937)."""
    with sklearn.config_context(enable_metadata_routing=True):
        model = LogisticRegression().set_fit_request(sample_weight=requests)
        quam = skuq.QUAMClassifier(make_pipeline(_scaler(), model))
        with pytest.raises(ValueError, match=r"set_fit_request") as caught:
            quam.fit(*IRIS, sample_weight=np.ones(150))
    told = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "set_fit_request(sample_weight=True)" in told


def of_zeros():
    """An environment of zeros: two actions, of which the second pays ten times as much."""
    pytest.importorskip("stable_baselines3")
    from tests.uadqn.environments import RandomEnv

    class OfZeros(RandomEnv):
        tried = 0

        def reset(self, **options):
            return np.zeros(4, np.float32), super().reset(**options)[1]

        def step(self, action):
            self.tried += action
            return np.zeros(4, np.float32), [1.0, 10.0][action], *super().step(action)[2:]

    return OfZeros(length=10, n_actions=2)


def test_where_observations_are_zeros_all_actions_are_tried_and_no_network_is_certain():
    env = of_zeros()
    networks = {"learning_starts": 50, "target_update_interval": 50}
    options = {"algorithm_kwargs": networks, "device": "cpu", "learning_rate": 1e-3}
    options |= {"total_timesteps": 200, "epistemic_factor": 0.2, "random_state": 0}
    agent = skuq.UADQN(lambda: env, **options).fit([0, 1])
    zeros, none = np.zeros((1, 4), np.float32), np.zeros((0, 4), np.float32)
    assert env.tried > 125
    assert agent.predict(zeros) == [1]
    assert (agent.predict_uncertainty(zeros, per_action=True).epistemic > 0).all()
    assert agent.predict(none).dtype == agent.predict(zeros).dtype
    assert len(agent.predict(none)) == len(agent.predict_uncertainty(none)) == 0
    assert agent.predict_uncertainty(none, per_action=True).total.shape == (0, 2)
    assert agent.predict_quantiles(none).shape[:2] == (0, 2)


def test_a_cell_whose_square_overflows_is_refused_by_its_place():
    """Errors from within an optimiser for inputs that overflow (pytorch/botorch#160)."""
    X, y = make_moons(20, noise=0.15, random_state=0)
    gpc = skuq.RobustGPC(max_iter=2, device="cpu").fit(X, y)
    X[3, 1] = -1e300
    for ask in (lambda X: clone(gpc).fit(X, y), gpc.predict_proba, lambda X: gpc.certify(X, 0.1)):
        with pytest.raises(ValueError, match=r"Feature 1 .* row 3"):
            ask(X)


torch.manual_seed(0)
WEIGHTS = nn.ParameterList([torch.randn(4, 8) / 2, torch.randn(8, 3)])
TEMPERATURE = nn.Parameter(torch.tensor(1.5))
LISTED = Written(lambda self, x: torch.tanh(x @ self.w[0]) @ self.w[1], w=WEIGHTS)
SCALED = Written(lambda self, x: self.a(x) / self.t, a=nn.Linear(4, 3), t=TEMPERATURE)


@pytest.mark.filterwarnings("ignore:The model's loss")
@pytest.mark.parametrize(
    ("module", "search"), [(LISTED, PoolSearch), (LISTED, PointwiseSearch), (SCALED, PoolSearch)]
)
def test_parameters_that_are_in_no_layer(module, search):
    X = X60.astype(np.float32)
    quam = skuq.QUAMClassifier(module, search=search(n_steps=3), random_state=0)
    quam.fit(X, np.arange(60) % 3)
    expected = torch.softmax(module(torch.tensor(X)), -1).detach().numpy()
    np.testing.assert_allclose(quam.predict_proba(X), expected, atol=1e-6)
    assert (quam.predict_uncertainty(X).epistemic >= 0).all()


def pyg_graph(**attributes):
    data = pytest.importorskip("torch_geometric.data")
    random = np.random.default_rng(0)
    pairs = np.unique(random.integers(40, size=(120, 2)), axis=0)
    x = torch.tensor(random.normal(size=(40, 4)), dtype=torch.float32)
    return data.Data(x=x, edge_index=torch.tensor(pairs.T), **attributes)


def test_graph_networks_and_edges_that_are_not_understood():
    network, nodes = Written(lambda self, x: x, a=nn.Linear(4, 3)), np.arange(20)
    for forward in (lambda self, edges, kinds: edges[:, kinds.long()], lambda self: self.a.weight):
        network.forward = forward.__get__(network)
        with pytest.raises(ValueError, match=r"forward\(self, data\)"):
            skuq.EvidentialProbe(network, graph=pyg_graph()).fit(nodes, nodes % 3)
    graph = pyg_graph(adj_t=torch.eye(40).to_sparse())
    graph.edge_index = None  # as PyG's ToSparseTensor leaves it
    with pytest.raises(ValueError, match="remove_edge_index=False"):
        skuq.EvidentialProbe(nn.Linear(4, 3), graph=graph).fit(nodes, nodes % 3)


def test_layers_that_need_edges_in_order():
    """LSTM aggregation refuses edges that are not sorted (pyg-team/pytorch_geometric#7642)."""
    graph, nodes = pyg_graph(), np.arange(20)
    graph.edge_index = graph.edge_index[:, graph.edge_index[1].argsort(stable=True)]
    layer = pytest.importorskip("torch_geometric.nn").SAGEConv(4, 3, aggr="lstm")
    probe = skuq.EvidentialProbe(layer, graph=graph, max_epochs=2).fit(nodes, nodes % 3)
    assert np.isfinite(probe.predict_proba(nodes)).all()
    # Of parts, PyG's outputs depend on their largest degree.
    with pytest.raises(ValueError, match="batches=None"):
        probe.set_params(batches=NodeBatches(7)).fit(nodes, nodes % 3)


POINTWISE = skuq.QUAMClassifier(search=PointwiseSearch(n_steps=2))
ALL = [*FIRST, *REFITTED, POINTWISE, skuq.OODDetector()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("estimator", ALL, ids=lambda each: type(each).__name__)
def test_fit_where_gradients_are_switched_off(estimator):
    """A notebook in which everything runs in inference mode (replicate/cog#1681)."""
    y = X60[:, 0] if is_regressor(estimator) else np.where(X60[:, 0] > 0, "a", "b")
    with torch.no_grad() if is_regressor(estimator) else torch.inference_mode():
        found = clone(estimator).fit(X60, y).score_samples(X60[:5])
        still_off = not torch.is_grad_enabled()
    assert np.isfinite(found).all()
    assert still_off


@pytest.mark.parametrize("n_bins", [0, 10**9, 2.5])
def test_a_number_of_bins_that_fills_the_memory_is_refused(n_bins):
    y, proba = np.arange(40) % 2, np.tile([0.4, 0.6], (40, 1))
    for call in (
        lambda: expected_calibration_error(y, proba, n_bins=n_bins),
        lambda: skuq.CalibrationAuditor(FROZEN, n_bins=n_bins).fit(*IRIS),
        lambda: audited(y, proba, n_bins=n_bins),
        lambda: bin_edges(np.arange(4, dtype=np.int32), n_bins, "uniform"),
    ):
        with pytest.raises(ValueError, match="n_bins"):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda X: skuq.QUAMClassifier(LogisticRegression()).fit(X, np.zeros(60, int)),
        lambda X: skuq.QUAMClassifier().fit(X, np.zeros(60)),
        lambda X: skuq.RobustGPC().fit(X, np.zeros(60, int)),
        lambda X: skuq.CalibrationAuditor(LogisticRegression()).fit(X, np.arange(60) // 59),
        lambda X: expected_calibration_error([0, 5], np.tile([0.5, 0.5], (2, 1)), classes=[0, 1]),
        lambda X: region_mask({0: (0, 1)}, np.array([["a"]])),
    ],
)
def test_messages_show_numbers_of_numpy_as_users_write_them(call):
    """The repr of numpy's scalars in messages (scikit-learn/scikit-learn#27042)."""
    with pytest.raises(ValueError, match=r"\d") as error:
        call(X60)
    assert not re.search(r"\bnp\.|array\(", str(error.value))


def test_boosted_trees_that_make_numbers_of_booleans():
    learner = pytest.importorskip("xgboost").XGBClassifier(n_estimators=3)
    quam = skuq.QUAMClassifier(learner, random_state=0).fit(X60, X60[:, 0] > 0)
    assert quam.classes_.tolist() == [False, True]
    assert quam.predict(X60).dtype == bool


QUANTILES = skuq.AnchoredQuantileRegressor(max_epochs=3)
REFIT = skuq.QUAMRegressor(Ridge(), search=RefitSearch(shares=(0.4,)), noise=1)


@pytest.mark.parametrize(
    ("scaler", "regressor"),
    [(StandardScaler(), REFIT), (None, QUANTILES), (MinMaxScaler(), QUANTILES)],
)
def test_uncertainty_of_a_scaled_target(scaler, regressor):
    """Standard deviations through TransformedTargetRegressor (scikit-learn/scikit-learn#24638)."""
    X = X60
    y = 50 * X[:, 0] + np.random.default_rng(1).normal(0, 20, 60) + 300
    pipeline = make_pipeline(StandardScaler(), clone(regressor).set_params(random_state=0))
    around = TransformedTargetRegressor(pipeline, transformer=scaler).fit(X, y)
    scaled = y if scaler is None else clone(scaler).fit_transform(y[:, None]).ravel()
    factor = y.std() / scaled.std()
    total, _, epistemic = skuq.predict_uncertainty(clone(pipeline).fit(X, scaled), X).parts
    expected = [total + np.log(factor), epistemic]  # in nats, and in squared units of the target
    if regressor is QUANTILES:
        expected = [factor**2 * total, factor**2 * epistemic]
    found = skuq.predict_uncertainty(around, X)
    np.testing.assert_allclose([found.total, found.epistemic], expected)
    np.testing.assert_allclose(found.total, found.aleatoric + found.epistemic)


@pytest.mark.usefixtures("few_trees")
def test_uncertainty_of_a_bent_target_is_refused_and_inside_it_works():
    """Logarithms of the target have no standard deviation of it (deepchem/deepchem#1377)."""
    X, y = X60, np.exp(X60[:, 0])
    logs = {"func": np.log, "inverse_func": np.exp}
    quam = skuq.QUAMRegressor(Ridge(), random_state=0)
    with pytest.raises(TypeError, match=r"QUAMRegressor\(Transf"):
        skuq.predict_uncertainty(TransformedTargetRegressor(quam, **logs).fit(X, y), X)
    inside = quam.set_params(estimator=TransformedTargetRegressor(Ridge(), **logs)).fit(X, y)
    assert np.isfinite(inside.predict_uncertainty(X).total).all()
