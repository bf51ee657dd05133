"""The host side of conv.cuh: the struct of convolution kernels, and their compile-time constants."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from convforge.algorithms.contract import Buffers, Launch, Preparation
from convforge.algorithms.host.element_types import NUMBERS, ElementTypes
from convforge.backends.kernel import KernelSource, constants
from convforge.backends.runtime import LaunchInfo, Runtime
from convforge.problem import PADDING_MODES, Conv2dProblem
from convforge.problem.epilogue import ACTIVATIONS
from convforge.problem.types import WIDE, is_integer

# Largest grid along y and z, in blocks. Kernels with more work use a grid-stride loop.
MOST_BLOCKS = 65535
LIMIT_BITS = 30  # kernels divide only numbers below 2^30


class ArrayView(NamedTuple):
    """The address, shape and strides of an array."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


class Strides(ctypes.Structure):
    """Strides in elements, in the order N, C, H, W."""

    _fields_ = [(axis, ctypes.c_longlong) for axis in "nchw"]


def conv_struct(problem: Conv2dProblem) -> type[ctypes.Structure]:
    """struct Conv of conv.cuh for a problem's types and epilogue; one object for all problems with the same fields."""
    return _conv_struct(ElementTypes.of(problem), problem.epilogue.is_requantized)


@cache
def _conv_struct(types: ElementTypes, requantized: bool) -> type[ctypes.Structure]:
    pointers = [(name, ctypes.c_void_p) for name in ("x", "w", "out", "scale", "bias", "residual")]
    strides = [(f"{name}_strides", Strides) for name in ("x", "out", "residual")]
    sizes = [(name, ctypes.c_int) for name in ("N", "H", "W", "P", "Q", "top", "left")]
    acc, epilogue = NUMBERS[types.acc], NUMBERS[types.epilogue]
    numbers = [("outside", acc), ("zero", acc), ("alpha", epilogue)]
    fields = [*pointers, *strides, *sizes, *numbers, ("scale_channels", ctypes.c_int)]
    if requantized:  # else the struct is empty in C++, and lies in padding
        own = [(name, epilogue) for name in ("residual_scale", "out_scale", "out_zero_point")]
        fields.append(("requantization", type("Requantization", (ctypes.Structure,), {"_fields_": own})))
    return type("Conv", (ctypes.Structure,), {"_fields_": fields})


def conv_constants(problem: Conv2dProblem, math: str = "") -> tuple[str, ...]:
    """Source lines with a convolution's constants and types; `math` is the type of factors (default: that of sums)."""
    epilogue = problem.epilogue
    numbers = {
        "C": problem.c, "K": problem.k, "GROUPS": problem.groups,
        "C_GROUP": problem.c_per_group, "K_GROUP": problem.k_per_group, "R": problem.r, "S": problem.s,
        "STRIDE_H": problem.stride[0], "STRIDE_W": problem.stride[1],
        "DILATION_H": problem.dilation[0], "DILATION_W": problem.dilation[1],
        "BORDER": list(PADDING_MODES).index(problem.padding_mode),
        "ACTIVATION": list(ACTIVATIONS).index(epilogue.activation), "DIVISOR": epilogue.divisor,
    }  # fmt: skip
    flags = {
        "SCALE": epilogue.scale != "none", "BIAS": epilogue.bias, "RESIDUAL": epilogue.residual,
        "RESIDUAL_SCALE": epilogue.residual_scale != 1, "OUT_SCALE": epilogue.out_scale != 1,
        "OUT_ZERO_POINT": epilogue.out_zero_point != 0,
    }  # fmt: skip
    index = "long long" if problem.needs_wide_index else "int"
    amax = ("#define AMAX",) if epilogue.amax else ()
    types = ElementTypes.of(problem, math).prelude()
    return (*types, *constants(**numbers, **flags), f"using index_t = {index};", *amax)


def address(array: Any) -> int:
    found = getattr(array, "address", None)
    return int(array.__array_interface__["data"][0]) if found is None else int(found)


def with_conv(name: str, problem: Conv2dProblem, **fields: Any) -> type[ctypes.Structure]:
    """Type of a kernel's struct: struct Conv, then the kernel's own fields."""
    return type(name, (ctypes.Structure,), {"_fields_": [("conv", conv_struct(problem)), *fields.items()]})


def fill(conv: Any, problem: Conv2dProblem, buffers: Buffers) -> None:
    """Fill struct Conv for one call.

    Raises ValueError for strides too large for 32-bit indices, and for a scale or bias of the wrong type.
    """
    epilogue = problem.epilogue
    conv.x, conv.out = address(buffers["x"]), address(buffers["out"])
    if (w := buffers["w"].tensors.get("w")) is not None:  # else the weights are in constant memory
        conv.w = address(w)
    wide = problem.needs_wide_index
    conv.x_strides = strides(buffers["x"], problem.x_layout, wide)
    conv.out_strides = strides(buffers["out"], problem.out_layout, wide)
    if epilogue.scale != "none":
        conv.scale, conv.scale_channels = _operand(buffers["scale"], problem), int(epilogue.scale == "channel")
    if epilogue.bias:
        conv.bias = _operand(buffers["bias"], problem)
    if epilogue.residual:
        conv.residual = address(buffers["residual"])
        conv.residual_strides = strides(buffers["residual"], problem.out_layout, wide)
    conv.N, conv.H, conv.W, conv.P, conv.Q = problem.n, problem.h, problem.w, problem.p, problem.q
    conv.top, conv.left = problem.padding[0], problem.padding[2]
    number = float if not is_integer(problem.acc_dtype) else int
    conv.outside, conv.zero = number(problem.outside), number(epilogue.x_zero_point)
    conv.alpha = float(epilogue.alpha or 0.0)
    if epilogue.is_requantized:
        own = conv.requantization
        own.residual_scale, own.out_scale = epilogue.residual_scale, epilogue.out_scale
        own.out_zero_point = float(epilogue.out_zero_point)


def _operand(array: Any, problem: Conv2dProblem) -> int:
    """Address of scale or bias, a contiguous array in the problem's `operand_dtype`."""
    if np.dtype(array.dtype) != problem.operand_dtype:
        raise ValueError(f"scale and bias must be {problem.operand_dtype}; got {array.dtype}: cast it first")
    return address(array)


def strides(array: Any, layout: str, wide: bool) -> Strides:
    """Strides of an image or an output in this layout; `wide` is True if the kernel's indices have 64 bits.

    Raises ValueError if the indices have 32 bits and the array spans too many elements for them.
    """
    return _strides(tuple(array.shape), tuple(array.strides), array.itemsize, layout, wide)


@lru_cache(maxsize=1024)
def _strides(shape: tuple[int, ...], nbytes: tuple[int, ...], itemsize: int, layout: str, wide: bool) -> Strides:
    """Compute the strides in elements from `nbytes`, the strides in bytes. Callers must copy the cached struct."""
    steps = [step // itemsize for step in nbytes]
    if not wide:
        reach = sum((size - 1) * abs(step) for size, step in zip(shape, steps, strict=True))
        if reach > WIDE:
            raise ValueError(f"an array of shape {shape} spans {reach + 1} elements; make it contiguous first")
    order = (0, 1, 2, 3) if layout == "NCHW" else (0, 3, 1, 2)
    return Strides(*(steps[axis] for axis in order))


def is_aligned(
    address: int | None, strides: Strides, sizes: Mapping[str, int], run: Mapping[str, int], vector: int, nbytes: int
) -> bool:
    """True if vectors of `vector` contiguous elements are aligned to their size.

    `sizes` holds the sizes of the axes outside a contiguous run, by name: the stride of an axis of size 1 is ignored.
    `run` holds the strides that the axes within a run must have: ``{"w": 1}``, or ``{"c": 1, "w": 3}`` for pixels of
    three channels. It is empty where elements are read one at a time.

    Examples
    --------
    >>> is_aligned(4096, Strides(48, 24, 8, 1), {"n": 1, "c": 2, "h": 3}, {"w": 1}, 4, 4)
    True
    >>> is_aligned(4096, Strides(42, 21, 7, 1), {"n": 1, "c": 2, "h": 3}, {"w": 1}, 4, 4)
    False
    """
    for axis, step in run.items():
        if getattr(strides, axis) != step:
            return False
    for axis, size in sizes.items():
        if size > 1 and getattr(strides, axis) % vector:
            return False
    return (address or 0) % (vector * nbytes) == 0


class Divisor(ctypes.Structure):
    """struct Divisor of conv.cuh."""

    _fields_ = (("by", ctypes.c_int), ("factor", ctypes.c_uint), ("shift", ctypes.c_int))


def divisor(by: int) -> Divisor:
    """Factor and shift that replace a division by a number from 1 to 2^30 (Granlund and Montgomery, 1994).

    The factor is 2^shift / by, rounded up. So for a dividend below 2^30 the quotient is too large by less than 1 / by,
    and rounding it down is exact.

    Examples
    --------
    >>> seven = divisor(7)
    >>> (2**30 - 1) * seven.factor >> seven.shift == (2**30 - 1) // 7
    True
    """
    shift = LIMIT_BITS + (by - 1).bit_length()
    return Divisor(by, -(-(1 << shift) // by), shift)


class _Weights(ctypes.Structure):
    """struct Weights of weights.cu."""

    _fields_ = (
        ("w", ctypes.c_void_p), ("packed", ctypes.c_void_p),
        ("strides", ctypes.c_longlong * 4), ("packed_strides", ctypes.c_longlong * 4),
        *((name, ctypes.c_int) for name in ("K", "C_GROUP", "R", "S", "flip")),
    )  # fmt: skip


def pixel_channels(problem: Conv2dProblem) -> int:
    """Contiguous channels of a pixel of x: all C in NHWC, one in NCHW."""
    return problem.c if problem.x_layout == "NHWC" else 1


class WeightPacker(Preparation):
    """Casts, flips and reorders the weights on the device, for most methods.

    `order` is the order of the axes K, C, R, S in the packed filter, slowest first. `dtype` is its type, by default
    that of the sums.
    """

    def __init__(self, problem: Conv2dProblem, runtime: Runtime, order: str = "KCRS", dtype: str = "") -> None:
        sizes = dict(zip("KCRS", problem.w_shape, strict=True))
        shape = tuple(sizes[axis] for axis in order)
        steps = {axis: int(np.prod(shape[i + 1 :], dtype=np.int64)) for i, axis in enumerate(order)}
        packed_strides = (ctypes.c_longlong * 4)(*(steps[axis] for axis in "KCRS"))
        dtype = dtype or problem.acc_dtype
        types = ElementTypes(w=problem.w_dtype, acc=dtype).prelude()
        source = KernelSource(
            "algorithms/host/weights.cu", "pack_weights", (*types, *constants(K_LAST=order[-1] == "K")),
            _Weights, "Weights",
        )  # fmt: skip
        squares = -(-problem.k // 32) * -(-problem.taps // 32)
        info = LaunchInfo("pack_weights", (squares,), (32, 8), pdl=True)
        flip = int(problem.mode == "convolution")

        def arguments(buffers: Buffers) -> Any:
            w = buffers["given"]
            strides = (ctypes.c_longlong * 4)(*[step // w.itemsize for step in w.strides])
            return _Weights(address(w), address(buffers["w"]), strides, packed_strides, *problem.w_shape, flip)

        super().__init__(runtime, {"w": (shape, dtype)}, [Launch(info, runtime.compile(source), arguments, runtime)])
