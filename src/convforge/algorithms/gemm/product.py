"""The host side of gemm.cuh: operands, structs, and a kernel of the ladder compiled for one kind of product.

A product writes a plain matrix, or the output of a convolution through its epilogue, for im2col and implicit GEMM.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from convforge.algorithms.contract import Buffers
from convforge.algorithms.host.conv import address, conv_constants, conv_struct, fill
from convforge.algorithms.host.element_types import ElementTypes
from convforge.algorithms.host.resident import with_occupancy_cap
from convforge.backends.kernel import KernelSource
from convforge.backends.kernel import constants as prelude_constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import Conv2dProblem
from convforge.problem.types import VECTOR_BYTES, WIDE, accumulation_dtype, is_integer, itemsize

MOST_TILES = 2**31 - 1  # largest grid along x, in blocks
MOST_COLUMNS = 1 << 30  # most columns of a product that writes a convolution's output, counted in 32 bits


class Operand(ctypes.Structure):
    """struct Operand of loader.cuh."""

    _fields_ = (("data", ctypes.c_void_p), ("group", ctypes.c_longlong),
                *((name, ctypes.c_int) for name in ("mn_stride", "k_stride", "vectors")))  # fmt: skip


class _Store(ctypes.Structure):
    """struct Store of gemm.cuh for a plain matrix."""

    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int) for name in ("row", "column", "vectors")))


@cache
def _gemm_struct(conv: type[ctypes.Structure] | None = None, wide: bool = False) -> type[ctypes.Structure]:
    """struct Gemm of gemm.cuh: for a convolution with this struct Conv, else for a matrix."""
    store: type[ctypes.Structure] = _Store
    if conv is not None:
        first = ctypes.c_longlong if wide else ctypes.c_int
        fields = [("conv", conv), ("first", first), ("vectors", ctypes.c_int)]
        store = type("Store", (ctypes.Structure,), {"_fields_": fields})
    sizes = [(name, ctypes.c_int) for name in "MNK"]
    return type("Gemm", (ctypes.Structure,), {"_fields_": [("a", Operand), ("b", Operand), ("store", store), *sizes]})


def operand(data: int, size: int, mn_stride: int, k_stride: int, k_major: bool, group: int = 0) -> Operand:
    """Struct of one operand of a call, K-major or MN-major as the kernel was compiled.

    `size` is the size of an element in bytes. `mn_stride` (along M or N), `k_stride` and `group` (from one group's
    matrix to the next) are in elements. Raises ValueError for a stride that exceeds 32 bits.
    """
    if max(abs(mn_stride), abs(k_stride)) > WIDE:
        raise ValueError(
            f"strides of {mn_stride} and {k_stride} elements exceed 32 bits; make the matrix contiguous first"
        )
    inner, outer = (k_stride, mn_stride) if k_major else (mn_stride, k_stride)
    aligned = all(number * size % VECTOR_BYTES == 0 for number in (outer, group))
    vectors = inner == 1 and aligned and not data % VECTOR_BYTES
    return Operand(data, group, mn_stride, k_stride, int(vectors))


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tile, threads, constants and shared memory of a config's kernel."""

    block_m: int
    block_n: int
    threads: tuple[int, ...]
    constants: tuple[tuple[str, int], ...] = ()  # further constants of the kernel
    shared_bytes: int = 0  # dynamic shared memory of a block

    def tiles(self, m: int, n: int, groups: int = 1) -> int:
        return -(-m // self.block_m) * -(-n // self.block_n) * groups


class Product:
    """A kernel compiled for products of one kind: element types, major axes of the operands, and the output.

    `dtype` and `b_dtype` are the types of A and B; they differ only for integers. C is the output of `convolution`; by
    default it is a matrix of `dtype`, or of int32 for integers. `constants` are further source lines. `around` maps
    struct Gemm to the kernel's struct, if the kernel has another one.
    """

    def __init__(
        self, path: str, name: str, tiling: Tiling, runtime: Runtime, a_k_major: bool, b_k_major: bool, dtype: str,
        convolution: Conv2dProblem | None = None, constants: tuple[str, ...] = (),
        around: Callable[[Any], Any] | None = None, b_dtype: str = "",
    ) -> None:  # fmt: skip
        self.tiling, self.runtime, self.name = tiling, runtime, name
        self.convolution, self._factors = convolution, dtype
        numbers = {"BLOCK_M": tiling.block_m, "BLOCK_N": tiling.block_n, **dict(tiling.constants)}
        c_m_major = convolution is not None and convolution.out_layout == "NHWC"
        flags = {"A_K_MAJOR": a_k_major, "B_K_MAJOR": b_k_major, "C_M_MAJOR": c_m_major}
        own = (*prelude_constants(**numbers, **flags), *constants)
        if convolution is None:
            self.struct = _gemm_struct()
            prelude = _matrix_types(dtype, b_dtype or dtype)
        else:
            self.struct = _gemm_struct(conv_struct(convolution), convolution.needs_wide_index)
            prelude = ("#define CONVOLUTION", *conv_constants(convolution, dtype))
        self.arguments = self.struct if around is None else around(self.struct)
        source = KernelSource(path, name, (*prelude, *own), self.arguments, self.arguments.__name__)
        self.kernel = runtime.compile(source)

    def info(self, m: int, n: int, groups: int = 1, pdl: bool = False) -> LaunchInfo:
        """Launch of an m x n product, with an occupancy cap for PDL. Raises ValueError for too many blocks."""
        tiles = self.tiling.tiles(m, n, groups)
        if tiles > MOST_TILES:
            raise ValueError(f"{self.name}: {m} x {n} takes {tiles} blocks of {self.tiling.block_m} x "
                             f"{self.tiling.block_n}; a grid has at most {MOST_TILES}")  # fmt: skip
        info = LaunchInfo(self.name, (tiles,), self.tiling.threads, self.tiling.shared_bytes, pdl=pdl)
        return with_occupancy_cap(self.runtime, self.kernel, info)

    def matrix(self, a: Operand, b: Operand, c: Any, k: int) -> Any:
        """Struct of a call that writes the matrix `c`; `k` is the number of products per element."""
        row, column = strides_of(c)
        if max(abs(row), abs(column)) > WIDE:
            raise ValueError(f"strides of {row} and {column} elements exceed 32 bits; make the output contiguous first")
        data, width = address(c), min(4, VECTOR_BYTES // c.itemsize) * c.itemsize
        args = self.struct(a=a, b=b, M=c.shape[0], N=c.shape[1], K=k)
        args.store.data, args.store.row, args.store.column = data, row, column
        args.store.vectors = int(column == 1 and not row * c.itemsize % width and not data % width)
        return args

    def output(self, buffers: Buffers, n: int, k: int, first: int = 0) -> Any:
        """Struct of a call that writes columns [first, first + n) of a convolution; the caller fills in B."""
        problem = self.convolution
        assert problem is not None
        args = self.struct(M=problem.k_per_group, N=n, K=k)
        fill(args.store.conv, problem, buffers)
        args.store.first = first
        args.store.vectors = int(_output_vectors(problem, args.store.conv, first))
        w = address(buffers["w"].tensors["w"])
        args.a = operand(w, itemsize(self._factors), 1, problem.k, False, problem.k_per_group)
        return args


def _output_vectors(problem: Conv2dProblem, conv: Any, first: int) -> bool:
    """True if four neighbouring sums of C are contiguous in the output, and aligned for one store."""
    size = itemsize(problem.out_dtype)
    each = min(4, VECTOR_BYTES // size)
    if (conv.out or 0) % (each * size):
        return False
    steps = {axis: getattr(conv.out_strides, axis) for axis in "nchw"}
    aligned = {axis for axis, step in steps.items() if not step % each}
    if problem.out_layout == "NHWC":
        return steps["c"] == 1 and {"n", "h", "w"} <= aligned and not problem.k_per_group % 4
    flat = steps["w"] == 1 and (steps["h"] == problem.q or problem.p == 1)
    return flat and {"n", "c"} <= aligned and not problem.p * problem.q % 4 and not first % 4


def _matrix_types(dtype: str, b_dtype: str) -> tuple[str, ...]:
    """Source lines with the types of a product of plain matrices. For integers, A has type x_t and B type w_t."""
    acc = accumulation_dtype(dtype, b_dtype)
    if is_integer(dtype):
        types = ElementTypes(x=dtype, w=b_dtype, out=acc, math=dtype, acc=acc)
        return ("#define FACTORS_ARE_BYTES", *types.prelude())
    return ElementTypes(out=dtype, math=dtype, acc=acc).prelude()


def strides_of(array: Any) -> tuple[int, ...]:
    """Strides in elements; 0 for an axis of length 1, because its stride is arbitrary."""
    steps = zip(array.strides, array.shape, strict=True)
    return tuple(step // array.itemsize if length > 1 else 0 for step, length in steps)


def blocked_flops(problem: Conv2dProblem) -> float:
    """FLOPs of a convolution as a matrix product in blocks of 32 filters; a partial block counts as a whole one."""
    k = problem.k_per_group
    return problem.flops * -(-k // 32) * 32 / max(k, 1)
