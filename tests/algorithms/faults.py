"""The table of planted faults: for every kernel, changes of its text that make it wrong, each of which must be noticed.

A fault replaces a piece of text that stands in its file exactly once, and says what to run: small problems that no tile
divides, with P and Q unequal. A kernel has one for each of its barriers.

What nobody can notice is not in the table: a read beyond an input array whose value reaches no output. The emulator
checks arrays in shared and local memory, and the check has guards around what is written; inputs have none. So
gemm_shared may read beyond A's last row, whose sums are not stored, and implicit_gemm beyond its last column. Nor does
the emulator see the device half of device.cuh, which is PTX.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from convforge.algorithms.depthwise.device import ChannelsConfig, PlanesConfig
from convforge.algorithms.direct.device import ConstantConfig, NaiveConfig, SharedConfig, TiledConfig
from convforge.algorithms.elementwise.device import ReluConfig
from convforge.algorithms.gemm.device import BlockConfig, SquareConfig, TileConfig, WarpConfig, WarpTile
from convforge.algorithms.im2col.device import Im2colConfig
from convforge.algorithms.pool.device import MaxPoolConfig
from convforge.algorithms.separable.device import FusedConfig


@dataclass(frozen=True, slots=True)
class Run:
    """What to run, and how.

    Attributes
    ----------
    method, problem : str
    config : Config, optional
        By default, the method's own.
    kind : str
        Of the inputs; "nan" asks how far the NaN among them comes.
    ahead : int
        Elements by which x and the output of an elementwise method begin behind a multiple of 16 bytes.
    """

    method: str
    problem: str
    config: Any = None
    kind: str = "normal"
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `file` is within ``algorithms/``; `old` stands in it exactly once."""

    file: str
    name: str
    old: str
    new: str
    run: Run

    def __str__(self) -> str:
        return f"{self.file.removeprefix('include/device/')}: {self.name}"


# Several channels and filters, more than one block.
PLAIN, STRIDED = "n2c3h9w37_k4r3s3_p1_f32_nchw", "n2c3h17w37_k4r3s3_st2_p1_f32_nchw"
VECTORS = "n2c3h8w200_k4r3s3_p1_f32_nchw"  # rows of whole vectors
GROUPED, TALL = "n1c4h9w37_k4r3s3_p1_g2_f32_nchw", "n1c3h80w40_k2r3s3_p1_f32_nchw"
TALL_FILTER = "n1c2h9w37_k3r3s2_p1_f32_nchw"
PRODUCT, WHOLE = "m45n37k21_f32", "m64n64k32_f32"

NAIVE = Run("direct_naive", PLAIN, NaiveConfig(32, 2))
CONSTANT = Run("direct_constant", PLAIN, ConstantConfig(32, 2))
SHARED = Run("direct_shared", PLAIN, SharedConfig(32, 4, 1, 1, 2))
TILED = Run("direct_tiled", PLAIN, TiledConfig(32, 1, 2, 2, 2))
STAGED = replace(TILED, config=TiledConfig(32, 2, 2, 2, 2, weights="staged"))
IM2COL = Run("im2col", PLAIN, Im2colConfig(300, "gemm_naive"))
IMPLICIT = Run("implicit_gemm", PLAIN, WarpTile(16, 128, 8, 16, 32, 4, 4))
GEMM_NAIVE = Run("gemm_naive", PRODUCT, BlockConfig(32, 8))
GEMM_SHARED = Run("gemm_shared", PRODUCT, SquareConfig(8))
TILE_1D = Run("gemm_tile_1d", PRODUCT, TileConfig(32, 32, 8, 4))
TILE_2D = Run("gemm_tile_2d", PRODUCT, TileConfig(32, 32, 8, 2, 2))
VECTORISED = Run("gemm_vectorised", PRODUCT, TileConfig(32, 32, 8, 4, 4))
WARP_TILED = Run("gemm_warp_tiled", "m45n37k37_f32", WarpConfig(32, 64, 8, 16, 32, 4, 4, 3))
RELU = Run("relu", "relu301_f32", ReluConfig(32, 2, "whole"))
POOL = Run("max_pool", "max_n2c3h9w13_r3s3_st2_p1_f32_nchw", MaxPoolConfig(32, 2, 2))


def _with(run: Run, problem: str) -> Run:
    return replace(run, problem=problem)


def _of(file: str, run: Run, *faults: tuple[Any, ...]) -> Iterator[Fault]:
    """Faults of one file: name, old text, new text, and what to run where that is not `run`."""
    for name, old, new, *other in faults:
        yield Fault(file, name, old, new, other[0] if other else run)


SYNC = "__syncthreads();"

# Pooling: rows of whole vectors, channels in vectors, pixels that a window steps over, windows all of whose pixels may
# be negative.
POOL_VECTORS = _with(POOL, "max_n2c3h9w12_r3s3_st2_p1_f32_nchw")
POOL_CHANNELS = _with(POOL, "max_n2c6h9w13_r3s3_st2_p1_f32_nhwc")
POOL_DILATED = _with(POOL, "max_n1c2h9w13_r3s3_st1_p1_d2_f32_nchw")
POOL_SMALL = _with(POOL, "max_n2c3h9w13_r2s2_st2_p0_f32_nchw")

# Depthwise: rows of whole vectors; multipliers; strides; filters too wide to be taken at once; too large to unroll.
CHANNELS = Run("depthwise_channels", "n2c8h13w14_k8r3s3_p1_g8_f32_nhwc", ChannelsConfig(4, 2, 4, 2, 4, 4))
CHANNELS_TWICE = replace(CHANNELS, problem="n2c4h13w14_k8r3s3_p1_g4_f32_nhwc")
PLANES = Run("depthwise_planes", "n2c5h13w24_k5r3s3_p1_g5_f32_nchw", PlanesConfig(3, 4, 3, 2, 2))
PLANES_WIDE = replace(PLANES, problem="n1c3h19w21_k3r9s13_p4x6_g3_f32_nchw")
PLANES_TALL = replace(PLANES, problem="n1c3h33w21_k3r13s13_p6_g3_f32_nhwc", config=PlanesConfig(7, 8, 2, 1, 2))

# Separable: rows of whole vectors, two products; filters in chunks; channels that are summed; pixels of three planes.
SEPARABLE = Run("separable", "n2c3h21w40_k3r5s7_p2x3_g3_f32_nchw", FusedConfig(4, 2, 16, 8))
SEPARABLE_LONG = replace(SEPARABLE, problem="n1c1h40w40_k1r37s41_p18x20_f32_nchw")
SEPARABLE_SUMMED = replace(SEPARABLE, problem="n1c4h21w40_k2r5s7_p2x3_g2_f32_nchw")
SEPARABLE_NEAR = replace(SEPARABLE, problem="n2c4h21w40_k4r5s7_p2x3_g4_f32_nhwc", config=FusedConfig(4, 2, 16, 8, 3))

FAULTS = [
    *_of("direct/naive.cu", NAIVE,
        ("last row left out", "p0 + args.per_p, conv.P)", "p0 + args.per_p, conv.P - 1)"),
        ("height for width", "args.per_q, conv.Q)", "args.per_q, conv.P)"),
        ("no check at the ragged edge", "min(q0 + args.per_q, conv.Q)", "q0 + args.per_q"),
        ("one filter for all outputs", "static_cast<index_t>(k) * TAPS", "static_cast<index_t>(0) * TAPS"),
    ),
    *_of("include/device/window.cuh", NAIVE,
        ("no border above", "if (h0 >= 0 && w0 >= 0", "if (w0 >= 0"),
        ("off by one at the border", "w0 + EXTENT_W <= conv.W", "w0 + EXTENT_W <= conv.W + 1"),
        ("height for width", "h0 + EXTENT_H <= conv.H && w0 + EXTENT_W <= conv.W",
         "h0 + EXTENT_H <= conv.W && w0 + EXTENT_W <= conv.H"),
        ("stride 1 for stride 2", "w0 = q * STRIDE_W", "w0 = q", _with(NAIVE, STRIDED)),
        ("uninitialised accumulator", "acc_t sum = 0;", "acc_t sum;"),
        ("first group's channels for all", "c0 = k / K_GROUP * C_GROUP", "c0 = 0", _with(NAIVE, GROUPED)),
        ("dilation left out inside", "DILATION_W * conv.x_strides.w", "conv.x_strides.w",
         _with(NAIVE, "n1c2h9w37_k3r3s3_p2_d2_f32_nchw")),
    ),
    *_of("include/device/border.cuh", NAIVE,
        ("off by one at the border", "i < size) return i;", "i <= size) return i;"),
        ("edge pixel repeated", "i : period - i;", "i : period - 1 - i;",
         _with(NAIVE, "n1c2h9w37_k3r3s3_p1_reflect_f32_nchw")),
        ("channel left out at the border", "place(conv.x_strides, n, c, h, w)", "place(conv.x_strides, n, 0, h, w)"),
    ),
    *_of("include/device/conv.cuh", NAIVE,
        ("step of columns for rows", "h * static_cast<index_t>(strides.h)", "h * static_cast<index_t>(strides.w)"),
    ),
    *_of("include/device/ends.cuh", NAIVE,
        ("one bias for all outputs", "conv.bias[k]", "conv.bias[0]", _with(NAIVE, PLAIN + "_+bias")),
        ("place of the input for the residual's", "place(conv.residual_strides, n, k", "place(conv.x_strides, n, k",
         _with(NAIVE, PLAIN + "_+residual")),
    ),
    *_of("include/device/types.cuh", NAIVE,
        ("integers wrap round", "return static_cast<T>(whole > limits<T>::high ? limits<T>::high : whole);",
         "return static_cast<T>(static_cast<long long>(whole));",
         _with(NAIVE, "n1c1h9w37_k1r3s3_p1_u8-f32-u8-f32_nchw")),
    ),
    *_of("include/weights.cu", NAIVE,
        ("filter not flipped", "r = args.R - 1 - r;", "", _with(NAIVE, PLAIN.replace("_f32", "_flip_f32"))),
        ("height for width", "r = column / args.S % args.R", "r = column / args.R % args.S", _with(NAIVE, TALL_FILTER)),
        ("no barrier before the square is turned", SYNC, "", IMPLICIT),
        ("columns beyond the first square left out", "% across * SIDE", "% 1 * SIDE",
         _with(NAIVE, "n1c5h9w37_k4r3s3_p1_f32_nchw")),
    ),
    *_of("direct/constant.cu", CONSTANT,
        ("last row left out", "p < conv.P;", "p < conv.P - 1;"),
        ("height for width", "q >= conv.Q", "q >= conv.P"),
        ("no check at the ragged edge", "if (q >= conv.Q) return;", ""),
        ("one filter for all outputs", "weights + k * TAPS", "weights"),
    ),
    *_of("direct/shared.cu", SHARED,
        ("no halo columns", "STRIDE_W + DILATION_W * (S - 1) + 1", "STRIDE_W + 1"),
        ("no halo rows", "STRIDE_H + DILATION_H * (R - 1) + 1", "STRIDE_H + 1"),
        ("stride-1 tile for stride 2", "(TILE_P - 1) * STRIDE_H", "(TILE_P - 1)", _with(SHARED, STRIDED)),
        ("off by one at the border", "h0 >= 0 && w0 >= 0", "h0 >= -1 && w0 >= -1", _with(SHARED, TALL)),
        ("height for width", "h0 + TILE_H <= conv.H && w0 + TILE_W <= conv.W",
         "h0 + TILE_H <= conv.W && w0 + TILE_W <= conv.H", _with(SHARED, TALL)),
        ("no barrier before the next slice", f"{SYNC}  // the slice before", "// the slice before"),
        ("no barrier after the copy", f"{SYNC}\n                add_products", "add_products"),
        ("uninitialised accumulators", "sums[TILE_K][PER_P] = {};", "sums[TILE_K][PER_P];"),
        ("no check at the ragged edge", "p < conv.P && q < conv.Q)", "p < conv.P)"),
        ("first group's channels for all", "g * C_GROUP + c,", "c,", _with(SHARED, GROUPED)),
        ("stride-1 tile for stride 2 along rows", "(BLOCK_X - 1) * STRIDE_W", "(BLOCK_X - 1)", _with(SHARED, STRIDED)),
        ("columns beside the whole ones left out", "i < TILE_H * LEFT;", "i < 0;"),
        ("rows beyond the tile", "if (y + BLOCK_Y <= TILE_H || y + threadIdx.y < TILE_H)", "",
         Run("direct_shared", PLAIN, SharedConfig(32, 4, 1, 3, 2))),
        ("a whole slice where fewer channels are left", "min(TILE_C, C_GROUP - c) : TILE_C", "TILE_C : TILE_C",
         Run("direct_shared", PLAIN, SharedConfig(32, 4, 1, 2, 2))),
        ("outputs of the next group", "k + j < (g + 1) * K_GROUP &&", "k + j < K &&",
         _with(SHARED, "n1c4h9w37_k6r3s3_p1_g2_f32_nchw")),
    ),
    *_of("include/device/weights.cuh", SHARED,
        ("one filter for all outputs", "((k * C_GROUP + c) * R", "((0 * C_GROUP + c) * R"),
        ("transposed filter", "+ c) * R + r) * S + s];", "+ c) * S + s) * R + r];", _with(SHARED, TALL_FILTER)),
        ("one filter for all outputs, in global memory", "static_cast<index_t>(k) * TAPS", "static_cast<index_t>(0)",
         Run("direct_shared", "n1c128h4w5_k15r3s3_p1_f32_nchw")),
    ),
    *_of("depthwise/channels.cu", CHANNELS,
        ("no halo columns", "STRIDE_W + DILATION_W * (S - 1) + 1", "STRIDE_W + 1"),
        ("no halo rows", "STRIDE_H + DILATION_H * (R - 1) + 1", "STRIDE_H + 1"),
        ("no border beside", "h >= 0 && there[j] ?", "h >= 0 ?"),
        ("no border above", "h >= 0 && there[j] ?", "there[j] ?"),
        ("uninitialised accumulators", "sums[OUT_P][OUT_Q][VEC] = {};", "sums[OUT_P][OUT_Q][VEC];"),
        ("no check at the ragged edge", "if (p >= conv.P || q >= conv.Q) continue;", "if (p >= conv.P) continue;"),
        ("no check at the last row", "if (p >= conv.P || q >= conv.Q) continue;", "if (q >= conv.Q) continue;"),
        ("height for width", "inside(w0 + j, conv.W)", "inside(w0 + j, conv.H)"),
        ("one filter for all outputs", "static_cast<index_t>(K) + tile.k + v", "static_cast<index_t>(K) + v"),
        ("transposed filter", "(r * S + s) * static_cast", "(s * R + r) * static_cast"),
        ("stride 1 for stride 2", "w0 = tile.q * STRIDE_W", "w0 = tile.q",
         replace(CHANNELS, problem="n2c8h13w14_k8r3s3_p1_g8_st2_f32_nhwc")),
        ("rows that a window steps over", "below % DILATION_H != 0 ||", "",
         replace(CHANNELS, problem="n1c8h13w14_k8r3s3_p2_d2_g8_f32_nhwc")),
        ("every output its own channel", "tile.n, tile.k / K_GROUP, 0, 0)", "tile.n, tile.k, 0, 0)", CHANNELS_TWICE),
        ("a vector's first channel for all", "((k + e) / K_GROUP - k / K_GROUP)", "0", CHANNELS_TWICE),
        ("outputs of the first channels for all", "tile.k + v, p, q), values", "v, p, q), values"),
    ),
    *_of("depthwise/planes.cu", PLANES,
        ("no barrier behind the copies", "copy_async_wait();\n    __syncthreads();", "copy_async_wait();"),
        ("copies not waited for", "    copy_async_wait();\n", ""),
        ("no halo rows", "TILE_H = (TILE_P - 1) * STRIDE_H + DILATION_H * (R - 1) + 1",
         "TILE_H = (TILE_P - 1) * STRIDE_H + 1"),
        ("no halo columns", "+ (TILE_Q - 1) * STRIDE_W + DILATION_W * (S - 1) + 1", "+ (TILE_Q - 1) * STRIDE_W + 1"),
        ("no border above", "const bool there = h >= 0 && w >= 0", "const bool there = w >= 0"),
        ("no border beside", "const bool there = h >= 0 && w >= 0 && w < conv.W;", "const bool there = h >= 0;"),
        ("zero for what stands outside", "stored<T>::of(conv.outside)", "stored<T>::of(acc_t(0))",
         replace(PLANES, problem="n1c3h9w14_k3r3s3_p1_constant3.0_g3_f32_nchw")),
        ("vectors not shifted by the padding", "row[SHIFT + q * STRIDE_W", "row[q * STRIDE_W"),
        ("uninitialised accumulators", "sums[OUT_P][OUT_Q] = {};", "sums[OUT_P][OUT_Q];"),
        ("no check at the last row", "if (p0 + p >= conv.P) continue;", ""),
        ("no check at the ragged edge", "if (q0 + q + e < conv.Q) finish", "finish",
         replace(PLANES, problem="n2c5h13w23_k5r3s3_p1_g5_f32_nchw")),
        ("vectors over the ragged edge", "args.aligned_out && q0 + q + STORE <= conv.Q", "args.aligned_out",
         replace(PLANES, problem="n2c5h13w20_k5r3s3_p1_g5_f32_nchw", config=PlanesConfig(3, 8, 3, 2, 2))),
        ("one filter for all planes", "+ slot * FILTER);", ");"),
        ("transposed filter", "tap / S * FILTER_PITCH + tap % S", "tap % S * FILTER_PITCH + tap / S"),
        ("planes of the next picture", "tile.n + k / K, k % K / K_GROUP,", "tile.n, k % K / K_GROUP,"),
        ("every output its own plane", "k % K / K_GROUP,", "k % K,",
         replace(PLANES, problem="n2c4h13w24_k8r3s3_p1_g4_f32_nchw")),
        ("planes beyond the last", "if (slot >= tile.planes ||", "if (",
         replace(PLANES, problem="n1c5h13w24_k5r3s3_p1_g5_f32_nchw")),
        ("the last taps of a row left out", "if constexpr (LEFT > 0) add_taps", "if constexpr (false) add_taps",
         PLANES_WIDE),
        ("the first taps of a row again", "filter + AT, i);", "filter, i);", PLANES_WIDE),
        ("rows not tested", "TESTED && (below < 0", "false && (below < 0", PLANES_TALL),
        ("rows that are not of all windows", "i >= OUT_P - 1 && i < R", "i >= OUT_P - 2 && i < R", PLANES_TALL),
        ("rows that a window steps over", "below % DILATION_H != 0 ||", "",
         replace(PLANES, problem="n1c3h13w24_k3r3s3_p2_d2_g3_f32_nchw")),
        ("stride 1 for stride 2", "w0 = tile.q * STRIDE_W", "w0 = tile.q",
         replace(PLANES, problem="n1c3h25w48_k3r3s3_p1_st2_g3_f32_nchw")),
        ("rows of the wrong plane", "slot = CHANNELS_LAST ? t % PLANES : i /", "slot = CHANNELS_LAST ? 0 : i /",
         PLANES_TALL),
    ),
    *_of("separable/fused.cu", SEPARABLE,
        ("no barrier behind the copies", f"{SYNC}  // pixels and factors are there", ""),
        ("no barrier between the passes", f"{SYNC}  // sums along rows are there", ""),
        ("no barrier before the next product",
         f"if (i + 1 < args.rank || c + 1 < C_GROUP) {SYNC}  // nothing is read any more", ""),
        ("copies not waited for", "            copy_async_wait();\n", ""),
        ("no halo rows", "ROWS = (TILE_P - 1) * STRIDE_H + DILATION_H * (R - 1) + 1",
         "ROWS = (TILE_P - 1) * STRIDE_H + 1"),
        ("no halo columns", "+ (TILE_Q - 1) * STRIDE_W + DILATION_W * (S - 1) + 1;", "+ (TILE_Q - 1) * STRIDE_W + 1;"),
        ("no border above", "const bool there = h >= 0 && whole;", "const bool there = whole;"),
        ("no border beside", "const bool there = h >= 0 && whole;", "const bool there = h >= 0;"),
        ("zero for what stands outside", "stored<T>::of(conv.outside)", "stored<T>::of(acc_t(0))",
         replace(SEPARABLE, problem="n1c3h21w40_k3r5s7_p2x3_constant3.0_g3_f32_nchw")),
        ("vectors not shifted by the padding", "v + e - SHIFT - q * STRIDE_W", "v + e - q * STRIDE_W"),
        ("rows for columns", "tap < S ? args.rows + first * S + tap : args.columns + first * R + tap - S",
         "tap < R ? args.columns + first * R + tap : args.rows + first * S + tap - R",
         replace(SEPARABLE, problem="n2c3h21w40_k3r7s7_p3_g3_f32_nchw")),
        ("the first product alone", "i < args.rank; i++", "i < 1; i++"),
        ("the first product again", "args.rank + i;", "args.rank;"),
        ("one filter for all outputs", "(tile.k + slot) % K) * C_GROUP", "(0 * slot) % K) * C_GROUP"),
        ("the first channel alone", "c < C_GROUP; c++", "c < 1; c++", SEPARABLE_SUMMED),
        ("one channel's factors for all", "* C_GROUP + c) * args.rank", "* C_GROUP) * args.rank", SEPARABLE_SUMMED),
        ("the first group's channels for all", "k % K / K_GROUP * C_GROUP + c, 0, 0)", "c, 0, 0)", SEPARABLE_SUMMED),
        ("the last taps of a row left out", "if constexpr (LEFT > 0) add_along", "if constexpr (false) add_along",
         SEPARABLE_LONG),
        ("the last taps of a column left out", "if constexpr (LEFT > 0) add_down", "if constexpr (false) add_down",
         SEPARABLE_LONG),
        ("the first taps of a row again", "factor + s);\n        if", "factor);\n        if", SEPARABLE_LONG),
        ("the first taps of a column again", "factor + r);", "factor);", SEPARABLE_LONG),
        ("columns that a window steps over", "beyond % DILATION_W != 0 ||", "",
         replace(SEPARABLE, problem="n1c3h21w40_k3r5s7_p4x6_d2_g3_f32_nchw")),
        ("rows that a window steps over", "beyond % DILATION_H != 0 ||", "",
         replace(SEPARABLE, problem="n1c3h21w40_k3r5s7_p4x6_d2_g3_f32_nchw")),
        ("stride 1 for stride 2", "w0 = tile.q * STRIDE_W", "w0 = tile.q",
         replace(SEPARABLE, problem="n1c3h21w80_k3r5s7_p2x3_st2_g3_f32_nchw")),
        ("uninitialised accumulators along", "sums[ALONG] = {};", "sums[ALONG];"),
        ("uninitialised accumulators down", "sums[OUT_P] = {};", "sums[OUT_P];"),
        ("no check at the last row", "if (p0 + p < conv.P) finish", "finish"),
        ("no check at the ragged edge", "p0 < conv.P && q < conv.Q;", "p0 < conv.P;"),
        ("planes beyond the last", "slot < tile.planes && p0", "p0", SEPARABLE_NEAR),
        ("planes of the next picture", "tile.n + k / K, k % K / K_GROUP", "tile.n, k % K / K_GROUP", SEPARABLE_NEAR),
        ("outputs of the next picture", "finish(conv, tile.n + k / K,", "finish(conv, tile.n,", SEPARABLE_NEAR),
        ("a vector's first plane for all", "slot = i / FILLS + vector % NEAR", "slot = i / FILLS", SEPARABLE_NEAR),
        ("one plane's rows for all", "held.rows + slot * ROW_PITCH;", "held.rows;", SEPARABLE_NEAR),
    ),
    *_of("direct/tiled.cu", TILED,
        ("no halo columns", "STRIDE_W + DILATION_W * (S - 1) + 1", "STRIDE_W + 1"),
        ("no halo rows", "STRIDE_H + DILATION_H * (R - 1) + 1", "STRIDE_H + 1"),
        ("stride 1 for stride 2", "w0 = tile.q * STRIDE_W", "w0 = tile.q", _with(TILED, STRIDED)),
        ("off by one at the border", "h0 + ROWS <= conv.H", "h0 + ROWS <= conv.H + 1",
         Run("direct_tiled", "n2c2h8w200_k1r3s3_p1_f32_nchw", TILED.config)),
        ("height for width", "last <= conv.W * CHUNK", "last <= conv.H * CHUNK",
         Run("direct_tiled", "n1c1h80w64_k1r3s3_p1_f32_nchw", TiledConfig(32, 1, 1, 1, 1))),
        ("uninitialised accumulators", "sums[OUT_K][OUT_P][OUT_Q] = {};", "sums[OUT_K][OUT_P][OUT_Q];"),
        ("no check at the ragged edge", "&& tile.q + q < conv.Q)", ")"),
        ("one filter for all outputs", "min(tile.k + k, K - 1), c + ch", "0, c + ch"),
        ("vectors not shifted by the padding", "v * LOAD - SHIFT", "v * LOAD", _with(TILED, VECTORS)),
        ("vectors of the first row for all", "tile.p + p, tile.q);", "tile.p, tile.q);", _with(TILED, VECTORS)),
        ("vectors of the next group", "if (K_GROUP % OUT_K && (tile.k + k) / K_GROUP != tile.k / K_GROUP) continue;",
         "", _with(TILED, "n1c4h8w200_k6r3s3_p1_g2_f32_nchw")),
        ("rows that a window steps over", "below % DILATION_H != 0 ||", "",
         _with(TILED, "n1c2h9w37_k3r3s3_p2_d2_f32_nchw")),
        ("no barrier after the filter is staged", f"THREADS);\n        {SYNC}", "THREADS);", STAGED),
    ),
    *_of("include/device/staged.cuh", STAGED,
        ("one filter for all outputs", "k = i / (S * R * C_GROUP);", "k = 0;"),
        ("one filter channel for all channels", "c = i / (S * R) % C_GROUP", "c = 0"),
        ("height for width", "r = i / S % R", "r = i / R % S", _with(STAGED, TALL_FILTER)),
        ("taps of the first row for all", "+ c) * R + r) * TAP_PITCH;", "+ c) * R) * TAP_PITCH;"),
    ),
    *_of("im2col/im2col.cu", IM2COL,
        ("height for width", "r * DILATION_H, conv.H)", "r * DILATION_H, conv.W)"),
        ("stride 1 for stride 2", "column.q * STRIDE_W", "column.q", _with(IM2COL, STRIDED)),
        ("no border beside", "rows[i][r] != nullptr && columns[i][s] >= 0;", "rows[i][r] != nullptr;"),
        ("no check at the ragged edge", "if (i >= args.count) return;", ""),
        ("one column for all of a thread", "i++, column = after(conv, column)", "i++"),
        ("a column of the next row", "j < PER && i + j < args.count;", "j < PER;",
         Run("im2col", "n1c3h9w37_k4r3s3_p1_f32_nchw", IM2COL.config)),
        ("every chunk the first", "static_cast<index_t>(args.first + i)", "static_cast<index_t>(i)"),
        ("first group's columns for all", "(group * C_GROUP * R * S + c % C_GROUP)", "(c % C_GROUP)",
         Run("im2col", "n1c32h6w7_k8r3s3_p1_g2_f32_nhwc", IM2COL.config)),
    ),
    *_of("include/device/columns.cuh", IM2COL,
        ("height for width", "static_cast<unsigned>(i) / conv.Q, n = row / conv.P;",
         "static_cast<unsigned>(i) / conv.P, n = row / conv.Q;"),
    ),
    *_of("implicit_gemm/implicit_gemm.cu", IMPLICIT,
        ("no barrier after the corners", f"min(tile.n + n, product.N - 1));\n    {SYNC}",
         "min(tile.n + n, product.N - 1));", _with(IMPLICIT, PLAIN.replace("nchw", "nhwc"))),
        ("no barrier after the first tiles", f"columns.store(memory->b[0]);\n    {SYNC}",
         "columns.store(memory->b[0]);"),
        ("no barrier in a step", f"        }}\n        {SYNC}", "        }"),
        ("uninitialised accumulators", "sums[THREAD_M][THREAD_N] = {};", "sums[THREAD_M][THREAD_N];"),
        ("height for width", "tap / S * DILATION_H, conv.H)", "tap / S * DILATION_H, conv.W)"),
        ("stride 1 for stride 2", "column.q * STRIDE_W", "column.q", _with(IMPLICIT, STRIDED)),
        ("one tap for all channels", "seen_by(conv, corner, k / C_GROUP);", "seen_by(conv, corner, k0 / C_GROUP);"),
    ),
    *_of("gemm/naive.cu", GEMM_NAIVE,
        ("uninitialised accumulator", "acc_t sum = 0;", "acc_t sum;"),
        ("no check at the ragged edge", "m >= args.M || n >= args.N", "m >= args.M"),
        ("B transposed", "b_column += b.deep;", "b_column += b.along;"),
        ("rows for columns", "tile.m + threadIdx.y, n = tile.n + threadIdx.x",
         "tile.m + threadIdx.x, n = tile.n + threadIdx.y"),
    ),
    *_of("gemm/shared.cu", GEMM_SHARED,
        ("no barrier after the copy", f": 0;\n        {SYNC}", ": 0;"),
        ("no barrier before the next tiles", f"{SYNC}  // all have read", "// all have read"),
        ("uninitialised accumulator", "acc_t sum = 0;", "acc_t sum;"),
        ("no check at the ragged edge", "if (tile.m + y < args.M && tile.n + x < args.N)", "if (tile.m + y < args.M)"),
        ("B transposed", "b_tile[k][x]", "b_tile[x][k]"),
    ),
    *_of("gemm/tile_1d.cu", TILE_1D,
        ("no barrier after the copy", f"{SYNC}\n#pragma unroll", "#pragma unroll"),
        ("no barrier before the next tiles", f"        }}\n        {SYNC}", "        }"),
        ("uninitialised accumulators", "sums[THREAD_M] = {};", "sums[THREAD_M];"),
        ("no check at the ragged edge", "if (tile.n + n >= args.N) return;", ""),
    ),
    *_of("gemm/tile_2d.cu", TILE_2D,
        ("no barrier after the copy", f"{SYNC}\n#pragma unroll", "#pragma unroll"),
        ("no barrier before the next tiles", f"        }}\n        {SYNC}", "        }"),
        ("uninitialised accumulators", "sums[THREAD_M][THREAD_N] = {};", "sums[THREAD_M][THREAD_N];"),
        ("no check at the ragged edge", "if (column >= args.N) continue;", ""),
        ("step of columns for rows", "a_tile[k][m + i * ROWS]", "a_tile[k][m + i * COLUMNS * 2]"),
    ),
    *_of("gemm/vectorised.cu", VECTORISED,
        ("no barrier after the first tiles", f"next_b.store(b_tile[0]);\n    {SYNC}", "next_b.store(b_tile[0]);"),
        ("no barrier in a step", f"        }}\n        {SYNC}", "        }"),
        ("uninitialised accumulators", "sums[THREAD_M][THREAD_N] = {};", "sums[THREAD_M][THREAD_N];"),
        ("the same tiles every step", "now ^= 1;", ""),
    ),
    *_of("gemm/warp_tiled.cu", WARP_TILED,
        ("no wait for the copies", "copy_async_wait<STAGES - 2>();", ""),
        ("one copy too few waited for", "copy_async_wait<STAGES - 2>();", "copy_async_wait<STAGES - 1>();"),
        ("no barrier in a step", f"{SYNC}                // so has", "// so has"),
        ("uninitialised accumulators", "sums[THREAD_M][THREAD_N] = {};", "sums[THREAD_M][THREAD_N];"),
        ("no check at the ragged edge", "there ? place : from.data, there);", "place);"),
    ),
    *_of("include/device/gemm.cuh", TILE_2D,
        ("no check at the ragged edge", "there ? first[step] : 0;", "first[step];"),
        ("rows for columns", "rest % columns * BLOCK_N", "rest / columns * BLOCK_N"),
        ("no check at the ragged edge of squares", "if (u < rows && v < columns) starts[v]",
         "if (v < columns) starts[v]", VECTORISED),
        ("A neighbour's square", "&b_tile[k][n + j / 4 * step_n", "&b_tile[k][n + j / 4 * step_m + 4", VECTORISED),
        ("first group's operand for all", "operand.data += group * operand.group;", "", _with(IMPLICIT, GROUPED)),
    ),
    *_of("include/device/warp_tile.cuh", WARP_TILED,
        ("lanes that do the same", "lane / 2 % LANES_N", "lane / 4 % LANES_N"),
    ),
    *_of("include/device/vector.cuh", _with(VECTORISED, WHOLE),
        ("load that is not aligned", "*>(from);", "*>(from + 1);"),
        ("store that is not aligned", "*>(to) =", "*>(to + 1) =", RELU),
    ),
    *_of("elementwise/relu.cu", RELU,
        ("ragged tail left out", "i < args.size - behind;", "i < args.head;"),
        ("head taken for the tail", "i < args.head ? i : i + behind", "i + behind", replace(RELU, ahead=1)),
        ("vectors from the first element on", "x = args.x + args.head", "x = args.x", replace(RELU, ahead=1)),
        ("vectors to the first element on", "out = args.out + args.head", "out = args.out", replace(RELU, ahead=1)),
        ("last run left out", "run * RUN < args.vectors", "(run + 1) * RUN < args.vectors"),
        ("no check at the ragged edge", "if (first + v * THREADS >= args.vectors) continue;", ""),
        ("a neighbour's vectors", "out + (first + v * THREADS)", "out + (first + v)"),
        ("step of x for the output's", "place * args.out_step", "place * args.x_step"),
        ("only the grid's first runs", "run += gridDim.x", "run = args.vectors",
         Run("relu", "relu200001_i8", ReluConfig(1024, 1, "resident"))),
        ("NaN lost", "widen(value) < 0 ? element_t{} : value", "widen(value) > 0 ? value : element_t{}",
         replace(RELU, kind="nan")),
    ),
    *_of("pool/max_pool.cu", POOL,
        ("no halo columns", "STRIDE_W + DILATION_W * (S - 1) + 1", "STRIDE_W + 1"),
        ("no halo rows", "STRIDE_H + DILATION_H * (R - 1) + 1", "STRIDE_H + 1"),
        ("stride 1 for stride 2", "w0 = tile.q * STRIDE_W", "w0 = tile.q"),
        ("stride 1 for stride 2 within a tile", "takes(q * STRIDE_W,", "takes(q,"),
        ("off by one at the border below", "pool.H - 1);", "pool.H);"),
        ("off by one at the border beside", "pool.W - WIDTH);", "pool.W - WIDTH + 1);"),
        ("height for width", "pool.W - WIDTH);", "pool.H - WIDTH);"),
        ("edge pixels beside the picture", "row_inside && w == near", "row_inside", POOL_DILATED),
        ("edge pixels above the picture", "w0, h == near);", "w0, true);", POOL_DILATED),
        ("rows begin with zero", "across[e / CHANNELS][e % CHANNELS] = pool.outside;",
         "across[e / CHANNELS][e % CHANNELS] = 0;", POOL_SMALL),
        ("outputs begin with zero", "[e / CHANNELS % OUT_Q][e % CHANNELS] = pool.outside;",
         "[e / CHANNELS % OUT_Q][e % CHANNELS] = 0;", POOL_SMALL),
        ("uninitialised maxima", "across[e / CHANNELS][e % CHANNELS] = pool.outside;", ";",
         _with(POOL, "max_n2c3h9w13_r2s2_st2_p0_i32_nchw")),
        ("NaN lost", "a >= b || a != a ? a : b", "a >= b ? a : b", replace(POOL, kind="nan")),
        ("dilation left out", "column, DILATION_W, S)", "column, 1, S)", POOL_DILATED),
        ("columns between two windows' left out", "gcd(STRIDE_W, DILATION_W)", "DILATION_W", POOL_DILATED),
        ("rows between two windows' left out", "gcd(STRIDE_H, DILATION_H)", "DILATION_H", POOL_DILATED),
        ("no check at the last row", "if (tile.p + p >= pool.P) continue;", ""),
        ("no check at the ragged edge", "if (tile.q + q >= pool.Q) continue;", ""),
        ("columns counted as rows", "(pool.P + OUT_P - 1)", "(pool.Q + OUT_P - 1)"),
        ("first picture for all", "plane = pool.x + place(pool.x_strides, tile.n,",
         "plane = pool.x + place(pool.x_strides, 0,"),
        ("last tile left out", "i < pool.tiles;", "i < pool.tiles - 1;"),
        ("vectors not shifted by the padding", "WIDTH > 1 ? SHIFT : 0", "0", POOL_VECTORS),
        ("a vector's first channel for all", "[(e + i) % CHANNELS]);", "[e % CHANNELS]);", POOL_CHANNELS),
        ("vectors of channels that overlap", "next(pool.C / CHANNELS) * CHANNELS", "next(pool.C / CHANNELS)",
         POOL_CHANNELS),
    ),
]  # fmt: skip
