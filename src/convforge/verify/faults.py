"""Name the fault of a wrong result: compute each known fault on the same inputs, and name the closest one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.problem import PADDING_MODES, Conv2dProblem, Problem
from convforge.problem.types import is_integer
from convforge.verify.bounds import rounded
from convforge.verify.inputs import Inputs, output_dtype
from convforge.verify.rows import border_of, only_border
from convforge.verify.truth import Floats, Truth, conv2d_truth, from_rows, to_rows, truth

# A fault is named if it leaves less than this share of the RMS error unexplained.
UNEXPLAINED = 0.15

# Largest number of channels that are tried one by one.
MOST_CHANNELS = 16

# Faults that need much memory are tried only up to this value of N * C * P * Q.
MOST_PIXELS = 1 << 20

Suspect = tuple[str, Callable[[], Floats]]


def name_fault(problem: Problem, got: NDArray[Any], right: Truth, inputs: Inputs) -> str:
    """Name the known fault that explains nearly all of the error of `got`, or describe where the error is."""
    dtype = output_dtype(problem)
    expected = rounded(right.value, dtype)
    values = got.astype(np.float64)
    known = np.isfinite(expected) & np.isfinite(values)
    if not known.any():
        return "no finite output"
    best, name = UNEXPLAINED, ""
    for label, suspect in _suspects(problem, right, inputs, values, known):
        suspected = suspect()
        compared = known & np.isfinite(suspected)
        if 2 * compared.sum() < known.sum():
            continue
        seen = values[compared]
        wrong, left = _rms(seen - expected[compared]), _rms(seen - rounded(suspected[compared], dtype))
        if left < best * wrong:
            best, name = left / wrong, label
    return name or _place(problem, values, expected)


def matching_faults(problem: Problem, got: NDArray[Any], right: Truth, inputs: Inputs) -> list[str]:
    """List the known faults that reproduce a wrong result in every element, up to rounding.

    Use small integers as inputs: nothing is rounded, and two faults seldom give the same result. Outputs that a fault
    does not determine are not compared; a fault is listed only if it explains at least one wrong output.
    """
    values = got.astype(np.float64)
    known = np.isfinite(rounded(right.value, output_dtype(problem))) & np.isfinite(values)
    return [
        label
        for label, suspect in _suspects(problem, right, inputs, values, known)
        if not (label.startswith("scaled") and not values[known].any()) and agrees(values, suspect(), right.value)
    ]


def agrees(values: Floats, suspected: Floats, right: Floats) -> bool:
    """True if the result of a fault, `suspected`, agrees with the wrong result `values`.

    Where `suspected` is NaN, the fault does not determine the output. Where it is Inf, the fault reads memory outside
    x, which holds NaN in guard bands.
    """
    slack = 1e-5 * float(np.abs(right[np.isfinite(right)]).max(initial=1e-30))
    compared = np.isfinite(suspected)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(values - right) <= slack)
        same = np.abs(values - suspected) <= slack
    explained = wrong & (compared | (np.isinf(suspected) & np.isnan(values)))
    return bool(same[compared].all() and explained.any() and 2 * compared.sum() >= compared.size)


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _suspects(
    problem: Problem, right: Truth, inputs: Inputs, values: Floats, known: NDArray[np.bool_]
) -> Iterator[Suspect]:
    yield "all outputs are zero", lambda: np.zeros_like(right.value)
    reference = np.where(known, right.value, 0.0)
    if energy := float(np.sum(reference**2)):
        factor = float(np.sum(reference * np.where(known, values, 0.0))) / energy
        yield f"scaled by a constant: {factor:.6g}", lambda: factor * right.value
    if problem.multiplies:
        for label, bits in (("TF32", 10), ("bfloat16", 7)):
            yield f"{label}-like rounding of the factors", partial(_narrowed, problem, inputs, bits)
    if isinstance(problem, Conv2dProblem):
        yield from _of_filters(problem, inputs)
        yield from _of_images(problem, right, inputs)
        yield from _of_geometry(problem, inputs)
        yield from _of_epilogues(problem, inputs)


def _narrowed(problem: Problem, inputs: Inputs, bits: int) -> Floats:
    def narrow(array: NDArray[Any]) -> NDArray[Any]:
        if is_integer(array.dtype.name):
            return array
        mantissa, exponent = np.frexp(array.astype(np.float64))
        return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, bits + 1)), exponent - bits - 1))

    assert inputs.w is not None
    return truth(problem, dataclasses.replace(inputs, x=narrow(inputs.x), w=narrow(inputs.w))).value


def _with(problem: Conv2dProblem, inputs: Inputs, **changed: NDArray[Any]) -> Floats:
    arrays: dict[str, Any] = {name: np.ascontiguousarray(array) for name, array in changed.items()}
    return conv2d_truth(problem, dataclasses.replace(inputs, **arrays)).value


def _of_filters(problem: Conv2dProblem, inputs: Inputs) -> Iterator[Suspect]:
    w = inputs.w
    assert w is not None
    with_w = partial(partial, _with, problem, inputs)
    yield "flipped filter", with_w(w=w[:, :, ::-1, ::-1])
    if problem.r > 1 and problem.s > 1:
        yield "filter flipped along its height", with_w(w=w[:, :, ::-1])
        yield "filter flipped along its width", with_w(w=w[:, :, :, ::-1])
        yield "swapped H and W of the filter", with_w(w=w.transpose(0, 1, 3, 2).reshape(w.shape))
    if problem.k > 1:
        for k in dict.fromkeys((0, 1, problem.k - 1)):
            one = np.broadcast_to(w[k : k + 1], w.shape)
            yield f"one filter for all outputs: that of channel {k}", with_w(w=one)
    for axis, size, name in ((2, problem.r, "row"), (3, problem.s, "column")):
        if size > 1:
            for end, place in ((size - 1, "last"), (0, "first")):
                short = w.copy()
                short[(slice(None),) * axis + (end,)] = 0
                yield f"{place} {name} of the filter left out", with_w(w=short)
    if problem.k_per_group == problem.c_per_group > 1 and problem.groups == 1:
        yield "swapped K and C of the filter", with_w(w=w.transpose(1, 0, 2, 3))
    if problem.c_per_group > 1:
        for c in dict.fromkeys([problem.c_per_group - 1, *range(min(problem.c_per_group, MOST_CHANNELS))]):
            silent = w.copy()
            silent[:, c] = 0
            yield f"ignored channel {c}", with_w(w=silent)
        first = w.copy()
        first[:, 1:] = 0
        yield "only the first channel counts", with_w(w=first)
        yield "one filter channel for all channels", with_w(w=np.broadcast_to(w[:, :1], w.shape))


def _of_images(problem: Conv2dProblem, right: Truth, inputs: Inputs) -> Iterator[Suspect]:
    x = inputs.x
    with_x = partial(partial, _with, problem, inputs)

    def swapped(array: NDArray[Any], layout: str) -> NDArray[Any]:
        return array.transpose((0, 1, 3, 2) if layout == "NCHW" else (0, 2, 1, 3)).reshape(array.shape)

    yield "swapped H and W of the image", with_x(x=swapped(x, problem.x_layout))
    if problem.p != 1 and problem.q != 1:
        yield "swapped H and W of the output", lambda: swapped(right.value, problem.out_layout)
    if problem.c > 1:
        yield "NCHW read as NHWC, or the reverse", with_x(x=_reread(problem, x))
    if problem.n > 1:
        yield "one image for the whole batch", with_x(x=np.broadcast_to(x[:1], x.shape))
    if problem.groups > 1:
        axis = 1 if problem.x_layout == "NCHW" else 3
        group = x.take(range(problem.c_per_group), axis)
        yield "every group reads the channels of the first", with_x(x=np.concatenate([group] * problem.groups, axis))


def _reread(problem: Conv2dProblem, x: NDArray[Any]) -> NDArray[Any]:
    """Read the memory of x in the other layout, NCHW as NHWC or the reverse; the shape remains that of x."""
    n, c, h, w = problem.n, problem.c, problem.h, problem.w
    flat = np.ascontiguousarray(x).reshape(-1)
    if problem.x_layout == "NCHW":
        return flat.reshape(n, h, w, c).transpose(0, 3, 1, 2)
    return flat.reshape(n, c, h, w).transpose(0, 2, 3, 1)


def _of_geometry(problem: Conv2dProblem, inputs: Inputs) -> Iterator[Suspect]:
    changed = partial(partial, _cropped, problem, inputs)
    top, bottom, left, right = problem.padding
    others: list[tuple[str, str, tuple[int, ...]]] = [
        ("stride ignored", "stride", (1, 1)),
        ("swapped H and W of the stride", "stride", problem.stride[::-1]),
        ("dilation ignored", "dilation", (1, 1)),
        ("swapped H and W of the padding", "padding", (left, right, top, bottom)),
        ("swapped sides of the padding", "padding", (bottom, top, right, left)),
        ("padding ignored", "padding", (0, top + bottom, 0, left + right)),
        ("stride applied to the padding too", "padding",
         (top * problem.stride[0], bottom, left * problem.stride[1], right)),
        ("one pixel off: the image moved down", "padding", (top + 1, bottom - 1, left, right)),
        ("one pixel off: the image moved up", "padding", (top - 1, bottom + 1, left, right)),
        ("one pixel off: the image moved to the right", "padding", (top, bottom, left + 1, right - 1)),
        ("one pixel off: the image moved to the left", "padding", (top, bottom, left - 1, right + 1)),
    ]  # fmt: skip
    for label, field, value in others:
        if value != getattr(problem, field) and min(value) >= 0:
            yield label, changed(**{field: value})
    small = problem.n * problem.c * problem.p * problem.q <= MOST_PIXELS
    if small and problem.padding_mode == "zeros" and problem.x_layout == "NCHW" and any(problem.padding):
        checks = {"neither rows nor columns are": (0, 0), "only rows are": (1, 0), "only columns are": (0, 1)}
        for words, checked in checks.items():
            yield f"border reads neighbouring memory: {words} checked", partial(_unchecked, problem, inputs, *checked)
    for mode in PADDING_MODES:
        if any(problem.padding) and mode != problem.padding_mode:
            yield f"border taken as {mode}", changed(padding_mode=mode, padding_value=0.0)
    if any(problem.padding):
        yield "border skipped", partial(_border_skipped, problem, inputs)
    if problem.padding_mode == "constant" and problem.padding_value != 0:
        yield "padding value ignored", changed(padding_value=0.0)


def _cropped(problem: Conv2dProblem, inputs: Inputs, **fields: Any) -> Floats:
    """Compute the problem with changed fields; crop the result to this problem's output, or fill it up with NaN."""
    try:
        other = problem.replace(**fields)
    except ValueError:  # an invalid problem: no method computes it
        return np.full(problem.out_shape, np.nan)
    if problem.epilogue.residual:
        return np.full(problem.out_shape, np.nan)
    rows = to_rows(other, conv2d_truth(other, inputs).value).reshape(other.n, other.p, other.k, other.q)
    whole = np.full((problem.n, problem.p, problem.k, problem.q), np.nan)
    p, q = min(problem.p, other.p), min(problem.q, other.q)
    whole[:, :p, :, :q] = rows[:, :p, :, :q]
    return from_rows(problem, whole)


def _unchecked(problem: Conv2dProblem, inputs: Inputs, rows_checked: int, columns_checked: int) -> Floats:
    """Compute the result of a kernel that reads beyond the image without a check; reads outside x give Inf."""
    if problem.groups > 1 or not problem.epilogue.is_plain or problem.mode != "cross-correlation":
        return np.full(problem.out_shape, np.nan)
    assert inputs.w is not None
    memory = inputs.x.astype(np.float64).reshape(-1)
    planes = np.arange(problem.n * problem.c).reshape(problem.n, problem.c, 1, 1) * (problem.h * problem.w)
    total = np.zeros((problem.n, problem.k, problem.p, problem.q))
    strays = np.zeros((problem.n, 1, problem.p, problem.q), bool)
    for r in range(problem.r):
        rows = np.arange(problem.p) * problem.stride[0] - problem.padding[0] + r * problem.dilation[0]
        for s in range(problem.s):
            columns = np.arange(problem.q) * problem.stride[1] - problem.padding[2] + s * problem.dilation[1]
            place = planes + rows[:, None] * problem.w + columns
            seen = np.ones((problem.p, problem.q), bool)
            if rows_checked:
                seen &= ((rows >= 0) & (rows < problem.h))[:, None]
            if columns_checked:
                seen &= (columns >= 0) & (columns < problem.w)
            inside = (place >= 0) & (place < memory.size)
            strays |= (seen & ~inside).any(axis=1, keepdims=True)
            pixels = np.where(seen & inside, memory[np.clip(place, 0, memory.size - 1)], 0.0)
            total += np.einsum("ncpq,kc->nkpq", pixels, inputs.w[:, :, r, s].astype(np.float64))
    return from_rows(problem, np.where(strays, np.inf, total).transpose(0, 2, 1, 3))


def _border_skipped(problem: Conv2dProblem, inputs: Inputs) -> Floats:
    rows, columns = border_of(problem)
    whole = (
        to_rows(problem, conv2d_truth(problem, inputs).value).reshape(problem.n, problem.p, problem.k, problem.q).copy()
    )
    whole[:, rows] = 0
    whole[..., columns] = 0
    return from_rows(problem, whole)


def _of_epilogues(problem: Conv2dProblem, inputs: Inputs) -> Iterator[Suspect]:
    others: dict[str, dict[str, Any]] = {
        "missing bias": {"bias": False},
        "missing residual": {"residual": False, "residual_scale": 1.0},
        "not divided": {"divisor": 1},
        "missing scale": {"scale": "none"},
        "missing activation": {"activation": "identity", "alpha": None},
        "zero point ignored": {"x_zero_point": 0},
        "scale of the residual ignored": {"residual_scale": 1.0},
        "scale of the output ignored": {"out_scale": 1.0},
        "zero point of the output ignored": {"out_zero_point": 0},
    }
    for label, fields in others.items():
        plain = dataclasses.replace(problem.epilogue, **fields)
        if plain != problem.epilogue:
            yield label, partial(_with, problem.replace(epilogue=plain), inputs)


def _place(problem: Problem, values: Floats, expected: Floats) -> str:
    """Describe where the errors are, if no known fault explains them."""
    with np.errstate(invalid="ignore"):
        error = np.abs(values - expected)
    error = np.where(np.isnan(error) & ~(np.isnan(values) & np.isnan(expected)), np.inf, np.nan_to_num(error, nan=0.0))
    large = error > 1e-3 * max(float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)), 1e-30)
    if not large.any():
        return "unknown: small errors"
    if isinstance(problem, Conv2dProblem):
        if only_border(problem, large):
            return "wrong at the border alone"
        wrong = to_rows(problem, large).reshape(problem.n, problem.p, problem.k, problem.q)
        channels = np.flatnonzero(wrong.any(axis=(0, 1, 3)))
        if channels.size < problem.k:
            return f"wrong in output channels {', '.join(map(str, channels[:8]))} alone"
        images = np.flatnonzero(wrong.any(axis=(1, 2, 3)))
        if images.size < problem.n:
            return f"wrong in images {', '.join(map(str, images[:8]))} alone"
    return f"unknown: {int(large.sum())} of {large.size} outputs are wrong"
