"""The types of a kernel: storage (x_t, w_t, out_t), math (math_t: factors), accumulation (acc_t: sums), epilogue.

The epilogue computes in epilogue_t; the arrays scale and bias have the type operand_t.
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
    "uint32": "unsigned",
    "float8_e4m3fn": "e4m3_t",
    "float8_e5m2": "e5m2_t",
}
# NumPy's name of a number's type in a kernel's struct -> ctypes' type.
NUMBERS: dict[str, Any] = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int32": ctypes.c_int}

_DECLARED = tuple(
    f"struct {name};" for name in ("half_t", "bfloat16_t", "e4m3_t", "e5m2_t")
)  # declared in every prelude; types.cuh defines them


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementTypes:
    """NumPy's names of a kernel's element types; a name is empty if the kernel has no type of that kind.

    Examples
    --------
    >>> ElementTypes(w="float16", acc="float32").prelude()[4:]
    ('using w_t = half_t;', 'using math_t = float;', 'using acc_t = float;')
    """

    x: str = ""
    w: str = ""
    out: str = ""
    math: str = ""  # by default `acc`
    acc: str = ""
    epilogue: str = ""
    operand: str = ""  # type of the arrays scale and bias

    def __post_init__(self) -> None:
        object.__setattr__(self, "math", self.math or self.acc)

    @classmethod
    def of(cls, problem: Conv2dProblem, math: str = "") -> ElementTypes:
        """Return the element types of a GPU convolution kernel; int32 sums use a float64 epilogue, which is exact."""
        acc = problem.acc_dtype
        return cls(
            x=problem.x_dtype, w=problem.w_dtype, out=problem.out_dtype, math=math, acc=acc,
            epilogue="float64" if is_integer(acc) else acc, operand=problem.operand_dtype,
        )  # fmt: skip

    def prelude(self) -> tuple[str, ...]:
        """Source lines that define these types."""
        named = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return (*_DECLARED, *(f"using {name}_t = {TYPES[dtype]};" for name, dtype in named if dtype))
