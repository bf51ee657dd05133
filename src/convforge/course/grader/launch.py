"""How a reader's kernel is launched: block, grid and shared memory, as rules over the sizes of the problem."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any

from convforge.backends.runtime import LaunchInfo
from convforge.problem import Conv2dProblem

DEFAULT = "block=16x16 grid=ceil(Q/16),ceil(P/16),N*K"
# What a rule may name: the sizes that the kernel is handed, by the names of the documented signature.
NAMES = ("N", "C", "H", "W", "K", "R", "S", "P", "Q", "stride_h", "stride_w", "pad_top", "pad_left")

_KEY = re.compile(r"\b(block|grid|shared)\s*=")
_OPERATIONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: lambda a, b: a % b,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"ceil": ceil, "floor": floor, "min": min, "max": max}


@dataclass(frozen=True, slots=True)
class LaunchRule:
    """Rules for one launch; every entry is arithmetic over :data:`NAMES`.

    Attributes
    ----------
    block, grid : tuple of str
        One to three entries, x first.
    shared : str
        Bytes of dynamic shared memory.
    """

    block: tuple[str, ...]
    grid: tuple[str, ...]
    shared: str = "0"

    def info(self, kernel: str, problem: Conv2dProblem) -> LaunchInfo:
        """The launch for a problem.

        Raises
        ------
        ValueError
            An entry is no arithmetic, or its value no whole number.
        """
        sizes = sizes_of(problem)
        block, grid = (tuple(_value(text, sizes) for text in rule) for rule in (self.block, self.grid))
        return LaunchInfo(kernel, grid, block, _value(self.shared, sizes))


def sizes_of(problem: Conv2dProblem) -> dict[str, int]:
    """The sizes that a kernel is handed, in the order of its parameters."""
    top, _, left, _ = problem.padding
    values = (problem.n, problem.c, problem.h, problem.w, problem.k, problem.r, problem.s, problem.p, problem.q)
    return dict(zip(NAMES, (*values, *problem.stride, top, left), strict=True))


def parse_launch(text: str) -> LaunchRule:
    """A launch as people write it.

    Raises
    ------
    ValueError
        It is not understood; the text says what is.

    Examples
    --------
    >>> rule = parse_launch("block=16x8 grid=ceil(Q/16),ceil(P/8),N*K shared=4*(16+S-1)*(8+R-1)")
    >>> from convforge.problem import parse_problem
    >>> info = rule.info("conv2d", parse_problem("n1c1h20w20_k2r3s3_st1_p1_f32_nchw"))
    >>> info.block, info.grid, info.scratch_bytes
    ((16, 8), (2, 3, 2), 720)
    """
    pieces = _KEY.split(text.strip())
    rules = {key: words.strip() for key, words in zip(pieces[1::2], pieces[2::2], strict=True)}
    if pieces[0].strip() or not {"block", "grid"} <= set(rules):
        raise ValueError(f"the launch {text.strip()!r} is not understood; write it like {DEFAULT} shared=0")
    block = re.sub(r"(?<=\d)\s*x\s*(?=\d)", ",", rules["block"])
    rule = LaunchRule(_entries(block), _entries(rules["grid"]), rules.get("shared", "0"))
    for entry in (*rule.block, *rule.grid, rule.shared):
        _value(entry, dict.fromkeys(NAMES, 1), whole=False)  # what is no arithmetic is refused at once
    return rule


def _entries(text: str) -> tuple[str, ...]:
    """One to three rules, joined by commas; what is no Python is one, which is refused when it is computed."""
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError:
        return (text,)
    entries = body.elts if isinstance(body, ast.Tuple) else [body]
    if len(entries) > 3:
        raise ValueError(f"{text!r} has {len(entries)} sizes; a block or grid has at most 3")
    return tuple(ast.get_source_segment(text, entry) or "" for entry in entries)


def _value(text: str, sizes: Mapping[str, int], *, whole: bool = True) -> int:
    """The value of one entry; divisions are exact, and only `ceil` and `floor` round."""
    try:
        value = Fraction(_computed(ast.parse(text, mode="eval").body, sizes))
    except ZeroDivisionError:
        raise ValueError(f"{text!r} divides by zero for these sizes") from None
    except (SyntaxError, TypeError, RecursionError):
        raise ValueError(
            f"{text!r} is no rule; write arithmetic (+ - * / // %) and ceil, floor, min, max over {', '.join(NAMES)}"
        ) from None
    if whole and value.denominator != 1:
        raise ValueError(f"{text!r} gives {float(value):g}, no whole number; write ceil(...) around the division")
    return int(value)


def _computed(node: ast.expr, sizes: Mapping[str, int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.Name) and node.id in sizes:
        return Fraction(sizes[node.id])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_computed(node.operand, sizes)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return Fraction(_OPERATIONS[type(node.op)](_computed(node.left, sizes), _computed(node.right, sizes)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and node.args:
        return Fraction(_FUNCTIONS[node.func.id](*(_computed(part, sizes) for part in node.args)))
    raise SyntaxError
