"""Speed of searches as one batch of stacked models, compared with sequential searches.

The baseline follows Algorithm 1 line by line with a plain `torch.nn.Module` and optimiser
per test point and class. Both run in this process with the same threads, mini-batches and
arithmetic. The largest difference between their results is also printed.
"""

import time
from copy import deepcopy

import numpy as np
import torch
from sklearn.datasets import make_moons
from torch.nn.functional import cross_entropy

from benchmarks.harness import finish, parser, record, set_threads
from skuq._networks import TrainingSet, stack_parameters, train_default_classifier, training_batches
from skuq.datasets import load_digits_with_ood
from skuq.quam import Targeted, penalty_schedule, search_adversarial_models

SEARCH = {"c0": 20.0, "eta": 1.05, "learning_rate": 0.1}


def one_after_the_other(module, x, train, batches, n_classes):
    """Run sequential searches; return log-probs (n_points, n_classes, n_steps, n_classes)."""
    return torch.stack(
        [
            torch.stack([one_search(module, point, k, train, batches) for k in range(n_classes)])
            for point in x
        ]
    )


def one_search(reference, point, target, train, batches):
    model = deepcopy(reference).requires_grad_(True)
    optimizer = torch.optim.Adam(
        [
            {"params": p, "lr": SEARCH["learning_rate"] * float(p.detach().square().mean().sqrt())}
            for p in model.parameters()
        ]
    )
    c, met = SEARCH["c0"], []
    for step, rows in enumerate(batches):
        log_p = model(point[None]).log_softmax(-1)[0]
        if step > 0:
            met.append(log_p.detach())
        if step + 1 == len(batches):
            break
        losses = cross_entropy(model(train.X[rows]), train.y[rows], reduction="none")
        penalty = (losses - train.reference_loss[rows]).mean()
        optimizer.zero_grad()
        (c * penalty - log_p[target]).backward()
        optimizer.step()
        c *= SEARCH["eta"]
    return torch.stack(met)


def load(dataset, seed, n):
    """Load training inputs and labels, and `n` test points."""
    if dataset == "digits":
        data = load_digits_with_ood(n_test=max(n, 20), n_ood=1, random_state=seed)
        return data.X_train, data.y_train, data.X_test[:n]
    X, y = make_moons(200 + n, noise=0.1, random_state=seed)
    return X[:200], y[:200], X[200:]


def compare(dataset, args):
    """Measure both methods on one data set."""
    X, y, x = load(dataset, args.seed, args.n)
    n_classes = len(np.unique(y))
    module = train_default_classifier(X, y, n_classes=n_classes, seed=args.seed, device="cpu")
    X, y, x = torch.as_tensor(X), torch.as_tensor(y), torch.tensor(x)
    with torch.no_grad():
        reference_loss = cross_entropy(module(X), y, reduction="none")
    train = TrainingSet(X, y, torch.ones(len(y), dtype=X.dtype), reference_loss)
    generator = torch.Generator().manual_seed(args.seed)
    batches = list(training_batches(len(y), args.train_batch_size, args.steps + 1, generator))
    names = [name for name, _ in module.named_parameters()]
    schedule = penalty_schedule(args.steps, **SEARCH, update_every=1, decay=1.0)
    objective = Targeted(torch.arange(n_classes).expand(len(x), -1))

    def stacked():
        weights = stack_parameters(module, len(x) * n_classes, names)
        found = search_adversarial_models(
            module, weights, x, train, batches, objective=objective, schedule=schedule
        )
        return found.outputs.log_softmax(-1)

    seconds, results = {}, {}
    for method, run in {
        "stacked": stacked,
        "one_after_the_other": lambda: one_after_the_other(module, x, train, batches, n_classes),
    }.items():
        print(f"{dataset}, {method}: {args.n} points, {n_classes} searches of {args.steps} steps")
        start = time.perf_counter()
        results[method] = run()
        seconds[method] = (time.perf_counter() - start) / args.n
    difference = (results["stacked"] - results["one_after_the_other"]).abs().max()
    ratio = seconds["one_after_the_other"] / seconds["stacked"]
    print(f"{ratio:.2f} times as fast; largest difference of log-probabilities {difference:.1e}")
    return [
        *(record(m, dataset, "seconds_per_point", s, args.n) for m, s in seconds.items()),
        record("stacked", dataset, "speed_ratio", ratio, args.n),
        record("stacked", dataset, "largest_difference", difference, args.n),
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n", type=int, default=8, help="test points")
    arguments.add_argument("--steps", type=int, default=100)
    arguments.add_argument("--train-batch-size", type=int, default=256)
    args = arguments.parse_args()
    set_threads(args)
    finish("quam_batched", args, compare("two_moons", args) + compare("digits", args))


if __name__ == "__main__":
    main()
