"""Vectors of 32 bytes as values in Numba kernels: 8 float32 or 4 float64, one register of a processor with AVX2.

Numba vectorises plain loops by itself, but keeps no block of sums in registers across a loop over products. Indices
are elements of a contiguous 1-D array and are not checked.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

VECTOR_BYTES = 32


class Vector(types.Type):  # type: ignore[misc]
    """Numba's type of a vector with lanes of type `dtype`."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.lanes = VECTOR_BYTES * 8 // dtype.bitwidth
        super().__init__(name=f"Vector({dtype} x {self.lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector: Vector) -> None:
        lane = manager.lookup(vector.dtype).get_value_type()
        super().__init__(manager, vector, ir.VectorType(lane, vector.lanes))


@intrinsic  # type: ignore[untyped-decorator]
def lanes_of(context: Any, array: Any) -> Any:
    """Elements in a vector of an array's dtype, a compile-time constant."""
    vector = Vector(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(types.intp), vector.lanes)

    return types.intp(array), generate


@intrinsic  # type: ignore[untyped-decorator]
def load(context: Any, array: Any, index: Any) -> Any:
    """Load the vector that begins at ``array[index]``."""
    vector = Vector(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, signature, args, vector), align=vector.dtype.bitwidth // 8)

    return vector(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_as(context: Any, array: Any, index: Any, like: Any) -> Any:
    """Load a vector from ``array[index]`` on, cast to the element type of `like`, with as many lanes as its vectors."""
    return _load_every(array, index, like, 1)


@intrinsic  # type: ignore[untyped-decorator]
def load_every_second(context: Any, array: Any, index: Any, like: Any) -> Any:
    """Like :func:`load_as`, but of every second element; the element after the last one is read too."""
    return _load_every(array, index, like, 2)


def _load_every(array: Any, index: Any, like: Any, step: int) -> Any:
    source, vector = array.dtype, Vector(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = builder.gep(_data(context, builder, signature, args), [args[1]])
        run = ir.VectorType(context.get_value_type(source), step * vector.lanes)
        value = builder.load(builder.bitcast(element, run.as_pointer()), align=source.bitwidth // 8)
        if step > 1:
            number = ir.IntType(32)
            picked = [ir.Constant(number, i) for i in range(0, step * vector.lanes, step)]
            places = ir.Constant(ir.VectorType(number, vector.lanes), picked)
            value = builder.shuffle_vector(value, ir.Constant(run, ir.Undefined), places)
        instruction = _cast(source, vector.dtype)
        return getattr(builder, instruction)(value, context.get_value_type(vector)) if instruction else value

    return vector(array, types.intp, like), generate


@intrinsic  # type: ignore[untyped-decorator]
def store(context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store a vector into ``array[index:]``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature, args, value)
        builder.store(args[2], pointer, align=value.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@intrinsic  # type: ignore[untyped-decorator]
def get(context: Any, array: Any, index: Any) -> Any:
    """Return array[index] without a bounds check."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.gep(_data(context, builder, signature, args), [args[1]]))

    return array.dtype(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def put(context: Any, array: Any, index: Any, value: Any) -> Any:
    """Set array[index] = value, cast to the array's type, without a bounds check."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cast = context.cast(builder, args[2], value, array.dtype)
        builder.store(cast, builder.gep(_data(context, builder, signature, args), [args[1]]))
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@intrinsic  # type: ignore[untyped-decorator]
def splat(context: Any, array: Any, index: Any) -> Any:
    """Return a vector with ``array[index]`` in all lanes."""
    vector = Vector(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.gep(_data(context, builder, signature, args), [args[1]])
        return _broadcast(builder, builder.load(pointer), vector)

    return vector(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def transpose(context: Any, source: Any, at: Any, step: Any, target: Any, into: Any, step_into: Any) -> Any:
    """``target[into + j * step_into + i] = source[at + i * step + j]`` for as many i and j as a vector has lanes."""
    vector = Vector(source.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, lanes = context.get_value_type(vector), vector.lanes

        def row(side: int, i: int) -> Any:
            first, distance = args[side + 1], args[side + 2]
            place = builder.add(first, builder.mul(distance, ir.Constant(distance.type, i)))
            array = context.make_array(signature.args[side])(context, builder, args[side])
            return builder.bitcast(builder.gep(array.data, [place]), kind.as_pointer())

        def picked(lanes_of_both: list[int]) -> Any:
            number = ir.IntType(32)
            return ir.Constant(ir.VectorType(number, lanes), [ir.Constant(number, lane) for lane in lanes_of_both])

        align = vector.dtype.bitwidth // 8
        rows = [builder.load(row(0, i), align=align) for i in range(lanes)]
        half = lanes // 2
        while half:  # exchange the off-diagonal quarters of every square of 2 * half rows
            upper = picked([j if not j & half else j - half + lanes for j in range(lanes)])
            lower = picked([j + half if not j & half else j + lanes for j in range(lanes)])
            for i in range(lanes):
                if not i & half:
                    a, b = rows[i], rows[i + half]
                    rows[i] = builder.shuffle_vector(a, b, upper)
                    rows[i + half] = builder.shuffle_vector(a, b, lower)
            half //= 2
        for i, turned in enumerate(rows):
            builder.store(turned, row(3, i), align=align)
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def zeros(context: Any, array: Any) -> Any:
    vector = Vector(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(vector), None)

    return vector(array), generate


@intrinsic  # type: ignore[untyped-decorator]
def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once if the processor has FMA."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(a)
        name = f"llvm.fmuladd.v{a.lanes}f{a.dtype.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
        return builder.call(function, args)

    return a(a, a, a), generate


@intrinsic  # type: ignore[untyped-decorator]
def borrow(context: Any, value: Any) -> Any:
    """Return an array, or a tuple of arrays, without reference counting; the caller must keep the original alive.

    Counting is atomic: if threads share an array, each slice of it waits for the cache line of the counter.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _borrowed(context, builder, value, args[0])

    return value(value), generate


@intrinsic  # type: ignore[untyped-decorator]
def alias(context: Any, array: Any, like: Any) -> Any:
    """Return a 1-D array as if it had the element type of `like`: for branches that run only if the types agree."""
    result = like.copy(layout=array.layout, readonly=not array.mutable)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = context.make_array(array)(context, builder, args[0])
        target = context.make_array(result)(context, builder)
        for name in ("meminfo", "parent", "nitems", "itemsize", "shape", "strides"):
            setattr(target, name, getattr(source, name))
        target.data = builder.bitcast(source.data, target.data.type)
        return target._getvalue()

    return result(array, like), generate


def _borrowed(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.BaseTuple):
        for i, member in enumerate(kind):
            borrowed = _borrowed(context, builder, member, builder.extract_value(value, i))
            value = builder.insert_value(value, borrowed, i)
    elif isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        value = array._getvalue()
    return value


def _operator(function: Any, instruction: str) -> None:
    """Compile a Python operator of two vectors, or of a vector and a number, to this instruction of LLVM."""

    @intrinsic  # type: ignore[untyped-decorator]
    def operate(context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            right = args[1]
            if not isinstance(b, Vector):
                right = _broadcast(builder, context.cast(builder, right, b, a.dtype), a)
            return getattr(builder, instruction)(args[0], right)

        return a(a, b), generate

    @overload(function, strict=False)  # type: ignore[untyped-decorator]
    def implement(a: Any, b: Any) -> Any:
        return (lambda a, b: operate(a, b)) if isinstance(a, Vector) else None


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")


def _cast(source: Any, target: Any) -> str:
    """LLVM's instruction that casts numbers of type `source` to `target`; empty for the same type."""
    if isinstance(source, types.Integer) and isinstance(target, types.Integer):
        wider = ("sext" if source.signed else "zext") if source.bitwidth < target.bitwidth else "trunc"
        return "" if source.bitwidth == target.bitwidth else wider
    if isinstance(source, types.Integer):
        return "sitofp" if source.signed else "uitofp"
    if isinstance(target, types.Integer):
        return "fptosi" if target.signed else "fptoui"
    wider = "fpext" if source.bitwidth < target.bitwidth else "fptrunc"
    return "" if source.bitwidth == target.bitwidth else wider


def _broadcast(builder: Any, scalar: Any, vector: Vector) -> Any:
    kind = ir.VectorType(scalar.type, vector.lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined),
                                  ir.Constant(ir.VectorType(ir.IntType(32), vector.lanes), None))  # fmt: skip


def _data(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return context.make_array(signature.args[0])(context, builder, args[0]).data


def _pointer(context: Any, builder: Any, signature: Any, args: Any, vector: Vector) -> Any:
    element = builder.gep(_data(context, builder, signature, args), [args[1]])
    return builder.bitcast(element, context.get_value_type(vector).as_pointer())
