"""Vectors for 8-bit integers in Numba kernels: pairs of int16, and eight float64 at a time for the epilogue.

A pair is two neighbouring int16. The sum of the two products of two pairs is an int32: one instruction multiplies and
adds 8 pairs (vpmaddwd in AVX2; with VNNI it adds them to the sums too). LLVM finds it in the plain operations here, so
the code fits every processor. As in simd.py, indices are elements of a contiguous 1-D array and are not checked.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from convforge.backends.cpu.simd import Vector

REALS = 8  # float64 in a vector of reals: as many as there are int32 in a vector


class Reals(types.Type):  # type: ignore[misc]
    """Numba's type of eight float64."""

    def __init__(self) -> None:
        super().__init__(name="Reals")


reals = Reals()


@register_model(Reals)
class _RealsModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Reals) -> None:
        super().__init__(manager, kind, ir.VectorType(ir.DoubleType(), REALS))


@intrinsic  # type: ignore[untyped-decorator]
def splat_pair(context: Any, array: Any, index: Any) -> Any:
    """Return a vector of int16 with the pair at ``array[index]`` in all lanes."""
    vector = Vector(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = ir.IntType(32)
        pair = builder.load(_address(context, builder, signature, args, number), align=2)
        return builder.bitcast(_broadcast(builder, pair, vector.lanes // 2), context.get_value_type(vector))

    return vector(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def multiply_pairs(context: Any, a: Any, b: Any, sums: Any) -> Any:
    """Return ``sums[i] + a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1]``; `a` and `b` are int16, and `sums` int32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.VectorType(ir.IntType(32), a.lanes)
        products = builder.mul(builder.sext(args[0], wide), builder.sext(args[1], wide))
        even, odd = (_picked(builder, products, products, range(i, a.lanes, 2)) for i in range(2))
        return builder.add(args[2], builder.add(even, odd))

    return sums(a, b, sums), generate


@intrinsic  # type: ignore[untyped-decorator]
def join_pairs(context: Any, first: Any, second: Any) -> Any:
    """Return a vector of int16 whose pairs are the lower halves of the lanes of two vectors of int32."""
    vector = Vector(types.int16)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = args[0].type
        low = builder.and_(args[0], ir.Constant(kind, [0xFFFF] * first.lanes))
        high = builder.shl(args[1], ir.Constant(kind, [16] * first.lanes))
        return builder.bitcast(builder.or_(low, high), context.get_value_type(vector))

    return vector(first, second), generate


@intrinsic  # type: ignore[untyped-decorator]
def subtract(context: Any, vector: Any, number: Any) -> Any:
    """Return a vector of integers minus a number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cast = context.cast(builder, args[1], number, vector.dtype)
        return builder.sub(args[0], _broadcast(builder, cast, vector.lanes))

    return vector(vector, number), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_ints(context: Any, array: Any, index: Any) -> Any:
    """Load eight integers of at most 32 bits from ``array[index]`` on, cast to int32."""
    source, vector = array.dtype, Vector(types.int32)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        run = ir.VectorType(context.get_value_type(source), vector.lanes)
        value = builder.load(_address(context, builder, signature, args, run), align=source.bitwidth // 8)
        if source.bitwidth == vector.dtype.bitwidth:
            return value
        extend = builder.sext if source.signed else builder.zext
        return extend(value, context.get_value_type(vector))

    return vector(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_eight(context: Any, target: Any, into: Any, source: Any, at: Any) -> Any:
    """Copy the eight elements from ``source[at]`` on to ``target[into:]``, of the same type."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        run = ir.VectorType(context.get_value_type(source.dtype), 8)
        align = source.dtype.bitwidth // 8
        value = builder.load(_address(context, builder, signature, args, run, 2), align=align)
        builder.store(value, _address(context, builder, signature, args, run), align=align)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def widen_four(context: Any, target: Any, into: Any, source: Any, at: Any, number: Any) -> Any:
    """Set four integers ``target[into + i] = source[at + i] - number``; the target has the wider type."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        narrow, wide = (ir.VectorType(context.get_value_type(kind.dtype), 4) for kind in (source, target))
        value = builder.load(_address(context, builder, signature, args, narrow, 2), align=source.dtype.bitwidth // 8)
        extend = builder.sext if source.dtype.signed else builder.zext
        cast = context.cast(builder, args[4], number, target.dtype)
        value = builder.sub(extend(value, wide), _broadcast(builder, cast, 4))
        builder.store(value, _address(context, builder, signature, args, wide), align=target.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, number), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_reals(context: Any, array: Any, index: Any) -> Any:
    """Load eight elements of any type from ``array[index]`` on, cast to float64."""
    source = array.dtype

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        run = ir.VectorType(context.get_value_type(source), REALS)
        value = builder.load(_address(context, builder, signature, args, run), align=source.bitwidth // 8)
        wide = context.get_value_type(reals)
        if isinstance(source, types.Integer):
            return builder.sitofp(value, wide) if source.signed else builder.uitofp(value, wide)
        return value if source.bitwidth == 64 else builder.fpext(value, wide)

    return reals(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def splat_real(context: Any, number: Any) -> Any:
    """Return a number in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _broadcast(builder, context.cast(builder, args[0], number, types.float64), REALS)

    return reals(number), generate


@intrinsic  # type: ignore[untyped-decorator]
def times(context: Any, a: Any, b: Any) -> Any:
    return reals(reals, reals), lambda context, builder, signature, args: builder.fmul(*args)


@intrinsic  # type: ignore[untyped-decorator]
def plus(context: Any, a: Any, b: Any) -> Any:
    return reals(reals, reals), lambda context, builder, signature, args: builder.fadd(*args)


@intrinsic  # type: ignore[untyped-decorator]
def where_below(context: Any, value: Any, limit: Any, other: Any) -> Any:
    """Return `other` in the lanes where value < limit, else `value`, which may be NaN."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[0])

    return reals(reals, reals, reals), generate


@intrinsic  # type: ignore[untyped-decorator]
def where_above(context: Any, value: Any, limit: Any, other: Any) -> Any:
    """Return `other` in the lanes where value > limit, else `value`, which may be NaN."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[2], args[0])

    return reals(reals, reals, reals), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_rounded(context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store reals rounded to integers, half to even. They must be in the range of the array's integer type."""
    target = array.dtype

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not isinstance(target, types.Integer):
            return context.get_dummy_value()
        # The sum has no bits for fractions, and its lowest bits are the integer in two's complement.
        rounded = builder.fadd(args[2], ir.Constant(args[2].type, [2.0**52 + 2.0**51] * REALS))
        bits = builder.bitcast(rounded, ir.VectorType(ir.IntType(64), REALS))
        kind = ir.VectorType(context.get_value_type(target), REALS)
        pointer = _address(context, builder, signature, args, kind)
        builder.store(builder.trunc(bits, kind), pointer, align=target.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, reals), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_reals(context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store reals cast to the array's float type."""
    target = array.dtype

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not isinstance(target, types.Float):
            return context.get_dummy_value()
        value, kind = args[2], ir.VectorType(context.get_value_type(target), REALS)
        if target.bitwidth < 64:
            value = builder.fptrunc(value, kind)
        builder.store(value, _address(context, builder, signature, args, kind), align=target.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, reals), generate


def _address(context: Any, builder: Any, signature: Any, args: Any, kind: Any, side: int = 0) -> Any:
    """Pointer to ``array[index]``, arguments `side` and the next one, as one to a value of LLVM's type `kind`."""
    array = context.make_array(signature.args[side])(context, builder, args[side])
    return builder.bitcast(builder.gep(array.data, [args[side + 1]]), kind.as_pointer())


def _broadcast(builder: Any, scalar: Any, lanes: int) -> Any:
    kind = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    return _picked(builder, one, one, [0] * lanes)


def _picked(builder: Any, a: Any, b: Any, lanes: Any) -> Any:
    number = ir.IntType(32)
    places = [ir.Constant(number, lane) for lane in lanes]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(number, len(places)), places))
