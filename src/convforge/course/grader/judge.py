"""Cases for a reader's convolution, and the judgement of outputs: right, or wrong with the known faults that match.

The cases are small problems on which no two common faults give the same results.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.backends.runtime import LaunchInfo
from convforge.problem import Conv2dProblem, parse_problem
from convforge.verify import Inputs, Judge, Verdict, make_inputs
from convforge.verify.faults import agrees, matching_faults
from convforge.verify.plans import POISONS
from convforge.verify.rows import border_of, rows_of
from convforge.verify.truth import conv2d_truth

Floats = NDArray[np.float32]

# Default problem to time: an image of three channels to eight, 3x3.
TIMED = "n1c3h512w512_k8r3s3_st1_p1_f32_nchw"


@dataclass(frozen=True)
class Case:
    """A problem and its kind of inputs."""

    name: str  # purpose of the case
    text: str  # the problem's text form
    kind: str = "integers"  # a key of :data:`convforge.verify.KINDS`

    @cached_property
    def problem(self) -> Conv2dProblem:
        return plain_problem(self.text)

    @cached_property
    def judge(self) -> Judge:
        """Inputs and float64 truth of the case."""
        return Judge(self.problem, make_inputs(self.problem, self.kind))


DEFAULT = (
    Case("an impulse, filter 1 to 9", "n1c1h7w9_k1r3s3_st1_p1_f32_nchw", "impulse"),
    Case("one channel", "n1c1h10w17_k1r3s3_st1_p1_f32_nchw"),
    Case("no padding, filter 2 x 5", "n1c1h11w20_k1r2s5_st1_p0_f32_nchw"),
    Case("several channels", "n1c3h9w12_k1r3s3_st1_p1_f32_nchw"),
    Case("several filters", "n1c3h9w12_k3r3s3_st1_p1_f32_nchw"),
    Case("a batch", "n3c2h8w11_k2r3s3_st1_p1_f32_nchw"),
    Case("stride 2", "n1c2h19w24_k2r3s3_st2_p1_f32_nchw"),
    Case("stride 3, filter 5 x 5", "n1c1h20w26_k2r5s5_st3_p2_f32_nchw"),
    Case("many blocks, ragged", "n1c1h39w53_k1r3s3_st1_p1_f32_nchw"),
    Case("fractions", "n2c3h18w35_k4r3s3_st1_p1_f32_nchw", "normal"),
)


def cases_of(problem: str) -> tuple[Case, ...]:
    """Return the cases of one problem, with integers and with fractions; :data:`DEFAULT` for an empty text.

    Examples
    --------
    >>> [case.kind for case in cases_of("n1c1h5w5_k1r3s3_st1_p1_f32_nchw")]
    ['integers', 'normal']
    """
    if not problem:
        return DEFAULT
    text = str(plain_problem(problem))
    return Case("whole numbers", text), Case("fractions", text, "normal")


def plain_problem(text: str) -> Conv2dProblem:
    """Read a convolution that a reader's kernel can compute; ``ValueError`` for any other problem."""
    problem = parse_problem(text)
    if not isinstance(problem, Conv2dProblem):
        raise ValueError(f"--problem {text!r} is no convolution; write one, as in {TIMED}")
    sizes = {name: getattr(problem, name) for name in ("n", "c", "h", "w", "k", "r", "s", "stride", "padding")}
    if problem != Conv2dProblem(**sizes):
        raise ValueError(
            f"--problem {text!r}: what is checked is float32, NCHW, borders of zeros, without dilation, groups, flip "
            "or epilogue; leave out the other tokens"
        )
    return problem


# Value of an uninitialized variable in the emulator: 0xFE in every byte.
UNSET = float(np.frombuffer(b"\xfe" * 4, np.float32)[0])


@dataclass(frozen=True)
class WrongOutput:
    """A wrong output: the first beyond the bound or, if only an RMS error is too large, the worst of its band."""

    index: tuple[int, ...]  # [n, k, p, q]
    expected: float
    got: float

    def __str__(self) -> str:
        # Nine significant digits distinguish any two float32 numbers.
        return f"at [n, k, p, q] = {list(self.index)}: expected {self.expected:.9g}, got {self.got:.9g}"


@dataclass(frozen=True)
class CaseResult:
    """The result of one case.

    `status` is "right", "wrong", "fault" (an error stopped it), "compile error", "crash", "time", "memory", "no output"
    or "not run".
    """

    case: Case
    status: str
    faults: tuple[str, ...] = ()  # all known faults that give exactly this result
    message: str = ""  # the error, and advice
    rms: float | None = None  # relative RMS error
    bound_ratio: float | None = None  # largest error divided by the bound of correct arithmetic
    first: WrongOutput | None = None  # None if no output is wrong, or the shape is wrong


def judge_runs(case: Case, runs: Sequence[Floats], launch: LaunchInfo | None = None) -> CaseResult:
    """Judge the output of a program, or of a kernel's runs; see :data:`~convforge.course.grader.worker.BEFORE`."""
    verdicts = [case.judge.verdict("strict", out) for out in runs]
    wrong = next((i for i, verdict in enumerate(verdicts) if not verdict.ok), None)
    if wrong is None:
        return CaseResult(case, "right", rms=verdicts[0].rms, bound_ratio=verdicts[0].bound_ratio)
    faults = (_of_runs(case, runs) if len(runs) > 1 else []) or _of_output(case, runs[wrong], launch)
    return _wrong(case, runs[wrong], faults, verdicts[wrong])


def judge_output(case: Case, out: Any) -> CaseResult:
    """Judge a program's output."""
    shape = case.problem.out_shape
    if out.shape != shape or out.dtype != np.float32:
        return CaseResult(case, "wrong", _of_shape(out, case.problem),
                          f"the output is {out.dtype} of shape {out.shape}; it must be float32 of shape {shape} = "
                          "(N, K, P, Q), with P = (H + top + bottom - R) // stride + 1 and Q alike")  # fmt: skip
    return judge_runs(case, [out])


def _of_shape(out: Any, problem: Conv2dProblem) -> tuple[str, ...]:
    n, k, p, q = problem.out_shape
    if out.shape == (n, p, q, k) != (n, k, p, q):
        return ("NHWC instead of NCHW",)
    if out.shape == (n, k, q, p) != (n, k, p, q):
        return ("swapped H and W of the output",)
    if problem.stride != (1, 1) and out.shape == problem.replace(stride=(1, 1)).out_shape:
        return ("stride ignored",)
    if out.shape[2:] == problem.replace(padding=(0, 0, 0, 0)).out_shape[2:]:
        return ("padding ignored",)
    return ()


def _of_runs(case: Case, runs: Sequence[Floats]) -> list[str]:
    """Faults visible by comparing runs: outputs not written or added to, results that depend on the thread order."""
    first, second, third = runs
    bits = [out.view(np.uint32) for out in runs]
    left = _holds(first, POISONS[0]) & _holds(second, POISONS[1])
    if left.any() and third[left].any():
        return ["the output is added to instead of set"]
    if left.any():
        return [_unwritten(case.problem, left)]
    if (np.abs(first - np.float32(UNSET)) < 1e-3 * abs(UNSET)).any():
        return ["the sum is not set to 0 before it is added to"]
    if any((bits[0] != other).any() for other in bits[1:]):
        return ["the result depends on the order in which threads run"]
    return []


def _holds(out: Floats, byte: int) -> NDArray[np.bool_]:
    """Mask of outputs that hold a poison or a sum with it. For a NaN poison any NaN counts: GPUs change NaN bits."""
    poison = np.frombuffer(bytes([byte] * 4), np.float32)[0]
    return np.isnan(out) if np.isnan(poison) else out == poison


def _unwritten(problem: Conv2dProblem, left: NDArray[np.bool_]) -> str:
    """Name the unwritten part without numbers of the problem's size."""
    if left.all():
        return "nothing is written"
    rows, columns = border_of(problem)
    if np.array_equal(left, np.broadcast_to(np.logical_or.outer(rows, columns), left.shape)):
        return "border skipped: outputs there are not written"
    for axis, name in enumerate(("images", "filters", "rows", "columns")):
        places = _places(left, axis)
        whole = left.sum() * left.shape[axis] == places.size * left.size
        if whole and places[-1] == left.shape[axis] - 1 and np.ptp(places) == places.size - 1:
            return f"not written: the last {name}"
    return "not written: some outputs"


def _places(mask: NDArray[np.bool_], axis: int) -> NDArray[np.int64]:
    """Indices along an axis with at least one marked element."""
    return np.flatnonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))


def _of_output(case: Case, got: Floats, launch: LaunchInfo | None) -> list[str]:
    judge, problem = case.judge, case.problem
    general = {  # names without numbers of the problem's size
        f"ignored channel {problem.c - 1}": "the last channel is ignored",
        f"one filter for all outputs: that of channel {problem.k - 1}": "one filter for all outputs: the last",
    }
    found = matching_faults(problem, got, judge.truth, judge.inputs)
    faults = [general.get(name, name.replace("that of channel", "that of filter")) for name in found]
    if problem.c == 1 and not got.any():
        faults.append("the last channel is ignored")
    values = got.astype(np.float64)
    for name, suspected in _more(problem, judge.inputs, launch):
        if agrees(values, suspected, judge.truth.value):
            faults.append(name)
    if not faults and np.allclose(values, judge.truth.value, rtol=0, atol=1e-5 * np.abs(judge.truth.value).max()):
        faults.append("errors larger than those of float32")
    if not faults and not np.isfinite(got).all():
        faults.append("NaN or infinite outputs")
    return list(dict.fromkeys(faults))


def _more(
    problem: Conv2dProblem, inputs: Inputs, launch: LaunchInfo | None
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Typical faults of learners, in addition to those of :mod:`convforge.verify.faults`."""
    truth = conv2d_truth(problem, inputs).value
    for name, x in _misread(inputs.x):
        yield name, conv2d_truth(problem, dataclasses.replace(inputs, x=np.ascontiguousarray(x))).value
    if problem.k > 1:
        yield "NHWC instead of NCHW", truth.transpose(0, 2, 3, 1).reshape(truth.shape)
    for axis, name in ((2, "row"), (3, "column")):
        for place, words in ((0, "first"), (truth.shape[axis] - 1, "last")):
            cut = truth.copy()
            cut[(slice(None),) * axis + (place,)] = 0
            yield f"not written: {words} {name} of the outputs, which is 0", cut
    if launch is not None and problem.stride == (1, 1):
        block_x, block_y = (*launch.block, 1)[:2]
        name = "halo missing: pixels outside of the block's own count as 0"
        yield name, _without_halo(problem, inputs, block_y, block_x)


def _misread(x: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    n, c, h, w = x.shape
    if h != w:
        yield "swapped H and W of the image", x.reshape(n, c, w, h).transpose(0, 1, 3, 2)
        memory = np.append(x.reshape(-1), np.zeros(n * c * max(h, w) ** 2, x.dtype))
        place = np.arange(n * c)[:, None, None] * (h * w) + np.arange(h)[:, None] * h + np.arange(w)
        yield "swapped H and W of the image: a row taken to have H pixels", memory[place].reshape(x.shape)


def _without_halo(problem: Conv2dProblem, inputs: Inputs, high: int, wide: int) -> NDArray[np.float64]:
    """Result if each block reads only the pixels at its own position."""
    found = np.zeros(problem.out_shape)
    for p, q in itertools.product(range(0, problem.p, high), range(0, problem.q, wide)):
        block = (..., slice(p, p + high), slice(q, q + wide))
        x = np.zeros_like(inputs.x)
        x[block] = inputs.x[block]
        found[block] = conv2d_truth(problem, dataclasses.replace(inputs, x=x)).value[block]
    return found


def _region(mask: NDArray[np.bool_]) -> str:
    """Describe the positions of the marked outputs, axis by axis.

    Examples
    --------
    >>> mask = np.zeros((1, 2, 4, 5), bool)
    >>> mask[..., 3, :] = True
    >>> _region(mask)
    'row 3 (the last)'
    """
    words = []
    for axis, name in enumerate(("image", "filter", "row", "column")):
        places = _places(mask, axis)
        if places.size < mask.shape[axis]:
            joined = np.ptp(places) == places.size - 1
            ends = f"{places[0]} to {places[-1]}" if places.size > 1 else f"{places[0]}"
            listed = ends if joined else ", ".join(map(str, places[:6])) + ", ..." * (places.size > 6)
            last = " (the last)" if joined and places[-1] == mask.shape[axis] - 1 else ""
            words.append(f"{name}{'s' * (places.size > 1)} {listed}{last}")
    return "; ".join(words) or f"{int(mask.sum())} of {mask.size} outputs"


def _wrong(case: Case, got: Floats, faults: Sequence[str], verdict: Verdict) -> CaseResult:
    """Result of a case with wrong outputs: their number, the first one, and their positions."""
    truth, wrong = case.judge.truth.value, ~case.judge.near_enough("strict", got)
    if wrong.any():
        place = int(np.argmax(wrong))
        count = f"{int(wrong.sum())} of {wrong.size} outputs are wrong, the first"
    else:  # a band of outputs fails the gate on RMS errors
        gate = case.judge.gate
        if gate is None or (excess := gate.excess("strict", got)) is None:
            raise AssertionError(f"{case.text}: a wrong output passes the bound and the gate")
        wrong = rows_of(case.problem).outputs_in(excess.band, excess.channel)
        place = int(np.argmax(np.where(wrong, np.abs(got - truth), -1.0)))
        count = f"each output is nearly right, but the {excess}, the worst"
    index = tuple(int(i) for i in np.unravel_index(place, got.shape))
    first = WrongOutput(index, float(truth[index]), float(got[index]))
    lines = [f"{count} {first}"]
    if not faults:
        lines.append(f"no known fault gives this; wrong are {_region(wrong)}")
    return CaseResult(case, "wrong", tuple(faults), "\n".join(lines), verdict.rms, verdict.bound_ratio, first)
