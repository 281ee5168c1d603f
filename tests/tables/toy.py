"""A table, an estimator that is quick to train, and what its model says of the table."""

import functools

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.linear_model import LinearRegression
from sklearn.utils.validation import check_is_fitted, validate_data

from skuq import Uncertainty, UncertaintyMixin
from skuq.tables import TableModel, table_notes


class Toy(ClassifierMixin, UncertaintyMixin, BaseEstimator):
    """Softmax of distances to class means; epistemic is the distance to the overall mean."""

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        self.classes_ = np.unique(y)
        self.means_ = np.array([X[y == label].mean(axis=0) for label in self.classes_])
        self.centre_ = X.mean(axis=0)
        return self

    def predict_proba(self, X):
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        distances = ((X[:, None] - self.means_) ** 2).sum(axis=-1)
        weights = np.exp(distances.min(axis=1, keepdims=True) - distances)
        return weights / weights.sum(axis=1, keepdims=True)

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_uncertainty(self, X):
        aleatoric = 1 - self.predict_proba(X).max(axis=1)
        return Uncertainty.from_parts(aleatoric, ((np.asarray(X) - self.centre_) ** 2).sum(axis=1))


class ToyRegressor(RegressorMixin, BaseEstimator):
    def fit(self, X, y):
        self.model_, self.n_features_in_ = LinearRegression().fit(X, y), np.shape(X)[1]
        return self

    def predict(self, X):
        return self.model_.predict(X)

    def predict_uncertainty(self, X):
        return Uncertainty.from_parts(np.ones(len(X)), np.square(X).sum(axis=1))


class Told:
    def __init__(self, model, table):
        self.model, self.table, self.held_out = model, table, model.held_out_
        self.rows = model.predict(table)

    @property
    def notes(self):
        return [*self.model.notes_, *table_notes(self.model.count(self.table))]

    def of(self, table):
        return Told(self.model, table)

    def features(self, table):
        return self.model.encoder_.transform(self.model.columns_.read(table, "new").X)


def quantify(train, table, target="kind", estimator=None, **options):
    fitting = {name: options.pop(name) for name in [*options] if name in ("drop", "held_out")}
    model = TableModel(Toy() if estimator is None else estimator, **options)
    return Told(model.fit(train, target, **fitting), table)


def made():
    """60 rows: two columns of numbers, one of text, one of yes and no, and a class."""
    rng = np.random.default_rng(0)
    columns = {"size": rng.normal(size=60), "count": rng.integers(0, 5, size=60)}
    columns["colour"] = rng.choice(["blue", "green", "red"], size=60)
    columns["new"] = rng.choice([True, False], size=60)
    return pd.DataFrame(columns | {"kind": np.tile(["ant", "bee"], 30)})


@functools.cache
def of_unaltered():
    return quantify(made(), made().drop(columns="kind").head(7))
