"""The ways of a call of an implicit GEMM: x first written as rows, shares of sums, and how the result is stored."""

from __future__ import annotations

from collections.abc import Iterator

from convforge.algorithms.implicit_gemm.wgmma_tiles import BOX_FILTERS, TilesConfig, WgmmaConfig, tma_loads, tma_stores
from convforge.algorithms.traits import Way
from convforge.backends.maps import ALIGNMENT
from convforge.errors import Reason
from convforge.problem import Conv2dProblem
from convforge.problem.types import itemsize


def ways_of_x(problem: Conv2dProblem, config: TilesConfig, of_group: int) -> tuple[Way, ...]:
    """The way of x if every call first writes it as rows; `of_group` are the channels of a group in such rows."""
    if not config.repacked:
        return ()
    why = Reason.joined(_why_rows(problem, of_group)) or Reason("the config asks for it ({field})", field="repacked")
    words = Reason(
        "every call first writes x to a workspace, as rows of channels (NHWC) at multiples of {bytes} bytes, which the "
        "TMA loads: {why}",
        bytes=ALIGNMENT, why=why,
    )  # fmt: skip
    return (Way("pixel_rows", "default", words),)


def ways_of_shares(split_k: int) -> tuple[Way, ...]:
    """The way of sums if several tiles share channels."""
    if split_k == 1:
        return ()
    words = Reason(
        "there are few tiles: each shares its channels out among {count}, whose sums a last kernel adds up and stores",
        count=split_k,
    )  # fmt: skip
    return (Way("sum_shares", "default", words),)


def ways_of_result(problem: Conv2dProblem, config: WgmmaConfig) -> tuple[Way, ...]:
    """The way of the result: the TMA or threads store it."""
    if config.split_k > 1:
        return ()
    if not config.scattered:
        return (Way("tma_stores", "default", Reason("the TMA stores the result from shared memory")),)
    why = Reason.joined(_why_scattered(problem)) or Reason("the config asks for it ({field})", field="scattered")
    words = Reason("threads store the result, not the TMA: {why}", why=why)
    return (Way("thread_stores", "default", words),)


def ways_of_arrays(config: TilesConfig, stored: bool) -> tuple[Way, ...]:
    """The way of arrays that the TMA cannot access; `stored`: it stores the result."""
    if config.repacked and not stored:
        return ()
    name = "pixel_rows"
    if config.repacked:
        name = "thread_stores"
        words = Reason(
            "if the address or a stride of the result is no multiple of {bytes} bytes, or the result has gaps, threads "
            "store it: by another plan, which is compiled when it is first needed",
            bytes=ALIGNMENT,
        )  # fmt: skip
    elif stored:
        words = Reason(
            "if the address or a stride of x or of the result is no multiple of {bytes} bytes, or one of them has gaps "
            "between its channels, x is first written to a workspace as rows that the TMA loads, and threads store the "
            "result: by another plan, which is compiled when it is first needed",
            bytes=ALIGNMENT,
        )  # fmt: skip
    else:
        words = Reason(
            "if the address or a stride of x is no multiple of {bytes} bytes, or x has gaps between its channels, x is "
            "first written to a workspace as rows that the TMA loads: by another plan, which is compiled when it is "
            "first needed",
            bytes=ALIGNMENT,
        )  # fmt: skip
    return (Way(name, "arrays", words),)


def _why_rows(problem: Conv2dProblem, of_group: int) -> Iterator[Reason]:
    """Each reason why the TMA cannot load the pixels of a problem."""
    nbytes = problem.c * itemsize(problem.x_dtype)
    if problem.x_layout != "NHWC":
        yield Reason("x is in {layout}", layout=problem.x_layout)
    if problem.padding_mode != "zeros":
        yield Reason("the border is {border}, and the TMA fills in zeros", border=problem.padding_mode)
    if nbytes % ALIGNMENT:
        yield Reason("a pixel has {count} bytes, which are no multiple of {bytes}", count=nbytes, bytes=ALIGNMENT)
    if tma_loads(problem) and of_group != problem.c_per_group:
        yield Reason(
            "a group has {count} channels, which take the room of {room}", count=problem.c_per_group, room=of_group
        )


def _why_scattered(problem: Conv2dProblem) -> Iterator[Reason]:
    """Each reason why the TMA cannot store the result of a problem."""
    if tma_stores(problem):
        return
    size = itemsize(problem.out_dtype)
    if problem.out_layout != "NHWC":
        yield Reason("the result is in {layout}", layout=problem.out_layout)
    if size != 2:
        yield Reason("its numbers are of {dtype}, not of 16 bits", dtype=problem.out_dtype)
    if problem.k * size % ALIGNMENT:
        yield Reason(
            "a pixel of it has {count} bytes, which are no multiple of {bytes}", count=problem.k * size, bytes=ALIGNMENT
        )
    if problem.groups > 1 and problem.k_per_group % BOX_FILTERS:
        yield Reason(
            "a group has {count} filters, which are no multiple of {whole}",
            count=problem.k_per_group, whole=BOX_FILTERS,
        )  # fmt: skip
