"""A device kernel before it is compiled: a file of CUDA C++, its compile-time constants, the struct that it is handed.

The CUDA backend gives the text to NVRTC, the emulator to the C++ compiler of the host; the file is the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from convforge.backends.sources import PACKAGE, read_file

HEADERS = PACKAGE / "algorithms/device"
_INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)
# A string, which may hold what looks like a comment; or a comment.
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STATIC_ASSERT = re.compile(r"^ *static_assert\(.*?\);\n", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class KernelSource:
    """One kernel, specialised.

    Attributes
    ----------
    path : str
        The .cu file, from the package's folder.
    name : str
        Of the function, which has C linkage and takes one struct: ``extern "C" __global__ void name(const
        __grid_constant__ Arguments)``.
    constants : tuple of str
        Lines of C++: members of the kernel's ``struct Config``, such as ``constexpr int R = 3;`` and ``using x_t =
        float;``; and macros and declarations, which stand before it.
    arguments : type of ctypes.Structure
        The struct as the host fills it. Fields have the names and the layout of the struct in C++; those whose names
        begin with an underscore are padding.
    struct : str
        The struct's name in C++.
    feature : {"", "a", "f"}
        Of its instructions, as :attr:`Architecture.feature`: "a" where it is for the very architecture alone.
    """

    path: str
    name: str
    constants: tuple[str, ...]
    arguments: type[ctypes.Structure]
    struct: str
    feature: str = ""

    @property
    def file(self) -> Path:
        """The .cu file."""
        return PACKAGE / self.path

    def text(self) -> str:
        """The compiler's input: constants, the file, and asserts that both sides declare the same struct."""
        body = read_file(self.file).decode().replace("\r\n", "\n")
        size = ctypes.sizeof(self.arguments)
        asserts = [f'static_assert(sizeof({self.struct}) == {size}, "size of {self.struct}");']
        asserts.append("#ifndef __CUDACC_RTC__")
        for path, offset in _offsets(self.arguments):  # for the emulator's compiler: older NVRTCs have no offsetof
            place = f"__builtin_offsetof({self.struct}, {path})"
            asserts.append(f'static_assert({place} == {offset}, "place of {path}");')
        asserts.append("#endif")
        lines = [*_prelude(self.constants), f'#line 1 "{self.file.name}"', body, '#line 1 "layout"', *asserts]
        return "\n".join(lines) + "\n"

    def digest(self) -> str:
        """A digest of the text and of every header that it includes, whatever includes it."""
        digest = hashlib.sha256(self.text().encode())
        for header in sorted(included(self.file)):
            digest.update(f"\n{header.name}\n".encode())
            digest.update(read_file(header))
        return digest.hexdigest()

    def code_digest(self) -> str:
        """A digest of what is compiled: name, constants, file, headers; comments, blank lines, assertions aside."""
        lines = [self.name, *self.constants, _code_digest(self.file)]
        lines += [f"{header.name} {_code_digest(header)}" for header in sorted(included(self.file))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def constants(**values: int) -> tuple[str, ...]:
    """Members of a kernel's Config: flags and whole numbers by name.

    Examples
    --------
    >>> constants(BLOCK_X=32, CHANNELS_LAST=False)
    ('constexpr int BLOCK_X = 32;', 'constexpr bool CHANNELS_LAST = false;')
    """
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
    return tuple(f"constexpr {type(values[name]).__name__} {name} = {word};" for name, word in words.items())


def _prelude(lines: tuple[str, ...]) -> list[str]:
    """Macros and declarations; the struct of constants and types, as ``cfg``; the types' names on their own."""
    members = [line for line in lines if line.startswith(("constexpr ", "using "))]
    before = [line for line in lines if line not in members]
    if not members:
        return before
    config = [f"    static {line}" if line.startswith("constexpr ") else f"    {line}" for line in members]
    types = [line.split()[1] for line in members if line.startswith("using ")]
    own = [f"using {name} = cfg::{name};" for name in types]
    return [*before, "struct Config {", *config, "};", "using cfg = Config;", *own]


def compiled_part(text: str) -> str:
    """CUDA C++ without comments, blank lines, blanks at the ends of lines, and assertions of its compiler.

    Examples
    --------
    >>> compiled_part("// Adds N.\\n\\nstatic_assert(N > 0);\\nint next(int i) { return i + N; }  // of i\\n")
    'int next(int i) { return i + N; }\\n'
    """
    lines = (line.rstrip() for line in _COMMENT.sub(r"\1", text).splitlines())
    return _STATIC_ASSERT.sub("", "".join(f"{line}\n" for line in lines if line))


@cache
def _code_digest(file: Path) -> str:
    return hashlib.sha256(compiled_part(read_file(file).decode()).encode()).hexdigest()


@cache
def included(file: Path) -> frozenset[Path]:
    """Every header that a file includes, directly or through another; all stand in :data:`HEADERS`."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        for name in _INCLUDE.findall(read_file(waiting.pop()).decode()):
            header = HEADERS / name
            if header not in found:
                found.add(header)
                waiting.append(header)
    return frozenset(found)


def _offsets(struct: Any, before: str = "", start: int = 0) -> Iterator[tuple[str, int]]:
    """Path and offset of every field, those of inner structs included."""
    for name, kind, *_ in struct._fields_:
        if name.startswith("_"):  # padding, which C++ adds by itself
            continue
        offset = start + getattr(struct, name).offset
        yield before + name, offset
        if isinstance(kind, type) and issubclass(kind, ctypes.Structure):
            yield from _offsets(kind, f"{before}{name}.", offset)
