"""Planted faults of gemm_wgmma: see faults.py. A GPU must notice them too, so none lets a block wait for ever."""

from __future__ import annotations

from dataclasses import replace

from tests.algorithms.planted import Run, of_file

from convforge.algorithms.gemm.wgmma import GemmWgmmaConfig

# Ragged in every way, several steps along K, several tiles; MN-major B, K-major A.
RAGGED = Run("gemm_wgmma", "m200n328k136_f16", GemmWgmmaConfig(128, 128, False, 3, 2))
# The other way round: MN-major A, K-major B.
TURNED = replace(RAGGED, problem="m200n328k136_ta_tb_f16")
# Whole boxes of an MN-major B, one copy a stage.
WHOLE = replace(RAGGED, problem="m200n320k136_f16")
PING_PONG = replace(RAGGED, config=GemmWgmmaConfig(128, 128, True, 3, 2))
PAIRS = replace(RAGGED, config=replace(RAGGED.config, paired=True))
# More tiles than two for each SM.
MANY = replace(RAGGED, problem="m1024n2560k72_f16", config=GemmWgmmaConfig(128, 64, True, 4, 5))

GEMM_WGMMA_FAULTS = [
    *of_file("gemm/wgmma.cu", RAGGED,
        ("the first step of a K-major operand for all", "copy(to, step * STEP_K, x, 0, full)",
         "copy(to, 0, x, 0, full)"),
        ("the first rows of A for every tile", "copy(to, step * STEP_K, x, 0, full)",
         "copy(to, step * STEP_K, 0, 0, full)"),
        ("the first 64 columns for all of a tile",
         "x + 64 * i, step * STEP_K, 0, full", "x, step * STEP_K, 0, full"),
        ("the first step of an MN-major operand for all",
         "x + 64 * i, step * STEP_K, 0, full", "x + 64 * i, 0, 0, full"),
        ("the first box for every tile", "step * STEP_K, x / 64, full", "step * STEP_K, 0, full", WHOLE),
        ("the first 16 of a step for all of K-major A", "NEXT_A = cfg::A_ACROSS ? 16 * ROW_BYTES / 16 : 2",
         "NEXT_A = 0"),
        ("a step of MN-major B as if it were K-major", "NEXT_B = cfg::B_ACROSS ? 16 * ROW_BYTES / 16 : 2",
         "NEXT_B = 2"),
        ("a step of MN-major A as if it were K-major",
         "NEXT_A = cfg::A_ACROSS ? 16 * ROW_BYTES / 16 : 2", "NEXT_A = 2", TURNED),
        ("64 columns of B for all", "mn_major_matrix(b, BOX_BYTES)", "mn_major_matrix(b, 0)"),
        ("the upper rows of A twice", "(share * ROWS_64 + t) * BOX_BYTES", "t * BOX_BYTES"),
        ("the upper rows of a ping-pong tile twice",
         "(share * ROWS_64 + t) * BOX_BYTES", "share * BOX_BYTES", PING_PONG),
        ("sums that go on from tile to tile", "of_b + NEXT_B * i, adds || i > 0", "of_b + NEXT_B * i, true", MANY),
        ("columns stored where the first are", "at.n + first, at.m", "at.n, at.m"),
        ("lower rows stored at the upper", "at.m + 64 * (share * ROWS_64 + t)", "at.m + 64 * t"),
        ("sums of the first 64 columns for all", "4 * (first / 8 + j + i / 2)", "4 * (j + i / 2)"),
        ("pieces of a result in plain order", "((j + lane / 16) ^ row % 8) * 16", "(j + lane / 16) * 16"),
        ("pairs of a result the wrong way round", "narrow_pair<out_t>(sums[e], sums[e + 1])",
         "narrow_pair<out_t>(sums[e + 1], sums[e])"),
        ("tiles of the second group as of the first",
         "(first + in_group % rows) * OF_CLUSTER", "(in_group % rows) * OF_CLUSTER",
         MANY),
        ("both blocks of a pair load to the same place", "+ part * BLOCK * ROW_BYTES;", ";", PAIRS),
        ("both blocks of a pair load the same columns", "(IS_A ? at.m : at.n) + part * BLOCK;", "IS_A ? at.m : at.n;",
         PAIRS),
        ("both blocks of a pair take the same tile", "* OF_CLUSTER + tile % OF_CLUSTER)", "* OF_CLUSTER)", PAIRS),
        ("columns of tiles as if every group were whole", "in_group / rows * cfg::BLOCK_N",
         "in_group / cfg::GROUP * cfg::BLOCK_N",
         replace(MANY, problem="m1152n2560k72_f16")),
    ),
    *of_file("device/wgmma.cuh", RAGGED,
        ("the next 8 of K too near", "STRIDE = 1024ull >> 4 << 32", "STRIDE = 512ull >> 4 << 32"),
        ("the leading offset left out", "static_cast<unsigned long long>(pitch >> 4) << 16", "0ull"),
    ),
]  # fmt: skip
