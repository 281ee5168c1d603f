"""The methods that QUAM is compared with, against the same computed by hand."""

import importlib.util
import itertools
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, scale
from skorch import NeuralNetClassifier
from torch import nn

from skuq import QUAMClassifier
from skuq.baselines import (
    DeepEnsembleClassifier,
    LaplaceClassifier,
    MCDropoutClassifier,
    ReferenceClassifier,
    SGMCMCClassifier,
)
from skuq.baselines._dropout_masks import dropout_layers, thinned_outputs
from skuq.models import MLP, BinaryLogits, Columns, LeNet, LogProbabilities, adopt

CPU = torch.device("cpu")
SAMPLED = {
    "ensemble": DeepEnsembleClassifier(n_models=2, random_state=0),
    "dropout": MCDropoutClassifier(n_samples=7, random_state=0),
    "laplace": LaplaceClassifier(n_samples=7, random_state=0),
}
if importlib.util.find_spec("posteriors"):
    SAMPLED["sgmcmc"] = SGMCMCClassifier(
        n_chains=3, n_samples=2, steps_per_sample=10, random_state=0
    )
ALL = {"reference": ReferenceClassifier(random_state=0), **SAMPLED}


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return scale(X), y


def seeded_module(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build().eval()


@pytest.fixture(scope="module")
def dropped(iris):
    """A trained network with dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = NeuralNetClassifier(
            MLP(4, 3, hidden_sizes=(6,), dropout=0.5),
            criterion=nn.CrossEntropyLoss,
            max_epochs=20,
            lr=0.1,
            verbose=0,
        )
        module = net.fit(iris[0].astype(np.float32), iris[1]).module_
    module.zero_grad()
    return module.double().eval()


def by_hand(reference, samples, setting):
    """Eq. 2 or Eq. 1 from probabilities (n_points, n_classes) and (n_points, n_models, ...)."""
    if setting == "selected":
        aleatoric = -(reference * np.log(reference)).sum(-1)
        ratio = np.log(reference[:, None] / samples)
        return aleatoric, (reference[:, None] * ratio).sum(-1).mean(1)
    aleatoric = -(samples * np.log(samples)).sum(-1).mean(1)
    mean = samples.mean(1)
    return aleatoric, -(mean * np.log(mean)).sum(-1) - aleatoric


@pytest.mark.parametrize("name", ALL)
def test_global_random_states_and_the_estimator_given_are_left_alone(iris, name):
    np.random.seed(5)  # noqa: NPY002
    states = np.random.get_state()[1].copy(), torch.random.get_rng_state()  # noqa: NPY002
    mine = LogisticRegression()
    model = clone(ALL[name])
    if name != "dropout":
        model.set_params(estimator=mine)
    model.fit(*iris).predict_uncertainty(iris[0][:3])
    np.testing.assert_array_equal(states[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(states[1], torch.random.get_rng_state())
    assert not hasattr(mine, "coef_")


@pytest.mark.parametrize("name", sorted(set(ALL) - {"dropout"}))  # its network is another
def test_same_seed_questions_the_model_that_quam_questions(iris, name):
    proba = clone(ALL[name]).fit(*iris).predict_proba(iris[0])
    quam = QUAMClassifier(random_state=0).fit(*iris)
    np.testing.assert_array_equal(proba, quam.predict_proba(iris[0]))


@pytest.mark.parametrize("name", SAMPLED)
def test_result_is_the_same_in_batches_copies_clones_and_with_text_labels(iris, name):
    X, y = iris[0], np.array(["c", "a", "b"])[iris[1]]
    model = clone(SAMPLED[name]).fit(X, y)
    again, other = (clone(model).set_params(random_state=seed).fit(X, y) for seed in (0, 1))
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert model.score(X, y) > 0.9
    for setting in ("selected", "expected"):
        whole = model.set_params(setting=setting, batch_size=256).predict_uncertainty(X[:20])
        assert (whole.epistemic > 0).all()
        restored = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(restored.predict_uncertainty(X[:20]), whole)
        repeated = again.set_params(setting=setting).predict_uncertainty(X[:20])
        np.testing.assert_array_equal(repeated, whole)
        pieces = model.set_params(batch_size=3).predict_uncertainty(X[:20])
        np.testing.assert_allclose(pieces, whole, rtol=1e-9, atol=1e-15)
        np.testing.assert_array_equal(model.score_samples(X[:20]), -pieces.epistemic)
        elsewhere = other.set_params(setting=setting).predict_uncertainty(X[:20])
        assert not np.allclose(elsewhere.epistemic, whole.epistemic)


@pytest.mark.parametrize("wrap", [FrozenEstimator, lambda module: module], ids=["frozen", "bare"])
@pytest.mark.parametrize("name", ALL)
def test_module_is_taken_as_it_is_and_never_altered(iris, dropped, name, wrap):
    before = {key: value.clone() for key, value in dropped.state_dict().items()}
    x = torch.as_tensor(iris[0][:5])
    outputs = dropped(x).detach()
    model = clone(ALL[name])
    if name == "ensemble":
        model.set_params(n_models=1)
    model.set_params(estimator=wrap(dropped)).fit(*iris)
    model.predict_uncertainty(iris[0][:5])
    assert all(torch.equal(before[k], v) for k, v in dropped.state_dict().items())
    assert not any(part.training or part._forward_hooks for part in dropped.modules())
    assert all(p.requires_grad and p.grad is None for p in dropped.parameters())
    np.testing.assert_allclose(model.predict_proba(iris[0][:5]), outputs.softmax(-1).numpy())


@pytest.mark.parametrize("name", ALL)
def test_training_a_fitted_estimator_again_is_warned_of(iris, name):
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        MLP(4, 3, dropout=0.2), criterion=nn.CrossEntropyLoss, max_epochs=1, verbose=0
    )
    net.fit(iris[0].astype(np.float32), iris[1])
    with pytest.warns(UserWarning, match="trained again.*FrozenEstimator"):
        clone(ALL[name]).set_params(estimator=net).fit(*iris)


@pytest.mark.parametrize("name", ALL)
def test_not_fitted_is_said(iris, name):
    with pytest.raises(NotFittedError, match="not fitted"):
        clone(ALL[name]).predict_uncertainty(iris[0])


@pytest.mark.parametrize("name", ALL)
def test_weights_that_are_all_zero_are_refused(iris, name):
    with pytest.raises(ValueError, match=r"weights are 0|at least one non-zero"):
        clone(ALL[name]).fit(*iris, sample_weight=np.zeros(150))


@pytest.mark.parametrize("name", SAMPLED)
def test_setting_is_checked_in_fit_and_after(iris, name):
    with pytest.raises(ValueError, match="'setting' parameter"):
        clone(SAMPLED[name]).set_params(setting="both").fit(*iris)
    model = clone(SAMPLED[name]).fit(*iris).set_params(setting="both")
    with pytest.raises(ValueError, match="'setting' parameter"):
        model.predict_uncertainty(iris[0])


def test_text_columns_reach_a_model_that_preprocesses():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"size": [1.0, 2.0, 3.0, 4.0] * 5, "colour": ["red", "blue"] * 10})
    y = np.array(["yes", "no", "no", "no"] * 5)
    table = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    pipe = make_pipeline(table, LogisticRegression())
    members = [clone(pipe).set_params(logisticregression__C=c).fit(frame, y) for c in (0.1, 1.0)]
    for model in (
        LaplaceClassifier(pipe, random_state=0),
        DeepEnsembleClassifier(members=members),
    ):
        u = model.set_params(batch_size=2).fit(frame, y).predict_uncertainty(frame[:3])
        assert (u.epistemic > 0).all()


# The reference


def test_reference_is_as_uncertain_as_its_entropy(iris):
    mine = LogisticRegression().fit(*iris)
    reference = ReferenceClassifier(FrozenEstimator(mine)).fit(*iris)
    p = mine.predict_proba(iris[0])
    u = reference.predict_uncertainty(iris[0])
    np.testing.assert_allclose(u.total, -(p * np.log(p)).sum(1))
    np.testing.assert_array_equal(u.total, u.aleatoric)
    np.testing.assert_array_equal(u.epistemic, 0)


# The ensemble


@pytest.mark.parametrize("setting", ["selected", "expected"])
def test_members_given_are_compared_as_the_equations_say(iris, setting):
    members = [LogisticRegression(C=c).fit(*iris) for c in (0.01, 1.0, 100.0)]
    samples = np.stack([member.predict_proba(iris[0]) for member in members], axis=1)
    ensemble = DeepEnsembleClassifier(members=members, setting=setting).fit(*iris)
    u = ensemble.predict_uncertainty(iris[0])
    aleatoric, epistemic = by_hand(samples[:, 0], samples, setting)
    np.testing.assert_allclose(u.aleatoric, aleatoric, rtol=1e-6)
    np.testing.assert_allclose(u.epistemic, epistemic, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(ensemble.predict_proba(iris[0]), samples[:, 0], atol=1e-8)


def test_members_may_be_of_different_kinds(iris, dropped):
    members = [
        dropped,
        make_pipeline(StandardScaler(), LogisticRegression()).fit(*iris),
        lambda: MLP(4, 3),
    ]
    ensemble = DeepEnsembleClassifier(members=members).fit(*iris)
    assert ensemble.predict_uncertainty(iris[0][:4]).total.shape == (4,)


def test_every_seed_inside_an_estimator_is_replaced(iris):
    mine = make_pipeline(StandardScaler(), MLPClassifier((5,), max_iter=20, tol=0, random_state=3))
    with pytest.warns(match="Maximum iterations"):
        ensemble = DeepEnsembleClassifier(mine, n_models=2, random_state=0).fit(*iris)
    first, second = (dict(m.module.named_parameters())["0.weight"] for m in ensemble.members_)
    assert not torch.allclose(first, second)


class Elsewhere:
    """Stands for joblib's processes: jobs arrive pickled and run in any order."""

    def __init__(self, n_jobs):
        assert n_jobs == 2

    def __call__(self, jobs):
        results = {}
        for number, job in reversed(list(enumerate(jobs))):
            function, args, kwargs = pickle.loads(pickle.dumps(job))
            results[number] = pickle.loads(pickle.dumps(function(*args, **kwargs)))
        return [results[number] for number in sorted(results)]


def test_members_can_be_trained_in_processes(iris, monkeypatch):
    ensemble = DeepEnsembleClassifier(n_models=3, random_state=0).fit(*iris)
    monkeypatch.setattr("skuq.baselines._deep_ensemble.Parallel", Elsewhere)
    parallel = clone(ensemble).set_params(n_jobs=2).fit(*iris)
    u, v = (model.predict_uncertainty(iris[0][:5]) for model in (ensemble, parallel))
    np.testing.assert_array_equal(u, v)


def test_frozen_model_is_the_first_member_and_its_clones_are_trained(iris):
    net = NeuralNetClassifier(
        MLP,
        module__n_features=4,
        module__n_outputs=3,
        criterion=nn.CrossEntropyLoss,
        max_epochs=3,
        verbose=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net.fit(iris[0].astype(np.float32), iris[1])
    ensemble = DeepEnsembleClassifier(FrozenEstimator(net), n_models=3, random_state=0)
    ensemble.fit(*iris)
    first = [dict(m.module.named_parameters())["0.weight"] for m in ensemble.members_]
    assert torch.equal(first[0], net.module_[0].weight)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(first, 2))


def test_frozen_module_cannot_be_trained_again(iris, dropped):
    with pytest.raises(TypeError, match=r"MLP .* cannot be trained again .* `members`"):
        DeepEnsembleClassifier(FrozenEstimator(dropped)).fit(*iris)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"members": []}, "`members` is empty"),
        ({"members": [MLP(4, 3)], "estimator": LogisticRegression()}, "both given"),
        ({"members": [MLP(4, 3), MLP(4, 4)]}, "returns 4 logits, but `y` holds 3 labels"),
        ({"n_models": 0}, "'n_models' parameter"),
    ],
)
def test_ensembles_that_cannot_be_are_refused(iris, params, message):
    y = np.array(["a", "b", "c"])[iris[1]]
    with pytest.raises(ValueError, match=message):
        DeepEnsembleClassifier(**params).fit(iris[0], y)


def test_members_that_know_different_classes_are_refused(iris):
    X, y = iris
    members = [LogisticRegression().fit(X, y), LogisticRegression().fit(X, y + 1)]
    rows = y > 0  # labels that both know
    with pytest.raises(ValueError, match=r"different classes: number 0 \[0 1 2\], number 1 \[1 2"):
        DeepEnsembleClassifier(members=members).fit(X[rows], y[rows])


# MC dropout


def tiny(rate=0.3):
    return seeded_module(
        lambda: nn.Sequential(
            nn.Linear(2, 3), nn.Tanh(), nn.Dropout(rate), nn.Linear(3, 2)
        ).double()
    )


def test_thinned_networks_are_those_of_a_network_in_training_mode():
    # Three hidden units: the eight networks can be listed, each with its probability.
    network, rate = tiny(), 0.3
    X = torch.tensor([[1.0, -0.5], [0.3, 2.0]], dtype=torch.float64)
    found = thinned_outputs(network, X, n_samples=4000, seed=0, device=CPU)
    hidden = torch.tanh(network[0](X)).detach()
    for kept in itertools.product([0.0, 1.0], repeat=3):
        mask = torch.tensor(kept, dtype=torch.float64) / (1 - rate)
        expected = network[3](hidden * mask).detach()
        share = torch.isclose(found, expected[:, None]).all(-1)
        assert torch.equal(share[0], share[1])  # the same networks for both points
        p = rate ** kept.count(0.0) * (1 - rate) ** kept.count(1.0)
        assert float(share[0].double().mean()) == pytest.approx(p, abs=5 * (p / 4000) ** 0.5)


def test_mean_over_dropout_is_that_of_a_loop_in_training_mode(iris, dropped):
    model = MCDropoutClassifier(FrozenEstimator(dropped), n_samples=3000, random_state=0)
    x = iris[0][70:71]
    u = model.set_params(setting="expected").fit(*iris).predict_uncertainty(x)
    network = adopt(dropped).module.train()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        looped = torch.stack([network(torch.as_tensor(x)).softmax(-1) for _ in range(3000)], dim=1)
    aleatoric, epistemic = by_hand(None, looped.numpy(), "expected")
    assert u.aleatoric == pytest.approx(aleatoric, rel=0.05)
    assert u.epistemic == pytest.approx(epistemic, rel=0.1)


@pytest.mark.parametrize("setting", ["selected", "expected"])
def test_thinned_networks_are_compared_as_the_equations_say(iris, dropped, setting):
    model = MCDropoutClassifier(
        FrozenEstimator(dropped), n_samples=5, setting=setting, random_state=0
    ).fit(*iris)
    X = torch.as_tensor(iris[0][:9])
    outputs = thinned_outputs(
        dropped, X, n_samples=5, seed=model._sampling_seed, device=CPU
    ).softmax(-1)
    u = model.predict_uncertainty(iris[0][:9])
    reference = dropped(X).softmax(-1).detach().numpy()
    aleatoric, epistemic = by_hand(reference, outputs.numpy(), setting)
    np.testing.assert_allclose(u.aleatoric, aleatoric)
    np.testing.assert_allclose(u.epistemic, epistemic, atol=1e-12)


def test_whole_channels_are_dropped_where_the_layer_drops_channels():
    network = nn.Sequential(nn.Dropout2d(0.5), nn.Flatten()).eval()
    found = thinned_outputs(network, torch.ones(2, 8, 3, 3), n_samples=20, seed=0, device=CPU)
    by_channel = found.reshape(2, 20, 8, 9)
    assert torch.equal(by_channel, by_channel[..., :1].expand_as(by_channel))
    assert set(found.unique().tolist()) == {0.0, 2.0}


def test_more_samples_extend_fewer():
    network, X = tiny(), torch.ones(1, 2, dtype=torch.float64)
    few, many = (thinned_outputs(network, X, n_samples=n, seed=1, device=CPU) for n in (3, 8))
    assert torch.equal(few, many[:, :3])


def test_default_network_has_dropout_of_the_rate_asked_for(iris):
    model = MCDropoutClassifier(dropout=0.4, n_samples=5, random_state=0).fit(*iris)
    assert [layer.p for layer in dropout_layers(model.model_.module)] == [0.4]
    with pytest.raises(ValueError, match="one class only"):
        MCDropoutClassifier().fit(iris[0], np.zeros(150))


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(),
        FrozenEstimator(MLP(4, 3)),
        FrozenEstimator(nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3))),
    ],
    ids=["logistic", "no dropout", "rate 0"],
)
def test_model_without_dropout_is_refused_with_the_ways_out(iris, estimator):
    model = MCDropoutClassifier(estimator)
    with pytest.raises(ValueError, match=r"no dropout module .* estimator=None"):
        model.fit(*iris)
    with pytest.raises(NotFittedError):
        model.predict(iris[0])


def test_lenet_has_dropout_of_its_own():
    X = np.random.default_rng(0).random((12, 1, 16, 16)).astype(np.float32)
    lenet = seeded_module(lambda: LeNet(3, image_shape=(1, 16, 16)))
    model = MCDropoutClassifier(FrozenEstimator(lenet), n_samples=20, random_state=0)
    u = model.fit(X, np.arange(12) % 3).predict_uncertainty(X[:2])
    assert (u.epistemic > 0).all()


# Laplace


def test_laplace_of_binary_logistic_regression_has_the_closed_form(iris):
    X, y = iris[0][50:, :2], iris[1][50:]
    weight = np.random.default_rng(0).uniform(0.2, 2, len(y))
    mine = LogisticRegression().fit(X, y, sample_weight=weight)
    model = LaplaceClassifier(
        FrozenEstimator(mine), prior_precision=0.5, n_samples=4000, random_state=0
    ).fit(X, y, sample_weight=weight)
    phi = np.c_[X, np.ones(len(X))]
    p = mine.predict_proba(X)[:, 1]
    covariance = np.linalg.inv(phi.T * (weight * p * (1 - p)) @ phi + 0.5 * np.eye(3))
    _, factor = model.posterior_.outputs(torch.as_tensor(X))
    variance = np.einsum("ni,ij,nj->n", phi, covariance, phi)
    np.testing.assert_allclose(factor[:, 0, 0] ** 2, variance, rtol=1e-6)
    # Eq. 2 by quadrature over the one logit, against sampling.
    z = mine.decision_function(X[:6])[:, None]
    nodes, mass = np.polynomial.hermite_e.hermegauss(40)
    sampled = z + np.sqrt(variance[:6, None]) * nodes
    reference = p[:6, None]
    divergence = (reference * (z - sampled) + np.logaddexp(0, sampled) - np.logaddexp(0, z)) @ (
        mass / mass.sum()
    )
    u = model.predict_uncertainty(X[:6])
    np.testing.assert_allclose(u.epistemic, divergence, rtol=0.1)


def test_laplace_draws_logits_as_it_would_by_drawing_weights(iris):
    model = LaplaceClassifier(n_samples=20_000, prior_precision=1.0, random_state=0).fit(*iris)
    X = iris[0][[0, 70]]
    logits_drawn = model._sampled_log_proba(X).exp()
    layers = model.posterior_.sample(20_000, torch.Generator().manual_seed(1))
    module = model.model_.module
    features = nn.Sequential(*list(module)[:-1])(torch.as_tensor(X))
    logits = torch.einsum("nd,scd->nsc", features, layers["weight"]) + layers["bias"]
    weights_drawn = logits.softmax(-1)
    for moment in (0.5, 1.0, 2.0):
        found, expected = ((p**moment).mean(1) for p in (logits_drawn, weights_drawn))
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.003)


def test_prior_precision_is_the_one_of_the_largest_evidence(iris):
    mine = LogisticRegression(C=10).fit(*iris)
    auto = LaplaceClassifier(FrozenEstimator(mine), random_state=0).fit(*iris)
    p = mine.predict_proba(iris[0])
    phi = np.c_[iris[0], np.ones(150)]
    H = sum(
        np.kron(np.diag(q) - np.outer(q, q), np.outer(f, f)) for q, f in zip(p, phi, strict=True)
    )
    square = (mine.coef_**2).sum() + (mine.intercept_**2).sum()

    def log_evidence(a):
        determinant = np.linalg.slogdet(H + a * np.eye(len(H)))[1]
        return 0.5 * (len(H) * np.log(a) - a * square - determinant)

    best = log_evidence(auto.prior_precision_)
    assert best > log_evidence(1.05 * auto.prior_precision_)
    assert best > log_evidence(0.95 * auto.prior_precision_)
    fixed = clone(auto).set_params(prior_precision=auto.prior_precision_).fit(*iris)
    np.testing.assert_array_equal(
        fixed.predict_uncertainty(iris[0][:5]), auto.predict_uncertainty(iris[0][:5])
    )


def test_sample_of_weight_zero_is_none_to_laplace(iris, dropped):
    X, y = iris
    keep = np.arange(len(X)) % 3 != 0
    frozen = FrozenEstimator(dropped)
    weighted = LaplaceClassifier(frozen, random_state=0).fit(X, y, sample_weight=keep * 1.0)
    removed = LaplaceClassifier(frozen, random_state=0).fit(X[keep], y[keep])
    assert weighted.prior_precision_ == pytest.approx(removed.prior_precision_)
    np.testing.assert_allclose(
        weighted.predict_uncertainty(X[:5]), removed.predict_uncertainty(X[:5])
    )


def with_tail(*tail, n_outputs=3, bias=True):
    return seeded_module(
        lambda: nn.Sequential(
            nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, n_outputs, bias=bias), *tail
        ).double()
    )


def test_what_follows_the_last_layer_may_not_matter(iris):
    plain, wrapped = (
        LaplaceClassifier(FrozenEstimator(with_tail(*tail)), random_state=0)
        .fit(*iris)
        .predict_uncertainty(iris[0][:5])
        for tail in ((), (nn.Softmax(dim=-1), LogProbabilities()))
    )
    np.testing.assert_allclose(wrapped, plain, rtol=1e-6)


class Doubled(nn.Module):
    def forward(self, X):
        return 2 * X


def test_linear_tail_is_the_same_as_other_weights_in_the_last_layer(iris):
    order = [2, 0, 1]
    tailed = with_tail(Doubled(), Columns(order))
    direct = with_tail()
    with torch.no_grad():
        for p, q in zip(direct[2].parameters(), tailed[2].parameters(), strict=True):
            p.copy_(2 * q[order])
    # Weights twice as large have a prior of a quarter of the precision.
    first = LaplaceClassifier(FrozenEstimator(tailed), prior_precision=2.0).fit(*iris)
    second = LaplaceClassifier(FrozenEstimator(direct), prior_precision=0.5).fit(*iris)
    features = direct[:2](torch.as_tensor(iris[0][:4])).detach()
    _, factor = first.posterior_.outputs(features)
    logit_factor = 2 * factor[:, order]
    _, expected = second.posterior_.outputs(features)
    torch.testing.assert_close(logit_factor @ logit_factor.mT, expected @ expected.mT)
    drawn = first._sampled_log_proba(iris[0][:4])
    noise = torch.randn(
        100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(first._sampling_seed)
    )
    mean = direct(torch.as_tensor(iris[0][:4])).detach()
    by_hand = mean[:, None] + torch.einsum("nkl,sl->nsk", logit_factor, noise)
    torch.testing.assert_close(drawn, by_hand.log_softmax(-1))


def test_last_layer_may_have_no_bias_and_one_output(iris):
    rows = iris[1] < 2
    module = with_tail(BinaryLogits(), n_outputs=1, bias=False)
    model = LaplaceClassifier(FrozenEstimator(module), random_state=0)
    model.fit(iris[0][rows], iris[1][rows])
    assert model.posterior_.mean.shape == (1, 5)
    assert (model.predict_uncertainty(iris[0][:5]).epistemic > 0).all()


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, X):
        return self.layer(X).tanh()


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 6)
        self.head = nn.Sequential(nn.Linear(6, 3), nn.Flatten(), nn.AvgPool1d(2))

    def forward(self, X):
        return self.head(self.body(X.reshape(-1, 2, 2)))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: with_tail(nn.Tanh()), "linear in the outputs of the last layer"),
        (lambda: with_tail(nn.BatchNorm1d(3)), r"ends in a torch.nn.Linear; .* BatchNorm1d"),
        (Functional, "ends in a torch.nn.Linear, followed by"),
        (Pooled, "several times to each input"),
    ],
)
def test_networks_without_a_linear_last_layer_are_refused(iris, module, message):
    frozen = FrozenEstimator(seeded_module(lambda: module().double()))
    with pytest.raises(ValueError, match=message):
        LaplaceClassifier(frozen).fit(*iris)


@pytest.mark.parametrize("value", [0.0, -1.0, "best"])
def test_prior_precision_is_checked(iris, value):
    with pytest.raises(ValueError, match="'prior_precision' parameter"):
        LaplaceClassifier(prior_precision=value).fit(*iris)


# Markov chains


@pytest.fixture
def chains():
    pytest.importorskip("posteriors")
    return SGMCMCClassifier(n_chains=3, n_samples=2, steps_per_sample=10, random_state=0)


@pytest.mark.parametrize("setting", ["selected", "expected"])
@pytest.mark.parametrize("parameters", ["all", "last"])
def test_models_of_chains_are_compared_as_the_equations_say(
    iris, dropped, chains, parameters, setting
):
    chains.set_params(
        estimator=FrozenEstimator(dropped), parameters=parameters, setting=setting
    ).fit(*iris)
    X = torch.as_tensor(iris[0][:9])
    n_moved = {"all": 4, "last": 2}[parameters]
    assert len(chains.samples_) == n_moved
    names = [name for name, _ in dropped.named_parameters()][-n_moved:]
    samples = []
    for number in range(6):
        model = adopt(dropped).module
        for name, moved in zip(names, chains.samples_.values(), strict=True):
            model.get_parameter(name).copy_(moved[number])
        samples.append(model(X).softmax(-1).numpy())
    reference = dropped(X).softmax(-1).detach().numpy()
    aleatoric, epistemic = by_hand(reference, np.stack(samples, 1), setting)
    u = chains.predict_uncertainty(iris[0][:9])
    np.testing.assert_allclose(u.aleatoric, aleatoric)
    np.testing.assert_allclose(u.epistemic, epistemic, atol=1e-12)


def test_chains_widen_with_temperature_and_narrow_with_data(iris, dropped, chains):
    chains.set_params(estimator=FrozenEstimator(dropped), steps_per_sample=40)
    X = iris[0][:50]
    usual = chains.fit(*iris).predict_uncertainty(X).epistemic.mean()
    cold = chains.set_params(temperature=0.1).fit(*iris).predict_uncertainty(X).epistemic.mean()
    chains.set_params(temperature=1.0)
    weight = np.full(150, 10.0)
    more = chains.fit(*iris, sample_weight=weight).predict_uncertainty(X).epistemic.mean()
    assert cold < usual
    assert more < usual


def test_cyclical_chains_and_langevin_chains_run(iris, chains):
    cyclical = clone(chains).set_params(n_cycles=2).fit(*iris)
    langevin = clone(chains).set_params(method="sgld").fit(*iris)
    results = [m.fit(*iris).predict_uncertainty(iris[0]) for m in (chains, cyclical, langevin)]
    for one, other in itertools.combinations(results, 2):
        assert not np.allclose(one.epistemic, other.epistemic)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"method": "hmc"}, "'method' parameter"),
        ({"n_cycles": 3}, "multiple of `n_cycles`"),
        ({"temperature": 0.0}, "'temperature' parameter"),
        ({"learning_rate": 1e6}, "diverged"),
    ],
)
def test_chains_that_cannot_be_are_refused(iris, chains, params, message):
    with pytest.raises(ValueError, match=message):
        chains.set_params(**params).fit(*iris)
