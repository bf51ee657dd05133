"""The protocol of all kinds of problem: what each says of its operands, its result, its size and its arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from convforge.problem.types import itemsize


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that a problem reads or writes.

    Attributes
    ----------
    name : str
        As the problem's formula has it: "x", "w", "a", "b", "bias", "out", ...
    role : {"input", "weights", "epilogue", "output"}
    shape : tuple of int
        As callers give the array; of the weights that is (K, C / groups, R, S) in either layout.
    dtype : str
        NumPy's name of the element type.
    layout : str
        Physical order of the axes, a letter each; empty where it means nothing.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    layout: str

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes without gaps."""
        return self.size * itemsize(self.dtype)


class ProblemBase:
    """Protocol of all kinds of problem; each is a frozen dataclass, validated when it is made.

    What follows from a problem's fields is computed once, when it is made, and is no field: it takes no part in
    equality, hash, repr and pickles.

    Attributes
    ----------
    operation : str
        The name that methods are found under.
    multiplies : bool
        Outputs are sums of products, of which rounding errors are to be judged; otherwise nothing is summed.
    direction : str
        "fprop", forward propagation.
    precision : str
        The arithmetic that is allowed: a key of :data:`convforge.problem.PRECISIONS`.
    acc_dtype, out_dtype : str
        NumPy's names of the types that outputs are computed and stored in.
    operands, results : tuple of Operand
        The operands in the order of a call: the input first, then the weights and the epilogue's tensors, if any.
    out_shape : tuple of int
        Shape of the output in its physical layout.
    outputs : int
        Elements of the output.
    sides : tuple of int
        What is called the size of a problem: h and w of pictures, m, n, k of a product, the number of elements.
    stride : tuple of int
        Per axis (vertical, horizontal); empty where nothing slides.
    taps : int
        Elements of the input that one output is made of; where outputs are sums, products in one of them.
    flops : int
        Nominal floating-point operations: two a product, else one comparison a tap.
    least_bytes : int
        Bytes of the input, the weights and the output, each moved once.
    """

    __slots__ = (
        "acc_dtype", "direction", "flops", "least_bytes", "out_dtype", "out_shape", "outputs", "precision", "taps"
    )  # fmt: skip

    operation: ClassVar[str]
    multiplies: ClassVar[bool] = False

    stride: tuple[int, ...]

    direction: str
    precision: str
    acc_dtype: str
    out_dtype: str
    out_shape: tuple[int, ...]
    outputs: int
    taps: int
    flops: int
    least_bytes: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The arrays that are read."""
        raise NotImplementedError

    @property
    def results(self) -> tuple[Operand, ...]:
        """The arrays that are written."""
        raise NotImplementedError

    @property
    def sides(self) -> tuple[int, ...]:
        """Fields that form the size."""
        raise NotImplementedError

    @property
    def input(self) -> Operand:
        """The first operand: x, or the matrix A."""
        return self.operands[0]

    @property
    def weights(self) -> Operand | None:
        """The filter, or the matrix B; None where there is none."""
        return next((operand for operand in self.operands if operand.role == "weights"), None)

    def allowing(self, precision: str) -> Self:
        """The same problem with this arithmetic allowed, where it can be asked for; otherwise the problem itself."""
        return self

    def __str__(self) -> str:
        from convforge.problem.keys import result_key

        return result_key(self)  # type: ignore[arg-type]  # every kind is a member of the union

    def __setstate__(self, state: list[Any]) -> None:
        """Take the fields back from a pickle, which holds nothing else, and derive the rest.

        A dataclass with slots has a method of its own unless its body names this one.
        """
        names = (field.name for field in fields(self))  # type: ignore[arg-type]  # of the dataclass that this is
        self._derive(**dict(zip(names, state, strict=True)))
        self._derive_all()

    def _derive_all(self) -> None:
        """Set all that follows from valid fields."""
        raise NotImplementedError

    def _derive(self, **values: object) -> None:
        """Set attributes that follow from the fields, as a frozen dataclass can: past its own `__setattr__`."""
        put = object.__setattr__
        for name, value in values.items():
            put(self, name, value)
