"""Inputs that numbers of 16 bits hold badly, or not at all: what implicit_gemm_split must come right on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from tests.judged import judge_of

from convforge.problem import Conv2dProblem, parse_problem
from convforge.verify import Inputs, Judge, make_inputs

# Kind -> what is in x and in w. Where they cannot be split, a tile or a filter is computed from its floats.
KINDS: dict[str, str] = {
    "normal": "random normal numbers",
    "relu": "the same, with zeros for what is negative",
    "positive": "all positive: sums that tensor cores cut off are all too small",
    "wide": "pictures and filters of different powers of two",
    "binades": "numbers over 14 binades",
    "cancelling": "pairs of channels whose products cancel but for the last bits",
    "huge": "one number of 1e30 among others of 1",
    "small channels": "all but one channel smaller by 2^40; their weights larger by as much",
    "unseen channel": "all but one channel smaller by 2^40; that one has no weights",
    "seen channel": "one channel smaller by 2^40; every second filter sees no other",
    "late channel": "one channel smaller by 2^40 in the upper half of each picture",
    "seen huge": "one number of 1e30 among others of 1; every second filter does not see its channel",
    "small pixels": "all but one pixel of a picture smaller by 2^40",
    "small taps": "all but one tap of each filter smaller by 2^40; the last tap sees the border for some outputs alone",
    "small filter channels": "all but one channel of each filter smaller by 2^40; that one of x is smaller by as much",
    "small numbers": "one number of each filter smaller by 2^40",
    "half small channel": "one channel of half of the filters smaller by 2^40; that one of x larger by as much",
    "uneven filters": "every second filter has half of its channels smaller by 2^40",
    "1e-30": "numbers of 1e-30, of which sums of products with filters of 1e15 are floats",
    "far pixels": "numbers of 2^118, whose sums are floats, but not where filters were scaled",
    "far": "numbers of 2^110, and filters of 2^-110",
    "far filters": "numbers of 2^-110, and filters of 2^110",
    "denormals": "numbers below 2^-126, and filters of 2^60",
}

# Kinds of which tiles are computed plainly; of those, kinds of which none is where each pixel has a scale; the others.
REDONE = (
    "huge", "small channels", "unseen channel", "seen channel", "seen huge", "small pixels", "far pixels", "far",
    "far filters", "denormals", "half small channel",
)  # fmt: skip
SCALED = ("small pixels", "far filters")
SPLIT = ("normal", "relu", "positive", "wide", "binades", "cancelling", "small numbers", "1e-30")

FAR = 2.0**40


def split_inputs(problem: Conv2dProblem, kind: str, seed: int = 0) -> Inputs:
    """Inputs of one of :data:`KINDS` for a problem of float32."""
    made = make_inputs(problem, "normal", seed)
    rng = np.random.default_rng(seed + 1)
    near = problem.x_layout == "NHWC"
    x: Any = (made.x.transpose(0, 3, 1, 2) if near else made.x).astype(np.float64)
    w: Any = made.w.astype(np.float64)  # type: ignore[union-attr]
    if kind == "relu":
        x = np.maximum(x, 0)
    elif kind == "positive":
        x, w = np.abs(x), np.abs(w)
    elif kind == "wide":
        x *= 2.0 ** rng.integers(-20, 20, (x.shape[0], 1, 1, 1))
        w *= 2.0 ** rng.integers(-20, 20, (w.shape[0], 1, 1, 1))
    elif kind == "binades":
        x, w = x * 2.0 ** rng.integers(-14, 1, x.shape), w * 2.0 ** rng.integers(-14, 1, w.shape)
    elif kind == "cancelling":
        x[:, 1::2], w[:, 1::2] = x[:, : x.shape[1] // 2 * 2 : 2] * (1 + 2.0**-20), -w[:, : w.shape[1] // 2 * 2 : 2]
    elif kind == "huge":
        x[0, 0, x.shape[2] // 2, x.shape[3] // 2] = 1e30
    elif kind == "small channels":
        x[:, 1:] /= FAR
        w[:, 1:] *= FAR
    elif kind == "unseen channel":
        x[:, 1:] /= FAR
        w[:, :1] = 0
    elif kind == "seen channel":
        x[:, 0] /= FAR
        w[::2, 1:] = 0
    elif kind == "late channel":
        x[:, 0, : x.shape[2] // 2] /= FAR
    elif kind == "seen huge":
        x[0, 0, x.shape[2] // 2, x.shape[3] // 2] = 1e30
        w[::2, 0] = 0
    elif kind == "far pixels":
        x *= 2.0**118
    elif kind == "small pixels":
        one = x[:, :, 0, 0].copy()
        x /= FAR
        x[:, :, 0, 0] = one
    elif kind == "small taps":
        w[:, :, :-1] /= FAR
    elif kind == "small filter channels":
        w[:, 1:] /= FAR
        x[:, :1] /= FAR
    elif kind == "small numbers":
        at = np.arange(len(w))
        w[at, at % w.shape[1], -1, -1] /= FAR
    elif kind == "half small channel":
        w[: len(w) // 2, 0] /= FAR
        x[:, 0] *= FAR
    elif kind == "uneven filters":
        w[1::2, : w.shape[1] // 2] /= FAR
    elif kind == "1e-30":
        x, w = x * 1e-30, w * 1e15
    elif kind == "far":
        x, w = x * 2.0**110, w * 2.0**-110
    elif kind == "far filters":
        x, w = x * 2.0**-110, w * 2.0**110
    elif kind == "denormals":
        x, w = x * 2.0**-130, w * 2.0**60
    elif kind != "normal":
        raise ValueError(f"kind={kind!r} is none of {', '.join(KINDS)}")
    pixels = x.astype(np.float32)
    pixels = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1) if near else pixels)
    return replace(made, x=pixels, w=w.astype(np.float32), kind="given")


@cache
def split_judge(text: str, kind: str) -> Judge:
    """The judge of a problem's inputs, of one of :data:`KINDS` or of the kinds of the checks."""
    if kind == "normal" or kind not in KINDS:
        return judge_of(text, kind)
    problem: Any = parse_problem(text)
    return Judge(problem, split_inputs(problem, kind))
