"""The filter as cuDNN wants it: beside a picture whose channels come last, its channels last too."""

from __future__ import annotations

from typing import Any

from convforge.algorithms.contract import PreparedFilter
from convforge.algorithms.host.channels_near import ChannelsNear
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem


class CudnnFilter:
    """Prepares filters for one problem; they keep their order of taps, as cuDNN turns them itself.

    Parameters
    ----------
    note : Reason or None
        What the prepared filter says of the plan.
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, note: Reason | None) -> None:
        self._note = note
        self._packer = None
        if problem.x_layout == "NHWC":
            self._packer = ChannelsNear(problem.replace(mode="cross-correlation"), runtime)

    def __call__(self, w: Any, stream: Any = None) -> PreparedFilter:
        """The filter in cuDNN's order."""
        packed = w if self._packer is None else self._packer(w, stream).tensors["w"]
        return PreparedFilter({"w": packed}, packed.nbytes, self._note)

    def borrow(self, w: Any, stream: Any = None) -> PreparedFilter:
        """The same; nothing is copied where the filter lies so already."""
        size, (_, c, r, s) = w.itemsize, w.shape
        if self._packer is not None and tuple(w.strides) == (c * r * s * size, size, c * s * size, c * size):
            return PreparedFilter({"w": w.transpose(0, 2, 3, 1)}, 0, self._note)
        return self(w, stream)
