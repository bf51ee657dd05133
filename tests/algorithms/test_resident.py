"""Launches whose blocks are shared evenly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.algorithms.compiling import H200

from convforge.algorithms.host.resident import DRIVER_BYTES, SHARED_UNIT, with_occupancy_cap
from convforge.algorithms.implicit_gemm.mma import ImplicitGemmMma, ImplicitMmaConfig
from convforge.backends.facts import DeviceFacts
from convforge.backends.recording import Recording
from convforge.backends.runtime import LaunchInfo
from convforge.problem import parse_problem


@dataclass
class Holding:
    """Stands in for a runtime whose SMs hold `held` blocks, or fewer for want of shared memory."""

    held: int
    threads: int
    static_bytes: int = 0
    facts: DeviceFacts = H200
    starts_early: bool = True

    def describe(self, kernel: Any, info: LaunchInfo) -> LaunchInfo:
        assert info.scratch_bytes + self.static_bytes <= self.facts.block_shared_bytes, "a driver gives a block no more"
        nbytes = -(-(info.scratch_bytes + self.static_bytes + DRIVER_BYTES) // SHARED_UNIT) * SHARED_UNIT
        held = min(self.held, self.facts.shared_bytes // nbytes)
        pdl = info.pdl and self.starts_early
        occupancy = held * self.threads / self.facts.threads
        return replace(info, occupancy=occupancy, static_bytes=self.static_bytes, pdl=pdl)


SHARED_BYTES = 1000


def launched(blocks: int, held: int, threads: int = 128, pdl: bool = True, static_bytes: int = 0) -> LaunchInfo:
    """A launch of so many blocks, where an SM has room for `held` of them."""
    runtime: Any = Holding(held, -(-threads // 32) * 32, static_bytes)
    return with_occupancy_cap(runtime, None, LaunchInfo("kernel", (blocks,), (threads,), SHARED_BYTES, pdl=pdl))


def held_of(info: LaunchInfo, threads: int = 128) -> int:
    assert info.occupancy is not None
    return round(info.occupancy * H200.threads) // threads


@pytest.mark.parametrize(
    ("share", "held"), [(1, 2), (1, 16), (2, 3), (2, 4), (2, 5), (5, 8), (6, 7), (6, 12), (6, 13), (11, 16)]
)
def test_no_sm_takes_more_than_its_share(share: int, held: int) -> None:
    for blocks in (H200.cores * share, H200.cores * (share - 1) + 1):
        info = launched(blocks, held)
        assert held_of(info) == share
        assert info.scratch_bytes % 128 == 0
        assert (share + 1) * (info.scratch_bytes + DRIVER_BYTES - 128) <= H200.shared_bytes  # no more than it takes


@pytest.mark.parametrize(("share", "held"), [(0, 8), (1, 1), (6, 6), (14, 10), (20, 16)])
def test_others_are_left_alone(share: int, held: int) -> None:
    """There is no room for more than a share, or, of an empty batch, nothing to share."""
    assert launched(H200.cores * share, held).scratch_bytes == SHARED_BYTES


def test_launches_that_wait_for_each_other_are_left_alone() -> None:
    assert launched(H200.cores * 6, 8, pdl=False).scratch_bytes == SHARED_BYTES


def test_devices_that_begin_no_launch_early_are_left_alone() -> None:
    """As what is left of shared memory is their first level cache, and room for other streams' launches."""
    runtime: Any = Holding(8, 128, starts_early=False)
    info = LaunchInfo("kernel", (H200.cores,), (128,), SHARED_BYTES, pdl=True)
    assert with_occupancy_cap(runtime, None, info).scratch_bytes == SHARED_BYTES


def test_blocks_of_part_of_a_warp_count_whole_ones() -> None:
    assert held_of(launched(H200.cores * 6, 8, threads=100)) == 6


@pytest.mark.parametrize(("static_bytes", "share"), [(100, 3), (100, 5), (4096, 3), (20000, 3)])
def test_what_a_kernel_declares_itself_counts(static_bytes: int, share: int) -> None:
    """With it a block takes whole units."""
    info = launched(H200.cores * share, share + 1, static_bytes=static_bytes)
    assert held_of(info) == share
    assert info.scratch_bytes > SHARED_BYTES


def test_what_a_runtime_does_not_know_changes_nothing() -> None:
    class Ignorant(Holding):
        def describe(self, kernel: Any, info: LaunchInfo) -> LaunchInfo:
            return info

    info = LaunchInfo("kernel", (H200.cores * 6,), (128,), SHARED_BYTES, pdl=True)
    runtime: Any = Ignorant(8, 128)
    assert with_occupancy_cap(runtime, None, info) == info


class Held(Recording):
    """Records plans on a GPU whose SMs hold two blocks of 128 threads."""

    def describe(self, kernel: Any, info: LaunchInfo) -> LaunchInfo:
        return replace(info, occupancy=256 / H200.threads)


@pytest.mark.parametrize(("pictures", "blocks"), [(32, 264), (33, 809), (16, 392), (4, 98)])
def test_blocks_stay_where_they_share_tiles_well(pictures: int, blocks: int) -> None:
    """Of 784 tiles blocks take 2 or 3 each, all SMs 6 at most; of 809 or 392 some would have more."""
    problem = parse_problem(f"n{pictures}c64h56w56_k128r3s3_p1_f16_nhwc")
    runtime: Any = Held(H200)
    plan = ImplicitGemmMma().plan(problem, ImplicitMmaConfig(persistent=True), runtime)
    (launch,) = plan.steps
    assert launch.info.grid == (blocks,)
