"""Detection of out-of-distribution inputs: scores, conformal p-values, and their combination."""

from skuq.ood._detector import OODDetector
from skuq.ood._scores import SCORES as SCORES
from skuq.ood._scores import Combination as Combination
from skuq.ood._scores import Tail as Tail

__all__ = ["OODDetector"]
