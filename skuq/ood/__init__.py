"""Detection of out-of-distribution inputs: scores, conformal p-values, and their combination."""

from skuq.ood._combination import Combination as Combination
from skuq.ood._combination import Tail as Tail
from skuq.ood._detector import OODDetector

__all__ = ["OODDetector"]
