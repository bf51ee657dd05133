"""Cases for a reader's convolution: small problems on which no two common faults give the same results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from convforge.problem import Conv2dProblem, parse_problem
from convforge.verify import Judge, make_inputs

# Timed by default: an image of three channels to eight, 3x3.
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
        """The inputs and the truth on them."""
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
    """The cases of one problem, with whole numbers and fractions; :data:`DEFAULT` for an empty text.

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
