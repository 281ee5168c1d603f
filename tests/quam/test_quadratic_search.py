"""The search in closed form, against direct optimisers, Hessians by autograd, BayesianRidge."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.func import functional_call, hessian, jacrev, vmap

from skuq import QUAMClassifier, QUAMRegressor
from skuq.quam import QuadraticSearch, apart, towards
from tests.written import Written

X, Y = load_iris(return_X_y=True)
X = StandardScaler().fit_transform(X)
FAR = np.array([[3.0, -3, 4, 5], [0.1, 0.0, 0.2, 0.1], [-2, 4, 0, -3], [0.5, 0.5, 0.6, 0.4]])


def network(*sizes: int, seed: int = 0, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Linear(*pair, bias=bias) for pair in pairwise(sizes)]
    parts = [part for layer in layers for part in (layer, nn.Tanh())][:-1]
    return nn.Sequential(*parts).double().requires_grad_(False)


def fitted(net: nn.Module, X=X, y=Y, weight=None, **params) -> QUAMClassifier:
    quam = QUAMClassifier(FrozenEstimator(net), search=QuadraticSearch(**params), random_state=0)
    return quam.fit(X, y, sample_weight=weight)


def solutions(quam, rows):
    (job,) = quam._points(rows)
    ((_, targets, solution, uses),) = job.solved()
    return job, targets, solution, uses


def gauss_newton(net, X, weight, prior):
    """Precision of all weights, and the jacobian of one row's logits, by torch.func."""
    named = {name: p.detach() for name, p in net.named_parameters()}

    def outputs(weights, x):
        return functional_call(net, weights, (x[None],))[0]

    def jacobian(x):
        parts = jacrev(outputs)(named, x)
        return torch.cat([parts[name].flatten(1) for name in named], 1)

    J = vmap(jacobian)(torch.tensor(X))
    p = net(torch.tensor(X)).softmax(1).detach()
    L = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    H = torch.einsum("n,nka,nkl,nlb->ab", torch.tensor(weight), J, L, J)
    precisions, units = [], {}
    for name, value in named.items():
        layer, _, kind = name.rpartition(".")
        if kind == "weight":  # whose precision the bias shares
            units[layer] = prior / value.square().mean()
        precisions.append(units[layer].expand(value.numel()))
    return H, torch.cat(precisions), jacobian


@pytest.mark.parametrize("sizes", [(4, 3), (4, 6, 3)])
def test_exact_curvature_is_that_of_autograd(sizes):
    net, weight = network(*sizes, bias=False), np.random.default_rng(0).integers(1, 4, len(X))
    quam = fitted(net, weight=weight, curvature="exact", effort="paper")
    H, prior, jacobian = gauss_newton(net, X, weight.astype(float), 0.01)
    J = vmap(jacobian)(torch.tensor(FAR))
    expected = J @ torch.linalg.inv(H + torch.diag(prior)) @ J.mT
    layers, curvature = quam._problem.on("cpu")
    roots = curvature.roots(layers.uses(torch.tensor(FAR))[1])
    assert torch.allclose(roots @ roots.mT, expected, rtol=1e-8)
    if len(sizes) == 2:  # the loss of a linear model has exactly this Hessian
        name, value = next(iter(net.named_parameters()))

        def loss(w):
            logits = functional_call(net, {name: w}, (torch.tensor(X),))
            losses = nn.functional.cross_entropy(logits, torch.tensor(Y), reduction="none")
            return losses @ torch.tensor(weight, dtype=torch.double)

        of_loss = hessian(loss)(value.detach()).reshape(H.shape)
        assert torch.allclose(of_loss, H, rtol=1e-8, atol=1e-10)


def test_few_samples_give_the_covariance_of_many_weights():
    net = network(4, 40, 3)
    few = fitted(net, X[::8], Y[::8], curvature="exact", effort="paper")
    base = few._problem.curvature.base
    assert base.shape[1] < base.shape[0]  # the smaller matrix was decomposed
    H, prior, jacobian = gauss_newton(net, X[::8], np.ones(len(X[::8])), 0.01)
    # With biases, whose prior is relative to the inputs.
    units = few._problem.curvature.units
    at, scaled = 0, prior.clone()
    for name, value in net.named_parameters():
        if name.endswith("bias"):
            scaled[at : at + value.numel()] /= units[int(name[0]) // 2] ** 2
        at += value.numel()
    J = vmap(jacobian)(torch.tensor(FAR))
    expected = J @ torch.linalg.inv(H + torch.diag(scaled)) @ J.mT
    layers, curvature = few._problem.on("cpu")
    roots = curvature.roots(layers.uses(torch.tensor(FAR))[1])
    assert torch.allclose(roots @ roots.mT, expected, rtol=1e-6)


def test_kronecker_factors_of_a_convolution():
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 2, 3, stride=2, padding=1)
    net = nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(18, 3)).double()
    images, y = torch.rand(30, 1, 6, 6).double(), np.arange(30) % 3
    quam = fitted(net, images.numpy(), y, parameters="all", curvature="kronecker", effort="paper")
    layers, _ = quam._problem.on("cpu")
    _, uses = layers.uses(images)

    def outputs(weight, x):
        named = {"0.weight": weight, "0.bias": conv.bias}
        return functional_call(net, named, (x[None],))[0]

    expected = vmap(partial(jacrev(outputs), conv.weight.detach()))(images)
    gradients = uses[0].gradients(uses[0].jacobian)
    assert torch.allclose(gradients[..., :-1].reshape(expected.shape), expected)
    # The trace of a layer's curvature, where every row has one position.
    given, p = network(4, 3, bias=False), network(4, 3, bias=False)(torch.tensor(X)).softmax(1)
    precision = fitted(given, curvature="kronecker")._problem.curvature.precision[0]
    of_outputs = (1 - p.square().sum(1)).sum() * torch.tensor(X).square().sum(1).mean()
    prior = 12 * 0.01 / given[0].weight.square().mean()
    assert float(precision.sum()) == pytest.approx(float((of_outputs + prior).detach()), rel=1e-8)


def test_solutions_minimise_the_objective():
    """Costs and logits by a direct optimiser over the weights of logistic regression."""
    net = network(4, 3, bias=False)
    quam = fitted(net, curvature="exact", effort="paper")
    H, prior, jacobian = gauss_newton(net, X, np.ones(len(X)), 0.01)
    H = (H + torch.diag(prior)).numpy()
    _, _, found, _ = solutions(quam, FAR)
    costs = quam.explain_classes(FAR)
    for row, x in enumerate(FAR):
        J = jacobian(torch.tensor(x)).numpy()
        f = net(torch.tensor(x)).detach().numpy()
        for k in range(3):

            def objective(w, J=J, f=f, k=k):
                logits = f + J @ w
                log_sum = np.logaddexp.reduce(logits)
                gradient = J.T @ (np.exp(logits - log_sum) - np.eye(3)[k]) + H @ w
                return log_sum - logits[k] + w @ H @ w / 2, gradient

            least = minimize(objective, np.zeros(12), jac=True, tol=1e-14, method="BFGS")
            best = least.x
            assert costs[row, k] == pytest.approx(least.fun, abs=1e-6)
            assert found.cost[row, k] == pytest.approx(best @ H @ best / 2, abs=1e-6)
            assert np.allclose(found.outputs[row, k], f + J @ best, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
@pytest.mark.parametrize("n_classes", [2, 60])
def test_newton_converges_for_any_covariance(scale, n_classes):
    random = np.random.default_rng(0)
    roots = torch.tensor(random.normal(size=(20, n_classes, 4)) * scale**0.5)
    reference = torch.tensor(random.normal(size=(20, n_classes)) * 5)
    targets = reference.topk(2).indices
    effort = torch.tensor(random.uniform(0.5, 5, 20))
    found = towards(reference, roots, targets, effort)
    g = found.moved / effort[:, None, None]
    assert torch.allclose(found.outputs, reference[:, None] + found.moved @ (roots @ roots.mT))
    S = roots @ roots.mT * effort[:, None, None]
    p = found.outputs.softmax(2)
    residual = nn.functional.one_hot(targets, n_classes) - p - g
    # Half of this bounds the distance of the objective from its minimum, in nats.
    gap = ((residual @ S) * residual).sum(2)
    assert gap.max() < (1e-6 if n_classes == 2 else 1e-2 * max(1, scale / 2e3))
    assert torch.allclose(found.cost, ((g @ S) * g).sum(2) / 2 * effort[:, None])


def test_moved_weights_have_the_predicted_outputs_and_costs():
    quam = fitted(network(4, 3), curvature="kronecker")  # linear: the outputs are exact
    job, _, found, uses = solutions(quam, FAR)
    for k, weights in enumerate(zip(*job.weights(found, uses).values(), strict=True)):
        names = [*job.weights(found, uses)]
        x = torch.tensor(FAR[k // 3])[None]
        moved = functional_call(network(4, 3), dict(zip(names, weights, strict=True)), (x,))
        assert torch.allclose(moved[0], found.outputs[k // 3, k % 3], atol=1e-10)


def test_true_losses_are_checked_and_refined():
    """With noisy labels and many samples, the loss is nearly quadratic."""
    many, y = np.tile(X, (10, 1)), np.random.default_rng(0).integers(3, size=10 * len(X))
    given = LogisticRegression(C=100, max_iter=9999, tol=1e-10).fit(many, y)
    search = QuadraticSearch(curvature="exact", effort="paper")
    quam = QUAMClassifier(FrozenEstimator(given), search=search, random_state=0).fit(many, y)
    checked = quam.check_search(X[::10])
    assert checked.predicted.shape == checked.actual.shape == (15, 3)
    assert np.allclose(checked.actual, checked.predicted, rtol=0.2, atol=1e-5)
    plain = quam.predict_uncertainty(FAR).epistemic
    quam.search_.refine_steps = 30
    refined = quam.predict_uncertainty(FAR).epistemic
    assert np.abs(np.log(refined / plain)).max() < np.log(4)  # steps on mini-batches are noisy
    assert not np.array_equal(plain, refined)


def test_scales_of_inputs_and_layers_change_nothing():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    expected = fitted(net).predict_uncertainty(FAR).epistemic
    with torch.no_grad():
        net[0].weight /= 7  # for inputs that are 7 times as large
        assert np.allclose(fitted(net, 7 * X).predict_uncertainty(7 * FAR).epistemic, expected)
        net[0].weight *= 7 * 5
        net[0].bias *= 5
        net[2].weight /= 5
    found = fitted(net).predict_uncertainty(FAR).epistemic
    assert np.allclose(found, expected, rtol=1e-6)


def test_batches_do_not_matter_columns_are_explained_and_the_regret_is_a_normaliser():
    quam, row = fitted(network(4, 6, 3)), X[:1].copy()
    row[0, 2] += 30
    found = quam.explain(row)
    assert found.contribution.argmax() == 2
    assert found.epistemic == pytest.approx(quam.predict_uncertainty(row).epistemic)
    together = quam.predict_uncertainty(np.concatenate([FAR, X]))
    alone = np.concatenate([quam.predict_uncertainty(row[None]).epistemic for row in FAR])
    assert np.allclose(together.epistemic[: len(FAR)], alone, rtol=1e-9, atol=1e-15)
    _, _, found, _ = solutions(quam.set_params(setting="regret"), FAR)
    expected = np.log(found.outputs.softmax(2).diagonal(dim1=1, dim2=2).sum(1))
    assert np.allclose(quam.predict_uncertainty(FAR).epistemic, expected)


def test_a_weight_of_two_is_two_samples():
    weight = np.where(np.arange(len(X)) % 3, 1, 2)
    rows, net = np.repeat(np.arange(len(X)), weight), network(4, 6, 3)
    both = fitted(net, weight=weight), fitted(net, X[rows], Y[rows])
    of_weights, of_copies = (each.predict_uncertainty(FAR).epistemic for each in both)
    assert np.allclose(of_weights, of_copies)


def test_equal_effort_searches_small_inputs_harder_but_not_large_ones():
    net = network(4, 6, 3)
    quam = fitted(net)
    size = np.linalg.norm(X, axis=1)
    direction = X[np.argmin(np.abs(size - np.median(size)))]
    rows = np.outer([0.1, 1, 50], direction)
    (job,) = quam._points(rows)
    assert job.effort[0] > 1.3
    assert job.effort[2] == 1
    assert job.effort[1] == pytest.approx(1, abs=0.1)
    (paper,) = fitted(net, effort="paper")._points(rows)
    assert paper.effort.tolist() == [1, 1, 1]


def test_a_regressor_finds_the_spread_of_bayesian_ridge():
    """One layer without a bias: the exact posterior of the mean."""
    x = X[:, :3] - X[:, :3].mean(axis=0)
    t = x @ [1.0, -2, 0.5] + np.random.default_rng(0).normal(size=len(x)) * 0.3
    ridge = BayesianRidge(fit_intercept=False).fit(x, t)
    net = nn.Sequential(nn.Linear(3, 1, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor(ridge.coef_)[None])
    precision = ridge.lambda_ * float(np.mean(ridge.coef_**2))
    search = QuadraticSearch(prior_precision=precision, curvature="exact")
    quam = QUAMRegressor(FrozenEstimator(net), search=search, noise=1 / ridge.alpha_).fit(x, t)
    expected = np.einsum("ni,ij,nj->n", FAR[:, :3], ridge.sigma_, FAR[:, :3]) ** 0.5
    assert np.allclose(quam.predict_model_std(FAR[:, :3]), expected, rtol=1e-6)
    means = apart(torch.zeros(1, 1).double(), torch.full((1, 1, 1), 3.0).double()).outputs
    assert means.flatten().tolist() == [3, -3]


def test_other_layers_are_left_out_by_default():
    torch.manual_seed(0)
    layers = {"body": nn.Linear(4, 6), "norm": nn.LayerNorm(6), "head": nn.Linear(6, 3)}
    normed = Written(lambda self, x: self.head(self.norm(self.body(x)).relu()), **layers)
    with pytest.raises(TypeError, match=r"norm.weight"):
        fitted(normed, X.astype("f"), parameters="all")
    quam = fitted(normed.eval(), X.astype("f"))
    assert quam._problem.layers == ("body", "head")
    assert np.isfinite(quam.predict_uncertainty(FAR.astype("f")).epistemic).all()
