"""The epilogue, applied to each sum before it is stored: scale, bias, residual, activation, output scale, rounding."""

from __future__ import annotations

import dataclasses
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
    "zero": ("x_zero_point", int), "over": ("divisor", int), "scale": ("scale", str),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The operations between a sum and the output::

        y = activation(scale * sum / divisor + bias + residual_scale * residual) / out_scale + out_zero_point

    y is rounded and saturated to the output's type. The tensors (scale, bias, residual) are operands of the call. A
    second result, if it is wanted, is::

        amax = amax_scale * max over all outputs of abs(activation(...))

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
    residual_scale : float
        Finite. Multiplies the residual; 1 without a residual.
    out_scale : float
        Positive and finite. Divides the activation's value.
    out_zero_point : int
        Added after that: a value of the output's type, which is then an integer type.
    amax : bool
        Compute the largest absolute value too: 0 for no outputs, NaN if a value is NaN.
    amax_scale : float
        Positive and finite. Multiplies it; 1 without amax.

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
    residual_scale: float = 1.0
    out_scale: float = 1.0
    out_zero_point: int = 0
    amax: bool = False
    amax_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.scale not in ("none", "tensor", "channel"):
            raise ValueError(f"scale={self.scale!r} is unknown; choose none, tensor or channel")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r} is unknown; choose one of {', '.join(ACTIVATIONS)}")
        if not 1 <= self.divisor < 2**31:
            raise ValueError(f"divisor={self.divisor} must be from 1 to 2^31 - 1")
        for name in ("residual_scale", "out_scale", "amax_scale"):
            if not math.isfinite(number := float(getattr(self, name))):
                raise ValueError(f"{name}={number} must be finite")
            object.__setattr__(self, name, number)
        if self.residual_scale != 1 and not self.residual:
            raise ValueError(f"residual_scale={self.residual_scale} goes with a residual alone")
        if self.amax_scale != 1 and not self.amax:
            raise ValueError(f"amax_scale={self.amax_scale} goes with amax alone")
        for name in ("out_scale", "amax_scale"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")
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
    def is_requantized(self) -> bool:
        """True if the scale of the residual, or the scale or zero point of the output, takes part."""
        return (self.residual_scale, self.out_scale, self.out_zero_point) != (1, 1, 0)

    @property
    def bucket(self) -> Epilogue:
        """The epilogue with a fixed value for each number that only run-time arguments of the kernels carry.

        Examples
        --------
        >>> str(Epilogue(activation="clipped_relu", alpha=2.5, x_zero_point=119, out_zero_point=3).bucket)
        '+zero:1+clippedrelu:6.0+out:1.0:1'
        """
        return dataclasses.replace(
            self, alpha=None, x_zero_point=int(self.x_zero_point != 0),
            residual_scale=1.0 if self.residual_scale == 1 else 2.0, out_scale=1.0 if self.out_scale == 1 else 2.0,
            out_zero_point=int(self.out_zero_point != 0), amax_scale=1.0 if self.amax_scale == 1 else 2.0,
        )  # fmt: skip

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
            "residual" if self.residual_scale == 1 else f"residual:{_text(self.residual_scale)}": self.residual,
            name if self.alpha is None else f"{name}:{_text(self.alpha)}": name != "identity",
            f"out:{_text(self.out_scale)}:{self.out_zero_point}": (self.out_scale, self.out_zero_point) != (1, 0),
            "amax" if self.amax_scale == 1 else f"amax:{_text(self.amax_scale)}": self.amax,
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
            elif part in ("bias", "residual", "amax"):
                fields[part] = True
            elif head == "residual":
                fields |= {"residual": True, "residual_scale": float(tail)}
            elif head == "amax":
                fields |= {"amax": True, "amax_scale": float(tail)}
            elif head == "out" and tail.count(":") == 1:
                scale, _, zero_point = tail.partition(":")
                fields |= {"out_scale": float(scale), "out_zero_point": int(zero_point)}
            elif head in names:
                fields["activation"] = names[head]
                if tail:
                    fields["alpha"] = float(tail)
            else:
                raise ValueError(f"{part!r} in epilogue {text!r} is unknown")
        return cls(**fields)  # type: ignore[arg-type]


def _text(number: float) -> str:
    """Text of a float without a plus sign, which separates the parts of an epilogue."""
    return repr(number).replace("+", "")
