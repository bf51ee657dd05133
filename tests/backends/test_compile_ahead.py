"""Kernels that are compiled side by side, with a compiler in the place of NVRTC."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from convforge.backends.cuda import compiler
from convforge.backends.cuda import runtime as module
from convforge.backends.cuda.compiler import CompileError

pytest.importorskip("cuda.core")


def test_what_is_compiled_ahead_is_there_and_what_is_refused_says_so_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = [SimpleNamespace(name=name, digest=lambda name=name: f"text of {name}") for name in "abcd"]
    compiled: list[str] = []
    both = threading.Barrier(2, timeout=60)  # two are under way at the same time, or this breaks

    def compile_kernel(kernel: Any, architecture: str) -> str:
        compiled.append(kernel.name)
        if kernel.name in "bc":
            both.wait()
        if kernel.name == "c":
            raise CompileError("c is refused")
        return f"{kernel.name} for {architecture}"

    monkeypatch.setattr(module, "compile_kernel", compile_kernel)
    monkeypatch.setattr(compiler, "compile_kernel", compile_kernel)
    monkeypatch.setattr(module, "CudaKernel", lambda about, gpu: about)
    monkeypatch.setattr(compiler.os, "cpu_count", lambda: 2)
    runtime: Any = object.__new__(module.CudaRuntime)
    runtime.facts, runtime._gpu = SimpleNamespace(architecture="sm_90"), None
    runtime._kernels, runtime._lock = {}, threading.Lock()

    assert runtime.compile(kernels[0]) == "a for sm_90"
    runtime.compile_ahead([*kernels[:3], kernels[1]])
    assert sorted(compiled) == ["a", "b", "c"], "each once, and nothing that is there"
    assert runtime.compile(kernels[1]) == "b for sm_90"
    assert sorted(compiled) == ["a", "b", "c"]
    both.reset()
    threading.Thread(target=both.wait, daemon=True).start()
    with pytest.raises(CompileError, match="c is refused"):
        runtime.compile(kernels[2])
    runtime.compile_ahead([])
    assert runtime.compile(kernels[3]) == "d for sm_90"
