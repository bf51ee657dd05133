"""The parts of libcudnn that a convolution by a named algorithm takes: handle, descriptors, status, and the call."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from ctypes import c_int, c_size_t, c_void_p
from functools import cache, lru_cache
from typing import Any

from convforge.algorithms.contract import Buffers, PreparedFilter
from convforge.backends.runtime import Runtime
from convforge.peers.contract import packed_address
from convforge.peers.libraries import shared_library, signature
from convforge.peers.short_list import LibraryFault, ShortList, random_array, short_list
from convforge.problem import Conv2dProblem

# Enums of cudnn_ops.h and cudnn_graph.h: cudnnConvolutionFwdAlgo_t, cudnnMathType_t, cudnnDataType_t,
# cudnnTensorFormat_t, cudnnConvolutionMode_t.
ALGORITHMS = {
    "IMPLICIT_GEMM": 0,
    "IMPLICIT_PRECOMP_GEMM": 1,
    "GEMM": 2,
    "DIRECT": 3,
    "FFT": 4,
    "FFT_TILING": 5,
    "WINOGRAD": 6,
    "WINOGRAD_NONFUSED": 7,
}
MATH_TYPES = {"DEFAULT": 0, "TENSOR_OP": 1, "FMA": 3}
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2}
FORMATS = {"NCHW": 0, "NHWC": 1}
MODES = {"convolution": 0, "cross-correlation": 1}

# Functions that return a status -> the types of their arguments. DESCRIPTORS are created and destroyed alike.
DESCRIPTORS = ("Tensor", "Filter", "Convolution")
_POINTER: Any = c_void_p
_INT: Any = c_int
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cudnnCreate": (_POINTER,),
    "cudnnSetStream": (_POINTER, _POINTER),
    **{f"cudnn{verb}{kind}Descriptor": (_POINTER,) for verb in ("Create", "Destroy") for kind in DESCRIPTORS},
    "cudnnSetTensor4dDescriptor": (_POINTER, *[_INT] * 6),
    "cudnnSetFilter4dDescriptor": (_POINTER, *[_INT] * 6),
    "cudnnSetConvolution2dDescriptor": (_POINTER, *[_INT] * 8),
    "cudnnSetConvolutionGroupCount": (_POINTER, _INT),
    "cudnnSetConvolutionMathType": (_POINTER, _INT),
    "cudnnGetConvolutionForwardWorkspaceSize": (*[_POINTER] * 5, _INT, _POINTER),
    "cudnnConvolutionForward": (*[_POINTER] * 7, _INT, _POINTER, c_size_t, *[_POINTER] * 3),
}


class CudnnStatus(LibraryFault):
    """cuDNN gave a status that is no success; the text names the call and the status."""


class Library:
    """libcudnn's functions with the types of their arguments, and one handle; calls on a handle take turns."""

    def __init__(self) -> None:
        library = shared_library("cudnn")
        self._functions = {name: signature(library, name, *arguments) for name, arguments in FUNCTIONS.items()}
        self._say = signature(library, "cudnnGetErrorString", c_int, result=ctypes.c_char_p)
        self.lock = threading.Lock()
        self.handle = c_void_p()
        self.call("cudnnCreate", ctypes.byref(self.handle))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; :class:`CudnnStatus` where its status is no success."""
        status = self._functions[name](*arguments)
        if status:
            raise CudnnStatus(f"{name} says {self._say(status).decode()}")

    def descriptor(self, kind: str, owner: object) -> c_void_p:
        """A descriptor, one of :data:`DESCRIPTORS`, that lives as long as its owner."""
        made = c_void_p()
        self.call(f"cudnnCreate{kind}Descriptor", ctypes.byref(made))
        weakref.finalize(owner, self._functions[f"cudnnDestroy{kind}Descriptor"], made).atexit = False
        return made


@cache
def library() -> Library:
    """The one of this process."""
    return Library()


def cudnn_version() -> str:
    """cuDNN's version."""
    found = shared_library("cudnn")
    return "unknown" if found is None else str(signature(found, "cudnnGetVersion", result=c_size_t)())


class LegacyConvolution:
    """A convolution as cuDNN's descriptors.

    Parameters
    ----------
    problem : Conv2dProblem
    math : str
        A key of :data:`MATH_TYPES`.
    """

    def __init__(self, problem: Conv2dProblem, math: str) -> None:
        self._problem = problem
        self._cudnn = cudnn = library()
        kind, form = DATA_TYPES[problem.x_dtype], FORMATS[problem.x_layout]
        sums = DATA_TYPES[problem.acc_dtype]
        number = ctypes.c_double if problem.acc_dtype == "float64" else ctypes.c_float
        self._one, self._zero = number(1), number(0)
        self._x, self._out = (cudnn.descriptor("Tensor", self) for _ in range(2))
        self._w, self._convolution = (cudnn.descriptor(kind, self) for kind in ("Filter", "Convolution"))
        n, c, h, w, k, p, q = (getattr(problem, name) for name in "nchwkpq")
        cudnn.call("cudnnSetTensor4dDescriptor", self._x, form, kind, n, c, h, w)
        cudnn.call("cudnnSetTensor4dDescriptor", self._out, form, kind, n, k, p, q)
        # Always in the order K, C, R, S, whatever the format; type and format change places against the tensors.
        cudnn.call("cudnnSetFilter4dDescriptor", self._w, kind, form, *problem.w_shape)
        cudnn.call(
            "cudnnSetConvolution2dDescriptor", self._convolution, problem.padding[0], problem.padding[2],
            *problem.stride, *problem.dilation, MODES[problem.mode], sums,
        )  # fmt: skip
        cudnn.call("cudnnSetConvolutionGroupCount", self._convolution, problem.groups)
        cudnn.call("cudnnSetConvolutionMathType", self._convolution, MATH_TYPES[math])
        self._answers = {name: self._ask(name) for name in ALGORITHMS}
        self._tried: set[str] = set()
        self._found: dict[tuple[str, ...], ShortList] = {}

    def _ask(self, name: str) -> int | CudnnStatus:
        """Bytes of workspace that an algorithm needs, or why it cannot."""
        cudnn, nbytes = self._cudnn, c_size_t()
        try:
            cudnn.call(
                "cudnnGetConvolutionForwardWorkspaceSize", cudnn.handle, self._x, self._w, self._convolution, self._out,
                ALGORITHMS[name], ctypes.byref(nbytes),
            )  # fmt: skip
        except CudnnStatus as status:
            return status
        return int(nbytes.value)

    def supported(self, names: Sequence[str]) -> list[str]:
        """Those of the algorithms for which cuDNN names a workspace."""
        return [name for name in names if isinstance(self._answers[name], int)]

    def status(self, name: str) -> str:
        """What cuDNN says of an algorithm."""
        answer = self._answers[name]
        return f"{answer} bytes of workspace" if isinstance(answer, int) else str(answer)

    def workspace_bytes(self, name: str) -> int:
        """Bytes of workspace that an algorithm needs. CudnnStatus where it cannot."""
        answer = self._answers[name]
        if isinstance(answer, CudnnStatus):
            raise answer
        return answer

    def forward(self, name: str, buffers: Buffers, runtime: Any, stream: Any) -> None:
        """Convolve on a stream, in the call's workspace."""
        cudnn, nbytes = self._cudnn, self.workspace_bytes(name)
        scratch = packed_address(buffers.get("workspace"), "cuDNN") if nbytes else None
        places = [packed_address(array, "cuDNN") for array in (buffers["x"], buffers["w"].tensors["w"], buffers["out"])]
        with cudnn.lock:
            cudnn.call("cudnnSetStream", cudnn.handle, runtime.stream_handle(stream))
            cudnn.call(
                "cudnnConvolutionForward", cudnn.handle, ctypes.byref(self._one), self._x, places[0], self._w,
                places[1], self._convolution, ALGORITHMS[name], scratch, nbytes, ctypes.byref(self._zero), self._out,
                places[2],
            )  # fmt: skip

    def ensure(self, name: str, runtime: Runtime) -> None:
        """Call an algorithm once. CudnnStatus where cuDNN refuses it."""
        if name in self._tried:
            return
        problem = self._problem
        x = random_array(problem.x_shape, problem.x_dtype, runtime, 0)
        w = random_array(problem.w_shape, problem.w_dtype, runtime, 1)
        out = runtime.empty(problem.out_shape, problem.out_dtype)
        nbytes = self.workspace_bytes(name)
        workspace = runtime.allocate(nbytes) if nbytes else None
        buffers = {"x": x, "w": PreparedFilter({"w": w}, 0), "out": out, "workspace": workspace}
        self.forward(name, buffers, runtime, None)
        runtime.synchronize()
        self._tried.add(name)

    def best(self, names: Sequence[str], runtime: Runtime) -> ShortList:
        """Some algorithms, tried and timed once."""
        key = tuple(names)
        if key not in self._found:
            self._found[key] = short_list(
                self._problem, runtime, key,
                build=lambda number: self.workspace_bytes(key[number]),
                execute=lambda number, buffers: self.forward(key[number], buffers, runtime, None),
                noun="algorithms",
            )  # fmt: skip
        return self._found[key]


@lru_cache(maxsize=64)
def legacy_convolution(problem: Conv2dProblem, math: str) -> LegacyConvolution:
    """The descriptors of a problem, kept."""
    return LegacyConvolution(problem, math)
