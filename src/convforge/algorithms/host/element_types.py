"""The four types of a kernel: storage, math, accumulation, epilogue; each with one name on the host and on the device.

Storage is what arrays hold (x_t, w_t, out_t), math what factors of products are (math_t), accumulation what sums are
taken in (acc_t), and the epilogue works in epilogue_t, on a scale and a bias of operand_t. A kernel of plain
multiply-adds multiplies what it sums: there math_t is acc_t.
"""

from __future__ import annotations

import ctypes
import dataclasses
from dataclasses import dataclass
from typing import Any

from convforge.problem import Conv2dProblem
from convforge.problem.types import is_integer

# NumPy's name of a type -> its name in kernels.
TYPES = {
    "float16": "half_t",
    "bfloat16": "bfloat16_t",
    "float32": "float",
    "float64": "double",
    "uint8": "unsigned char",
    "int8": "signed char",
    "uint16": "unsigned short",
    "int16": "short",
    "int32": "int",
}
# NumPy's name of a type that numbers of a kernel's struct have -> ctypes' type.
NUMBERS: dict[str, Any] = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int32": ctypes.c_int}

# Declared in every prelude, as its types may name them; types.cuh says what they are.
_DECLARED = ("struct half_t;", "struct bfloat16_t;")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementTypes:
    """NumPy's names of a kernel's element types; empty where the kernel has none of that kind.

    Attributes
    ----------
    x, w, out : str
        Storage: x_t, w_t and out_t of the kernel.
    math : str
        math_t; `acc` where nothing is said.
    acc : str
        acc_t.
    epilogue, operand : str
        epilogue_t, and operand_t: of scale and bias as they are given.

    Examples
    --------
    >>> ElementTypes(w="float16", acc="float32").prelude()[2:]
    ('using w_t = half_t;', 'using math_t = float;', 'using acc_t = float;')
    """

    x: str = ""
    w: str = ""
    out: str = ""
    math: str = ""
    acc: str = ""
    epilogue: str = ""
    operand: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "math", self.math or self.acc)

    @classmethod
    def of(cls, problem: Conv2dProblem, math: str = "") -> ElementTypes:
        """Those of a convolution's kernel; the epilogue works in float64 over int32 sums, which it holds exactly."""
        acc = problem.acc_dtype
        return cls(
            x=problem.x_dtype, w=problem.w_dtype, out=problem.out_dtype, math=math, acc=acc,
            epilogue="float64" if is_integer(acc) else acc, operand=problem.operand_dtype,
        )  # fmt: skip

    def prelude(self) -> tuple[str, ...]:
        """The lines that name them to the compiler."""
        named = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return (*_DECLARED, *(f"using {name}_t = {TYPES[dtype]};" for name, dtype in named if dtype))
