"""Elementwise bounds of the error of a correct result, for each precision class.

u is the unit roundoff of a type (2^-24 for float32) and gamma_n = n u / (1 - n u). A sum of n products in any order,
with or without FMA, errs by at most gamma_n (|x| conv |w|): N. J. Higham, Accuracy and Stability of Numerical
Algorithms, 2nd edition, section 3.1. The bound admits TF32; the gate on RMS errors in gate.py does not.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Conv2dProblem, Epilogue, GemmProblem, Problem
from convforge.problem.types import FP8, finfo, is_integer, numpy_dtype, to_float
from convforge.verify.inputs import Inputs
from convforge.verify.truth import Floats, Truth, conv2d_truth, matrices

# Class -> unit roundoff of the type that factors are rounded to, doubled if hardware may truncate; for FP8 of e5m2.
NARROWED: dict[str, float] = {"tf32": 2.0**-10, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-3, "fp8_fast": 2.0**-3}

# Class -> absolute error of a factor by underflow, and for scaled factors its error / the array's largest value.
UNDERFLOW: dict[str, tuple[float, float]] = {
    "fp16": (2.0**-25, 0.0), "fp8": (2.0**-10, 2.0**-10 / 448), "fp8_fast": (2.0**-10, 2.0**-10 / 448),
}  # fmt: skip

# Tensor cores for 8-bit floats align PRODUCTS_OF_A_STEP products and the sum so far to the largest of them, cut off all
# below 2^-13 of its power of two, and cut off their sum in the same way (DeepSeek-AI, DeepSeek-V3 technical report,
# 2024, section 3.3.2). Each of these 34 numbers loses less than 2^-13 of the largest, which the magnitude exceeds. So a
# step loses at most this share of the magnitude.
PRODUCTS_OF_A_STEP = 32
LOST_IN_A_STEP = (PRODUCTS_OF_A_STEP + 2) * 2.0**-13

# Class -> most steps whose sums the tensor cores add up before they are added in float32; math.inf: all.
STEPS_TOGETHER: dict[str, float] = {"fp8": 4, "fp8_fast": math.inf}

# An activation's exp, erf or tanh may err by a few units in the last place; each counts as this many roundings.
ACTIVATION_ROUNDINGS = 16

# Pixels per step of a norm: few enough to stay in the cache.
NORM_BLOCK = 1 << 17


class Bound(NamedTuple):
    """Elementwise bound ``factor * magnitude + constant + more``; see :meth:`over`."""

    factor: float  # multiplies the truth's magnitude; 0 gives 0 even if the magnitude is infinite
    constant: float
    more: Floats | None = None  # array that is added

    def over(self, magnitude: Floats) -> Floats:
        with np.errstate(invalid="ignore", over="ignore"):
            bound = self.factor * magnitude + self.constant if self.factor else np.full_like(magnitude, self.constant)
            return bound if self.more is None else bound + self.more


EXACT = Bound(0.0, 0.0)


def error_bound(problem: Problem, precision: str, truth: Truth, inputs: Inputs) -> Floats:
    """Largest error that arithmetic of a class may make before the result is rounded to the output's dtype.

    `precision` is a key of :data:`convforge.problem.PRECISIONS`. Returns a float64 array in the output's layout; it is
    zero if every order of summation gives the exact result. Raises ValueError for a class without a bound.
    """
    return bound_of(problem, precision, truth, inputs).over(truth.magnitude)


def bound_of(problem: Any, precision: str, truth: Truth, inputs: Inputs) -> Bound:
    if not problem.multiplies:
        return EXACT
    bound = _of_a_product if problem.operation == "gemm" else _of_a_convolution
    return bound(problem, precision, truth, inputs)


def _of_a_product(problem: GemmProblem, precision: str, truth: Truth, inputs: Inputs) -> Bound:
    if is_integer(problem.acc_dtype):
        return EXACT
    u = unit_roundoff(problem.acc_dtype)
    factor = gamma(problem.k, u) + _narrowing(problem, precision, problem.k) + _cut_off(precision, _steps(problem.k))
    if precision == "strict" and _whole(inputs.x) and _whole(inputs.w) and _fits(truth.magnitude, u):
        return EXACT
    return Bound(factor, problem.k * _smallest(problem.acc_dtype), _lost_by_a_product(problem, precision, inputs))


def _of_a_convolution(problem: Conv2dProblem, precision: str, truth: Truth, inputs: Inputs) -> Bound:
    if precision == "strict" and sums_are_exact(problem, truth, inputs):
        return EXACT
    if is_integer(problem.acc_dtype) and precision == "epilogue32":
        return _of_a_float32_epilogue(problem, truth, inputs)
    if is_integer(problem.acc_dtype):
        return Bound(gamma(_epilogue_roundings(problem), 2.0**-53), 0.0)
    u = unit_roundoff(problem.acc_dtype)
    n = problem.taps + _cast_roundings(problem) + _epilogue_roundings(problem)
    factor, constant = gamma(n, u), n * _smallest(problem.acc_dtype) * max(1.0, 1 / problem.epilogue.out_scale)
    if precision == "strict":
        return Bound(factor, constant)
    if precision in NARROWED:
        factor += _narrowing(problem, precision, n)
        factor += _cut_off(precision, problem.r * problem.s * _steps(problem.c_per_group))
        return Bound(factor, constant, _lost(problem, precision, inputs))
    if precision not in _METHODS:
        raise ValueError(f"no error bound is known for precision {precision!r} of a convolution")
    with np.errstate(invalid="ignore", over="ignore"):
        return Bound(factor, constant, _METHODS[precision](problem, inputs, u))


def _of_a_float32_epilogue(problem: Conv2dProblem, truth: Truth, inputs: Inputs) -> Bound:
    """Bound for exact integer sums that are then cast to float32, scaled and shifted by the bias in float32."""
    ends, roundings = problem.epilogue, 1 + _epilogue_roundings(problem)
    if ends.is_plain:
        return EXACT
    factor = gamma(roundings, 2.0**-24)
    if ends.activation not in ("identity", "relu", "clipped_relu"):
        return Bound(factor, 0.0)
    # The sum is exact, so errors are relative to |scale * sum| <= |y| + |bias| + |residual|, which is far below the
    # magnitude. These activations never increase a difference, and y is the value where they do not clip it.
    size = np.abs(truth.value)
    if ends.bias:
        bias = np.abs(np.asarray(inputs.operands["bias"], np.float64))
        size = size + 2 * bias.reshape((-1, 1, 1) if problem.out_layout == "NCHW" else (-1,))
    if ends.residual:
        size = size + 2 * np.abs(np.asarray(inputs.operands["residual"], np.float64))
    return Bound(0.0, 0.0, factor * size)


def unit_roundoff(dtype: str) -> float:
    return float(finfo(dtype).eps) / 2


def gamma(n: int, u: float) -> float:
    """Higham's constant gamma_n for n roundings; infinite if n u >= 1, where there is no bound."""
    return n * u / (1 - n * u) if n * u < 1 else math.inf


def sums_are_exact(problem: Conv2dProblem, truth: Truth, inputs: Inputs) -> bool:
    """True if all products and sums of these inputs are exact, so that no error is allowed.

    This is so if all numbers are multiples of 1/4 and four times the magnitude is below 1/u. Integer sums are always
    exact, unless an epilogue changes them. With a divisor the limit is 1/u for 8 * divisor * magnitude: then the one
    division rounds as the truth does, because no quotient crosses a tie (:func:`convforge.filter`). An output scale
    must be a power of two; above 1 it makes the multiples of 1/4 that many times as small.
    """
    ends = problem.epilogue
    alone = ends == Epilogue(x_zero_point=ends.x_zero_point, divisor=ends.divisor)
    if is_integer(problem.acc_dtype) and alone:
        return True
    if ends.divisor != 1 and not alone:
        return False
    if ends.activation not in ("identity", "relu", "clipped_relu") or not _whole(ends.alpha):
        return False
    if not _whole(problem.padding_value) or not (_whole(inputs.x) and _whole(inputs.w)):
        return False
    scale = np.asarray(inputs.operands.get("scale", 1.0), np.float64)
    if not (_whole(4 * scale) and _whole(inputs.operands.get("bias")) and _whole(inputs.operands.get("residual"))):
        return False
    if not _whole(4 * ends.residual_scale) or math.frexp(ends.out_scale)[0] != 0.5:
        return False
    smallest_scale = min(1.0, float(np.abs(scale).min(initial=1.0)))
    u = 2.0**-53 if is_integer(problem.acc_dtype) else unit_roundoff(problem.acc_dtype)
    quarters = (4 if ends.divisor == 1 else 8 * ends.divisor) * max(1.0, ends.out_scale) * truth.magnitude
    return smallest_scale > 0 and _fits(quarters / smallest_scale, u)


def rounded(values: Any, dtype: np.dtype[Any]) -> Floats:
    """Round values to the output's dtype, ties to even, and return float64; integers saturate, and NaN becomes 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        if is_integer(dtype.name):
            return np.asarray(np.nan_to_num(within_range(np.rint(values), dtype), nan=0.0), np.float64)
        return to_float(np.asarray(within_range(values, dtype)), dtype).astype(np.float64)


def within_range(values: Floats, dtype: np.dtype[Any]) -> Floats:
    """Clip values to the range of an integer or 8-bit float, which saturate; other float dtypes change nothing."""
    if dtype.name in FP8:
        most = float(finfo(dtype).max)
        return np.clip(values, -most, most)
    return np.clip(values, float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)) if is_integer(dtype.name) else values


def half_spacing(values: Floats, dtype: np.dtype[Any]) -> Floats:
    if is_integer(dtype.name):
        return np.full_like(values, 0.5)
    info = finfo(dtype)
    with np.errstate(invalid="ignore"):
        return np.maximum(np.abs(values) * float(info.eps) / 2, float(info.smallest_subnormal))


def beyond_rounding(values: Floats, truth: Floats, dtype: str) -> Floats:
    """Distance of the truth from the interval of numbers that round to each value of a dtype; 0 inside the interval.

    Examples
    --------
    >>> beyond_rounding(np.array([1.0, 1.0, 1.0]), np.array([1 + 2**-11, 1 + 2**-10, 1 - 2**-11]), "float16") * 2**11
    array([0. , 1. , 0.5])
    """
    if is_integer(dtype):
        return np.asarray(np.maximum(np.abs(values - truth) - 0.5, 0))
    form = finfo(numpy_dtype(dtype))
    size = np.where(np.isinf(values), math.ldexp(1.0, form.maxexp), np.abs(values))
    mantissa, exponent = np.frexp(size)
    half = np.ldexp(0.5, np.maximum(exponent - 1, form.minexp) - form.nmant)
    inward = np.where((mantissa == 0.5) & (exponent - 1 > form.minexp), half / 2, half)
    outward = np.where(np.isinf(values), np.inf, half)
    along = np.where(values < 0, -truth, truth) - size
    return np.asarray(np.maximum(np.maximum(along - outward, -along - inward), 0))


def _whole(array: Any) -> bool:
    array = np.asarray(1 if array is None else array)
    if array.dtype.kind in "iub":
        return True
    if array.size > 1 and not _whole(array[(0,) * array.ndim]):  # fast exit: the first of random numbers decides
        return False
    return bool(np.all(array == np.rint(array)) and np.all(np.isfinite(array)))


def _fits(magnitude: Floats, u: float) -> bool:
    return bool(magnitude.max(initial=0.0) < 1 / u)


def _smallest(dtype: str) -> float:
    """Smallest positive number of a dtype: the largest error of a product by underflow."""
    return float(finfo(dtype).smallest_subnormal)


def _steps(products: int) -> int:
    """Steps of the tensor cores for products of 8-bit floats."""
    return -(-products // PRODUCTS_OF_A_STEP)


def _cut_off(precision: str, steps: int) -> float:
    """Share of the magnitude that sums of 8-bit floats lose on tensor cores; 0 for other classes."""
    return LOST_IN_A_STEP * min(steps, STEPS_TOGETHER.get(precision, 0))


def _is_narrow(problem: Problem, precision: str) -> bool:
    """True if x, its border and w are 8-bit floats, which this class need not round."""
    factors = [operand.dtype for operand in problem.operands if operand.role in ("input", "weights")]
    if precision not in STEPS_TOGETHER or not FP8.issuperset(factors):
        return False
    border = problem.padding_value if isinstance(problem, Conv2dProblem) else 0.0
    return float(np.float32(border).astype(numpy_dtype(factors[0]))) == border


def _narrowing(problem: Problem, precision: str, n: int) -> float:
    """Relative error of a product if both factors are first rounded to a narrower type."""
    if precision == "strict" or _is_narrow(problem, precision):
        return 0.0
    if precision not in NARROWED:
        raise ValueError(f"no error bound is known for precision {precision!r} here")
    u = NARROWED[precision]
    return (2 * u + u * u) * (1 + gamma(n, 2.0**-24))


def _lost(problem: Conv2dProblem, precision: str, inputs: Inputs) -> Floats | None:
    """Error of sums if factors underflow: |dx| sum |w| + |dw| sum |x|, with the largest |x| for every pixel."""
    if precision not in UNDERFLOW or _is_narrow(problem, precision):
        return None
    absolute, relative = UNDERFLOW[precision]
    of_w, of_x = _absolute_weights(inputs), _largest_pixels(problem, inputs)
    lost_x = np.full_like(of_x, absolute + relative * float(of_x.max(initial=0.0)))
    lost_w = np.full(of_w.shape[:2], (absolute + relative * float(of_w.max(initial=0.0))) * problem.r * problem.s)
    lost = _per_image(problem, inputs, lost_x, of_w.sum(axis=(2, 3)) + lost_w)
    return lost + _per_image(problem, inputs, of_x, lost_w)


def _lost_by_a_product(problem: GemmProblem, precision: str, inputs: Inputs) -> Floats | None:
    """Same error as :func:`_lost` for a matrix product, shape (M, N)."""
    if precision not in UNDERFLOW or _is_narrow(problem, precision):
        return None
    a, b = (np.abs(matrix.astype(np.float64)) for matrix in matrices(problem, inputs))
    absolute, relative = UNDERFLOW[precision]
    lost_a, lost_b = (absolute + relative * float(matrix.max(initial=0.0)) for matrix in (a, b))
    rows, columns = a.sum(axis=1)[:, None], b.sum(axis=0)
    return np.asarray(lost_a * (columns + problem.k * lost_b) + lost_b * rows)


def _cast_roundings(problem: Conv2dProblem) -> int:
    """Number of casts of x, w and the padding value to a narrower accumulation dtype."""
    wide = {"float64", "int32"} if problem.acc_dtype == "float32" else set()
    return (problem.x_dtype in wide) + (problem.w_dtype in wide) + (problem.padding_mode == "constant")


def _epilogue_roundings(problem: Conv2dProblem) -> int:
    ends = problem.epilogue
    of_activation = {"identity": 0, "relu": 0, "leaky_relu": 3, "clipped_relu": 3}
    before = (ends.divisor != 1) + (ends.scale != "none") + ends.bias + ends.residual + (ends.residual_scale != 1)
    simple = 2 * (before + (ends.out_scale != 1) + (ends.out_zero_point != 0))
    return simple + of_activation.get(ends.activation, ACTIVATION_ROUNDINGS)


def _gain(problem: Conv2dProblem, inputs: Inputs) -> NDArray[np.float64]:
    """Factor by which the epilogue scales errors of the sums: (K, 1, 1) for an NCHW output, (1, 1, K) for NHWC."""
    scale = np.full(problem.k, 1 / (problem.epilogue.divisor * problem.epilogue.out_scale))
    if problem.epilogue.scale != "none":
        scale = scale * np.abs(np.asarray(inputs.operands["scale"], np.float64))
    gain = scale * max(1.13, abs(problem.epilogue.alpha or 0.0))
    return gain.reshape((-1, 1, 1) if problem.out_layout == "NCHW" else (1, 1, -1))


def _separable(problem: Conv2dProblem, inputs: Inputs, u: float) -> Floats:
    """Error bound of a filter W = sum of s_i u_i v_i^T that is applied as 1D passes u_i and v_i."""
    # Elementwise, sum s_i |u_i||v_i|^T is at most s_1, the largest singular value (Cauchy-Schwarz over rows of
    # orthonormal columns), so s_1 in place of |w| bounds every product. The factors are rounded (2 u), the passes add R
    # and S products, and singular values down to min(R, S) u s_1 may be dropped.
    assert inputs.w is not None
    largest = np.linalg.svd(inputs.w.astype(np.float64), compute_uv=False)[..., 0]
    size = np.broadcast_to(largest[..., None, None], problem.w_shape)
    n = problem.c_per_group * (problem.r + problem.s) + 8 * min(problem.r, problem.s)
    plain = problem.replace(
        epilogue=Epilogue(), x_dtype="float64", w_dtype="float64", out_dtype="float64", acc_dtype="float64",
        padding_value=abs(problem.padding_value),
    )  # fmt: skip
    magnitude = conv2d_truth(plain, Inputs(np.abs(inputs.x.astype(np.float64)), size, {})).value
    return gamma(n, u) * (magnitude * _gain(problem, inputs))


# Largest row sums of |A^T|, |G| and |B^T| of the usual points 0, 1, -1, 2, -2 (A. Lavin and S. Gray, Fast algorithms
# for convolutional neural networks, CVPR 2016, sections 4.1 and 4.3). F(2,3) has 3, 1.5, 2. These are of F(4,3):
WINOGRAD_ROW_SUMS = (19.0, 1.0, 10.0)


def _winograd(problem: Conv2dProblem, inputs: Inputs, u: float) -> Floats:
    """Error bound of Winograd: each transform is a sum, so its error grows with absolute row sums, once per axis."""
    # |error| <= gamma |A^T| (sum over c of |G||w||G^T| * |B^T||d||B|) |A| (B. Barabasz, A. Anderson, K. M. Soodhalter
    # and D. Gregg, Error analysis and improving the accuracy of Winograd convolution for deep neural networks, ACM TOMS
    # 46, 2020, theorem 3), here with the largest |d| of each channel and the largest |w| of each filter, for F(4x4,
    # 3x3): F(2x2, 3x3) errs less. The class's RMS gate is stricter.
    factor, largest_w = math.prod(WINOGRAD_ROW_SUMS) ** 2, _absolute_weights(inputs).max(axis=(2, 3))
    roundings = 2 * (3 + 6 + 6) + problem.c_per_group
    return gamma(roundings, u) * factor * _per_image(problem, inputs, _largest_pixels(problem, inputs), largest_w)


def _fft(problem: Conv2dProblem, inputs: Inputs, u: float) -> Floats:
    """Error bound of the FFT: proportional to the norm of the whole image, and the same for all its outputs."""
    # A transform of N points errs by at most eta log2 N in norm, with eta about 7 u (Higham, theorem 24.2). Three
    # transforms and a product: |error| <= 3 * 7 u log2 N ||x|| ||w||.
    norms_x, norms_w = np.sqrt(fft_energy(problem, inputs)), np.sqrt((_absolute_weights(inputs) ** 2).sum(axis=(2, 3)))
    sums = gamma(problem.c_per_group + 4, u)
    return (21 * u * fft_levels(problem) + sums) * _per_image(problem, inputs, norms_x, norms_w)


def fft_levels(problem: Conv2dProblem) -> float:
    return math.log2(2 * (problem.padded_h + problem.extent_h) * (problem.padded_w + problem.extent_w))


def fft_energy(problem: Conv2dProblem, inputs: Inputs) -> Floats:
    """Upper bound of the sum of squares of each padded channel, shape (N, C)."""
    pixels = problem.padded_h * problem.padded_w
    if problem.padding_mode in ("zeros", "constant"):
        return _image_norms(problem, inputs, np.square, np.add) + problem.padding_value**2 * pixels
    # All of the padding may repeat one border pixel.
    return _image_norms(problem, inputs, np.square, np.maximum) * pixels


def _absolute_weights(inputs: Inputs) -> Floats:
    assert inputs.w is not None
    return np.abs(inputs.w.astype(np.float64))


def _largest_pixels(problem: Conv2dProblem, inputs: Inputs) -> Floats:
    return np.maximum(_image_norms(problem, inputs, np.abs, np.maximum), abs(problem.outside))


def _image_norms(problem: Conv2dProblem, inputs: Inputs, size: Any, gather: np.ufunc) -> Floats:
    """Reduce `size` (>= 0) of the finite pixels by `gather` to one number per image and channel, shape (N, C)."""
    x = inputs.x if problem.x_layout == "NCHW" else inputs.x.transpose(0, 3, 1, 2)
    norms, step = np.zeros(x.shape[:2]), max(1, NORM_BLOCK // max(problem.c * problem.w, 1))
    for n in range(problem.n):
        for h in range(0, problem.h, step):  # adjacent rows are contiguous in both layouts
            part = x[n, :, h : h + step].astype(np.float64) - problem.epilogue.x_zero_point
            part[~np.isfinite(part)] = 0
            gather(norms[n], gather.reduce(size(part), axis=(1, 2)), out=norms[n])
    return norms


def sums_of_groups(problem: Conv2dProblem, of_x: Floats, of_w: Floats) -> Floats:
    """Sum over a group's channels c of of_x[n, c] * of_w[k, c], shape (N, K)."""
    grouped = of_x.reshape(problem.n, problem.groups, problem.c_per_group)
    filters = of_w.reshape(problem.groups, problem.k_per_group, problem.c_per_group)
    return np.asarray(np.einsum("ngc,gkc->ngk", grouped, filters).reshape(problem.n, problem.k))


def _per_image(problem: Conv2dProblem, inputs: Inputs, of_x: Floats, of_w: Floats) -> Floats:
    """:func:`sums_of_groups` times the epilogue's gain, in a shape that broadcasts to the output's."""
    sums = sums_of_groups(problem, of_x, of_w)
    placed = sums[:, :, None, None] if problem.out_layout == "NCHW" else sums[:, None, None, :]
    return np.asarray(placed * _gain(problem, inputs), np.float64)


_METHODS = {"separable": _separable, "winograd": _winograd, "fft": _fft}
