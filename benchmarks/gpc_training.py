"""Time to fit and to predict with Gaussian-process classifiers, compared with established packages.

All have the same data, the same initial kernel (a constant of 1 times an RBF whose length-scale is
the spread of the inputs) and the same wide bounds, and stop after ``--evaluations`` evaluations of
the marginal likelihood and its gradient by L-BFGS-B. scikit-learn has the logit link with Laplace's
method, GPy the probit link with expectation propagation; each is compared with our model of the
same type. ARD (a length-scale per feature) is skipped for GPy, and for scikit-learn if its array of
kernel derivatives would be larger than ``--memory``.

Known differences: GPy has no bounds and optimises softplus-transformed parameters, so its path
differs even with the same initial values; it may also need fewer evaluations if it stops early. Its
Laplace approximation is for the probit likelihood. A method is skipped if its time at the previous
size predicts that it would exceed ``--limit``.
"""

import time
import warnings
from contextlib import suppress

import numpy as np
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from benchmarks.data_files import load_npz
from benchmarks.harness import finish, parser, record, set_threads
from skuq import RobustGPC

N_TEST = 1000
BOUNDS = (1e-5, 1e8)


def mnist(data_dir, n, seed):
    """Load 3 against 8, downsampled to 14 x 14 pixels."""
    data = load_npz("mnist", data_dir)
    rng = np.random.default_rng(seed)
    parts = []
    for side, count in (("train", n), ("test", N_TEST)):
        rows = rng.permutation(np.flatnonzero(np.isin(data[f"y_{side}"], [3, 8])))[:count]
        images = data[f"x_{side}"][rows].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)) / 255
        parts += [images.reshape(len(rows), -1), (data[f"y_{side}"][rows] == 8).astype(int)]
    return parts


def spam(data_dir, n, seed):
    """Load the eleven standardised columns of the paper."""
    data = load_npz("spambase", data_dir)
    rows = np.random.default_rng(seed).permutation(len(data["y"]))
    X, y = data["x"][:, data["paper_columns"]], data["y"].astype(int)
    train, test = rows[:n], rows[-N_TEST:]
    scaler = StandardScaler().fit(X[train])
    return scaler.transform(X[train]), y[train], scaler.transform(X[test]), y[test]


def start_kernel(X, ard):
    spread = np.sqrt(X.var(axis=0).sum())
    scale = np.full(X.shape[1], spread) if ard else spread
    return ConstantKernel(1.0, BOUNDS) * RBF(scale, BOUNDS)


def ours(likelihood, inference, ard):
    def fit(X, y, evaluations):
        model = RobustGPC(
            start_kernel(X, ard),
            likelihood=likelihood,
            inference=inference,
            max_iter=evaluations,
            random_state=0,
        ).fit(X, y)
        return model.log_marginal_likelihood_, lambda Z: model.predict_proba(Z)[:, 1]

    return fit


def scikit_learn(ard):
    def fit(X, y, evaluations):
        def optimizer(objective, theta, bounds):
            best = [theta, np.inf]

            budget = iter(range(evaluations))

            def counted(theta):
                next(budget)
                value, gradient = objective(theta)
                if value < best[1]:
                    best[:] = theta.copy(), value
                return value, gradient

            with suppress(StopIteration):
                minimize(counted, theta, jac=True, method="L-BFGS-B", bounds=bounds)
            return tuple(best)

        model = GaussianProcessClassifier(start_kernel(X, ard), optimizer=optimizer).fit(X, y)
        evidence = model.log_marginal_likelihood_value_
        return evidence, lambda Z: model.predict_proba(Z)[:, 1]

    return fit


def gpy(inference):
    def fit(X, y, evaluations):
        import GPy

        kernel = GPy.kern.RBF(X.shape[1], 1.0, np.sqrt(X.var(axis=0).sum()))
        method = {
            "ep": GPy.inference.latent_function_inference.EP,
            "laplace": GPy.inference.latent_function_inference.Laplace,
        }[inference]()
        model = GPy.core.GP(
            X, y[:, None].astype(float), kernel, GPy.likelihoods.Bernoulli(), None, method
        )
        model.optimize("lbfgsb", max_iters=evaluations)
        return float(model.log_likelihood()), lambda Z: model.predict(Z)[0][:, 0]

    return fit


METHODS = {
    "skuq, logit, Laplace": ours("logit", "laplace", ard=False),
    "scikit-learn, logit, Laplace": scikit_learn(ard=False),
    "skuq, logit, Laplace, ARD": ours("logit", "laplace", ard=True),
    "scikit-learn, logit, Laplace, ARD": scikit_learn(ard=True),
    "skuq, probit, Laplace": ours("probit", "laplace", ard=False),
    "GPy, probit, Laplace": gpy("laplace"),
    "skuq, probit, EP": ours("probit", "ep", ard=False),
    "GPy, probit, EP": gpy("ep"),
}


def obstacle(method, n, n_features, spent, args):
    """Return the reason to skip a method at this size; None if it is run."""
    if method.startswith("GPy"):
        try:
            import GPy  # noqa: F401
        except ImportError as error:
            return f"cannot be imported: {error}"
    if method in spent:
        seconds, before = spent[method]
        if seconds * (n / before) ** 3 > args.limit:
            return f"took {seconds:.0f} s for n={before}"
    if method.startswith("scikit") and "ARD" in method:
        gigabytes = 8e-9 * n**2 * (n_features + 1)
        if gigabytes > args.memory:
            return f"needs arrays of {gigabytes:.1f} GB"
    return None


def measure(name, load, method, n, args):
    """Measure one fit."""
    X, y, Z, labels = load(args.data_dir, n, args.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        evidence, predict = METHODS[method](X, y, args.evaluations)
        fitted = time.perf_counter()
        proba = predict(Z)
        done = time.perf_counter()
    figures = {
        "seconds_fit": fitted - start,
        "seconds_predict": done - fitted,
        "log_marginal_likelihood": evidence,
        "accuracy": accuracy_score(labels, proba > 0.5),
    }
    print(f"{name}, n={n}, {method}: {', '.join(f'{k} {v:.3f}' for k, v in figures.items())}")
    return [record(method, name, metric, value, n) for metric, value in figures.items()]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[500, 1000, 2000])
    arguments.add_argument("--evaluations", type=int, default=20)
    arguments.add_argument("--limit", type=float, default=300.0, help="seconds for one fit")
    arguments.add_argument("--memory", type=float, default=2.0, help="GB for one array")
    args = arguments.parse_args()
    set_threads(args)
    records = []
    with threadpool_limits(args.threads):
        for name, load in {"mnist_3_vs_8": mnist, "spambase": spam}.items():
            spent = {}
            for n in args.sizes:
                for method in METHODS:
                    n_features = load(args.data_dir, 2, args.seed)[0].shape[1]
                    reason = obstacle(method, n, n_features, spent, args)
                    if reason is not None:
                        print(f"{name}, n={n}, {method}: skipped, {reason}", flush=True)
                        continue
                    found = measure(name, load, method, n, args)
                    spent[method] = found[0]["value"], n
                    records += found
    finish("gpc_training", args, records)


if __name__ == "__main__":
    main()
