"""Inlining of functions marked by :func:`convforge.backends.cpu.jit.inlined`, faster than Numba's own inlining.

Numba analyses a function again for every call site, and copies it block by block, each with all variables. Here a
function is analysed once per process, and copied as a whole for each call site.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from numba.core import ir
from numba.core.bytecode import FunctionIdentity
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.inline_closurecall import InlineWorker
from numba.core.untyped_passes import InlineInlinables

_read: dict[Callable[..., Any], Any] = {}


class KernelCompiler(CompilerBase):  # type: ignore[misc]
    """Numba's compiler of plain functions, with :class:`InlineParts` instead of its own inlining pass."""

    def define_pipelines(self) -> list[PassManager]:
        return [_with_parts(DefaultPassBuilder.define_nopython_pipeline(self.state))]


@register_pass(mutates_CFG=True, analysis_only=False)
class InlineParts(InlineInlinables):  # type: ignore[misc]
    _name = "inline_parts"

    def _do_work(self, state: Any, work_list: Any, block: Any, i: int, expr: Any, inline_worker: Any) -> Any:
        worker = _Worker(state.typingctx, state.targetctx, state.locals, state.pipeline, state.flags)
        return super()._do_work(state, work_list, block, i, expr, worker)


class _Worker(InlineWorker):  # type: ignore[misc]
    """Numba's inlining worker, except that it analyses each function once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._compiler_pipeline = lambda state: _with_parts(DefaultPassBuilder.define_untyped_pipeline(state))

    def run_untyped_passes(self, func: Callable[..., Any], enable_ssa: bool = False) -> Any:
        """Return a copy of the function's Numba IR, for one call site."""
        if func not in _read:
            _read[func] = super().run_untyped_passes(func, enable_ssa)
        part = _read[func].copy()
        part.func_id = FunctionIdentity.from_function(func)  # names of variables contain its name
        (old,) = {id(block.scope): block.scope for block in part.blocks.values()}.values()
        scope = copy.deepcopy(old)
        # Blocks of a function may share statements; in a copy each block has its own.
        part.blocks = {label: _Fresh.of(copy.deepcopy(block, {id(old): scope})) for label, block in part.blocks.items()}
        return part


class _Fresh(ir.Block):  # type: ignore[misc]
    """A block with one owner, so that ``deepcopy`` may return the block itself."""

    @classmethod
    def of(cls, block: Any) -> _Fresh:
        fresh = cls(block.scope, block.loc)
        fresh.body = block.body
        return fresh

    def __deepcopy__(self, memo: Any) -> _Fresh:
        return self


def _with_parts(manager: PassManager) -> PassManager:
    manager.passes = [(InlineParts if which is InlineInlinables else which, text) for which, text in manager.passes]
    manager.finalize()
    return manager
