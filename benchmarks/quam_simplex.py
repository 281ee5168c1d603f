"""Which classes do a method's models predict at a new point? Figures 2 and C.2 of the QUAM paper.

    python -m benchmarks.quam_simplex

Three Gaussians of 21 points and a network with two hidden layers of 10 units; the new point lies
beyond the first Gaussian, and the second is the farthest one ("orange"). "largest_0" to "largest_2"
are the largest probabilities of the classes by any model of a method, averaged over draws of the
data. "hmc" samples the posterior (its prior is the networks' weight decay of 0.01), "likely" is a
network trained on the data and on the new point with that class, as in Eq. (43). QUAM's models are
those of `predict_proba_bounds`, with at least exp(-63 gamma) of the likelihood of the given
network; "nats" is the total excess training loss of the likely network.
"""

from collections import defaultdict

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator

from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.hmc import Chains, Posterior
from skuq import QUAMClassifier
from skuq.baselines import DeepEnsembleClassifier, MCDropoutClassifier
from skuq.quam import PointwiseSearch

CENTRES = np.array([[-4, -2], [4, -2], [0, 2 * np.sqrt(2)]])
N_EACH, VARIANCE, POINT = 21, 1.5, [[-6.0, 2.0]]
LAYERS, WEIGHT_DECAY, N_STEPS = (2, 10, 10, 3), 0.01, 500
N_MEMBERS, N_PASSES, DROPOUT = 50, 1000, 0.2


def draw(seed: int) -> Posterior:
    """Draw the training data."""
    random = np.random.default_rng(seed)
    y = np.repeat(np.arange(3), N_EACH)
    X = CENTRES[y] + np.sqrt(VARIANCE) * random.normal(size=(len(y), 2))
    return Posterior(torch.tensor(X).float(), torch.as_tensor(y), LAYERS, WEIGHT_DECAY * len(y))


def likely(posterior: Posterior, target: int, given: float, seed: int) -> tuple[float, float]:
    """Probability of a class at the new point, and excess loss, of a network trained on both.

    The median over five initial weights, as the paper's over 20.
    """
    both = Posterior(
        torch.cat([posterior.X, torch.tensor(POINT)]),
        torch.cat([posterior.y, torch.tensor([target])]),
        LAYERS,
        posterior.precision,
    )
    found = []
    for each in range(5):
        net = both.mode(1000 * seed + each, n_steps=N_STEPS)
        p = net(torch.tensor(POINT)).softmax(-1)[0, target]
        found.append((float(p), float(posterior.misfit(net(posterior.X))) - given))
    probability, nats = np.median(found, axis=0)
    return float(probability), float(nats)


def measure(seed: int) -> dict[str, np.ndarray]:
    """Largest probability of each class by each method."""
    posterior, point = draw(seed), torch.tensor(POINT)
    X, y = posterior.X.numpy(), posterior.y.numpy()
    net = posterior.mode(seed, n_steps=N_STEPS)
    given, x = FrozenEstimator(net), np.array(POINT, np.float32)
    members = [
        FrozenEstimator(posterior.mode(100 * seed + each, n_steps=N_STEPS))
        for each in range(N_MEMBERS)
    ]
    dropout = FrozenEstimator(posterior.mode(seed, DROPOUT, N_STEPS))
    search = PointwiseSearch(prior_precision=posterior.precision)
    models = {
        "deep-ensemble": DeepEnsembleClassifier(members=members),
        "mc-dropout": MCDropoutClassifier(dropout, n_samples=N_PASSES, random_state=seed),
        "quam-default": QUAMClassifier(given, random_state=seed),
        "quam-pointwise": QUAMClassifier(given, search=search, random_state=seed),
        "quam-quadratic": QUAMClassifier(given, search="quadratic", random_state=seed),
    }
    found = {n: m.fit(X, y).predict_proba_bounds(x).upper[0] for n, m in models.items()}
    logits = Chains(n_chains=2, n_samples=250, n_jobs=1).run(posterior, point, seed, None)
    found["hmc"] = torch.as_tensor(logits).softmax(-1).flatten(0, 2).amax(0).numpy()
    found["given"] = net(point).softmax(-1)[0].numpy()
    loss = float(posterior.misfit(net(posterior.X)))
    found["likely"], found["nats"] = np.transpose(
        [likely(posterior, k, loss, seed) for k in range(3)]
    )
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-seeds", type=int, default=3, help="draws of the data")
    args = arguments.parse_args()
    set_threads(args)
    table = defaultdict(list)
    for seed in range(args.seed, args.seed + args.n_seeds):
        for method, values in measure(seed).items():
            table[method].append(values)
            print(seed, f"{method:16}", np.round(values, 3), flush=True)
    records = [
        record(method, "simplex", f"largest_{k}", np.mean(of), len(of), np.std(of))
        for method, values in table.items()
        for k, of in enumerate(np.transpose(values))
    ]
    finish("quam_simplex", args, records, ("pyro-ppl",))


if __name__ == "__main__":
    main()
