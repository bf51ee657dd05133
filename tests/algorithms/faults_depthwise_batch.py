"""Planted faults of depthwise_batch: see faults.py.

Whoever reads too early reads poison here, a NaN, and outputs that are a NaN are taken again from memory: what is not
waited for shows where they are not. Nobody can notice that a warp does not wait before outputs take the place of
pixels, as tensor cores wait for all lanes themselves; nor that warps share a place, as here one runs after the other.
"""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import Run, of_file

from convforge.algorithms.depthwise.device import DepthwiseBatchConfig

# Two products' pictures, of which the last one has one; a warp without a channel; windows that begin at an odd column
# and end beyond the row; outputs that take the place of pixels.
PLACED = Run("depthwise_batch", "n6c3h13w22_k3r5s4_p2x1x1x2_g3_f16_nchw", DepthwiseBatchConfig(2))
# Strides, dilation, an odd number of outputs in a room of their own; the row is the window.
STRIDED = replace(PLACED, problem="n17c3h20w14_k3r5s4_st2_d2x1_p2x1_g3_f16_nchw")
# Windows of two products, further apart.
LONG = replace(PLACED, problem="n5c3h11w40_k3r3s13_st1x2_p1x6_g3_f16_nchw")
# More rows than are unrolled.
LOOP = replace(PLACED, problem="n3c2h63w64_k2r9s9_p4_g2_f16_nchw")
ODD = replace(PLACED, kind="nan")

# Of the kernel's text.
WAIT, WARP = "    copy_async_wait();\n", "    __syncwarp();\n"
TAPS = "    unsigned b[cfg::R][cfg::STEPS][2];\n    load_taps(b, taps, planes);\n"
WALK = "    walk(args, planes, b, pixels, outputs);\n"
WALK_AND_MEND = (
    "    if (__any_sync(0xffffffffu, walk(args, planes, b, pixels, outputs))) recompute(args, planes, outputs);\n"
)

BATCH_FAULTS = [
    *of_file("depthwise/batch.cu", PLACED,
        ("copies not waited for", f"{WAIT}{WARP}{WALK_AND_MEND}", WALK),
        ("no word of the warp behind the copies", f"{WAIT}{WARP}{WALK_AND_MEND}", f"{WAIT}{WALK}"),
        ("taps not waited for", f"{WARP}{TAPS}{WAIT}{WARP}{WALK_AND_MEND}", f"{TAPS}{WAIT}{WARP}{WALK}"),
        ("outputs that are taken again not waited for", f"{WARP}    copy_outputs(", "    copy_outputs(", ODD),
        ("channels beyond the last", "    if (k >= cfg::K) return;\n", ""),
        ("pictures beyond the last", "min(cfg::IMAGES, args.conv.N - n), lane / 4", "cfg::IMAGES, lane / 4"),
        ("the first pictures for all", "n = part * cfg::IMAGES,\n", "n = 0,\n"),
        ("the first channels for all", "(blockIdx.x - part * TILES_K) * cfg::CHANNELS + slot", "slot"),
        ("the first channel's pixels for all", "offset_of(conv.x_strides, planes.n, planes.k, 0, 0)",
         "offset_of(conv.x_strides, planes.n, 0, 0, 0)"),
        ("one filter for all channels", "planes.k, 0, r, i - r * cfg::S)", "0, 0, r, i - r * cfg::S)"),
        ("mirrored filter", "planes.k, 0, r, i - r * cfg::S)", "planes.k, 0, r, cfg::S - 1 - (i - r * cfg::S))"),
        ("columns of the matrix all alike", "cfg::FIRST + j + cfg::LEFT - planes.g * cfg::STRIDE_W,",
         "cfg::FIRST + j + cfg::LEFT,"),
        ("taps behind the last", "s * cfg::DILATION_W == below && s < cfg::S;", "s * cfg::DILATION_W == below;"),
        ("the second tap of two left out", "| bits << 16", "| 0"),
        ("windows that begin at odd columns", "first = cfg::FIRST + m % WINDOWS", "first = -cfg::LEFT + m % WINDOWS"),
        ("one window for two", "const Window &window = windows[e % 2];", "const Window &window = windows[0];"),
        ("columns beside the row", ".word.bits & window.masks[step][e / 2]", ".word.bits"),
        ("columns behind the row", "0 <= w && w < cfg::W ? 0xffffffffu", "0 <= w ? 0xffffffffu"),
        ("columns before the row", "0 <= w && w < cfg::W ? 0xffffffffu", "w < cfg::W ? 0xffffffffu"),
        ("one picture for all", "pixels + (image * cfg::PLANE_STRIDE +", "pixels + (0 *"),
        ("outputs beyond the last", "image < planes.images && q < cfg::Q}", "image < planes.images}"),
        ("outputs of no picture", "image < planes.images && q < cfg::Q}", "q < cfg::Q}"),
        ("sums not begun anew", "        sums[2 * half] = sums[2 * half + 1] = 0;\n", ""),
        ("the same row of pixels again", "load_windows(next, windows, min(h + 1, cfg::H - 1));",
         "load_windows(next, windows, h);"),
        ("a ring that does not turn", "slot = (above + PERIOD) / cfg::STRIDE_H % RING;\n                    if",
         "slot = r;\n                    if"),
        ("rows before the first", "if (p >= 0 && p < cfg::P) done(", "if (p < cfg::P) done("),
        ("a row too late", "const int above = d - 1 + cfg::TOP - WINDOW;",
         "const int above = d - 2 + cfg::TOP - WINDOW;"),
        ("the last rows left out", "p = WHOLE > 0 ? WHOLE : 0; p < cfg::P; p++) done(",
         "p = cfg::P; p < cfg::P; p++) done("),
        ("an Inf in windows that do not see it", "if (value != value) *output", "if (false) *output", ODD),
        ("nobody told of an Inf", "return odd != 0;", "return false;", ODD),
        ("a window of its own that begins elsewhere", "w = q * cfg::STRIDE_W + s * cfg::DILATION_W - cfg::LEFT;",
         "w = q * cfg::STRIDE_W + s * cfg::DILATION_W;", ODD),
        ("another picture's outputs taken again", "outputs + (image * cfg::OUT_PLANE_STRIDE + at)", "outputs + at",
         ODD),
    ),
    *of_file("depthwise/batch.cu", STRIDED,
        ("stride 1 for stride 2 along rows", "- planes.g * cfg::STRIDE_W, s", "- planes.g, s"),
        ("stride 1 for stride 2 down rows", "p = (h0 + above + PERIOD) / cfg::STRIDE_H - RING", "p = h0 + above"),
        ("dilation 1 for dilation 2", "d + cfg::TOP - r * cfg::DILATION_H,\n", "d + cfg::TOP - r,\n"),
        ("rows of other windows", "if ((above + PERIOD) % cfg::STRIDE_H != 0) continue;\n", ""),
        ("columns beyond the last", "if (two.q + 1 < cfg::Q) to[1]", "to[1]"),
        ("the second of two outputs left out", "if (two.q + 1 < cfg::Q) to[1]", "if (false) to[1]"),
    ),
    *of_file("depthwise/batch.cu", LONG,
        ("the first product's pixels again", "window.from[step][e / 2] + h * cfg::W",
         "window.from[0][e / 2] + h * cfg::W"),
        ("the first product's matrix again", "a[step], b[r][step])", "a[step], b[r][0])"),
        ("windows eight pixels apart", "NEXT = MMA_COLUMNS * cfg::STRIDE_W;", "NEXT = MMA_COLUMNS;"),
    ),
    *of_file("depthwise/batch.cu", LOOP,
        ("a turn beyond the last row", "            if (cfg::H % ALL_ROWS != 0 && h >= cfg::H) break;\n", ""),
        ("the first turn's rows again", "const int h = h0 + d;", "const int h = d;"),
        ("sums of rows before the first", "else if (ALL_ROWS != cfg::H) sums[slot][0]",
         "else if (false) sums[slot][0]"),
    ),
]  # fmt: skip
