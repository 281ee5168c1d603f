"""Proven bounds on class probabilities and regression predictions over regions."""

from skuq.gpc.bounds._stationary import Profile as Profile
from skuq.gpc.bounds._stationary import StationaryKernel as StationaryKernel
from skuq.gpc.bounds._stationary import Term as Term
from skuq.gpc.bounds._stationary import from_sklearn as from_sklearn
