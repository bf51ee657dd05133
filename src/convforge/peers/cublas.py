"""cuBLAS: matrix products to compare with the GEMM ladders, in int8, 16-bit floats, float32, float64 and TF32.

cuBLAS reads matrices in column-major order; ours are row-major. A row-major matrix read column by column is its
transpose, so cuBLAS must write to C's memory::

    C^T = (op(A) op(B))^T = op(B)^T op(A)^T

This is a column-major product of N by M. B's memory, read column by column, already is B^T. So pass B first and A
second, exchange M and N, and keep the transpose flags. Leading dimensions are still the elements from row to row.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from ctypes import c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from convforge.algorithms.contract import Algorithm, Buffers, Config
from convforge.algorithms.gemm.gemm import operand_b
from convforge.algorithms.host.conv import address
from convforge.algorithms.traits import Mark
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.peers.contract import PeerPlan, missing_library, shared_library, signature, tf32_refusal
from convforge.problem import GemmProblem
from convforge.problem.types import is_integer

# NVIDIA recommends this workspace on Hopper (documentation of cublasSetWorkspace); with less, cuBLAS has fewer choices.
WORKSPACE_BYTES = 32 << 20

# cublasMath_t and cublasOperation_t. "default" computes in full float32 and float64 precision, but may use float64
# tensor cores; "pedantic" computes by the textbook algorithm.
MATH = {"default": 0, "pedantic": 2, "tf32": 3}
OPERATION = {"N": 0, "T": 1}
_NUMBERS: dict[str, Any] = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int32": ctypes.c_int}
_CALLS = {
    "float32": "cublasSgemm_v2", "float64": "cublasDgemm_v2", "float16": "cublasGemmEx", "bfloat16": "cublasGemmEx",
    "int8": "cublasGemmEx",
}  # fmt: skip


class Typed(NamedTuple):
    factors: int  # cudaDataType
    result: int  # cudaDataType
    compute: int  # cublasComputeType


# Sums are CUBLAS_COMPUTE_32F or CUBLAS_COMPUTE_32I; with CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION float sums
# stay in float32 until they are complete.
TYPES = {"float16": Typed(2, 2, 68), "bfloat16": Typed(14, 14, 68), "int8": Typed(3, 10, 72)}
DEFAULT_METHOD, WIDE_SUMS = -1, 16  # CUBLAS_GEMM_DEFAULT

# Rows of int8 matrices must begin at multiples of this many bytes.
BYTES_OF_ROWS = 4


@dataclass(frozen=True, slots=True)
class ColumnMajor:
    first: str  # "a" or "b": our matrix that is the first factor
    second: str
    op_first: str  # "N" or "T"
    op_second: str
    m: int
    n: int
    k: int
    ld_first: int  # elements
    ld_second: int
    ld_out: int


def column_major(problem: GemmProblem, ld_a: int, ld_b: int, ld_out: int) -> ColumnMajor:
    """Arguments of the column-major gemm for a row-major product: factors exchanged, transpose flags kept.

    `ld_a`, `ld_b` and `ld_out` are the numbers of elements from one stored row of A, B and C to the next.

    Examples
    --------
    >>> call = column_major(GemmProblem(m=2, n=3, k=4, transpose_b=True), 4, 4, 3)
    >>> call.first, call.op_first, call.op_second, (call.m, call.n, call.k)
    ('b', 'T', 'N', (3, 2, 4))
    """
    return ColumnMajor(
        first="b",
        second="a",
        op_first="T" if problem.transpose_b else "N",
        op_second="T" if problem.transpose_a else "N",
        m=problem.n,
        n=problem.m,
        k=problem.k,
        ld_first=ld_b,
        ld_second=ld_a,
        ld_out=ld_out,
    )


def leading_dimension(array: Any, name: str) -> int:
    """Number of elements from one row to the next; raises ValueError if cuBLAS cannot address the rows."""
    rows, columns = array.shape
    step = int(array.strides[0] // array.itemsize if rows > 1 else columns)
    if (columns > 1 and array.strides[1] != array.itemsize) or step < columns or array.strides[0] % array.itemsize:
        raise ValueError(
            f"cuBLAS takes rows whose elements lie side by side; {name} of shape {array.shape} has strides of "
            f"{array.strides} bytes: copy it first"
        )
    return step


@dataclass(frozen=True, slots=True)
class CublasConfig(Config):
    math: str = "default"  # a key of MATH


class Cublas(Algorithm[GemmProblem, CublasConfig]):
    """``cublasSgemm``, ``cublasDgemm`` and ``cublasGemmEx``, into the caller's array, with the caller's workspace."""

    name = "cublas"
    summary = "cuBLAS, each type as it is"
    operation = "gemm"
    backend = "cuda"
    ours = False
    look = Mark("cublas", "circle", (6, 3))

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        if reason := tf32_refusal(self, problem):
            return reason
        if not problem.m * problem.n * problem.k:
            return Reason("cuBLAS is asked for products that sum at least one number")
        if max(problem.m, problem.n, problem.k) > 2**31 - 1:
            return Reason("cuBLAS is called with sizes of 32 bits")
        if is_integer(problem.dtype):
            if not problem.dtype == problem.b_dtype == "int8":
                return Reason("cuBLAS multiplies int8 by int8, not {dtype} by {b_dtype}",
                              dtype=problem.dtype, b_dtype=problem.b_dtype)  # fmt: skip
            for operand in problem.operands:
                if (count := operand.shape[-1]) % BYTES_OF_ROWS:
                    return Reason("cuBLAS takes rows of int8 of multiples of {bytes} bytes; {name} has rows of {count}",
                                  bytes=BYTES_OF_ROWS, name=operand.name.upper(), count=count)  # fmt: skip
        return missing_library("cublas", "cublasSetWorkspace_v2", _CALLS[problem.dtype])

    def configs(self, problem: GemmProblem, facts: DeviceFacts) -> Sequence[CublasConfig]:
        if self.precision == "tf32":
            return [CublasConfig("tf32")]
        return [CublasConfig()] if is_integer(problem.dtype) else [CublasConfig(), CublasConfig("pedantic")]

    def plan(self, problem: GemmProblem, config: CublasConfig, runtime: Runtime) -> PeerPlan:
        handle = _handle(getattr(runtime, "device", 0))

        def compute(buffers: Buffers, stream: Any) -> Any:
            out = runtime.empty((problem.m, problem.n), problem.out_dtype) if buffers["c"] is None else buffers["c"]
            handle.gemm(problem, MATH[config.math], {**buffers, "c": out}, runtime, stream)
            return out

        plan = PeerPlan(self, problem, config, runtime, compute=compute, prepare=operand_b,
                        kernel=_CALLS[problem.dtype], workspace_bytes=WORKSPACE_BYTES)  # fmt: skip
        plan.takes_gaps = False
        return plan

    def versions(self) -> dict[str, str]:
        library = shared_library("cublas")
        if library is None:
            return {"cublas": "unknown"}
        ask, parts = signature(library, "cublasGetProperty", c_int, ctypes.POINTER(c_int)), [c_int() for _ in range(3)]
        for i, part in enumerate(parts):
            ask(i, ctypes.byref(part))
        return {"cublas": ".".join(str(part.value) for part in parts)}


class CublasTf32(Cublas):
    """cuBLAS on tensor cores: factors rounded to TF32, sums in float32."""

    name = "cublas_tf32"
    summary = "cuBLAS, factors rounded to TF32"
    since = "cublas"
    precision = "tf32"
    look = Mark("cublas", "square", (6, 3))


class _Handle:
    """cuBLAS handle of one GPU; calls hold a lock, because stream, workspace and math mode belong to the handle."""

    def __init__(self, device: int) -> None:
        _make_current(device)
        library = shared_library("cublas")
        self._lock = threading.Lock()
        self._handle = c_void_p()
        self._name = signature(library, "cublasGetStatusString", c_int, result=ctypes.c_char_p)
        self._set_stream = signature(library, "cublasSetStream_v2", c_void_p, c_void_p)
        self._set_workspace = signature(library, "cublasSetWorkspace_v2", c_void_p, c_void_p, c_size_t)
        self._set_math = signature(library, "cublasSetMathMode", c_void_p, c_int)
        sizes = [c_void_p, c_int, c_int, c_int, c_int, c_int]
        matrices = [c_void_p, c_void_p, c_int, c_void_p, c_int, c_void_p, c_void_p, c_int]
        typed = [c_void_p, *[c_void_p, c_int, c_int] * 2, c_void_p, c_void_p, c_int, c_int]
        self._gemm = {
            dtype: signature(library, name, *sizes, *([*typed, c_int, c_int] if dtype in TYPES else matrices))
            for dtype, name in _CALLS.items()
        }
        self._check("cublasCreate", signature(library, "cublasCreate_v2", c_void_p)(ctypes.byref(self._handle)))

    def gemm(self, problem: GemmProblem, math: int, buffers: Buffers, runtime: Any, stream: Any) -> None:
        a, b, out, workspace = buffers["a"], buffers["b"].tensors["b"], buffers["c"], buffers["workspace"]
        call = column_major(
            problem, leading_dimension(a, "A"), leading_dimension(b, "B"), leading_dimension(out, "the output")
        )
        number, types = _NUMBERS[problem.acc_dtype], TYPES.get(problem.dtype)
        one, zero = number(1), number(0)
        matrices = {"a": address(a), "b": address(b)}
        with self._lock:
            # Set the workspace after the stream: for a new stream cuBLAS goes back to its own workspace, which it
            # would have to allocate while a graph is captured.
            self._check("cublasSetStream", self._set_stream(self._handle, runtime.stream_handle(stream)))
            self._check("cublasSetWorkspace", self._set_workspace(self._handle, address(workspace), workspace.nbytes))
            floats = types is not None and not is_integer(problem.dtype)
            self._check("cublasSetMathMode", self._set_math(self._handle, math | WIDE_SUMS if floats else math))
            factors, result, last = ([], [], []) if types is None else (
                [types.factors], [types.result], [types.compute, DEFAULT_METHOD]
            )  # fmt: skip
            status = self._gemm[problem.dtype](
                self._handle, OPERATION[call.op_first], OPERATION[call.op_second], call.m, call.n, call.k,
                ctypes.byref(one), matrices[call.first], *factors, call.ld_first, matrices[call.second], *factors,
                call.ld_second, ctypes.byref(zero), address(out), *result, call.ld_out, *last,
            )  # fmt: skip
            self._check(_CALLS[problem.dtype], status)

    def _check(self, call: str, status: int) -> None:
        if status:
            raise RuntimeError(f"{call} says {self._name(status).decode()}")


def _make_current(device: int) -> None:
    from cuda.core import Device

    Device(device).set_current()


@cache
def _handle(device: int) -> _Handle:
    return _Handle(device)
