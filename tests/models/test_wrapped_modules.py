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
from skuq.quam import PoolSearch
from tests.models.around import AROUND, around
from tests.models.stand_ins import Adapted
from tests.written import Written

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


def named(self, X):
    """Logits in a dictionary or an object."""
    return self.kind(logits=self.net(X), loss=None)


def checkpointed(self, X):
    return self.head(checkpoint(self.body, X, use_reentrant=self.reentrant))


def logarithms(self, X):
    return self.net(X).log_softmax(-1)


def parametrised(net):
    parametrizations.weight_norm(net[0])
    parametrizations.spectral_norm(net[3])
    return net.eval()


WRAPPERS = {
    "compiled": lambda net: torch.compile(net, backend="eager"),
    "compiled inside": lambda net: nn.Sequential(torch.compile(net[:3], backend="eager"), net[3]),
    "parallel": nn.DataParallel,
    "parallel and compiled": lambda net: nn.DataParallel(torch.compile(net, backend="eager")),
    "adapter": Adapted,
    "dictionary": lambda net: Written(named, net=net, kind=dict),
    "object": lambda net: Written(named, net=net, kind=SimpleNamespace),
    "checkpoint": lambda net: Written(checkpointed, body=net[:-1], head=net[-1], reentrant=False),
    "reentrant": lambda net: Written(checkpointed, body=net[:-1], head=net[-1], reentrant=True),
    "log_softmax": lambda net: Written(logarithms, net=net),
    "parametrised": parametrised,
}
KINDS, SOME = [*AROUND][:12], ["parallel and compiled", "adapter", "dictionary"]


@pytest.fixture(scope="module")
def network():
    return trained()


def logits_of(outputs):
    if isinstance(outputs, dict):
        return outputs["logits"]
    return getattr(outputs, "logits", outputs)


def uncertainty(kind, net):
    model = around(kind, net).fit(X, Y)
    return model.ece_ if kind == "auditor" else np.array(model.predict_uncertainty(X[:7]))


@pytest.mark.filterwarnings("ignore:Written cannot be cut")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_search_around_a_wrapped_module_is_that_around_the_module(network, wrapper):
    wrapped = WRAPPERS[wrapper](deepcopy(network))
    with torch.no_grad():
        before = wrapped(torch.tensor(X))
    found = around("pool, all", wrapped).fit(X, Y)
    # The largest singular value of the parametrised one is another.
    same = adopt(wrapped).module if wrapper == "parametrised" else network
    u = np.array(found.predict_uncertainty(X[:7]))
    np.testing.assert_allclose(u, uncertainty("pool, all", same), rtol=1e-4, atol=1e-6)
    assert pickle.loads(pickle.dumps(found.model_)).inputs(X).shape == X.shape
    torch.testing.assert_close(found.model_.outputs(torch.tensor(X)), logits_of(before))
    with torch.no_grad():
        after = wrapped(torch.tensor(X))
    torch.testing.assert_close(logits_of(after), logits_of(before))


@pytest.mark.filterwarnings("ignore:.* cannot be cut")
@pytest.mark.parametrize(("kind", "wrapper"), zip(KINDS, SOME * 4, strict=True))
def test_all_estimators_take_wrapped_modules(network, kind, wrapper):
    found = uncertainty(kind, WRAPPERS[wrapper](deepcopy(network)))
    np.testing.assert_allclose(found, uncertainty(kind, network), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_networks_that_are_random_in_evaluation_are_named(network, kind):
    def forward(self, X):
        return self.net(nn.functional.dropout(X, 0.1, training=True))

    with pytest.raises(ValueError, match="random"):
        around(kind, Written(forward, net=network)).fit(X, Y)


def of_prompts(net):
    adapted = Adapted(net)
    adapted.merge_and_unload = None
    return adapted


def exported(net):
    return torch.export.export(net, (torch.tensor(X),)).module()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda net: net.to("meta"), ValueError, "meta"),
        (exported, TypeError, "torch.export"),
        (of_prompts, TypeError, "cannot be merged"),
        (lambda net: nn.Sequential(nn.LazyLinear(3)), ValueError, "lazy"),
        (lambda n: Written(lambda self, X: self.net(X).squeeze(), net=n), ValueError, "squeeze"),
        (lambda net: Written(named, net=net, kind=lambda **out: (out, 0)), TypeError, "a tuple"),
        (
            lambda net: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), net),
            ValueError,
            "running statistics",
        ),
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


def of_frames(self, X):
    return self.net(X.flatten(0, 1)).unflatten(0, X.shape[:2]).mean(1)


def of_views(self, X):
    return self.net(torch.cat([*X.unbind(1)])).unflatten(0, (-1, len(X))).mean(0)


@pytest.mark.parametrize("forward", [of_frames, of_views])
@pytest.mark.parametrize("kind", ["detector", "distance"])
def test_features_are_the_mean_over_the_rows_of_an_input(network, forward, kind):
    views = X.reshape(20, 3, 4)
    fitted = around(kind, Written(forward, net=network)).fit(views, Y[:20])
    new = views[::-1] + 1
    scores = fitted.p_values if kind == "detector" else fitted.score_samples
    by_one = np.concatenate([scores(each[None]) for each in new])
    np.testing.assert_allclose(scores(new), by_one, rtol=1e-4)
    # The order of the rows of an input is without effect, unlike that of the inputs.
    np.testing.assert_allclose(scores(new[:, ::-1]), by_one, rtol=1e-4)
    assert np.ptp(by_one) > 0


@pytest.mark.filterwarnings("ignore:torch.ao.quantization:DeprecationWarning")
def test_quantised_layers_are_not_searched(network):
    float_model = nn.Sequential(nn.BatchNorm1d(4), network).eval()
    quantised = torch.ao.quantization.quantize_dynamic(float_model, {nn.Linear})
    for search in ("pool", "pointwise", "quadratic"):
        with pytest.raises(ValueError, match="pass the float model"):
            skuq.QUAMClassifier(quantised, search=search).fit(X, Y)


def test_ids_without_embedding_are_refused_except_of_embeddings_used_as_matrices():
    def of_relative_positions(self, ids):
        return self.head((self.words(ids.long()) + self.places.weight).mean(1))

    parts = {"places": nn.Embedding(5, 4), "words": nn.Embedding(20, 4), "head": nn.Linear(4, 3)}
    net = Written(of_relative_positions, **parts).eval()
    quam = skuq.QUAMClassifier(net, search=PoolSearch(n_steps=2), random_state=0).fit(IDS, Y)
    assert np.isfinite(quam.predict_uncertainty(IDS).total).all()
    with pytest.raises(ValueError, match="'words' accepts ids 0 to 19"):
        skuq.QUAMClassifier(net, random_state=0).fit(IDS, Y, X_pool=IDS + 5)
    with pytest.raises(ValueError, match="ids 0 to 19"):
        skuq.QUAMClassifier(TEXTS, random_state=0).fit(IDS, Y, X_pool=IDS + 5)
