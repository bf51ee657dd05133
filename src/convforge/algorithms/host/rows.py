"""Parts of CPU kernels: read a row of the padded image into a tile, add products to a row of sums, store the row.

Only this file handles borders, element types, layouts and strides. Numba inlines it into the kernels that call it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from convforge.backends.cpu.jit import inlined, jit
from convforge.backends.cpu.simd import get, lanes_of, load_as, load_every_second, put, store


@jit
def half_to_float(bits: Any) -> Any:
    """Convert the 16 bits of a float16 to float32: exact, subnormals, Inf and NaN included."""
    magnitude = np.uint32(bits) & np.uint32(0x7FFF)
    # After the shift into float32's fields the exponent is too small by 112. A multiplication by 2^112 is exact.
    value = np.float32(np.uint32(magnitude << np.uint32(13)).view(np.float32) * np.float32(5.192296858534828e33))
    if magnitude >= np.uint32(0x7C00):
        value = np.uint32((magnitude << np.uint32(13)) | np.uint32(0x7F800000)).view(np.float32)
    return -value if np.uint32(bits) & np.uint32(0x8000) else value


@jit
def float_to_half(value: Any) -> Any:
    """Convert float32 or float64 to the 16 bits of float16, rounded once, half to even; larger values become Inf.

    float64 is first rounded to odd in float32, so that a number close to a tie of float16 does not become the tie (S.
    Boldo and G. Melquiond, *Emulation of a FMA and correctly rounded sums*, IEEE Trans. Comput. 57(4), 2008).
    """
    single = np.float32(value)
    bits = single.view(np.uint32)
    sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    above, below = abs(single) > abs(value), abs(single) < abs(value)
    if above or below:
        magnitude = np.uint32(magnitude - np.uint32(above)) | np.uint32(1)
    if magnitude > np.uint32(0x7F800000):
        return np.uint16(sign | np.uint32(0x7E00))
    if magnitude >= np.uint32(0x477FF000):  # 65520 or more becomes Inf
        return np.uint16(sign | np.uint32(0x7C00))
    if magnitude < np.uint32(0x38800000):  # subnormal: an addition in float32 rounds at the last bit that float16 keeps
        shifted = np.float32(np.uint32(magnitude).view(np.float32) + np.float32(0.5))
        return np.uint16(sign | (np.float32(shifted).view(np.uint32) - np.uint32(0x3F000000)))
    rounded = magnitude + np.uint32(0xFFF) + ((magnitude >> np.uint32(13)) & np.uint32(1))
    return np.uint16(sign | ((rounded - np.uint32(0x38000000)) >> np.uint32(13)))


@jit
def gather_row(
    row: Any,
    offset: Any,
    pitch: Any,
    flat: Any,
    start: Any,
    step: Any,
    columns: Any,
    first: Any,
    left: Any,
    width: Any,
    count: Any,
    stride: Any,
    phases: Any,
    outside: Any,
    zero: Any,
    half: Any,
) -> None:
    """Read `count` positions of a padded row, starting at `first`, into ``row[offset:]``, cast to the tile's type.

    Position j goes to ``offset + (j % stride) * pitch + j // stride``, so positions of one phase are contiguous. Only
    the first `phases` phases are read. Element w of the image row is ``flat[start + w * step]``, the bits of float16 if
    `half`; `start` is negative if the whole row is outside the image. `columns` is the border's table of indices,
    `left` the padding, `width` the width of the image, `outside` the value outside it. `zero` is subtracted from all.
    """
    for phase in range(phases):
        n = _steps(count - phase, stride)
        at = offset + phase * pitch
        # Positions [a, b) of this phase are inside the image, where the table is the identity.
        a = min(max(_steps(left - first - phase, stride), 0), n)
        b = min(max(_steps(left + width - first - phase, stride), a), n)
        if start < 0:
            a = b = n
        for j in range(a):
            _gather_outer(row, at + j, flat, start, step, columns[first + phase + j * stride], outside, half)
        # With slices, the compiler knows that no index is negative, and vectorises the loops.
        inside = row[at + a : at + b]
        jump = stride * step
        if a == b:
            pass
        elif half:
            for j in range(a, b):
                row[at + j] = half_to_float(np.uint16(flat[start + (first + phase - left) * step + j * jump]))
        elif jump < 0:
            for j in range(a, b):
                row[at + j] = flat[start + (first + phase - left) * step + j * jump]
        else:
            source = flat[start + (first + phase - left) * step + a * jump :]
            if jump == 1:
                for j in range(b - a):
                    inside[j] = source[j]
            elif jump == 2:
                for j in range(b - a):
                    inside[j] = source[2 * j]
            elif jump == 3:
                for j in range(b - a):
                    inside[j] = source[3 * j]
            else:
                for j in range(b - a):
                    inside[j] = source[j * jump]
        for j in range(b, n):
            _gather_outer(row, at + j, flat, start, step, columns[first + phase + j * stride], outside, half)
        if zero != 0:
            for j in range(n):
                row[at + j] -= zero


@inlined
def _steps(distance: Any, stride: Any) -> Any:
    """ceil(distance / stride), without a slow division for strides up to 2."""
    if stride <= 2:
        return distance if stride == 1 else (distance + 1) >> 1
    return (distance + stride - 1) // stride


@inlined
def _gather_outer(row: Any, at: Any, flat: Any, start: Any, step: Any, index: Any, outside: Any, half: Any) -> None:
    """Read one position at the border; index -1 is outside the image."""
    if start < 0 or index < 0:
        row[at] = outside
    elif half:
        row[at] = half_to_float(np.uint16(flat[start + index * step]))
    else:
        row[at] = flat[start + index * step]


@inlined
def gather_strip(tile: Any, base: Any, x: Any, n: Any, c: Any, p0: Any, p1: Any, g: Any, strip: Any) -> None:
    """Gather the pixels of channel `c` of image `n` that output rows [p0, p1) read, into ``tile[base:]``."""
    count = (g.Q - 1) * g.stride_w + g.dilation_w * (g.S - 1) + 1
    rows = (p1 - p0 - 1) * g.stride_h + g.dilation_h * (g.R - 1) + 1
    if x.place[4] == 1 and g.zero == 0 and not x.half:
        gather_plain(tile, base, x, x.place[0] + n * x.place[1] + c * x.place[2], p0 * g.stride_h, rows, count, g,
                     strip)  # fmt: skip
        return
    for i in range(rows):
        h = g.rows[p0 * g.stride_h + i]
        start = -1
        if h >= 0:
            start = x.place[0] + n * x.place[1] + c * x.place[2] + h * x.place[3]
        gather_row(tile, base + i * strip.row_pitch, strip.phase_pitch, x.flat, start, x.place[4], g.columns, 0, g.left,
                   g.width, count, g.stride_w, strip.phases, g.outside, g.zero, x.half)  # fmt: skip


@inlined
def gather_plain(tile: Any, base: Any, x: Any, plane: Any, first: Any, rows: Any, count: Any, g: Any,
                 strip: Any) -> None:  # fmt: skip
    """:func:`gather_strip` for contiguous pixels that are only cast; for short rows it is faster than gather_row."""
    stride = g.stride_w
    for i in range(rows):
        h = g.rows[first + i]
        for phase in range(strip.phases):
            at, n = base + i * strip.row_pitch + phase * strip.phase_pitch, _steps(count - phase, stride)
            a, b = n, n  # positions [a, b) of this phase are inside the image
            start = plane + h * x.place[3]
            if h >= 0:
                a = min(max(_steps(g.left - phase, stride), 0), n)
                b = min(max(_steps(g.left + g.width - phase, stride), a), n)
                copy_run(tile, at + a, x.flat, start + a * stride + phase - g.left, b - a, stride)
            for side in range(2):
                for j in range(b if side else 0, n if side else a):
                    column = -1 if h < 0 else g.columns[phase + j * stride]
                    put(tile, at + j, g.outside if column < 0 else get(x.flat, start + column))


@inlined
def copy_run(tile: Any, at: Any, flat: Any, start: Any, n: Any, stride: Any) -> None:
    """Set ``tile[at + j] = flat[start + j * stride]``, cast, for 0 <= j < `n`."""
    lanes, done = lanes_of(tile), 0
    if stride == 1 and n >= lanes:  # the last vector overlaps the previous one
        for j in range(0, n - lanes + 1, lanes):
            store(tile, at + j, load_as(flat, start + j, tile))
        store(tile, at + n - lanes, load_as(flat, start + n - lanes, tile))
        done = n
    elif stride == 2:
        for j in range(0, n - lanes, lanes):  # a load reads one element more than it uses
            store(tile, at + j, load_every_second(flat, start + 2 * j, tile))
            done = j + lanes
    for j in range(done, n):
        put(tile, at + j, get(flat, start + j * stride))


@jit
def accumulate(sums: Any, tile: Any, offsets: Any, weights: Any) -> None:
    """Add weights[t] * tile[offsets[t] + q] to sums[q] for all taps t, four taps per pass."""
    Q, T = sums.size, weights.size
    t = 0
    while t + 4 <= T:
        a, b, c, d = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
        x0, x1 = tile[offsets[t] :], tile[offsets[t + 1] :]
        x2, x3 = tile[offsets[t + 2] :], tile[offsets[t + 3] :]
        for q in range(Q):
            sums[q] += a * x0[q] + b * x1[q] + c * x2[q] + d * x3[q]
        t += 4
    while t < T:
        a = weights[t]
        x0 = tile[offsets[t] :]
        for q in range(Q):
            sums[q] += a * x0[q]
        t += 1


@jit
def activate_row(row: Any, n: Any, code: Any, alpha: Any) -> None:
    """Apply the activation with index `code` in :data:`convforge.problem.ACTIVATIONS`; NaN stays NaN."""
    if code == 1:
        for q in range(n):
            row[q] = 0 if row[q] < 0 else row[q]
    elif code == 2:
        for q in range(n):
            row[q] = row[q] * alpha if row[q] < 0 else row[q]
    elif code == 3:
        for q in range(n):
            row[q] = 0 if row[q] < 0 else (alpha if row[q] > alpha else row[q])
    elif code == 4:
        for q in range(n):
            row[q] = 1 / (1 + math.exp(-row[q]))
    elif code == 5:
        for q in range(n):
            row[q] = math.tanh(row[q])
    elif code == 6:
        for q in range(n):
            row[q] = row[q] / (1 + math.exp(-row[q]))
    elif code == 7:
        for q in range(n):
            row[q] = row[q] * (1 + math.erf(row[q] * 0.7071067811865476)) / 2


@jit
def requantize_row(row: Any, n: Any, epilogue: Any) -> None:
    """Divide by the output's scale and add its zero point."""
    if epilogue.out_scale != 1:
        scale = epilogue.out_scale
        for q in range(n):
            row[q] /= scale
    if epilogue.out_zero_point != 0:
        zero_point = epilogue.out_zero_point
        for q in range(n):
            row[q] += zero_point


@jit
def store_row(sums: Any, first: Any, n: Any, values: Any, k: Any, out: Any, start: Any, step: Any, epilogue: Any,
              residual_start: Any, residual_step: Any) -> None:  # fmt: skip
    """Store sums [first, first + n) of output channel `k` as elements ``out[start + q * step]``, through the epilogue.

    `values` is scratch for `n` values in the epilogue's type; `residual_start` and `residual_step` are as for `out`.
    """
    if epilogue.plain:
        store_plain(sums, first, n, out, start, step, epilogue)
        return
    source = sums[first : first + n]
    for q in range(n):
        values[q] = source[q]
    if epilogue.divisor != 1:
        divisor = epilogue.divisor
        for q in range(n):
            values[q] /= divisor
    if epilogue.scale.size:
        factor = epilogue.scale[k if epilogue.scale.size > 1 else 0]
        for q in range(n):
            values[q] *= factor
    if epilogue.bias.size:
        bias = epilogue.bias[k]
        for q in range(n):
            values[q] += bias
    if epilogue.residual.size:
        factor = epilogue.residual_scale
        if epilogue.half:
            for q in range(n):
                values[q] += factor * half_to_float(np.uint16(epilogue.residual[residual_start + q * residual_step]))
        else:
            for q in range(n):
                values[q] += factor * epilogue.residual[residual_start + q * residual_step]
    activate_row(values, n, epilogue.code, epilogue.alpha)
    requantize_row(values, n, epilogue)
    store_plain(values, 0, n, out, start, step, epilogue)


@jit
def store_pixels(sums: Any, first: Any, pitch: Any, pixels: Any, n: Any, values: Any, k: Any, step: Any, out: Any,
                 start: Any, place: Any, epilogue: Any, residual_start: Any) -> None:  # fmt: skip
    """Store neighbouring pixels of a row through the epilogue; each has `n` output channels: k, k + step, ...

    Channel i of pixel q is ``sums[first + q * pitch + i]``, and channel k of the first pixel is ``out[start]``.
    `values` is scratch for `n` or more values in the epilogue's type; `place` is the offset and strides of the output.
    """
    alike = epilogue.plain or (epilogue.scale.size <= 1 and epilogue.bias.size == 0 and epilogue.residual.size == 0)
    if alike and step * place[2] == 1 and place[4] == n and pitch == n:  # all channels, contiguous
        whole = max(pixels * n, 1) if epilogue.plain else values.size
        for i in range(0, pixels * n, whole):
            store_row(sums, first + i, min(whole, pixels * n - i), values, k, out, start + i, 1, epilogue, 0, 0)
        return
    for q in range(pixels):
        at = start + q * place[4]
        source = sums[first + q * pitch : first + q * pitch + n]
        if epilogue.plain:
            store_plain(source, 0, n, out, at, step * place[2], epilogue)
            continue
        for i in range(n):
            values[i] = source[i]
        if epilogue.divisor != 1:
            divisor = epilogue.divisor
            for i in range(n):
                values[i] /= divisor
        if epilogue.scale.size:
            for i in range(n):
                values[i] *= epilogue.scale[k + i * step if epilogue.scale.size > 1 else 0]
        if epilogue.bias.size:
            for i in range(n):
                values[i] += epilogue.bias[k + i * step]
        if epilogue.residual.size:
            for i in range(n):
                element = epilogue.residual[residual_start + q * epilogue.place[4] + i * step * epilogue.place[2]]
                widened = half_to_float(np.uint16(element)) if epilogue.half else element
                values[i] += epilogue.residual_scale * widened
        activate_row(values, n, epilogue.code, epilogue.alpha)
        requantize_row(values, n, epilogue)
        store_plain(values, 0, n, out, at, step * place[2], epilogue)


@jit
def store_plain(values: Any, first: Any, n: Any, out: Any, start: Any, step: Any, epilogue: Any) -> None:
    """Cast and store. float16 and integers are rounded half to even; integers are saturated, and NaN becomes 0."""
    if epilogue.half:
        for q in range(n):
            out[start + q * step] = float_to_half(values[first + q])
        return
    # Slices first, as in gather_row; a reversed output uses the same loop from its last element.
    source, target = values[first : first + n], out[min(start, start + (n - 1) * step) :]
    low, high = epilogue.low, epilogue.high
    if step != 1:
        for q in range(n):
            at = q * step if step > 0 else (q - n + 1) * step
            if epilogue.whole:
                target[at] = min(max(source[q], low), high)
            elif epilogue.integer:
                value = np.rint(source[q])
                value = low if value < low else value
                value = high if value > high else value
                target[at] = value if value == value else 0
            else:
                target[at] = source[q]
    elif epilogue.whole:
        for q in range(n):
            whole = source[q]
            whole = low if whole < low else whole
            target[q] = high if whole > high else whole
    elif epilogue.integer:
        for q in range(n):
            value = np.rint(source[q])
            value = low if value < low else value
            value = high if value > high else value
            target[q] = value if value == value else 0
    else:
        for q in range(n):
            target[q] = source[q]
