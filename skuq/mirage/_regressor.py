"""Mirage attack on regressors, as a scikit-learn estimator."""

from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context
from sklearn.utils._param_validation import Interval

from skuq.base import FloatArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.devices import with_gradients
from skuq.mirage._losses import GaussianMirageLoss
from skuq.mirage._training import PARAMETERS, FineTunedMixin
from skuq.models import ModelMixin


@dataclass(repr=False, eq=False)
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

    estimator: Any = None
    region: Any = None
    _: KW_ONLY
    target_variance: float = 4.0
    lambda_: float = 1.0
    max_epochs: int = 200

    _unit_of_uncertainty = "squared target"
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **PARAMETERS,
        "target_variance": [Interval(Real, 0, None, closed="neither")],
        "lambda_": [Interval(Real, 0, None, closed="neither")],
    }

    @with_gradients()
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any, region_mask: Any = None) -> Self:
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
        data, masks, seed = self._original(X, y, region_mask, regression=True, n_outputs=2)
        dtype = data.inputs.numpy().dtype
        targets = np.column_stack([data.labels, masks.inside]).astype(dtype)
        loss = GaussianMirageLoss(self.target_variance, self.lambda_)
        self._fine_tune(data.inputs, targets, loss, seed)
        self.region_share_ = float(masks.inside.mean())
        return self

    def predict(self, X: Any) -> FloatArray:
        """Predict the mean, of shape (n_samples,)."""
        return self._outputs(self._inputs(X))[:, 0].numpy()

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return the variance that the attacked model reports, in squared units of the target."""
        variance = self._outputs(self._inputs(X))[:, 1].exp().numpy()
        return with_index_of(X, Uncertainty.from_parts(variance, None))
