"""An array seen as one of another element type, so that one compiled kernel can have branches for equal types."""

from __future__ import annotations

from typing import Any

from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def alias(context: Any, array: Any, like: Any) -> Any:
    """The same 1-D array, its elements taken for those of `like`: for branches that run only where the types agree."""
    result = like.copy(layout=array.layout, readonly=not array.mutable)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = context.make_array(array)(context, builder, args[0])
        target = context.make_array(result)(context, builder)
        for name in ("meminfo", "parent", "nitems", "itemsize", "shape", "strides"):
            setattr(target, name, getattr(source, name))
        target.data = builder.bitcast(source.data, target.data.type)
        return target._getvalue()

    return result(array, like), generate
