"""Advice on faults and errors: the meaning of each in a kernel or a program, and where to look."""

from __future__ import annotations

import re
from pathlib import Path

# Beginning of a fault's name -> advice; the first match counts.
ADVICE = {
    "flipped filter": "that is convolution; asked for is cross-correlation, where w[r][s] meets "
    "x[p*stride + r - pad][q*stride + s - pad]: read the filter forwards",
    "filter flipped": "one axis of the filter is read backwards",
    "swapped H and W of the filter": "the index of a weight is ((k*C + c)*R + r)*S + s",
    "swapped H and W of the picture": "the index of a pixel is ((n*C + c)*H + h)*W + w: a row has W pixels",
    "swapped H and W of the output": "the index of an output is ((n*K + k)*P + p)*Q + q: a row has Q outputs",
    "swapped K and C": "the index of a weight is ((k*C + c)*R + r)*S + s: all channels of a filter lie together",
    "one filter for all": "filter k begins at w[k*C*R*S]; is k part of the index, and does it change?",
    "one filter channel": "each channel has weights of its own: c is part of the index of w",
    "only the first channel": "sum over all channels: is there a loop over c, and is the sum set to 0 outside of it?",
    "the last channel is ignored": "the loop over channels ends too early: c < C",
    "ignored channel": "does the loop over channels begin at 0 and end at c < C?",
    "last row of the filter": "the loop over the filter's rows ends too early: r < R",
    "last column of the filter": "the loop over the filter's columns ends too early: s < S",
    "first row of the filter": "the loop over the filter's rows begins too late: r = 0",
    "first column of the filter": "the loop over the filter's columns begins too late: s = 0",
    "NCHW read as NHWC": "the channels of a picture lie one after the other, each whole: ((n*C + c)*H + h)*W + w",
    "one picture for the whole batch": "n is part of the index of x: picture n begins at x[n*C*H*W]",
    "stride ignored": "output p begins at row p*stride_h - pad_top, and a tile reads stride times as many rows",
    "stride applied to the padding": "the row is p*stride_h + r - pad_top; the padding is not multiplied",
    "padding ignored": "output p begins at row p*stride_h - pad_top",
    "one pixel off": "output p begins at row p*stride_h - pad_top, column q*stride_w - pad_left; is a 1 too many?",
    "border reads neighbouring memory": "check both 0 <= h < H and 0 <= w < W before a pixel is read",
    "border skipped": "outputs at the border are computed too, with zeros outside of the picture",
    "border taken as": "pixels outside of the picture are 0",
    "halo": "the tile in shared memory needs the pixels around it too: (block - 1)*stride + R rows; who loads them?",
    "the sum is not set to 0": "write `float sum = 0.0f;` before the loops",
    "the output is added to": "y holds anything before the call: write the sum with =, not with +=",
    "all outputs are zero": "is the sum written to y, and is any product in it?",
    "nothing is written": "does the launch cover the output, and does a thread return before it writes?",
    "not written": "does the grid cover the output, ragged edges too: ceil(Q/block), ceil(P/block), N*K?",
    "errors larger": "is a sum or a product taken in a narrower type, or in fast-math?",
    "scaled by a constant": "is a sum divided or multiplied once too often, or taken more than once?",
    "the result depends on the order": "a __syncthreads() is missing, or two threads write to one place",
    "NaN": "they are made of memory that nobody wrote: shared memory that no thread loaded, or pixels outside of x",
    "NHWC": "y is N x K x P x Q: all columns of a row, all rows, then the next filter",
}


def advice(fault: str) -> str:
    """Advice on a fault, or an empty string."""
    return next((words for start, words in ADVICE.items() if fault.startswith(start)), "")


_BEYOND = "address outside of all memory"

# Part of a message of the emulator or a GPU -> the error's name, without numbers, and advice.
_ERRORS = {
    "divergent barrier": (
        "divergent barrier: not all threads come to it",
        "every thread of a block must come to the same __syncthreads(): move it out of the `if`, and let no thread "
        "return before it",
    ),
    "is outside of": (
        "index outside of an array",
        "is the tile as large as the block and its halo, (block - 1)*stride + R?",
    ),
    "is used outside": ("index outside of an array", "the pointer's index goes past the end of the array"),
    "dynamic shared memory has": (
        "index outside of dynamic shared memory", "ask for more by shared=BYTES in the launch, or check the index",
    ),
    "dynamic shared memory; a block has": ("too much shared memory", "use a smaller tile"),
    "where there is no memory": (_BEYOND, "a pointer's index is far outside of x, w or y"),
    "ILLEGAL_ADDRESS": (_BEYOND, "an index is outside of x, w or y; --device emulator says more"),
    "made of poison": ("an address made of unset memory", "an index or a pointer was used before it was set"),
    "divided by zero": ("an integer divided by zero", "check the divisor"),
    "local memory": ("too much memory in one thread", "use smaller arrays in a thread"),
    "is not a multiple of": (
        "misaligned address", "vectors such as float4 need an address that is a multiple of their size",
    ),
    "must be 1 to": ("a launch that no GPU makes", "change the block of the launch"),
    "must be 0 to": ("a launch that no GPU makes", "change the grid of the launch"),
    "threads, of which a block": ("a launch that no GPU makes", "use a smaller block"),
    "the GPU refuses the launch": (
        "a launch that this GPU does not make", "use a smaller block, or less shared memory",
    ),
}  # fmt: skip


def error_name(what: str) -> str:
    return next((name for part, (name, _) in _ERRORS.items() if part in what), what.split(",")[0])


def error_advice(what: str) -> str:
    """Advice on an error of the emulator or of a GPU, or an empty string."""
    return next((words for part, (_, words) in _ERRORS.items() if part in what), "")


def quoted_line(text: str, file: Path) -> str:
    """The line of a file that a message names as name:line; empty without one."""
    found = re.search(rf"{re.escape(file.name)}:(\d+)", text)
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    if found is None or not 1 <= int(found[1]) <= len(lines):
        return ""
    return f"line {found[1]}: {lines[int(found[1]) - 1].strip()}"
