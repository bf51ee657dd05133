"""Whether a result is right: the float64 truth, the error that honest arithmetic may make, and the verdict."""

from convforge.check.inputs import KINDS, Inputs, make_inputs
from convforge.check.plans import check_plan
from convforge.check.sample import Sample
from convforge.check.spread import check_nan_spread
from convforge.check.truth import Truth, truth
from convforge.check.truth_device import truth_on_device
from convforge.check.verdict import Judge, Verdict, compare, warm_up

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
