"""NVRTC 12 beside NVRTC 13, for the GPUs that 13 dropped: Pascal (sm_61) and Volta (sm_70).

The bindings speak to one NVRTC a process, so this one is called as the C library that it is. Sources, options and the
reading of the log are those of :mod:`convforge.backends.cuda.compiler`.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from convforge.backends.cuda.compiler import Compiled, CompileError, kept, program_options, resources
from convforge.backends.kernel import KernelSource

# Where the wheel nvidia-cuda-nvrtc-cu12 keeps its library.
PLACES = ("lib/libnvrtc.so.12", "bin/nvrtc64_120_0.dll")


def _library_file() -> Path | None:
    try:
        spec = find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    return next((folder / place for folder in folders for place in PLACES if (folder / place).exists()), None)


# Where it is missing these tests are skipped at home; in CI they run, and fail.
compiled12 = pytest.mark.skipif(
    _library_file() is None and not os.environ.get("CI"), reason="pip install 'nvidia-cuda-nvrtc-cu12>=12.8,<13'"
)


@cache
def _library() -> ctypes.CDLL:
    file = _library_file()
    assert file is not None, "NVRTC 12 is missing: pip install 'nvidia-cuda-nvrtc-cu12>=12.8,<13'"
    library = ctypes.CDLL(str(file))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _call(name: str, *args: Any) -> None:
    status = getattr(_library(), name)(*args)
    if status:
        raise CompileError(f"{name}: {_library().nvrtcGetErrorString(status).decode()}")


@cache
def compiler_version() -> str:
    """Such as "12.9"."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_kernel(source: KernelSource, architecture: str) -> Compiled:
    """As that of :mod:`convforge.backends.cuda.compiler`.

    Raises
    ------
    CompileError
        NVRTC refuses the kernel.
    """
    return kept(source, architecture, compiler_version(), _nvrtc)


def _nvrtc(source: KernelSource, architecture: str) -> Compiled:
    program = ctypes.c_void_p()
    name = source.file.name.encode()
    _call("nvrtcCreateProgram", ctypes.byref(program), source.text().encode(), name, 0, None, None)
    try:
        options = program_options(source, architecture).as_bytes("nvrtc", "cubin")
        try:
            _call("nvrtcCompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options))
        except CompileError as fault:
            raise CompileError(f"{source.path} for {architecture}: {fault}\n{_text(program, 'ProgramLog')}") from fault
        log = _text(program, "ProgramLog")
        return Compiled(source.name, architecture, _read(program, "CUBIN"), **resources(log, source.name))
    finally:
        _call("nvrtcDestroyProgram", ctypes.byref(program))


def _text(program: ctypes.c_void_p, what: str) -> str:
    return _read(program, what).rstrip(b"\0").decode(errors="replace")


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _call(f"nvrtcGet{what}", program, buffer)
    return buffer.raw
