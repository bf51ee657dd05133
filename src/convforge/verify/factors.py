"""Roundings of the factors x and w that each precision class allows.

Hardware truncates or rounds, ties go to even or away from zero, and a method may scale its factors first. All of these
are correct, so the gate compares a result with the closest one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convforge.problem import Conv2dProblem, Problem
from convforge.problem.types import FP8
from convforge.verify.inputs import Inputs

Rounding = Callable[[NDArray[Any]], NDArray[np.float32]]

# Explicit bits of a float32's mantissa.
FLOAT32_BITS = 23


class Format(NamedTuple):
    bits: int  # explicit bits of the mantissa
    smallest: int  # exponent of the smallest normal number
    largest: float


E4M3 = Format(3, -6, 448.0)
E5M2 = Format(2, -14, 57344.0)


class Factors(NamedTuple):
    """Problem and inputs after both factors are rounded."""

    problem: Problem  # its padding value is rounded like x
    inputs: Inputs
    rounding: str  # name of the rounding, for messages


def roundings(problem: Problem, inputs: Inputs, precision: str) -> Iterator[Factors]:
    """Yield the factors in every rounding that a class of :data:`ROUNDINGS` allows, and unrounded; no duplicates."""
    assert inputs.w is not None
    of_x, of_w = (_different(_as_float32(array), _allowed(array, precision)) for array in (inputs.x, inputs.w))
    for (x_name, x, rounding), (w_name, w, _) in itertools.product(of_x, of_w):
        name = f"factors {x_name}" if x_name == w_name else f"x {x_name} and w {w_name}"
        changed = problem
        if isinstance(problem, Conv2dProblem) and problem.padding_mode == "constant":
            value = float(rounding(np.array([problem.padding_value], np.float32))[0])
            changed = problem.replace(padding_value=value if np.isfinite(value) else problem.padding_value)
        yield Factors(changed, dataclasses.replace(inputs, x=x, w=w), name)


def rounded(problem: Problem, inputs: Inputs, precision: str) -> Factors:
    """Round both factors by the first rounding of a class."""
    assert inputs.w is not None
    name, made = "as they are", list[NDArray[np.float32]]()
    for array in (inputs.x, inputs.w):
        changed = _as_float32(array)
        if allowed := _allowed(array, precision):
            name, rounding = next(iter(allowed.items()))
            with np.errstate(over="ignore"):
                changed = rounding(changed)
        made.append(changed)
    return Factors(problem, dataclasses.replace(inputs, x=made[0], w=made[1]), f"factors {name}")


def _allowed(array: NDArray[Any], precision: str) -> dict[str, Rounding]:
    """Roundings that a class allows for an array; none if it is stored in 8-bit floats, which need no rounding."""
    return {} if array.dtype.name in FP8 else ROUNDINGS[precision]


def _as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _different(
    array: NDArray[np.float32], roundings: dict[str, Rounding]
) -> list[tuple[str, NDArray[np.float32], Rounding]]:
    found: list[tuple[str, NDArray[np.float32], Rounding]] = [("as they are", array, _as_float32)]
    for name, rounding in roundings.items():
        with np.errstate(over="ignore", invalid="ignore"):
            changed = rounding(array)
        if not any(np.array_equal(changed, known, equal_nan=True) for _, known, _ in found):
            found.append((name, changed, rounding))
    return found


def to_nearest(array: NDArray[np.float32], bits: int, *, away: bool = False) -> NDArray[np.float32]:
    """Round to nearest with `bits` explicit mantissa bits; ties go to even, or away from zero.

    Examples
    --------
    >>> to_nearest(np.array([1 + 2**-11, 1 + 3 * 2**-11], np.float32), 10).tolist() == [1, 1 + 2**-9]
    True
    """
    drop = FLOAT32_BITS - bits
    whole = np.ascontiguousarray(array).view(np.uint32)
    half = np.uint32((1 << (drop - 1)) - (not away))
    odd = np.uint32(0) if away else (whole >> np.uint32(drop)) & np.uint32(1)
    return _without_low_bits(array, whole + half + odd, drop)


def cut_off(array: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    return _without_low_bits(array, np.ascontiguousarray(array).view(np.uint32), FLOAT32_BITS - bits)


def to_format(array: NDArray[Any], form: Format) -> NDArray[np.float32]:
    """Round to a format, ties to even; saturate at its largest number, as FP8 hardware does."""
    values = np.asarray(array, np.float64)
    exponent = np.maximum(np.frexp(values)[1] - 1, form.smallest) - form.bits
    nearest = np.ldexp(np.rint(np.ldexp(values, -exponent)), exponent)
    return np.asarray(np.clip(nearest, -form.largest, form.largest), np.float32)


def _without_low_bits(array: NDArray[np.float32], words: NDArray[np.uint32], drop: int) -> NDArray[np.float32]:
    """Clear the `drop` low bits of words and view them as float32; keep Inf and NaN of the array."""
    kept = words & np.uint32(0xFFFFFFFF ^ ((1 << drop) - 1))
    return np.asarray(np.where(np.isfinite(array), kept.view(np.float32), array), np.float32)


def _to_float16(array: NDArray[np.float32]) -> NDArray[np.float32]:
    return array.astype(np.float16).astype(np.float32)


def _scaled(array: NDArray[np.float32], form: Format, power_of_two: bool) -> NDArray[np.float32]:
    """Scale the largest value to the format's largest (or by the power of two below), round, and undo the scale."""
    largest = float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
    if not largest:
        return array
    scale = form.largest / largest
    if power_of_two:
        scale = 2.0 ** np.floor(np.log2(scale))
    return (to_format((array * np.float64(scale)), form).astype(np.float64) / scale).astype(np.float32)


def _scaled_by_filter(array: NDArray[np.float32], form: Format) -> NDArray[np.float32]:
    """Round as :func:`_scaled` does, with one scale for each filter, or for each row of a matrix."""
    return np.stack([_scaled(part, form, False) for part in array]) if array.size else array


def _of_bits(bits: int) -> dict[str, Rounding]:
    nearest = partial(to_nearest, bits=bits)
    return {"rounded": nearest, "rounded, ties away from zero": partial(nearest, away=True)}


def _of_format(name: str, form: Format) -> dict[str, Rounding]:
    return {
        f"in {name}, scaled": partial(_scaled, form=form, power_of_two=False),
        f"in {name}": partial(to_format, form=form),
        f"in {name}, scaled by a power of two": partial(_scaled, form=form, power_of_two=True),
        f"in {name}, scaled by filter": partial(_scaled_by_filter, form=form),
    }


# Precision class -> roundings of its factors, most precise first; unrounded factors are allowed too. Tensor cores
# truncate float32 to TF32. float16 has a smaller range; if a scale avoids its limits, only its bits matter.
ROUNDINGS: dict[str, dict[str, Rounding]] = {
    "tf32": _of_bits(10) | {"cut off": partial(cut_off, bits=10)},
    "fp16": _of_bits(10) | {"in float16": _to_float16},
    "bf16": _of_bits(7),
    "fp8": _of_format("e4m3", E4M3) | _of_format("e5m2", E5M2),
}
ROUNDINGS["fp8_fast"] = ROUNDINGS["fp8"]
