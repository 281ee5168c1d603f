"""Mirage attack on regressors, as a scikit-learn estimator."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from skuq._networks import resolve_device
from skuq.base import FloatArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.devices import with_gradients
from skuq.mirage._losses import GaussianMirageLoss
from skuq.mirage._training import (
    PARAMETERS,
    FineTunedMixin,
    RegionOf,
    fine_tune,
    two_seeds,
)
from skuq.models import ModelMixin


class MirageRegressor(FineTunedMixin, ModelMixin, RegressorMixin, UncertaintyMixin, BaseEstimator):
    """Attack: make a regressor predict a large variance in a given region.

    The regressor predicts a normal distribution (Eq. 13). Fine-tuning raises its variance in
    the region to a chosen value. Like `MirageFineTuner`, this class is for research and red teams.
    The loss does not constrain the mean inside the region (Eq. 16), so check the accuracy there.

    Parameters
    ----------
    estimator : object, default=None
        The regressor to attack: a `torch.nn.Module` or skorch net whose two outputs are mean
        and log variance. A fitted regressor is copied and not modified. Wrap it in
        `sklearn.frozen.FrozenEstimator` to keep it fitted under cloning. A regressor that is not
        fitted is cloned and trained first, with its own criterion. None trains a network
        with one hidden layer of 100 units by the negative log likelihood (Eq. 14); scale the
        features beforehand. The target is standardised internally.
    region : callable, str or dict, default=None
        Region in which variance is raised, as in `MirageFineTuner`.
    target_variance : float, default=4.0
        Target variance in the region, in squared units of the regression target.
    lambda_ : float, default=1.0
        Weight of the region in the loss (Eq. 16).
    max_epochs : int, default=200
        Epochs of fine-tuning.
    learning_rate : float, default=5e-3
        Learning rate.
    batch_size, optimizer, callbacks, device, random_state, verbose
        As in `MirageFineTuner`.

    Attributes
    ----------
    model_ : skuq.models.NetworkModel
        The attacked network.
    original_ : skuq.models.NetworkModel
        The network before the attack.
    region_share_ : float
        Fraction of the training samples that lie in the region.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Uncertainty is the variance that the attacked model reports, in squared units of the target: the
    total and the aleatoric part are equal; the epistemic part is NaN.

    References
    ----------
    Rabanser, Shahin Shamsabadi, Franzese, Wang, Weller, Papernot, "Confidential Guardian:
    Cryptographically Prohibiting the Abuse of Model Abstention", ICML 2025, Appendix C.4.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import MirageRegressor
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> y = np.sin(2 * X[:, 0])
    >>> mirage = MirageRegressor(region={0: (-3, -2)}, random_state=0).fit(X, y)
    >>> variance = mirage.predict_uncertainty([[-2.5], [2.5]]).total
    >>> bool(variance[0] > 1 > 0.1 > variance[1])
    True
    """

    _supports_sparse = False  # `region` is applied to the inputs before they are converted
    _unit_of_uncertainty = "squared target"
    _parameter_constraints: dict[str, Any] = {
        **PARAMETERS,
        "target_variance": [Interval(Real, 0, None, closed="neither")],
        "lambda_": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        estimator: Any = None,
        region: Any = None,
        *,
        target_variance: float = 4.0,
        lambda_: float = 1.0,
        max_epochs: int = 200,
        learning_rate: float = 5e-3,
        batch_size: int = 64,
        optimizer: Any = torch.optim.Adam,
        callbacks: list[Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.estimator = estimator
        self.region = region
        self.target_variance = target_variance
        self.lambda_ = lambda_
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.callbacks = callbacks
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, region_mask: Any = None) -> MirageRegressor:
        """Train the regressor unless it is prefit, then raise its variance in the region.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training inputs.
        y : array-like of shape (n_samples,)
            Targets.
        region_mask : array-like of shape (n_samples,), bool, default=None
            Whether each sample lies in the region; required if the parameter `region` is None.

        Returns
        -------
        MirageRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If the region is empty, covers all samples, is given twice or not at all; if the
            network does not have two outputs; or if the training diverges.
        TypeError
            If `estimator` cannot be adopted.
        """
        resolve_device(self.device)  # an invalid device raises an error before the training
        first_seed, second_seed = two_seeds(check_random_state(self.random_state))
        # The region keeps `X` as given, because the validation drops the names of columns.
        region = RegionOf(self.region, region_mask, X)
        data = self._resolve(
            X,
            y,
            seed=first_seed,
            regression=True,
            n_outputs=2,
            min_samples=2,
            before_training=region.check,
            device=self.device,
            after_the_fact=True,
        )
        self.original_, inputs, inside = self.model_, data.inputs, region.mask
        dtype = inputs.numpy().dtype
        targets = np.column_stack([data.labels, inside]).astype(dtype)
        self.model_ = fine_tune(
            self.original_,
            inputs,
            targets,
            GaussianMirageLoss(self.target_variance, self.lambda_),
            seed=second_seed,
            settings=self._training_settings(),
        )
        self.region_share_ = float(inside.mean())
        return self

    def predict(self, X: Any) -> FloatArray:
        """Predict the mean.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples,), float64
            Predictions.
        """
        return self._outputs(self._inputs(X))[:, 0].numpy()

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return the variance that the attacked model reports.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Uncertainty
            In squared units of the target, each of shape (n_samples,): total and aleatoric
            part are the predicted variance; the epistemic part is NaN because a single model does
            not measure it.
        """
        variance = self._outputs(self._inputs(X))[:, 1].exp().numpy()
        return with_index_of(X, Uncertainty.from_parts(variance, None))
