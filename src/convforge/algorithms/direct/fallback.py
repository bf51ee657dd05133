"""The plan that replaces a method of vector loads where an image's layout does not allow them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from convforge.algorithms.contract import Plan
from convforge.algorithms.direct.tiled import DirectTiled
from convforge.algorithms.traits import Way, handed_on
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem


def ways_to_tiled(read: Reason, nbytes: int) -> tuple[Way, ...]:
    """The ways of such a method: how it reads pictures, and that direct_tiled takes others.

    Parameters
    ----------
    read : Reason
    nbytes : int
        Of which addresses and strides must be multiples.
    """
    return Way("vectors", "default", read), handed_on(DirectTiled.name, nbytes, "x")


def tiled_instead(backend: str, problem: Conv2dProblem, runtime: Runtime) -> Callable[[], Plan]:
    """The plan of direct_tiled for the same problem and prepared filters: made when first asked for, once."""
    made: list[Plan] = []
    lock = threading.Lock()

    def get() -> Plan:
        with lock:
            if not made:
                method = DirectTiled(backend)
                staged = [config for config in method.configs(problem, runtime.facts) if config.weights == "staged"]
                made.append(method.plan(problem, staged[0], runtime))
        return made[0]

    return get
