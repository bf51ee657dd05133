"""Text forms and the three keys; docs/problems.md has the grammar.

Parsing a problem's text form returns the same problem. The text form is used as an argument of the command line, as a
test's name and as a result's key. It omits tokens for default values.

    n2c8h30w40_k4r3s5_st2x1_p1x0x2x2_d2_g4_reflect_flip_u8-i8-i32-i32_nhwc_+bias+relu     conv2d
    max_n1c64h112w112_r3s3_st2_p1_f32_nchw                                                max_pool2d
    m512n256k128_tb_f32, relu4096_f32                                                     gemm, relu
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from convforge.problem.borders import PADDING_ALIASES
from convforge.problem.conv2d import Conv2dProblem
from convforge.problem.elementwise import ElementwiseProblem
from convforge.problem.epilogue import Epilogue
from convforge.problem.gemm import GemmProblem
from convforge.problem.pool2d import Pool2dProblem
from convforge.problem.types import (
    DTYPES,
    PRECISIONS,
    SHORT_NAMES,
    VECTOR_BYTES,
    accumulation_dtype,
    itemsize,
    output_dtype,
)

if TYPE_CHECKING:
    from convforge.problem import Problem

# Largest height and width of a depthwise plane for which kernels may be specialised.
SMALL_SIDE = 64

_PAIR = re.compile(r"(st|d)(\d+)(?:x(\d+))?")
_PADDING = re.compile(r"p(\d+)(?:x(\d+)(?:x(\d+)x(\d+))?)?")
_LAYOUTS = re.compile(r"(nchw|nhwc)(?:-(kcrs|krsc)-(nchw|nhwc))?")


def result_key(problem: Problem) -> str:
    """The key of a result: the problem's text form."""
    form = _FORMS[problem.operation]
    return "_".join([form.size(problem, int), *form.tokens(problem)])


def tuning_key(problem: Problem) -> str:
    """The key of a stored choice: the problem's bucket, with batch, height and width rounded up to powers of two.

    It also contains the other tokens of :func:`compile_key`: in one bucket, a config always has the same kernels. The
    numbers of an epilogue that kernels have as run-time arguments are those of :attr:`Epilogue.bucket`.

    Examples
    --------
    >>> tuning_key(parse_problem("n3c3h1000w1002_k3r3s3_st1_p1_f32_nchw"))
    'n4c3h1024w1024_k3r3s3_st1_p1_f32_nchw_v8'
    >>> tuning_key(parse_problem("n1c3h64w64_k3r3s3_u8-i8-u8-i32_nchw_+zero:119+scale:tensor+relu+out:1.0:7"))
    'n1c3h64w64_k3r3s3_st1_p0_u8-i8-u8-i32_nchw_+zero:1+scale:tensor+relu+out:1.0:1_v16x2'
    """
    form = _FORMS[problem.operation]
    problem = _with_bucket(problem)
    return "_".join([form.size(problem, _bucket), *form.tokens(problem), *form.compiled(problem)])


def compile_key(problem: Problem) -> str:
    """The compile key: all properties of the problem that a kernel may be specialised to.

    Batch, height and width are run-time arguments, with three exceptions: the widest vectors that divide rows of pixels
    and rows of outputs, if narrower than 16 bytes (``v8``, ``v8x4``); 64-bit indices (``wide``); and the size of a
    small plane of a depthwise convolution.

    Examples
    --------
    >>> compile_key(parse_problem("n3c3h1000w1024_k3r3s3_st1_p1_f32_nchw"))
    'c3_k3r3s3_st1_p1_f32_nchw'
    """
    form = _FORMS[problem.operation]
    problem = _with_bucket(problem)
    tokens = [token for token in form.tokens(problem) if token != "ceil"]
    return "_".join([form.kernel(problem), *tokens, *form.compiled(problem)])


def _with_bucket(problem: Problem) -> Problem:
    """The problem with the epilogue of its bucket."""
    if not isinstance(problem, Conv2dProblem) or problem.epilogue.bucket == problem.epilogue:
        return problem
    return problem.replace(epilogue=problem.epilogue.bucket)


def is_small_plane(problem: Conv2dProblem) -> bool:
    """True if kernels may be specialised to a plane's size: depthwise, K = C, NCHW, at most 64 x 64 pixels."""
    depthwise = problem.groups == problem.c == problem.k
    return depthwise and problem.x_layout == problem.out_layout == "NCHW" and max(problem.h, problem.w) <= SMALL_SIDE


def parse_problem(text: str) -> Problem:
    """Read a problem's text form. Raises ``ValueError`` for any other text, an unknown token or a broken rule.

    Examples
    --------
    >>> parse_problem("n1c3h64w48_k8r3s5_st2x1_p1x0x2x2_g1_f32_nchw").padding
    (1, 0, 2, 2)
    """
    for form in _FORMS.values():
        if match := re.match(form.sizes + "(?=_|$)", text):
            fields: dict[str, Any] = {name: int(size) for name, size in match.groupdict().items()}
            rest = text[match.end() :].removeprefix("_")
            for token in rest.split("_") if rest else ():
                if (found := form.read(token)) is None or (form.kind is ElementwiseProblem and "dtype" in fields):
                    raise ValueError(_unknown(token, text, form))
                fields |= found
            problem: Problem = form.kind(**fields)
            return problem
    raise ValueError(
        f"{text!r} is not a problem; a convolution reads n1c3h64w64_k8r3s3_st1_p1_f32_nchw, a matrix product "
        "m512n512k512_f32, pooling max_n1c64h112w112_r3s3_st2_p1_f32_nchw"
    )


def _unknown(token: str, text: str, form: _Form) -> str:
    if form.kind is ElementwiseProblem:
        return f"{text!r} is not a problem: after relu4096 comes one element type, as in relu4096_f32"
    mode = PADDING_ALIASES.get(token) if form.kind is Conv2dProblem else None
    hint = f"; the border is written {mode!r} here" if mode else ""
    return f"token {token!r} of problem {text!r} is unknown{hint}"


def _bucket(size: int) -> int:
    """Round up to a power of two; 0 and 1 stay unchanged."""
    return size if size < 2 else 1 << (size - 1).bit_length()


def _conv2d_compiled(problem: Conv2dProblem) -> list[str]:
    tokens = _wide(problem)
    if is_small_plane(problem):
        return tokens
    x_row = problem.w * (problem.c if problem.x_layout == "NHWC" else 1) * itemsize(problem.x_dtype)
    out_row = problem.q * (problem.k if problem.out_layout == "NHWC" else 1) * itemsize(problem.out_dtype)
    vectors = (math.gcd(x_row, VECTOR_BYTES), math.gcd(out_row, VECTOR_BYTES))
    return tokens if vectors == (VECTOR_BYTES, VECTOR_BYTES) else [_pair("v", vectors), *tokens]


def _wide(problem: Conv2dProblem | Pool2dProblem) -> list[str]:
    return ["wide"] if problem.needs_wide_index else []


def _pair(prefix: str, pair: tuple[int, int]) -> str:
    return f"{prefix}{pair[0]}" if pair[0] == pair[1] else f"{prefix}{pair[0]}x{pair[1]}"


def _window_tokens(problem: Conv2dProblem | Pool2dProblem) -> list[str]:
    top, bottom, left, right = problem.padding
    alike = top == bottom and left == right
    padding = _pair("p", (top, left)) if alike else f"p{top}x{bottom}x{left}x{right}"
    dilation = [] if problem.dilation == (1, 1) else [_pair("d", problem.dilation)]
    return [_pair("st", problem.stride), padding, *dilation]


def _conv2d_tokens(problem: Conv2dProblem) -> list[str]:
    tokens = _window_tokens(problem)
    if problem.groups != 1:
        tokens.append(f"g{problem.groups}")
    if problem.padding_mode == "constant":
        tokens.append(f"constant{problem.padding_value!r}")
    elif problem.padding_mode != "zeros":
        tokens.append(problem.padding_mode)
    if problem.mode == "convolution":
        tokens.append("flip")
    if problem.w_bound:
        tokens.append(f"wmax{problem.w_bound}")
    x = problem.x_dtype
    dtypes = (x, problem.w_dtype, problem.out_dtype, problem.acc_dtype)
    plain = dtypes == (x, x, output_dtype(x, x), accumulation_dtype(x, x))
    tokens.append("-".join(SHORT_NAMES[d] for d in (dtypes[:1] if plain else dtypes)))
    layouts = (problem.x_layout, problem.w_layout, problem.out_layout)
    default = (problem.x_layout, "KCRS", problem.x_layout)
    tokens.append((problem.x_layout if layouts == default else "-".join(layouts)).lower())
    if problem.precision != "strict":
        tokens.append(_precision_token(problem.precision))
    if not problem.epilogue.is_identity:
        tokens.append(str(problem.epilogue))
    return tokens


def _pool2d_tokens(problem: Pool2dProblem) -> list[str]:
    tokens = [*_window_tokens(problem), SHORT_NAMES[problem.dtype], problem.layout.lower()]
    return [*tokens, "ceil"] if problem.ceil_mode else tokens


def _gemm_tokens(problem: GemmProblem) -> list[str]:
    tokens = ["ta"] if problem.transpose_a else []
    if problem.transpose_b:
        tokens.append("tb")
    names = (problem.dtype,) if problem.b_dtype == problem.dtype else (problem.dtype, problem.b_dtype)
    tokens.append("-".join(SHORT_NAMES[name] for name in names))
    return tokens if problem.precision == "strict" else [*tokens, _precision_token(problem.precision)]


def _gemm_compiled(problem: GemmProblem) -> list[str]:
    size = itemsize(problem.dtype)
    if size != 2:
        return []
    rows = (*(operand.shape[-1] for operand in problem.operands), problem.n)
    vector = math.gcd(*(row * size for row in rows), VECTOR_BYTES)
    return [] if vector == VECTOR_BYTES else [f"v{vector}"]


def _conv2d_size(problem: Conv2dProblem, scaled: Callable[[int], int]) -> str:
    side = int if is_small_plane(problem) else scaled
    image = f"n{scaled(problem.n)}c{problem.c}h{side(problem.h)}w{side(problem.w)}"
    return f"{image}_k{problem.k}r{problem.r}s{problem.s}"


def _conv2d_kernel(problem: Conv2dProblem) -> str:
    plane = f"h{problem.h}w{problem.w}" if is_small_plane(problem) else ""
    return f"c{problem.c}{plane}_k{problem.k}r{problem.r}s{problem.s}"


def _pool2d_size(problem: Pool2dProblem, scaled: Callable[[int], int]) -> str:
    image = f"n{scaled(problem.n)}c{problem.c}h{scaled(problem.h)}w{scaled(problem.w)}"
    return f"max_{image}_r{problem.r}s{problem.s}"


def _gemm_size(problem: GemmProblem, scaled: Callable[[int], int]) -> str:
    return f"m{scaled(problem.m)}n{scaled(problem.n)}k{scaled(problem.k)}"


def _read_dtypes(token: str, *names: str) -> dict[str, Any] | None:
    """Read the element types of fields, joined by hyphens; a single type is that of the first field."""
    parts = token.split("-")
    if len(parts) not in (1, len(names)) or any(part not in DTYPES for part in parts):
        return None
    return {name: DTYPES[part] for name, part in zip(names, parts, strict=False)}


def _read_precision(token: str) -> dict[str, Any] | None:
    names = {_precision_token(precision): precision for precision in PRECISIONS}
    return {"precision": names[token]} if token in names else None


def _precision_token(precision: str) -> str:
    """The token of a class; an underscore would end it."""
    return f"math-{precision.replace('_', '')}"


def _read_window(token: str) -> dict[str, Any] | None:
    """Read a token that convolution and pooling share."""
    if match := _PAIR.fullmatch(token):
        return {"stride" if match[1] == "st" else "dilation": (int(match[2]), int(match[3] or match[2]))}
    if match := _PADDING.fullmatch(token):
        a, *others = (int(size) for size in match.groups() if size is not None)
        return {"padding": (a, *others) if len(others) == 3 else (a, a, *2 * (others or [a]))}
    return None


def _read_conv2d(token: str) -> dict[str, Any] | None:
    if token.startswith("+"):
        return {"epilogue": Epilogue.parse(token)}
    if layouts := _LAYOUTS.fullmatch(token):
        x, w, out = layouts.groups()
        return {"x_layout": x.upper(), "w_layout": (w or "kcrs").upper(), "out_layout": (out or x).upper()}
    if re.fullmatch(r"g\d+", token):
        return {"groups": int(token[1:])}
    if constant := re.fullmatch("constant(.+)", token):
        return {"padding_mode": "constant", "padding_value": float(constant[1])}
    if token in ("reflect", "symmetric", "replicate", "circular"):
        return {"padding_mode": token}
    if token == "flip":
        return {"mode": "convolution"}
    if re.fullmatch(r"wmax\d+", token):
        return {"w_bound": int(token[4:])}
    dtypes = _read_dtypes(token, "x_dtype", "w_dtype", "out_dtype", "acc_dtype")
    return dtypes or _read_precision(token) or _read_window(token)


def _read_pool2d(token: str) -> dict[str, Any] | None:
    if token in ("nchw", "nhwc"):
        return {"layout": token.upper()}
    return {"ceil_mode": True} if token == "ceil" else _read_dtypes(token, "dtype") or _read_window(token)


def _read_gemm(token: str) -> dict[str, Any] | None:
    if token in ("ta", "tb"):
        return {f"transpose_{token[1]}": True}
    return _read_dtypes(token, "dtype", "b_dtype") or _read_precision(token)


class _Form(NamedTuple):
    """The text form of one kind of problem."""

    kind: type[Any]
    sizes: str  # pattern of its first token, with a group for each field
    read: Callable[[str], dict[str, Any] | None]  # one later token -> its fields; None if unknown
    size: Callable[[Any, Callable[[int], int]], str]  # all sizes; the function rounds those that are run-time arguments
    kernel: Callable[[Any], str]  # sizes that kernels are specialised to
    tokens: Callable[[Any], list[str]]  # tokens after the sizes
    compiled: Callable[[Any], list[str]]  # properties of run-time sizes that kernels are specialised to, such as "v8"


def _sizes(*names: str) -> str:
    return "".join(rf"{name}(?P<{name}>\d+)" for name in names)


_FORMS: dict[str, _Form] = {
    "conv2d": _Form(
        Conv2dProblem, _sizes(*"nchw") + "_" + _sizes(*"krs"), _read_conv2d,
        _conv2d_size, _conv2d_kernel, _conv2d_tokens, _conv2d_compiled,
    ),
    "max_pool2d": _Form(
        Pool2dProblem, "max_" + _sizes(*"nchw") + "_" + _sizes(*"rs"), _read_pool2d,
        _pool2d_size, lambda problem: f"max_r{problem.r}s{problem.s}", _pool2d_tokens, _wide,
    ),
    "gemm": _Form(
        GemmProblem, _sizes(*"mnk"), _read_gemm, _gemm_size, lambda _: "gemm", _gemm_tokens, _gemm_compiled
    ),
    "relu": _Form(
        ElementwiseProblem, r"relu(?P<size>\d+)", lambda token: _read_dtypes(token, "dtype"),
        lambda problem, scaled: f"relu{scaled(problem.size)}", lambda _: "relu",
        lambda problem: [SHORT_NAMES[problem.dtype]], lambda _: [],
    ),
}  # fmt: skip
