"""Check results: the float64 truth, the error that correct arithmetic may make, and the verdict."""

from convforge.verify.inputs import KINDS, Inputs, make_inputs
from convforge.verify.plans import check_nan_spread, check_plan
from convforge.verify.sample import Sample
from convforge.verify.truth import Truth, truth
from convforge.verify.truth_device import truth_on_device
from convforge.verify.verdict import Judge, Verdict, compare, warm_up

__all__ = [
    "KINDS",
    "Inputs",
    "Judge",
    "Sample",
    "Truth",
    "Verdict",
    "check_nan_spread",
    "check_plan",
    "compare",
    "make_inputs",
    "truth",
    "truth_on_device",
    "warm_up",
]
