"""Source of a device kernel, for NVRTC or the host's C++ compiler: a file of CUDA C++, constants, a struct."""

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
# A string, which may contain comment marks; or a comment.
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STATIC_ASSERT = re.compile(r"^ *static_assert\(.*?\);\n", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class KernelSource:
    """One specialised kernel: ``extern "C" __global__ void name(const __grid_constant__ Arguments)``."""

    path: str  # the .cu file, from the package's folder
    name: str
    constants: tuple[str, ...]  # C++: members of ``struct Config``, and macros and declarations before it
    arguments: type[ctypes.Structure]  # the struct as the host fills it; `_` fields are padding
    struct: str  # its name in C++
    feature: str = ""  # :attr:`Architecture.feature` that its instructions need, such as "a"

    @property
    def file(self) -> Path:
        return PACKAGE / self.path

    def text(self) -> str:
        """Return the compiler's input: constants, file, and asserts that host and device declare the same struct."""
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
        """A digest of the text and of every header that it includes, directly or through another."""
        digest = hashlib.sha256(self.text().encode())
        for header in sorted(included(self.file)):
            digest.update(f"\n{header.name}\n".encode() + read_file(header))
        return digest.hexdigest()

    def code_digest(self) -> str:
        """A digest of name, constants, file and headers, without comments, blank lines and assertions."""
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
    """Return lines of C++: macros and declarations; ``struct Config`` of constants and types; aliases of the types."""
    members = [line for line in lines if line.startswith(("constexpr ", "using "))]
    before = [line for line in lines if line not in members]
    if not members:
        return before
    config = [f"    static {line}" if line.startswith("constexpr ") else f"    {line}" for line in members]
    types = [line.split()[1] for line in members if line.startswith("using ")]
    own = [f"using {name} = cfg::{name};" for name in types]
    return [*before, "struct Config {", *config, "};", "using cfg = Config;", *own]


def compiled_part(text: str) -> str:
    """CUDA C++ without comments, blank lines, blanks at the ends of lines, and static assertions."""
    lines = (line.rstrip() for line in _COMMENT.sub(r"\1", text).splitlines())
    return _STATIC_ASSERT.sub("", "".join(f"{line}\n" for line in lines if line))


@cache
def _code_digest(file: Path) -> str:
    return hashlib.sha256(compiled_part(read_file(file).decode()).encode()).hexdigest()


@cache
def included(file: Path) -> frozenset[Path]:
    """Every header that a file includes, directly or through another; all are in :data:`HEADERS`."""
    own = {HEADERS / name for name in _INCLUDE.findall(read_file(file).decode())}
    return frozenset(own.union(*map(included, own)))


def _offsets(struct: Any, before: str = "", start: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the path and the offset of every field, including fields of inner structs."""
    for name, kind, *_ in struct._fields_:
        if name.startswith("_"):  # padding, which C++ adds by itself
            continue
        offset = start + getattr(struct, name).offset
        yield before + name, offset
        if isinstance(kind, type) and issubclass(kind, ctypes.Structure):
            yield from _offsets(kind, f"{before}{name}.", offset)
