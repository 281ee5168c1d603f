"""Detection of out-of-distribution inputs: scores, conformal p-values, and their combination."""

from skuq.ood._combination import Combination, Tail
from skuq.ood._detector import OODDetector

__all__ = ["Combination", "OODDetector", "Tail"]
