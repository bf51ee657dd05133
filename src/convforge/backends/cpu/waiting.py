"""Polling of a counter that another thread changes, with the GIL released."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from convforge.backends.cpu.jit import jit

# Tells the processor that a loop only waits, which saves power and lets a sibling thread of the core run.
PAUSE = {"x86_64": "llvm.x86.sse2.pause", "AMD64": "llvm.x86.sse2.pause"}.get(platform.machine())


@intrinsic  # type: ignore[untyped-decorator]
def _loaded(context: Any, counter: Any) -> Any:
    """Read the first element of an int64 array from memory; the compiler may not keep it in a register."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.load_atomic(array.data, "acquire", 8)

    return types.int64(counter), build


@intrinsic  # type: ignore[untyped-decorator]
def _pause(context: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if PAUSE is not None:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, PAUSE), [])
        return context.get_dummy_value()

    return types.void(), build


@jit
def wait_while(counter: Any, value: int, looks: int) -> bool:
    """Return True when the first element of an int64 array differs from `value` within `looks` reads."""
    for _ in range(looks):
        if _loaded(counter) != value:
            return True
        _pause()
    return False
