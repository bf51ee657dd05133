"""NPP, NVIDIA's library of image functions: ``nppiFilterBorder`` filters images into the caller's array.

NPP computes a mathematical convolution, with a flipped filter, about an anchor (a, b)::

    out[y, x] = sum over j, i of  K[j, i] * image[y + b - j, x + a - i]

A pixel outside the image has the value of the nearest pixel inside. A cross-correlation with padding (top, left) equals
this convolution with a flipped filter and the anchor (S - 1 - left, R - 1 - top): substitute i = S - 1 - s. Filters are
in GPU memory. The channels of interleaved pixels (C3R, C4R) share one filter; planes (C1R) are filtered one by one,
each with its own filter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int, c_size_t, c_uint, c_void_p
from functools import cache, lru_cache
from typing import Any

from convforge.algorithms.contract import Algorithm, Buffers, Config, PreparedFilter
from convforge.algorithms.host.conv import WeightPacker, address, pixel_channels
from convforge.algorithms.traits import Mark
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason, UnsupportedProblem
from convforge.peers.contract import (
    PeerPlan,
    missing_epilogue,
    missing_library,
    packed_address,
    shared_library,
    signature,
)
from convforge.peers.planes import MOST_FILTERINGS
from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer, itemsize

REPLICATE = 2  # NppiBorderType: the only one that these functions support
# Dtype of the pixels -> function name without channels: for float32 filters, and for int32 filters with a divisor.
BY_FLOATS = {"float32": "nppiFilterBorder_32f", "float16": "nppiFilterBorder32f_16f"}
BY_INTEGERS = {"uint8": "nppiFilterBorder_8u", "uint16": "nppiFilterBorder_16u", "int16": "nppiFilterBorder_16s"}
CALL = "nppiFilterBorder"
INTERLEAVED = (1, 3, 4)  # channels of a pixel


class Size(ctypes.Structure):
    """NppiSize, in pixels."""

    _fields_ = (("width", c_int), ("height", c_int))


class Point(ctypes.Structure):
    """NppiPoint, in pixels."""

    _fields_ = (("x", c_int), ("y", c_int))


class Context(ctypes.Structure):
    """NppStreamContext: the stream, and GPU properties that NPP would otherwise query on every call."""

    _fields_ = (
        ("hStream", c_void_p),
        *((name, c_int) for name in ("nCudaDeviceId", "nMultiProcessorCount", "nMaxThreadsPerMultiProcessor",
                                     "nMaxThreadsPerBlock")),
        ("nSharedMemPerBlock", c_size_t),
        ("nCudaDevAttrComputeCapabilityMajor", c_int), ("nCudaDevAttrComputeCapabilityMinor", c_int),
        ("nStreamFlags", c_uint), ("nReserved0", c_uint),
    )  # fmt: skip


class NppFilter(Algorithm[Conv2dProblem, Config]):
    """``nppiFilterBorder`` on interleaved pixels, or on planes, with one call per image or plane.

    Integer pixels need integer filters: their sums are exact and saturate. With a float filter NPP would truncate the
    sums, but the problem rounds them.
    """

    name = "npp_filter"
    summary = "NPP's nppiFilterBorder, on interleaved pixels or plane by plane"
    operation = "conv2d"
    backend = "cuda"
    ours = False
    look = Mark("npp", "triangle-right", (4, 2, 1, 2))

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        reason = missing_library("nppif") or missing_epilogue(problem, CALL) or _type_refusal(problem)
        return reason or _shape_refusal(problem) or missing_library("nppif", function_name(problem))

    def plan(self, problem: Conv2dProblem, config: Config, runtime: Runtime) -> PeerPlan:
        name = function_name(problem)
        call = _function(name)
        size, region = Size(problem.w, problem.h), Size(problem.q, problem.p)
        kernel, start = Size(problem.s, problem.r), Point(0, 0)
        anchor = Point(problem.s - 1 - problem.padding[2], problem.r - 1 - problem.padding[0])
        divisor = (1,) if is_integer(problem.w_dtype) else ()
        pixel = pixel_channels(problem) * itemsize(problem.x_dtype)
        parts = parts_of(problem)

        def compute(buffers: Buffers, stream: Any) -> Any:
            out = runtime.empty(problem.out_shape, problem.out_dtype) if buffers["out"] is None else buffers["out"]
            x, target = packed_address(buffers["x"], "NPP"), packed_address(out, "NPP")
            w = address(buffers["w"].tensors["w"])
            context = stream_context(runtime, stream)
            for source_at, target_at, filter_at in parts:
                status = call(
                    x + source_at, pixel * problem.w, size, start, target + target_at, pixel * problem.q, region,
                    w + filter_at, kernel, anchor, *divisor, REPLICATE, context,
                )  # fmt: skip
                if status:
                    raise RuntimeError(f"{name} gives status {status}")
            return out

        prepare = self._prepare(problem, runtime)
        plan = PeerPlan(self, problem, config, runtime, compute=compute, prepare=prepare, kernel=name)
        plan.takes_gaps = False
        return plan

    def versions(self) -> dict[str, str]:
        library = shared_library("nppc")
        if library is None:
            return {"npp": "unknown"}
        found = signature(library, "nppGetLibVersion", result=ctypes.POINTER(c_int * 3))().contents
        return {"npp": ".".join(str(part) for part in found)}  # major, minor, build of NppLibraryVersion

    def _prepare(self, problem: Conv2dProblem, runtime: Runtime) -> Callable[[Any, Any], PreparedFilter]:
        """Make `prepare`: it flips filters on the GPU, and raises UnsupportedProblem if a pixel's channels differ."""
        turned = "convolution" if problem.mode == "cross-correlation" else "cross-correlation"
        dtype, shared = "int32" if is_integer(problem.w_dtype) else "float32", pixel_channels(problem) > 1
        pack = WeightPacker(problem.replace(mode=turned), runtime, dtype=dtype)

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            packed = pack(w, stream)
            # The comparison waits for the GPU, which is forbidden in a capture; captured weights were compared before.
            if shared and not runtime.is_capturing(stream):
                runtime.synchronize(stream)
                found = runtime.download(packed.tensors["w"])
                if not (found == found[:1]).all():
                    reason = Reason(
                        "{call} has one filter for all channels of a pixel; here each has its own", call=CALL
                    )
                    raise UnsupportedProblem(str(problem), {self.name: reason})
            note = Reason("one filter for all channels") if shared else None
            return PreparedFilter(packed.tensors, packed.nbytes, note)

        return prepare


def _type_refusal(problem: Conv2dProblem) -> Reason | None:
    """Reason if NPP's filters lack a dtype of the problem; else None."""
    x_dtype, types = problem.x_dtype, BY_FLOATS | BY_INTEGERS
    if x_dtype not in types:
        return Reason("{call} is called for {types}; x is {dtype}", call=CALL, types=", ".join(types), dtype=x_dtype)
    if problem.out_dtype != x_dtype:
        return Reason("{call} gives the type that it takes; x is {pixels}, the output {out_dtype}",
                      call=CALL, pixels=x_dtype, out_dtype=problem.out_dtype)  # fmt: skip
    if is_integer(x_dtype) and not is_integer(problem.w_dtype):
        return Reason("{call} cuts the fractions of {dtype} sums off; the problem rounds them",
                      call=f"{CALL}32f", dtype=x_dtype)  # fmt: skip
    if problem.acc_dtype == "float64" or problem.w_dtype == "bfloat16":
        return Reason("{call} sums float pixels in float32, by filters of float32", call=CALL)
    return None


def _shape_refusal(problem: Conv2dProblem) -> Reason | None:
    """Reason if NPP's filters lack the problem's channels, strides, layouts or borders; else None."""
    top, bottom, left, right = problem.padding
    if problem.c_per_group > 1:
        return Reason("{call} filters channels by themselves; it adds up none", call=CALL)
    if problem.stride != (1, 1) or problem.dilation != (1, 1):
        return Reason("{call} has neither strides nor dilation", call=CALL)
    if problem.x_layout != problem.out_layout:
        return Reason("x is {x_layout} and the output {out_layout}; NPP takes one layout",
                      x_layout=problem.x_layout, out_layout=problem.out_layout)  # fmt: skip
    if problem.x_layout == "NHWC" and (problem.k != problem.c or problem.c not in INTERLEAVED):
        return Reason("{call} takes pixels of 1, 3 or 4 channels to as many; these have {c} to {k}",
                      call=CALL, c=problem.c, k=problem.k)  # fmt: skip
    if not 0 < (calls := len(parts_of(problem))) <= MOST_FILTERINGS:
        return Reason("{call} filters images: {calls} calls are not in 1 to {most}",
                      call=CALL, calls=calls, most=MOST_FILTERINGS)  # fmt: skip
    if any(problem.padding) and problem.padding_mode != "replicate":
        return Reason("{call} has the border {own!r} alone; the problem's is {border!r}",
                      call=CALL, own="replicate", border=problem.padding_mode)  # fmt: skip
    if max(top, bottom) >= problem.r or max(left, right) >= problem.s or problem.p > problem.h or problem.q > problem.w:
        return Reason("the output reaches beyond the image, which {call}'s does not", call=CALL)
    return None


def function_name(problem: Conv2dProblem) -> str:
    kinds = BY_INTEGERS if is_integer(problem.x_dtype) else BY_FLOATS
    return f"{kinds[problem.x_dtype]}_C{pixel_channels(problem)}R_Ctx"


def parts_of(problem: Conv2dProblem) -> list[tuple[int, int, int]]:
    """Byte offsets for each call: of its image or plane in x and in the output, and of its filter."""
    beside, bytes_each = pixel_channels(problem), itemsize(problem.x_dtype)
    source = problem.h * problem.w * beside * bytes_each
    target = problem.p * problem.q * beside * bytes_each
    if problem.x_layout == "NHWC":
        return [(n * source, n * target, 0) for n in range(problem.n)]
    taps = 4 * problem.r * problem.s
    return [
        ((n * problem.c + k // problem.k_per_group) * source, (n * problem.k + k) * target, k * taps)
        for n in range(problem.n)
        for k in range(problem.k)
    ]


def stream_context(runtime: Any, stream: Any) -> Context:
    """Make NPP's context for a stream; the runtime's GPU becomes the current one of the calling thread."""
    from cuda.core import Device

    Device(runtime.device).set_current()
    handle = runtime.stream_handle(stream)
    return Context(handle, *_properties(runtime.device), _flags(handle), 0)


@lru_cache(maxsize=64)
def _flags(handle: int) -> int:
    """Flags of a stream, cached: call this once before a capture, which forbids the query."""
    from cuda.bindings import driver

    from convforge.backends.cuda.driver import checked

    return int(checked(driver.cuStreamGetFlags(handle)))


@cache
def _properties(device: int) -> tuple[int, ...]:
    """Fields of :class:`Context` that are the same for all streams of a GPU."""
    from cuda.core import Device

    gpu = Device(device)
    about, (major, minor) = gpu.properties, gpu.compute_capability
    return (device, about.multiprocessor_count, about.max_threads_per_multiprocessor, about.max_threads_per_block,
            about.max_shared_memory_per_block, major, minor)  # fmt: skip


def _function(name: str) -> Callable[..., int]:
    divisor = (c_int,) if any(name.startswith(f"{known}_C") for known in BY_INTEGERS.values()) else ()
    image = (c_void_p, c_int, Size)
    found: Callable[..., int] = signature(
        shared_library("nppif"), name, *image, Point, *image, c_void_p, Size, Point, *divisor, c_int, Context
    )
    return found
