"""Proven bounds on class probabilities and regression predictions over regions.

Equation numbers and symbols are those of `docs/guide/robust_gpc_proofs.rst`.
"""

from skuq.gpc.bounds._latent_model import Profile as Profile
from skuq.gpc.bounds._latent_model import StationaryKernel as StationaryKernel
from skuq.gpc.bounds._latent_model import Term as Term
from skuq.gpc.bounds._latent_model import from_sklearn as from_sklearn
