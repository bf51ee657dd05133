"""The report on a reader's kernel or program, with advice: text for the reader, JSON and an exit code for a grader."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convforge.benchmark import formats
from convforge.course.grader.judge import CaseResult

SCHEMA = 1
EXIT = {"right": 0, "wrong": 1, "not run": 2}


@dataclass(frozen=True)
class Time:
    """One row of the table of times: seconds, or a note with the reason if there are none."""

    name: str
    seconds: float | None
    spread: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"no time: {self.note}"
        spread = f" +- {formats.percent(self.spread)}" if self.spread else ""
        return f"{formats.seconds(self.seconds)}{spread}{f', {self.note}' if self.note else ''}"


@dataclass(frozen=True)
class Report:
    """The report of one check."""

    target: str  # file or command
    kind: str  # "kernel" or "program"
    device: str  # the device that ran it
    results: Sequence[CaseResult] = ()
    error: str = ""  # reason why nothing could be run, or empty
    times: Sequence[Time] = ()
    timed: str = ""  # the problem that was timed
    notes: Sequence[str] = ()

    @property
    def status(self) -> str:
        """One of "right", "wrong" and "not run"."""
        if self.error or not self.results:
            return "not run"
        return "right" if self.passed == len(self.results) else "wrong"

    @property
    def exit_code(self) -> int:
        """0 for right, 1 for wrong, 2 for not run."""
        return EXIT[self.status]

    @property
    def passed(self) -> int:
        return sum(result.status == "right" for result in self.results)

    @property
    def faults(self) -> list[str]:
        """The fault that explains the most cases, or several if they explain equally many."""
        counts = Counter(fault for result in self.results for fault in result.faults)
        return [fault for fault, count in counts.items() if count == max(counts.values())]

    def to_table(self) -> dict[str, Any]:
        """Return the report as a dict for JSON."""
        return {
            "schema": SCHEMA, "target": self.target, "kind": self.kind, "device": self.device, "status": self.status,
            "passed": self.passed, "cases": len(self.results), "faults": self.faults,
            "advice": {fault: words for fault in self.faults if (words := advice(fault))}, "error": self.error,
            "results": [_row(result) for result in self.results], "timed": self.timed,
            "times": [dataclasses.asdict(time) for time in self.times], "notes": list(self.notes),
        }  # fmt: skip

    def to_text(self) -> str:
        """Return the report as text for a reader."""
        lines = [f"{self.target}: {self._headline()}"]
        explained: set[tuple[str, ...]] = set()
        for result in self.results:
            named = f": {' | '.join(result.faults)}" if result.faults else ""
            lines.append(f"  {result.status:<9} {result.case.name} ({result.case.text}){named}")
            details = result.message.splitlines()
            if result.faults and result.faults in explained:  # details once for each fault
                details = details[:1] if result.status == "wrong" else []
            lines += [f"      {line}" for line in details]
            explained.add(result.faults)
        lines += [f"  {line}" for line in self.error.splitlines()]
        if self.times:
            lines.append(f"times on {self.timed}:")
            wide = max(len(time.name) for time in self.times)
            lines += [f"  {time.name:<{wide}}  {time}" for time in self.times]
        return "\n".join([*lines, *self.notes]) + "\n"

    def _headline(self) -> str:
        if self.status == "not run":
            return f"could not be run ({self.kind}, {self.device})"
        right = f"{self.passed} of {len(self.results)} cases right ({self.kind}, {self.device})"
        if self.status == "right":
            return f"right: {right}"
        faults = [f"{fault}{f': {words}' if (words := advice(fault)) else ''}" for fault in self.faults]
        if len(faults) == 1:
            return f"wrong: {right}\n  likely fault: {faults[0]}"
        same = len({tuple(fault in result.faults for result in self.results) for fault in self.faults}) == 1
        which = (
            "likely one of these, which these cases do not tell apart" if same else "likely faults, each of some cases"
        )
        return f"wrong: {right}" + (f"\n  {which}:" + "".join(f"\n    {fault}" for fault in faults) if faults else "")


def _row(result: CaseResult) -> dict[str, Any]:
    """A result for JSON, which cannot represent infinities and NaN."""
    wrong = None
    if (first := result.first) is not None:
        expected, got = (value if math.isfinite(value) else str(value) for value in (first.expected, first.got))
        wrong = {"index": list(first.index), "expected": expected, "got": got}
    rms, bound_ratio = (
        value if value is not None and math.isfinite(value) else None for value in (result.rms, result.bound_ratio)
    )
    return {
        "case": result.case.name, "problem": result.case.text, "inputs": result.case.kind, "status": result.status,
        "faults": list(result.faults), "message": result.message, "first_wrong": wrong, "rms": rms,
        "bound_ratio": bound_ratio,
    }  # fmt: skip


# Start of a fault's name -> advice; the first match is used.
ADVICE = {
    "flipped filter": "that is convolution; asked for is cross-correlation, where w[r][s] meets "
    "x[p*stride + r - pad][q*stride + s - pad]: read the filter forwards",
    "filter flipped": "one axis of the filter is read backwards",
    "swapped H and W of the filter": "the index of a weight is ((k*C + c)*R + r)*S + s",
    "swapped H and W of the image": "the index of a pixel is ((n*C + c)*H + h)*W + w: a row has W pixels",
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
    "NCHW read as NHWC": "the channels of an image lie one after the other, each whole: ((n*C + c)*H + h)*W + w",
    "one image for the whole batch": "n is part of the index of x: image n begins at x[n*C*H*W]",
    "stride ignored": "output p begins at row p*stride_h - pad_top, and a tile reads stride times as many rows",
    "stride applied to the padding": "the row is p*stride_h + r - pad_top; the padding is not multiplied",
    "padding ignored": "output p begins at row p*stride_h - pad_top",
    "one pixel off": "output p begins at row p*stride_h - pad_top, column q*stride_w - pad_left; is a 1 too many?",
    "border reads neighbouring memory": "check both 0 <= h < H and 0 <= w < W before a pixel is read",
    "border skipped": "outputs at the border are computed too, with zeros outside of the image",
    "border taken as": "pixels outside of the image are 0",
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
    """Return advice on a fault, or an empty string."""
    return next((words for start, words in ADVICE.items() if fault.startswith(start)), "")


_BEYOND = "address outside of all memory"

# Part of an error message from the emulator or a GPU -> general name of the error, without numbers, and advice.
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


def known_error(what: str) -> tuple[str, str]:
    """Return the general name of an emulator or GPU error, without numbers, and advice (may be empty)."""
    return next((known for part, known in _ERRORS.items() if part in what), (what.split(",")[0], ""))


def quoted_line(text: str, file: Path) -> str:
    """Return the source line that a message refers to as name:line; empty without one."""
    found = re.search(rf"{re.escape(file.name)}:(\d+)", text)
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    if found is None or not 1 <= int(found[1]) <= len(lines):
        return ""
    return f"line {found[1]}: {lines[int(found[1]) - 1].strip()}"
