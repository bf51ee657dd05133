"""With transfer: a call from host arrays to a host array, copies to and from the device inside its time.

It is what ``conv2d(x, w, device="cuda")`` does with NumPy arrays once its arguments are read: the inputs go up from
pageable memory, the weights are prepared, the plan runs, the output comes down. Time is the host's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from convforge.algorithms.contract import Plan
from convforge.backends.cpu import cpu_runtime
from convforge.benchmark.material import Material
from convforge.call.dispatch import execute
from convforge.timing.ring import Cycle, poison_of
from convforge.timing.stopping import StoppingRule
from convforge.timing.timer import Timing, measure

# Copies over a bus repeat well: fewer samples than a kernel takes.
SAMPLES = 7


class Transfers:
    """Calls on the host's arrays, one set of inputs after the other.

    Parameters
    ----------
    plan : Plan
        Of a device that is not the host.
    material : Material
        Whose inputs are uploaded, and whose judges the outputs are held against.
    """

    def __init__(self, plan: Plan, material: Material) -> None:
        self._plan, self._material = plan, material
        shape, dtype = material.problem.out_shape, np.dtype(material.problem.out_dtype)
        self._outs = [np.empty(shape, dtype) for _ in material.judges]

    def measure(self, rule: StoppingRule, clock: Callable[[], float] = time.monotonic) -> Timing:
        """Time the calls; outputs are poisoned before."""
        for out in self._outs:
            out.view(np.uint8).fill(poison_of(out.dtype))
        rule = replace(rule, samples=min(SAMPLES, rule.samples), fewest=min(3, rule.samples))
        calls = Cycle(len(self._outs), self._call)
        return replace(measure(calls, cpu_runtime(), rule, clock=clock), ring=len(self._outs))

    def _call(self, i: int) -> None:
        inputs, out = self._material.judges[i].inputs, self._outs[i]
        execute(self._plan, inputs.x, inputs.w, inputs.operands, out)

    def verdict(self, precision: str) -> Any:
        """The first fault that the outputs show, else the verdict with the largest error."""
        verdicts = [judge.verdict(precision, out) for judge, out in zip(self._material.judges, self._outs, strict=True)]
        return next((v for v in verdicts if not v.ok), None) or max(verdicts, key=lambda v: v.rms)
