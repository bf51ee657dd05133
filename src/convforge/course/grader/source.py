"""A reader's kernel file, made ready for NVRTC and for the emulator alike: plain arguments, one file, no host code.

The kernel is declared before the file's first line, with the parameters that it has there. So it has C linkage whether
or not the file says so, and the emulator's call with one struct can be written before it.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

from convforge.backends.kernel import KernelSource
from convforge.course.grader.launch import DEFAULT, NAMES, LaunchRule, parse_launch


class Arguments(ctypes.Structure):
    """The arguments of a call, in the order of the signature."""

    _fields_ = (*((name, ctypes.c_void_p) for name in ("x", "w", "y")), *((name, ctypes.c_int) for name in NAMES))


STRUCT = "ConvforgeArguments"
SIGNATURE = f"const float *x, const float *w, float *y, {', '.join(f'int {name}' for name in NAMES)}"

# Headers that a file for nvcc includes, of which a kernel needs nothing: what it needs is there by itself.
_STANDARD = (
    r"cuda|cuda_runtime|cuda_runtime_api|device_launch_parameters|stdio|stdlib|math|assert|string|stdint|"
    r"c(?:stdio|stdlib|math|assert|string|stdint)|iostream|vector|algorithm"
)
_HEADER = re.compile(rf"^[ \t]*#[ \t]*include[ \t]*<(?:{_STANDARD})(?:\.h)?>[^\n]*", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<][^">\n]*[">])', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BOUNDS = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
_KERNEL = re.compile(rf"__global__\s+{_BOUNDS}void\s+{_BOUNDS}(\w+)\s*\(([^)]*)\)")
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?(\w[\w ]*?)\s+(\w+)\s*\[\s*\]")
_LAUNCH = re.compile(r"//\s*convforge:\s*(.+)")


@dataclass(frozen=True)
class OwnSource(KernelSource):
    """A reader's kernel; ``constants`` holds the text that is compiled."""

    def text(self) -> str:
        """What the compiler is given."""
        return "\n".join(self.constants) + "\n"


@dataclass(frozen=True)
class OwnKernel:
    """A kernel file that was read.

    Attributes
    ----------
    source : OwnSource
    rule : LaunchRule
    said : bool
        The file, or the caller, said how to launch it.
    """

    source: OwnSource
    rule: LaunchRule
    said: bool


def read_kernel(path: Path, name: str = "", launch: str = "") -> OwnKernel:
    """Read a kernel file.

    Parameters
    ----------
    name : str
        The kernel's; by default conv2d, or the only one of the file.
    launch : str
        How to launch it; by default what the comment ``// convforge: block=... grid=...`` of the file says.

    Raises
    ------
    ValueError
        The file cannot be handed to a compiler as it is; the text says what to change.
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
    lines = (*_prelude(name, parameters), f'#line 1 "{path.name}"', _adapted(path, body, bare))
    source = OwnSource(str(path.resolve()), name, lines, Arguments, STRUCT)
    return OwnKernel(source, rule, bool(launch or found))


def _find(path: Path, bare: str, name: str) -> tuple[str, str]:
    """The kernel's name and its parameters as they are written."""
    there = {match[1]: " ".join(match[2].split()) for match in _KERNEL.finditer(bare)}
    if not there:
        raise ValueError(f'{path}: there is no kernel in it; write extern "C" __global__ void conv2d({SIGNATURE})')
    chosen = name or ("conv2d" if "conv2d" in there else next(iter(there)))
    if chosen not in there or (not name and "conv2d" not in there and len(there) > 1):
        wanted = f"no kernel {name!r}" if name else f"{len(there)} kernels, and none is called conv2d"
        raise ValueError(f"{path}: there is {wanted}; it has {', '.join(there)}; name one by --kernel")
    kinds = [_kind(parameter) for parameter in there[chosen].split(",")]
    if kinds != ["float *"] * 3 + ["int"] * len(NAMES):
        raise ValueError(f"{path}: {chosen}({there[chosen]}) must take ({SIGNATURE}), in this order")
    return chosen, there[chosen]


def _kind(parameter: str) -> str:
    """The type of a parameter, without its name and without const and __restrict__.

    Examples
    --------
    >>> _kind("const float *__restrict__ x"), _kind("const int pad_top"), _kind("float y[]")
    ('float *', 'int', 'float *')
    """
    words = re.findall(r"\w+|\*|\[\]", parameter)
    words = ["*" if word == "[]" else word for word in words if word not in ("const", "__restrict__", "__restrict")]
    pointers = words.count("*")
    names = [word for word in words if word != "*"]
    return " ".join([*names[:-1], *["*"] * pointers])


def _prelude(name: str, parameters: str) -> tuple[str, ...]:
    """What stands before the file's first line."""
    fields = ", ".join(f"args.{field}" for field in ("x", "w", "y", *NAMES))
    return (
        f"struct {STRUCT} {{ float *x, *w, *y; int {', '.join(NAMES)}; }};",
        f'static_assert(sizeof({STRUCT}) == {ctypes.sizeof(Arguments)}, "size of {STRUCT}");',
        f'extern "C" __global__ void {name}({parameters});',
        "#ifdef __CUDACC_RTC__",
        "#define CONVFORGE_SHARED(type, name) extern /**/ __shared__ type name[]",
        "#else",
        "#define CONVFORGE_SHARED(type, name) type *const name = reinterpret_cast<type *>(emulator::here()->dynamic)",
        f"inline void {name}(const {STRUCT} &args) {{ {name}({fields}); }}",
        "#endif",
    )


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
    """The file, each line in its place: without standard headers, dynamic shared memory as both backends take it."""
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
