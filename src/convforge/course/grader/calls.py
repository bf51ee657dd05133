"""A reader's kernel called on a device: guard bands of poison around everything that it is handed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.runtime import LaunchInfo
from convforge.course.grader.launch import sizes_of
from convforge.course.grader.source import Arguments, OwnKernel
from convforge.problem import Conv2dProblem
from convforge.verify import Inputs
from convforge.verify.plans import GUARD, POISONS

# What the output holds before each run; between them they tell what is not written from what is added to.
BEFORE = (*POISONS, 0)
# In which the emulator runs the threads of a block, in each run.
ORDERS = ("forward", "shuffled", "backward")


class Call:
    """One call of a kernel: its arrays on the device, its launch, and what is found afterwards.

    Parameters
    ----------
    runtime : Runtime
        Of a GPU or of the emulator.
    byte : int
        What every byte of the output holds before.
    """

    def __init__(self, runtime: Any, own: OwnKernel, problem: Conv2dProblem, inputs: Inputs, byte: int) -> None:
        assert inputs.w is not None
        self.runtime, self.byte, self.problem = runtime, byte, problem
        self.info = own.rule.info(own.source.name, problem)
        self.inputs = {"x": inputs.x, "w": inputs.w}
        self._guarded = {
            "x": self._room(inputs.x.nbytes, POISONS[0]),
            "w": self._room(inputs.w.nbytes, POISONS[0]),
            "y": self._room(4 * problem.outputs, byte),
        }
        for name, array in self.inputs.items():
            there = runtime.upload(array)  # held until it is copied
            runtime.copy(_address(self._inner(name)), _address(there), array.nbytes)
            runtime.synchronize()
        addresses = [_address(self._inner(name)) for name in ("x", "w", "y")]
        self.args = Arguments(*addresses, *sizes_of(problem).values())

    def _room(self, nbytes: int, byte: int) -> Any:
        raw = self.runtime.allocate(nbytes + 2 * GUARD)
        self.runtime.fill(raw, byte)
        return raw

    def _inner(self, name: str) -> Any:
        raw = self._guarded[name]
        return raw[GUARD : raw.nbytes - GUARD]

    def run(self, kernel: Any) -> None:
        """Launch the kernel and wait for its end."""
        launcher(self.runtime, kernel, self.info, self.args)()
        self.runtime.synchronize()

    def output(self) -> NDArray[np.float32]:
        """A copy of what the output holds."""
        raw: NDArray[np.uint8] = self.runtime.download(self._inner("y"))
        return raw.view(np.float32).reshape(self.problem.out_shape).copy()

    def strays(self) -> list[str]:
        """Sentences about what was written where nothing may be."""
        said = []
        for name, raw in self._guarded.items():
            byte = self.byte if name == "y" else POISONS[0]
            below = _changed(self.runtime.download(raw[:GUARD]), byte)
            above = _changed(self.runtime.download(raw[raw.nbytes - GUARD :]), byte)
            size = (raw.nbytes - 2 * GUARD) // 4
            if above.size:
                said.append(
                    f"it writes past the end of {name}: to {name}[{size + above[0]}], and {name} has {size} elements"
                )
            if below.size:
                said.append(f"it writes in front of {name}: to {name}[{below[-1] - GUARD // 4}]")
        for name, array in self.inputs.items():
            there = self.runtime.download(self._inner(name)).view(np.float32).reshape(array.shape)
            if not np.array_equal(there.view(np.uint32), array.view(np.uint32)):
                said.append(f"it changes its input {name}, which is only to be read")
        return said


def launcher(runtime: Any, kernel: Any, info: LaunchInfo, args: Arguments) -> Callable[[], None]:
    """What launches a kernel: with one struct on the emulator, with plain arguments on a GPU.

    Raises
    ------
    CudaError
        At the call, where the driver refuses the launch.
    """
    if runtime.facts.backend == "emulator":
        return lambda: runtime.launch(kernel, info, args)
    from cuda.bindings import driver

    from convforge.backends.cuda.driver import CudaError

    kernel.allow_shared(info.scratch_bytes)
    offsets = [getattr(Arguments, name).offset for name, *_ in Arguments._fields_]
    shape = (*(*info.grid, 1, 1)[:3], *(*info.block, 1, 1)[:3])

    def launch() -> None:
        stream, start = runtime.stream_handle(None), ctypes.addressof(args)
        pointers = (ctypes.c_void_p * len(offsets))(*(start + offset for offset in offsets))
        (status,) = driver.cuLaunchKernel(
            kernel.handle, *shape, info.scratch_bytes, stream, ctypes.addressof(pointers), 0
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            words = f"grid {info.grid}, block {info.block}, {info.scratch_bytes} bytes of dynamic shared memory"
            raise CudaError(f"the GPU refuses the launch ({words}): {status.name}")

    return launch


def _address(array: Any) -> int:
    return int(array.address) if hasattr(array, "address") else int(array.ctypes.data)


def _changed(band: Any, byte: int) -> NDArray[np.int64]:
    """Indices of the elements of a band that do not hold the poison any more."""
    return np.flatnonzero((band.reshape(-1, 4) != byte).any(axis=1))
