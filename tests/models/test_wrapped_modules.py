"""What people put around modules, and modules with something unusual inside, all estimators."""

import pickle
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import skuq
from skuq.models import adopt
from skuq.quam import PointwiseSearch, PoolSearch
from tests.models.stand_ins import Adapted

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = X[:, :3].argmax(1)

pytestmark = pytest.mark.filterwarnings("ignore:The model's loss")


def trained():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.tensor(X)), torch.tensor(Y)).backward()
        optimizer.step()
    return net.eval()


class Returns(nn.Module):
    """Logits in a dictionary or an object."""

    def __init__(self, net, kind):
        super().__init__()
        self.net, self.kind = net, kind

    def forward(self, X):
        return self.kind(logits=self.net(X), loss=None)


class Checkpointed(nn.Module):
    def __init__(self, net, reentrant):
        super().__init__()
        self.body, self.head, self.reentrant = net[:-1], net[-1], reentrant

    def forward(self, X):
        return self.head(checkpoint(self.body, X, use_reentrant=self.reentrant))


class Around(nn.Module):
    """A network with something before or after it."""

    def __init__(self, net, before=None, after=None):
        super().__init__()
        self.net, self.before, self.after = net, before, after

    def forward(self, X):
        logits = self.net(X if self.before is None else self.before(X))
        return logits if self.after is None else self.after(logits)


def logarithms(logits):
    return logits.log_softmax(-1)


def dropping(X):
    return nn.functional.dropout(X, 0.1, training=True)


def parametrised(net):
    net = deepcopy(net)
    parametrizations.weight_norm(net[0])
    parametrizations.spectral_norm(net[3])
    return net.eval()


def compiled_inside(net):
    return nn.Sequential(torch.compile(net[:3], backend="eager"), net[3])


WRAPPERS = {
    "compiled": lambda net: torch.compile(net, backend="eager"),
    "compiled inside": compiled_inside,
    "parallel": nn.DataParallel,
    "parallel and compiled": lambda net: nn.DataParallel(torch.compile(net, backend="eager")),
    "adapter": Adapted,
    "dictionary": lambda net: Returns(net, dict),
    "object": lambda net: Returns(net, SimpleNamespace),
    "checkpoint": lambda net: Checkpointed(net, reentrant=False),
    "checkpoint, reentrant": lambda net: Checkpointed(net, reentrant=True),
    "log_softmax": lambda net: Around(net, after=logarithms),
    "parametrised": parametrised,
}
QUICK = {"random_state": 0}
ESTIMATORS = {
    "pool": lambda net: skuq.QUAMClassifier(net, search=PoolSearch(n_steps=3), **QUICK),
    "pool, all": lambda net: skuq.QUAMClassifier(
        net, search=PoolSearch(n_steps=3, parameters="all"), **QUICK
    ),
    "points": lambda net: skuq.QUAMClassifier(
        net, search=PointwiseSearch(n_steps=3, parameters="last"), **QUICK
    ),
    "probe": lambda net: skuq.EvidentialProbe(net, max_epochs=2, **QUICK),
    "auditor": skuq.CalibrationAuditor,
    "tuner": lambda net: skuq.MirageFineTuner(
        net, region=lambda X: X[:, 3] > 1, max_epochs=1, **QUICK
    ),
    "reference": skuq.ReferenceClassifier,
    "distance": lambda net: skuq.FeatureDistanceClassifier(net, n_neighbors=3),
    "Laplace": lambda net: skuq.LaplaceClassifier(net, n_samples=5, setting="selected", **QUICK),
    "dropout": lambda net: skuq.MCDropoutClassifier(net, n_samples=3, setting="selected", **QUICK),
    "ensemble": lambda net: skuq.DeepEnsembleClassifier(members=[net, net]),
    "chains": lambda net: skuq.SGMCMCClassifier(
        net, parameters="last", n_chains=1, n_samples=2, steps_per_sample=2, setting="selected",
        **QUICK,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def network():
    return trained()


def logits_of(outputs):
    if isinstance(outputs, dict):
        return outputs["logits"]
    return getattr(outputs, "logits", outputs)


def uncertainty(estimator):
    return np.array(estimator.fit(X, Y).predict_uncertainty(X[:7]))


@pytest.mark.filterwarnings("ignore:Returns cannot be cut", "ignore:Checkpointed cannot be cut")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_search_around_a_wrapped_module_is_that_around_the_module(network, wrapper):
    wrapped = WRAPPERS[wrapper](deepcopy(network))
    with torch.no_grad():
        before = wrapped(torch.tensor(X))
    found = ESTIMATORS["pool, all"](wrapped)
    found.fit(X, Y)
    expected = uncertainty(ESTIMATORS["pool, all"](network))
    if wrapper == "parametrised":  # of which the largest singular value is another
        expected = uncertainty(ESTIMATORS["pool, all"](adopt(wrapped).module))
    np.testing.assert_allclose(uncertainty(found), expected, rtol=1e-4, atol=1e-6)
    assert pickle.loads(pickle.dumps(found.model_)).inputs(X).shape == X.shape
    torch.testing.assert_close(found.model_.outputs(torch.tensor(X)), logits_of(before))
    with torch.no_grad():
        after = wrapped(torch.tensor(X))
    torch.testing.assert_close(logits_of(after), logits_of(before))


@pytest.mark.filterwarnings("ignore:.* cannot be cut")
@pytest.mark.parametrize(
    ("kind", "wrapper"),
    [
        (kind, ["parallel and compiled", "adapter", "dictionary"][k % 3])
        for k, kind in enumerate(ESTIMATORS)
    ],
)
def test_all_estimators_take_wrapped_modules(network, kind, wrapper):
    if kind == "chains":
        pytest.importorskip("posteriors")
    wrapped = WRAPPERS[wrapper](deepcopy(network))
    if kind == "auditor":
        found, expected = (
            skuq.CalibrationAuditor(net).fit(X, Y).ece_ for net in (wrapped, network)
        )
    else:
        found, expected = (uncertainty(ESTIMATORS[kind](net)) for net in (wrapped, network))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_networks_that_are_random_in_evaluation_are_named(network):
    for kind, make in ESTIMATORS.items():
        if kind == "chains":
            pytest.importorskip("posteriors")
        with pytest.raises(ValueError, match="random"):
            make(Around(network, before=dropping)).fit(X, Y)


def of_prompts(net):
    adapted = Adapted(net)
    adapted.merge_and_unload = None
    return adapted


def on_meta(net):
    return net.to("meta")


def exported(net):
    return torch.export.export(net, (torch.tensor(X),)).module()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (on_meta, ValueError, "meta"),
        (exported, TypeError, "torch.export"),
        (of_prompts, TypeError, "cannot be merged"),
        (lambda net: Returns(net, lambda logits, loss: (logits, loss)), TypeError, "a tuple"),
    ],
)
def test_modules_that_cannot_be_used_are_refused_with_what_to_do(network, make, error, message):
    with pytest.raises(error, match=message):
        skuq.ReferenceClassifier(make(deepcopy(network))).fit(X, Y)


IDS = np.random.default_rng(0).integers(0, 20, size=(60, 5))
TEXTS = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(20, 3)).eval()


@pytest.mark.parametrize("X", [IDS, IDS.astype(np.float32)])
def test_ids_reach_embeddings_and_a_made_pool_stays_within_those_seen(X):
    quam = skuq.QUAMClassifier(TEXTS, search=PoolSearch(n_steps=3), random_state=0).fit(X, Y)
    assert np.isin(quam._pool.numpy(), X).all()
    expected = TEXTS(torch.tensor(IDS)).softmax(-1).detach().numpy()
    np.testing.assert_allclose(quam.predict_proba(X), expected, atol=1e-6)


def test_a_pool_with_ids_that_have_no_embedding_is_refused():
    with pytest.raises(ValueError, match="ids 0 to 19"):
        skuq.QUAMClassifier(TEXTS, random_state=0).fit(IDS, Y, X_pool=IDS + 5)
