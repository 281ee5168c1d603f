"""Situations that users of neighbouring packages reported in public, tried here.

Each test says in its docstring which kind of report it stands for, with the address of one. Whoever
finds a further report adds a test below the heading of its kind.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone, is_regressor
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import nn

from skuq import (
    AnchoredQuantileRegressor,
    CalibrationAuditor,
    DeepEnsembleClassifier,
    EvidentialProbe,
    FeatureDistanceClassifier,
    LaplaceClassifier,
    MCDropoutClassifier,
    MirageFineTuner,
    MirageRegressor,
    OODDetector,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
    RobustGPC,
    SGMCMCClassifier,
    explain,
    predict_uncertainty,
)
from skuq.calibration import bin_edges, region_mask
from skuq.evidential import NodeBatches
from skuq.metrics import (
    calibration_table,
    expected_calibration_error,
    interval_scorer,
    neg_log_likelihood_scorer,
    uncertainty_scorer,
)
from skuq.quam import PointwiseSearch, PoolSearch

# --- order of labels, and labels of rows ----------------------------------------------------------


# --- parts of the uncertainty that nobody measured ------------------------------------------------


# --- half precision -------------------------------------------------------------------------------


# --- explanations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "learner", [HistGradientBoostingClassifier(max_iter=20), LogisticRegression()]
)
@pytest.mark.parametrize("inside", [True, False])
def test_an_explanation_names_a_column_that_the_model_never_gets(learner, inside):
    """A column that the model never gets is named (no report; beside scikit-learn#32651)."""
    X, y = load_iris(return_X_y=True, as_frame=True)
    given = make_column_transformer((StandardScaler(), list(X.columns)))
    X = X.assign(row_number=np.random.default_rng(0).permutation(len(X)))
    if inside:
        quam = QUAMClassifier(make_pipeline(given, learner), random_state=0).fit(X, y)
        found = quam.explain(X[::3])
    else:
        quam = make_pipeline(given, QUAMClassifier(learner, random_state=0)).fit(X, y)
        found = explain(quam, X[::3], X)
    named = found.most_unusual()
    assert not any("row_number" in names for names in named)
    assert [] in named  # of an ordinary row, no column stands out
    assert found.to_frame().index.equals(X.index[::3])


# --- sample weights and where they reach ----------------------------------------------------------


# --- reinforcement learning -----------------------------------------------------------------------


# --- units of features, and bounds ----------------------------------------------------------------


# --- modules of torch as people write them --------------------------------------------------------


class Written(nn.Module):
    """A module with a function for its forward pass."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def network_of(layer):
    return nn.Sequential(nn.Linear(4, 8), layer, nn.ReLU(), nn.Linear(8, 3))


def meta():
    with torch.device("meta"):
        return nn.Linear(4, 3)


REFUSED_MODULES = {
    "statistics of the batch": (
        lambda: network_of(nn.BatchNorm1d(8, track_running_stats=False)),
        "BatchNorm1d '1' has no running statistics",
    ),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3)), "lazy and hold no weights yet"),
    "meta": (meta, "holds no weights yet"),
    "squeezed": (
        lambda: Written(lambda self, x: self.a(x).squeeze(), a=nn.Linear(4, 3)),
        r"shape \(8, 3\) for 8 inputs, but \(3,\) for one.*squeeze",
    ),
    "always random": (
        lambda: Written(
            lambda self, x: self.a(nn.functional.dropout(x, 0.5, training=True)), a=nn.Linear(4, 3)
        ),
        "random in evaluation mode",
    ),
}
AROUND_MODULES = [
    QUAMClassifier,
    EvidentialProbe,
    LaplaceClassifier,
    FeatureDistanceClassifier,
    ReferenceClassifier,
]


@pytest.mark.parametrize("name", REFUSED_MODULES)
@pytest.mark.parametrize("estimator", AROUND_MODULES)
def test_modules_whose_outputs_are_no_function_of_their_input(name, estimator):
    """Batch statistics, dropout and noise in evaluation, lost axes (pytorch/rl#2313)."""
    make, message = REFUSED_MODULES[name]
    X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    with pytest.raises(ValueError, match=message):
        estimator(make()).fit(X, np.arange(30) % 3)


@pytest.mark.filterwarnings("ignore:The model's loss")
@pytest.mark.parametrize("search", [PoolSearch(n_steps=3), PointwiseSearch(n_steps=3)])
@pytest.mark.parametrize("kind", ["list of parameters", "a single number"])
def test_parameters_that_are_in_no_layer(kind, search):
    """Modules of nn.ParameterList, or with a temperature (no report; beside Laplace#269)."""
    torch.manual_seed(0)
    weights = nn.ParameterList([torch.randn(4, 8) / 2, torch.randn(8, 3)])
    module = {
        "list of parameters": Written(
            lambda self, x: torch.tanh(x @ self.w[0]) @ self.w[1], w=weights
        ),
        "a single number": Written(
            lambda self, x: self.a(x) / self.t, a=nn.Linear(4, 3), t=nn.Parameter(torch.tensor(1.5))
        ),
    }[kind]
    X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    quam = QUAMClassifier(module, search=search, random_state=0).fit(X, np.arange(30) % 3)
    expected = torch.softmax(module(torch.tensor(X)), -1).detach().numpy()
    np.testing.assert_allclose(quam.predict_proba(X), expected, atol=1e-6)
    assert (quam.predict_uncertainty(X).epistemic >= 0).all()


def pyg_graph(**attributes):
    data = pytest.importorskip("torch_geometric.data")
    random = np.random.default_rng(0)
    pairs = np.unique(random.integers(40, size=(120, 2)), axis=0)
    x = torch.tensor(random.normal(size=(40, 4)), dtype=torch.float32)
    return data.Data(x=x, edge_index=torch.tensor(pairs.T), **attributes)


@pytest.mark.parametrize(
    "forward", [lambda self, edges, kinds: edges[:, kinds.long() + 99], lambda self: self.a.weight]
)
def test_graph_networks_with_arguments_of_their_own(forward):
    """Examples of PyG whose forward takes other arguments (no report; rgcn.py, agnn.py)."""
    network = Written(lambda self, x: x, a=nn.Linear(4, 3))
    network.forward = forward.__get__(network)
    with pytest.raises(
        ValueError, match=r"as Written\(x, edge_index\), and .*forward\(self, data\)"
    ):
        EvidentialProbe(network, graph=pyg_graph()).fit(np.arange(20), np.arange(20) % 3)


def test_graphs_whose_edges_are_in_a_sparse_tensor():
    """PyG's ToSparseTensor takes `edge_index` away (no report; gcn2_cora.py of PyG's examples)."""
    graph = pyg_graph(adj_t=torch.eye(40).to_sparse())
    graph.edge_index = None
    with pytest.raises(ValueError, match="remove_edge_index=False"):
        EvidentialProbe(nn.Linear(4, 3), graph=graph).fit(np.arange(20), np.arange(20) % 3)


def test_layers_that_need_edges_in_order():
    """LSTM aggregation refuses edges that are not sorted (pyg-team/pytorch_geometric#7642)."""
    graph, nodes = pyg_graph(), np.arange(20)
    graph.edge_index = graph.edge_index[:, graph.edge_index[1].argsort(stable=True)]
    layer = pytest.importorskip("torch_geometric.nn").SAGEConv(4, 3, aggr="lstm")
    probe = EvidentialProbe(layer, graph=graph, max_epochs=2).fit(nodes, nodes % 3)
    assert np.isfinite(probe.predict_proba(nodes)).all()
    # Of parts, PyG's outputs depend on their largest degree.
    with pytest.raises(ValueError, match=r"largest number .* Use batches=None"):
        probe.set_params(batches=NodeBatches(7)).fit(nodes, nodes % 3)


# --- empty, odd and large inputs ------------------------------------------------------------------


FROZEN = FrozenEstimator(LogisticRegression().fit([[0.0] * 4, [1.0] * 4], ["a", "b"]))
TRAINED = {
    "QUAMClassifier": lambda: QUAMClassifier(search=PoolSearch(n_steps=2)),
    "QUAMClassifier pointwise": lambda: QUAMClassifier(search=PointwiseSearch(n_steps=2)),
    "QUAMClassifier refit": lambda: QUAMClassifier(LogisticRegression()),
    "QUAMRegressor": lambda: QUAMRegressor(search=PoolSearch(n_steps=2)),
    "AnchoredQuantileRegressor": lambda: AnchoredQuantileRegressor(max_epochs=2),
    "CalibrationAuditor": lambda: CalibrationAuditor(FROZEN),
    "DeepEnsembleClassifier": lambda: DeepEnsembleClassifier(n_members=2),
    "EvidentialProbe": lambda: EvidentialProbe(max_epochs=2),
    "FeatureDistanceClassifier": FeatureDistanceClassifier,
    "LaplaceClassifier": LaplaceClassifier,
    "MCDropoutClassifier": MCDropoutClassifier,
    "MirageFineTuner": lambda: MirageFineTuner(None, region=first_half, max_epochs=2),
    "MirageRegressor": lambda: MirageRegressor(region=first_half, max_epochs=2),
    "OODDetector": OODDetector,
    "ReferenceClassifier": ReferenceClassifier,
    "RobustGPC": lambda: RobustGPC(max_iter=1),
    "SGMCMCClassifier": lambda: SGMCMCClassifier(n_chains=2, n_samples=2, steps_per_sample=2),
}


def first_half(X):
    return np.arange(len(X)) < len(X) // 2


def fitted(name):
    """An estimator fitted to a few rows, and the rows."""
    X = np.random.default_rng(0).normal(size=(60, 4))
    y = np.where(X[:, 0] > 0, "a", "b")
    estimator = TRAINED[name]()
    return estimator.fit(X, X[:, 0] if is_regressor(estimator) else y), X


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_fit_where_gradients_are_switched_off(mode, name):
    """A notebook in which everything runs in inference mode (replicate/cog#1681)."""
    with mode():
        estimator, X = fitted(name)
        found = estimator.score_samples(X[:5])
        still_off = not torch.is_grad_enabled()
    assert np.isfinite(found).all()
    assert still_off


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("name", TRAINED)
def test_no_rows_are_refused_by_every_method(name):
    """A filter that leaves no row: one clear error, as in scikit-learn (zjuwss/gnnwr#9)."""
    estimator, X = fitted(name)
    methods = ["predict", "predict_proba", "predict_uncertainty", "score_samples", "explain"]
    methods += [
        "p_values",
        "predict_interval",
        "predict_quantiles",
        "certify",
        "adversarial_models",
    ]
    for method in methods:
        if not hasattr(estimator, method) or (method, name) == (
            "explain",
            "QUAMClassifier pointwise",
        ):
            continue
        arguments = {"certify": {"radius": 0.1}, "explain": {"gamma": 0.1}}.get(method, {})
        arguments = arguments if name == "RobustGPC" else {}
        with pytest.raises(ValueError, match=r"0 sample\(s\)"):
            getattr(estimator, method)(X[:0], **arguments)


@pytest.mark.parametrize(
    "X",
    [
        pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60.0) % 7}),
        [["pay my bill", "will it rain"][k % 2] for k in range(60)],
        pd.Series([["pay my bill", "will it rain"][k % 2] for k in range(60)]),
    ],
    ids=["frame", "list", "series"],
)
def test_no_rows_of_tables_and_texts(X):
    """An empty DataFrame, or no texts: the same error (zjuwss/gnnwr#9)."""
    first = StandardScaler() if hasattr(X, "columns") else TfidfVectorizer()
    quam = QUAMClassifier(make_pipeline(first, LogisticRegression()), random_state=0)
    quam.fit(X, np.arange(60) % 2)
    for method in (quam.predict, quam.predict_uncertainty, quam.explain):
        with pytest.raises(ValueError, match=r"0 sample\(s\) .* required by QUAMClassifier"):
            method(X[:0])


@pytest.mark.parametrize("n_bins", [0, 10**9, 2.5])
def test_a_number_of_bins_that_fills_the_memory(n_bins):
    """Edges of 10^9 bins need 8 GB (no report; beside EFS-OpenSource/calibration-framework#52)."""
    y, proba = np.arange(40) % 2, np.tile([0.4, 0.6], (40, 1))
    calls = [
        lambda: expected_calibration_error(y, proba, n_bins=n_bins),
        lambda: calibration_table(y, proba, n_bins=n_bins),
        lambda: CalibrationAuditor(FROZEN, n_bins=n_bins).fit(
            np.eye(40, 4), np.tile(["a", "b"], 20)
        ),
        lambda: CalibrationAuditor.from_predictions(y, proba, n_bins=n_bins),
        lambda: bin_edges(np.arange(4, dtype=np.int32), n_bins, "uniform"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="n_bins"):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda X: QUAMClassifier(LogisticRegression()).fit(X, np.zeros(30, int)),
        lambda X: QUAMClassifier().fit(X, np.zeros(30)),
        lambda X: RobustGPC().fit(X, np.zeros(30, int)),
        lambda X: CalibrationAuditor(LogisticRegression()).fit(X, np.arange(30) // 29),
        lambda X: expected_calibration_error([0, 5], np.tile([0.5, 0.5], (2, 1)), classes=[0, 1]),
        lambda X: region_mask({0: (0, 1)}, np.array([["a"]])),
    ],
)
def test_messages_show_numbers_of_numpy_as_users_write_them(call):
    """The repr of numpy's scalars in messages (scikit-learn/scikit-learn#27042)."""
    X = np.random.default_rng(0).normal(size=(30, 4))
    with pytest.raises(ValueError, match=r"\d") as error:
        call(X)
    assert not re.search(r"\bnp\.|array\(", str(error.value))


def test_scorers_are_shown_without_addresses():
    """Settings of a search that are written down (no report; beside joblib/joblib#166)."""
    for scorer in (neg_log_likelihood_scorer, interval_scorer(), uncertainty_scorer(np.mean)):
        assert " at 0x" not in repr(scorer)
    assert "metric=mean" in repr(scorer)


def test_boosted_trees_that_make_numbers_of_booleans():
    """Labels True and False, which XGBoost makes numbers of (no report; dmlc/xgboost#10748)."""
    learner = pytest.importorskip("xgboost").XGBClassifier(n_estimators=3)
    X = np.random.default_rng(0).normal(size=(60, 3))
    quam = QUAMClassifier(learner, random_state=0).fit(X, X[:, 0] > 0)
    assert quam.classes_.tolist() == [False, True]
    assert quam.predict(X).dtype == bool


@pytest.mark.parametrize("scaler", [StandardScaler(), MinMaxScaler(), None])
@pytest.mark.parametrize(
    "regressor",
    [
        QUAMRegressor(Ridge(), random_state=0),
        AnchoredQuantileRegressor(max_epochs=3, random_state=0),
    ],
    ids=["nats", "squared target"],
)
def test_uncertainty_of_a_scaled_target(regressor, scaler):
    """Standard deviations through TransformedTargetRegressor (scikit-learn/scikit-learn#24638)."""
    X = np.random.default_rng(0).normal(size=(80, 3))
    y = 50 * X[:, 0] + np.random.default_rng(1).normal(0, 20, 80) + 300
    around = TransformedTargetRegressor(
        make_pipeline(StandardScaler(), regressor), transformer=scaler
    )
    found = predict_uncertainty(around.fit(X, y), X)
    scaled = y if scaler is None else clone(scaler).fit_transform(y[:, None]).ravel()
    factor = y.std() / scaled.std()
    own = clone(around.regressor).fit(X, scaled)
    expected = predict_uncertainty(own, X)
    if isinstance(regressor, QUAMRegressor):
        np.testing.assert_allclose(found.total, expected.total + np.log(factor))
        np.testing.assert_allclose(found.epistemic, expected.epistemic)
    else:
        np.testing.assert_allclose(found.total, factor**2 * expected.total)
        np.testing.assert_allclose(found.epistemic, factor**2 * expected.epistemic)
    np.testing.assert_allclose(found.total, found.aleatoric + found.epistemic)


def test_uncertainty_of_a_bent_target_is_refused_and_inside_it_works():
    """Logarithms of the target have no standard deviation of it (deepchem/deepchem#1377)."""
    X = np.random.default_rng(0).normal(size=(80, 3))
    y = np.exp(X[:, 0])
    logs = {"func": np.log, "inverse_func": np.exp}
    around = TransformedTargetRegressor(QUAMRegressor(Ridge(), random_state=0), **logs).fit(X, y)
    with pytest.raises(TypeError, match=r"inside: QUAMRegressor\(TransformedTargetRegressor"):
        predict_uncertainty(around, X)
    inside = QUAMRegressor(TransformedTargetRegressor(Ridge(), **logs), random_state=0).fit(X, y)
    assert np.isfinite(inside.predict_uncertainty(X).total).all()


# --- this file ------------------------------------------------------------------------------------


def test_each_test_names_its_kind_of_report():
    """A test without a word on what was reported cannot be added to."""
    for name, test in globals().items():
        if name.startswith("test_"):
            assert re.match(r"\S.*\.$", test.__doc__ or ""), name
