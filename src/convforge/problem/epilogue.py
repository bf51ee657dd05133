"""The epilogue, applied to each sum before it is stored: divisor, scale, bias, residual, activation, rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

# Name -> (formula, default alpha; None if it has no alpha). Compiled kernels number the activations in this order.
ACTIVATIONS: dict[str, tuple[str, float | None]] = {
    "identity": ("y", None),
    "relu": ("max(y, 0)", None),
    "leaky_relu": ("y if y > 0 else alpha * y", 0.01),
    "clipped_relu": ("min(max(y, 0), alpha)", 6.0),
    "sigmoid": ("1 / (1 + exp(-y))", None),
    "tanh": ("tanh(y)", None),
    "silu": ("y / (1 + exp(-y))", None),
    "gelu": ("y * (1 + erf(y / sqrt(2))) / 2", None),
}

# Prefix of a part of the text form, such as "over" of "over:9" -> (field, type of its value).
_READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "zero": ("x_zero_point", int), "over": ("divisor", int), "scale": ("scale", str)
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Epilogue:
    """y = activation(scale * sum / divisor + bias + residual), rounded and saturated to the output's type.

    The tensors (scale, bias, residual) are operands of the call.

    Parameters
    ----------
    scale : {"none", "tensor", "channel"}
        One float factor for the tensor, or one for each output channel.
    bias : bool
        A vector of shape (K,).
    residual : bool
        An array of the output's shape.
    activation : str
        A key of :data:`ACTIVATIONS`.
    alpha : float
        The activation's parameter: slope of leaky_relu, upper limit of clipped_relu. None means its default.
    x_zero_point : int
        Zero point: a value of x's type, subtracted from integer x before it is multiplied; padding has this value.
    divisor : int
        From 1 to 2^31 - 1. Divides each sum, with one rounding: a mean filter has integer taps and a divisor.

    Raises
    ------
    ValueError
        A field breaks a rule; the message names the field, the value and the rule.

    Examples
    --------
    >>> str(Epilogue(bias=True, activation="leaky_relu"))
    '+bias+leakyrelu:0.01'
    """

    scale: str = "none"
    bias: bool = False
    residual: bool = False
    activation: str = "identity"
    alpha: float | None = None
    x_zero_point: int = 0
    divisor: int = 1

    def __post_init__(self) -> None:
        if self.scale not in ("none", "tensor", "channel"):
            raise ValueError(f"scale={self.scale!r} is unknown; choose none, tensor or channel")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r} is unknown; choose one of {', '.join(ACTIVATIONS)}")
        if not 1 <= self.divisor < 2**31:
            raise ValueError(f"divisor={self.divisor} must be from 1 to 2^31 - 1")
        default = ACTIVATIONS[self.activation][1]
        if default is None and self.alpha is not None:
            raise ValueError(f"activation={self.activation!r} takes no alpha; got {self.alpha}")
        if default is not None:
            alpha = float(default if self.alpha is None else self.alpha)
            if not math.isfinite(alpha):
                raise ValueError(f"alpha={alpha} of {self.activation} must be finite")
            if self.activation == "clipped_relu" and alpha < 0:
                raise ValueError(f"alpha={alpha} of clipped_relu, its upper limit, must not be negative")
            object.__setattr__(self, "alpha", alpha)

    @property
    def is_identity(self) -> bool:
        return self == Epilogue()

    @property
    def is_plain(self) -> bool:
        """True if sums are stored unchanged. A zero point is allowed, because it is part of the sum."""
        return self == Epilogue(x_zero_point=self.x_zero_point)

    @property
    def activation_code(self) -> int:
        """The activation's number in compiled kernels."""
        return list(ACTIVATIONS).index(self.activation)

    def __str__(self) -> str:
        """Text form: empty for the identity."""
        name = self.activation.replace("_", "")
        parts = {
            f"zero:{self.x_zero_point}": self.x_zero_point,
            f"over:{self.divisor}": self.divisor != 1,
            f"scale:{self.scale}": self.scale != "none",
            "bias": self.bias,
            "residual": self.residual,
            name if self.alpha is None else f"{name}:{self.alpha!r}".replace("+", ""): name != "identity",
        }
        return "".join(f"+{part}" for part, is_given in parts.items() if is_given)

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """Read the text form; ``ValueError`` for an unknown part."""
        names = {name.replace("_", ""): name for name in ACTIVATIONS}
        fields: dict[str, object] = {}
        for part in text.removeprefix("+").split("+") if text else ():
            head, _, tail = part.partition(":")
            if head in _READERS:
                name, read = _READERS[head]
                fields[name] = read(tail)
            elif part in ("bias", "residual"):
                fields[part] = True
            elif head in names:
                fields["activation"] = names[head]
                if tail:
                    fields["alpha"] = float(tail)
            else:
                raise ValueError(f"{part!r} in epilogue {text!r} is unknown")
        return cls(**fields)  # type: ignore[arg-type]
