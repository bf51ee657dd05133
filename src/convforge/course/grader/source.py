"""A reader's kernel file, prepared for NVRTC and the emulator, with the rules for its launch.

A file contains plain kernels without host code. A declaration of the kernel is inserted before the first line, with
the same parameters. This gives it C linkage, and the emulator can call it with a single struct.
"""

from __future__ import annotations

import ast
import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

from convforge.backends.kernel import KernelSource
from convforge.backends.runtime import LaunchInfo
from convforge.problem import Conv2dProblem

DEFAULT = "block=16x16 grid=ceil(Q/16),ceil(P/16),N*K"
# Names available in launch rules: the kernel's size arguments, as in the documented signature.
NAMES = ("N", "C", "H", "W", "K", "R", "S", "P", "Q", "stride_h", "stride_w", "pad_top", "pad_left")


class Arguments(ctypes.Structure):
    """Arguments of a call, in the order of the signature."""

    _fields_ = (*((name, ctypes.c_void_p) for name in ("x", "w", "y")), *((name, ctypes.c_int) for name in NAMES))


STRUCT = "ConvforgeArguments"
SIGNATURE = f"const float *x, const float *w, float *y, {', '.join(f'int {name}' for name in NAMES)}"

# Headers that nvcc files commonly include but a kernel does not need.
_STANDARD = (
    r"cuda|cuda_runtime|cuda_runtime_api|device_launch_parameters|stdio|stdlib|math|assert|string|stdint|"
    r"c(?:stdio|stdlib|math|assert|string|stdint)|iostream|vector|algorithm"
)
_HEADER = re.compile(rf"^[ \t]*#[ \t]*include[ \t]*<(?:{_STANDARD})(?:\.h)?>[^\n]*", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<][^">\n]*[">])', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BOUNDS = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
_KERNEL = re.compile(rf"__global__\s+{_BOUNDS}void\s+{_BOUNDS}(\w+)\s*\(([^)]*)\)")
_POINTER = r"(?:const )?float(?: const)? ?(?:\* ?(?:const ?|__restrict(?:__)? ?)*\w*|\w+ ?\[ ?\])"
_INT = r"(?:const )?int(?: const)?(?: \w+)?"
_PARAMETERS = re.compile(rf" ?{_POINTER} ?(?:, ?{_POINTER} ?){{2}}(?:, ?{_INT} ?){{{len(NAMES)}}}")
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?(\w[\w ]*?)\s+(\w+)\s*\[\s*\]")
_LAUNCH = re.compile(r"//\s*convforge:\s*(.+)")


@dataclass(frozen=True)
class OwnSource(KernelSource):
    """A reader's kernel; ``constants`` holds the text to compile."""

    def text(self) -> str:
        return "\n".join(self.constants) + "\n"


@dataclass(frozen=True)
class OwnKernel:
    """A kernel file and its launch rule."""

    source: OwnSource
    rule: LaunchRule
    has_rule: bool  # True if the file or the caller defines the rule


def read_kernel(path: Path, name: str = "", launch: str = "") -> OwnKernel:
    """Read a kernel file.

    `name` defaults to conv2d, or to the only kernel in the file; `launch` to the rule in the file's comment
    ``// convforge: block=... grid=...``. Raises ``ValueError``, with a remedy, if the file cannot be compiled alone.
    """
    try:
        body = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: it is no text in UTF-8; save it as plain text") from None
    body = body.replace("\r\n", "\n")
    bare = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), body)
    _refuse_host_code(path, bare)
    name, parameters = _find(path, bare, name)
    found = _LAUNCH.search(body)
    rule = parse_launch(launch or (found[1] if found else DEFAULT))
    fields = ", ".join(f"args.{field}" for field in ("x", "w", "y", *NAMES))
    lines = (
        f"struct {STRUCT} {{ float *x, *w, *y; int {', '.join(NAMES)}; }};",
        f'static_assert(sizeof({STRUCT}) == {ctypes.sizeof(Arguments)}, "size of {STRUCT}");',
        f'extern "C" __global__ void {name}({parameters});',
        "#ifdef __CUDACC_RTC__",
        "#define CONVFORGE_SHARED(type, name) extern /**/ __shared__ type name[]",
        "#else",
        "#define CONVFORGE_SHARED(type, name) type *const name = reinterpret_cast<type *>(emulator::here()->dynamic)",
        f"inline void {name}(const {STRUCT} &args) {{ {name}({fields}); }}",
        "#endif",
        f'#line 1 "{path.name}"',
        _adapted(path, body, bare),
    )
    source = OwnSource(str(path.resolve()), name, lines, Arguments, STRUCT)
    return OwnKernel(source, rule, bool(launch or found))


def _find(path: Path, bare: str, name: str) -> tuple[str, str]:
    there = {match[1]: " ".join(match[2].split()) for match in _KERNEL.finditer(bare)}
    if not there:
        raise ValueError(f'{path}: there is no kernel in it; write extern "C" __global__ void conv2d({SIGNATURE})')
    chosen = name or ("conv2d" if "conv2d" in there else next(iter(there)))
    if chosen not in there or (not name and "conv2d" not in there and len(there) > 1):
        wanted = f"no kernel {name!r}" if name else f"{len(there)} kernels, and none is called conv2d"
        raise ValueError(f"{path}: there is {wanted}; it has {', '.join(there)}; name one by --kernel")
    if not _PARAMETERS.fullmatch(there[chosen]):
        raise ValueError(f"{path}: {chosen}({there[chosen]}) must take ({SIGNATURE}), in this order")
    return chosen, there[chosen]


def _refuse_host_code(path: Path, bare: str) -> None:
    if "<<<" in bare or re.search(r"\bmain\s*\(", bare):
        raise ValueError(
            f"{path}: it holds host code (main, or a launch with <<< >>>); leave the kernels alone in a file of their "
            "own, or check the compiled program: convforge check ./PROGRAM"
        )
    if found := re.search(r"__constant__[^;={]*;", bare):
        line = bare[: found.start()].count("\n") + 1
        raise ValueError(f"{path}:{line}: nobody fills this __constant__ array, which a host would; read w instead")


def _adapted(path: Path, body: str, bare: str) -> str:
    """Adapt the file for both backends: no standard headers, portable dynamic shared memory, same line numbers."""
    text = _HEADER.sub("", body)
    others = [found for found in _INCLUDE.findall(_COMMENT.sub("", text)) if found[0] == '"']
    if others:
        raise ValueError(f"{path}: it includes {others[0]}; a kernel is checked from one file: paste it in")
    for match in _DYNAMIC.finditer(bare):
        before = bare[: match.start()]
        if before.count("{") == before.count("}"):
            line = before.count("\n") + 1
            raise ValueError(
                f"{path}:{line}: `{match[0]}` stands outside of the kernel; move it to the kernel's first line"
            )
    return _DYNAMIC.sub(r"CONVFORGE_SHARED(\1, \2)", text)


_KEY = re.compile(r"\b(block|grid|shared)\s*=")
# Syntax allowed in a rule, so that evaluating it is safe.
_ARITHMETIC = (
    ast.Expression, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub,
)  # fmt: skip
_FUNCTIONS = {"ceil": ceil, "floor": floor, "min": min, "max": max, "Fraction": Fraction}


@dataclass(frozen=True, slots=True)
class LaunchRule:
    """Launch configuration as arithmetic over :data:`NAMES`."""

    block: str  # one to three entries, x first
    grid: str  # one to three entries, x first
    shared: str = "0"  # bytes of dynamic shared memory

    def info(self, kernel: str, problem: Conv2dProblem) -> LaunchInfo:
        """Return the launch for a problem; ``ValueError`` if an entry's value is not an integer."""
        found = []
        for text in (self.block, self.grid, self.shared):
            found.append(_values(text, sizes_of(problem)))
            for value in found[-1]:
                if value.denominator != 1:
                    raise ValueError(
                        f"{text!r} gives {float(value):g}, no whole number; write ceil(...) around the division"
                    )
        block, grid, (shared, *_) = (tuple(map(int, values)) for values in found)
        return LaunchInfo(kernel, grid, block, shared)


def sizes_of(problem: Conv2dProblem) -> dict[str, int]:
    """Return the kernel's size arguments, in the order of its parameters."""
    top, _, left, _ = problem.padding
    values = (problem.n, problem.c, problem.h, problem.w, problem.k, problem.r, problem.s, problem.p, problem.q)
    return dict(zip(NAMES, (*values, *problem.stride, top, left), strict=True))


def parse_launch(text: str) -> LaunchRule:
    """Parse a launch rule; any other text raises ``ValueError`` with the expected form.

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
    rule = LaunchRule(block, rules["grid"], rules.get("shared", "0"))
    for rule_text in (rule.block, rule.grid, rule.shared):
        _values(rule_text, dict.fromkeys(NAMES, 1))  # refuses everything but arithmetic
    return rule


def _values(text: str, sizes: Mapping[str, int]) -> tuple[Fraction, ...]:
    """Values of one to three entries; divisions are exact, and only `ceil` and `floor` round."""
    try:
        tree = ast.parse(re.sub(r"\b\d+\b", r"Fraction(\g<0>)", text), mode="eval")
        if not all(isinstance(node, _ARITHMETIC) for node in ast.walk(tree)):
            raise SyntaxError
        names = _FUNCTIONS | {name: Fraction(size) for name, size in sizes.items()}
        found = eval(compile(tree, "rule", "eval"), {"__builtins__": {}}, names)
        values = tuple(map(Fraction, found if isinstance(found, tuple) else (found,)))
    except ZeroDivisionError:
        raise ValueError(f"{text!r} divides by zero for these sizes") from None
    except (SyntaxError, TypeError, NameError, ValueError, RecursionError):
        raise ValueError(
            f"{text!r} is no rule; write arithmetic (+ - * / // %) and ceil, floor, min, max over {', '.join(NAMES)}"
        ) from None
    if not 1 <= len(values) <= 3:
        raise ValueError(f"{text!r} has {len(values)} sizes; a block or grid has at most 3")
    return values
