"""Matrix products computed as convolutions with 1x1 filters, by the tensor-core methods of implicit GEMM.

C = A B is the output of a convolution: the rows of A are M pixels of K channels, the columns of B are N filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, cast

from convforge.algorithms.contract import Buffers, Config, Launch, Plan, Preparation, PreparedFilter
from convforge.algorithms.gemm import mma
from convforge.algorithms.host.chained import Chained, on_views
from convforge.algorithms.host.conv import MOST_BLOCKS, ArrayView, address
from convforge.algorithms.host.on_device import DeviceConvolution, OnDevice
from convforge.algorithms.implicit_gemm.mma import ImplicitGemmTf32Mma, ImplicitMmaConfig
from convforge.algorithms.implicit_gemm.split import ImplicitGemmSplit
from convforge.algorithms.implicit_gemm.split_mma import ImplicitGemmSplitMma, SplitMmaConfig
from convforge.algorithms.implicit_gemm.split_tiles import PRODUCTS, SplitConfig
from convforge.algorithms.implicit_gemm.stages import PixelRows, row_pitch
from convforge.algorithms.implicit_gemm.wgmma import TENSOR_PRODUCTS, ImplicitGemmTf32, device_refusal
from convforge.algorithms.implicit_gemm.wgmma_tiles import MOST_COUNT, WgmmaConfig
from convforge.algorithms.traits import Mark, MethodCost, Preference, Rank, Way, Work
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason
from convforge.problem import Conv2dProblem, GemmProblem

# Largest K: pixel_rows.cu and split_pixels.cu write 64 numbers along K for each block along y.
MOST_K = 64 * MOST_BLOCKS

C = TypeVar("C", bound=Config)


class ByConvolution(OnDevice[GemmProblem, C], Generic[C]):
    """A product of float32 matrices by a convolution on tensor cores."""

    operation = "gemm"
    since = "gemm_wgmma"
    cost = MethodCost(1.0, 0.8, 16384, 2)
    convolution: ClassVar[type[DeviceConvolution[Any]]]
    products: ClassVar[int]  # 16-bit products in the time of one product of this method
    at_once: ClassVar[float] = TENSOR_PRODUCTS  # 16-bit products in the time of a float32 multiply-add
    preferred: ClassVar[Preference] = Preference(  # for large matrices
        Rank.TENSOR_CORES, "float32 and large matrices: tensor cores, whose tiles the TMA loads"
    )
    lacks = staticmethod(device_refusal)  # the reason why a device does not have the tensor cores

    def __init__(self, backend: str = "cuda") -> None:
        super().__init__(backend)
        self._convolution = self.convolution(backend)

    def preference_for(self, problem: GemmProblem, facts: DeviceFacts) -> Preference | None:
        # A tile of C should not be mostly empty, and the products should outweigh the launches before the kernel.
        large = min(problem.m, problem.n) >= 64 and problem.outputs * problem.k >= 2**24
        return self.preferred if large and problem.dtype == "float32" else None

    def work_for(self, problem: GemmProblem) -> Work:
        return Work(problem.flops * self.products / self.at_once, problem.least_bytes)

    def ways(self, problem: GemmProblem, config: C) -> tuple[Way, ...]:
        words = Reason("the product is a convolution of 1x1: rows of A are pixels, and columns of B are filters")
        return Way("convolution", "default", words), *self._convolution.ways(convolution_of(problem), config)

    def refuses(self, problem: GemmProblem, facts: DeviceFacts) -> Reason | None:
        if (reason := self.lacks(facts)) is not None:
            return reason
        if problem.dtype != "float32":
            return Reason("it multiplies float32, not {dtype}", dtype=problem.dtype)
        if not problem.outputs * problem.k:
            return Reason("it multiplies matrices that have at least one element")
        for name, most in (("m", MOST_COUNT), ("n", MOST_COUNT), ("k", MOST_K)):
            if (count := getattr(problem, name)) > most:
                return Reason("{name} is at most {most}, not {count}", name=name.upper(), most=most, count=count)
        return self._convolution.refuses(convolution_of(problem), facts)

    def configs(self, problem: GemmProblem, facts: DeviceFacts) -> Sequence[C]:
        return self._convolution.configs(convolution_of(problem), facts)

    def plan(self, problem: GemmProblem, config: C, runtime: Runtime) -> Plan:
        return self._plan_by(self._convolution.plan(convolution_of(problem), config, runtime), problem)

    def _plan_by(self, inner: Plan, problem: GemmProblem) -> Plan:
        """Make the plan of a product from a convolution's plan: the same launches, on views of the matrices."""

        def arrays(buffers: Buffers) -> Buffers:
            x, out = pixels_of(buffers["a"], problem), results_of(buffers["c"])
            return {**buffers, "x": x, "w": buffers["b"], "out": out}

        def step_of(step: Any) -> Launch:
            make = step.otherwise
            otherwise = None if make is None else cache(lambda: self._plan_by(make(), problem))
            return replace(on_views(step, arrays), otherwise=otherwise)

        runtime, kept, lent = inner.runtime, cast(Preparation, inner.packing), cast(Preparation, inner.preparation)
        return Plan(
            self, problem, inner.config, runtime, steps=[step_of(step) for step in inner.steps],
            prepare=Columns(kept, lent, problem, runtime), borrow=Columns(lent, lent, problem, runtime),
            workspace_bytes=inner.workspace_bytes,
        )  # fmt: skip


class Columns(Preparation):
    """Prepares the columns of B by a convolution's preparation of filters.

    Filters are contiguous along K. If B is contiguous along N, :func:`column_rows` first writes rows along K.
    """

    def __init__(self, filters: Preparation, lent: Preparation, problem: GemmProblem, runtime: Runtime) -> None:
        self._filters, self._lent, self._problem, self._runtime = filters, lent, problem, runtime

        def viewed(buffers: Buffers) -> Buffers:
            return {**buffers, "given": filters_of(buffers["given"], problem)}

        steps = [on_views(step, viewed) for step in filters.steps]
        super().__init__(
            runtime, filters.pieces, steps, lambda buffers, stream: filters.finish(viewed(buffers), stream)
        )

    def of(self, given: Any) -> Preparation:
        view = filters_of(given, self._problem)
        if view.strides[0] == view.itemsize and min(view.shape[:2]) > 1:
            return column_rows(self._lent, self._problem, self._runtime)
        filters = self._filters.of(view)
        return self if filters is self._filters else Columns(filters, self._lent, self._problem, self._runtime)


def column_rows(lent: Preparation, problem: GemmProblem, runtime: Runtime) -> Chained:
    """Preparation that writes the columns of B as rows, like pixels of K channels, then prepares these as filters."""
    n, k = problem.n, problem.k
    image = Conv2dProblem(n=1, c=k, h=1, w=n, k=1, r=1, s=1, x_layout="NCHW", out_layout="NHWC")
    rows, pitch = PixelRows(image, image.replace(x_layout="NHWC"), runtime), row_pitch(image, k)

    def filters(at: int) -> ArrayView:
        return ArrayView(at, (n, k, 1, 1), (pitch, 4, 4, 4), 4)

    def columns(buffers: Buffers) -> Buffers:
        view = filters_of(buffers["given"], problem)
        x = _planes(view.address, k, n, view.itemsize, *view.strides[1::-1])
        return {"x": x, "out": x, "w": PreparedFilter({}, 0), "workspace": buffers["workspace"]}

    return Chained(
        runtime, [on_views(rows.launch, columns)], lent.of(filters(0)), "workspace", ((rows.nbytes,), "uint8"),
        lambda buffers: filters(rows.arrays(buffers)["x"].address),
    )  # fmt: skip


def convolution_of(problem: GemmProblem) -> Conv2dProblem:
    """The convolution that computes a matrix product: M pixels of K channels, and N filters of 1x1.

    The image is one row of pixels, so that tiles never end at a row's end; tensor maps hold up to 2^32 - 1 pixels. If A
    is stored as (K, M), the image is NCHW. The TMA cannot load it, so every config first writes rows to the workspace.

    Examples
    --------
    >>> str(convolution_of(GemmProblem(m=200, n=72, k=96)))
    'n1c96h1w200_k72r1s1_st1_p0_f32_nhwc'
    """
    return Conv2dProblem(
        n=1, c=problem.k, h=1, w=problem.m, k=problem.n, r=1, s=1, x_dtype=problem.dtype, w_dtype=problem.dtype,
        x_layout="NCHW" if problem.transpose_a else "NHWC", out_layout="NHWC", precision=problem.precision,
    )  # fmt: skip


def pixels_of(a: Any, problem: GemmProblem) -> ArrayView:
    """View A as an image of one row, in the layout of :func:`convolution_of`."""
    if problem.transpose_a:
        return _planes(address(a), problem.k, problem.m, a.itemsize, *a.strides)
    m, k, (of_m, of_k) = problem.m, problem.k, a.strides
    if m == 1:  # the stride of an axis of length 1 may be any number, but the TMA requires multiples of 16 bytes
        of_m = k * a.itemsize
    return ArrayView(address(a), (1, 1, m, k), (of_m * m, of_m * m, of_m, of_k), a.itemsize)


def _planes(at: int, k: int, count: int, size: int, of_k: int, of_pixel: int) -> ArrayView:
    """NCHW image of one row of `count` pixels with `k` channels."""
    return ArrayView(at, (1, k, 1, count), (of_k * k, of_k, of_pixel * count, of_pixel), size)


def filters_of(b: Any, problem: GemmProblem) -> ArrayView:
    """View B as filters (N, K, 1, 1): filter n is column n of B."""
    of_n, of_k = b.strides if problem.transpose_b else reversed(b.strides)
    return ArrayView(address(b), (problem.n, problem.k, 1, 1), (of_n, of_k, b.itemsize, b.itemsize), b.itemsize)


def results_of(c: Any) -> ArrayView:
    """View C as an NHWC image of one row of M pixels with N channels."""
    (m, n), (of_m, of_n) = c.shape, c.strides
    return ArrayView(address(c), (1, 1, m, n), (of_m * m, of_m * m, of_m, of_n), c.itemsize)


def _renamed(method: type[DeviceConvolution[Any]], name: str) -> type[DeviceConvolution[Any]]:
    """The convolution under the product's name, so that profilers tell their kernels apart."""
    return type(method.__name__, (method,), {"name": name})


class GemmSplit(ByConvolution[SplitConfig]):
    """Matrix product of float32, computed as three products of 16-bit numbers: :class:`ImplicitGemmSplit`."""

    name = "gemm_split"
    summary = "float32 on the tensor cores of Hopper, each number split into two of 16 bits; sm_90"
    look = Mark("pink", "diamond")
    convolution = _renamed(ImplicitGemmSplit, name)
    products = PRODUCTS


class GemmTf32(ByConvolution[WgmmaConfig]):
    """Matrix product of float32 rounded to TF32: :class:`ImplicitGemmTf32`."""

    name = "gemm_tf32"
    summary = "float32, rounded to TF32, on the tensor cores of Hopper; sm_90"
    precision = "tf32"
    look = Mark("pink", "square")
    convolution = _renamed(ImplicitGemmTf32, name)
    products = 2  # tensor cores need twice as long for a product of TF32 as for one of 16 bits


class _ByWarps(ByConvolution[C]):
    """A product on the tensor cores of any GPU since Ampere."""

    since = "gemm_mma"
    at_once = mma.PRODUCTS
    preferred = Preference(
        Rank.TENSOR_CORES_OF_WARPS, "float32 and large matrices: tensor cores, whose factors warps hold"
    )
    lacks = staticmethod(mma.device_refusal)


class GemmSplitMma(_ByWarps[SplitMmaConfig]):
    """Matrix product of float32, computed as three products of 16-bit numbers: :class:`ImplicitGemmSplitMma`."""

    name = "gemm_split_mma"
    summary = "float32 on tensor cores, each number split into two of 16 bits; sm_80"
    look = Mark("brown", "diamond")
    convolution = _renamed(ImplicitGemmSplitMma, name)
    products = PRODUCTS


class GemmTf32Mma(_ByWarps[ImplicitMmaConfig]):
    """Matrix product of float32 rounded to TF32: :class:`ImplicitGemmTf32Mma`."""

    name = "gemm_tf32_mma"
    summary = "float32, rounded to TF32, on tensor cores; sm_80"
    precision = "tf32"
    look = Mark("brown", "cross")
    convolution = _renamed(ImplicitGemmTf32Mma, name)
    products = 2
