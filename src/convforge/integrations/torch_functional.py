"""``torch.nn.functional.conv2d`` and ``torch.nn.Conv2d`` by convforge: check the arguments, call the operator."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import fx, nn
from torch.utils.weak import WeakTensorKeyDictionary

from convforge.call.cache import kinds
from convforge.integrations.torch_operator import (
    ACTIVATIONS,
    CALLS,
    PLAIN,
    Options,
    arguments,
    around,
    forward,
    is_channels_last,
    is_watched,
    operate,
)

_HALVES = (torch.float16, torch.bfloat16)
# 16-bit biases cast to float32, by bias and stream, with version and address of the original.
_BIASES = WeakTensorKeyDictionary()
_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[Any] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    activation: str | None = None,
    precision: str = "auto",
    algorithm: str = "auto",
    tune: bool | None = None,
) -> Any:
    """``torch.nn.functional.conv2d`` by convforge; supports gradients, autocast, torch.compile and CUDA graphs.

    Parameters
    ----------
    x : tensor of shape (N, C, H, W) or (C, H, W)
        The result has the memory format of x, channels_last or contiguous.
    weight : tensor of shape (K, C / groups, R, S)
    bias : tensor of shape (K,), optional
    stride, dilation, groups
        As in PyTorch.
    padding : int, pair of int, "valid", "same", or ((top, bottom), (left, right))
    padding_mode : {"zeros", "reflect", "replicate", "circular"}
        For modes other than zeros, PyTorch's pad runs before the convolution; negative padding crops.
    activation : {None, "relu", "relu6"}
        Applied to the result in the same kernel.
    precision : str
        "auto" respects PyTorch's TF32 setting, which allows TF32 but does not require it; at present "auto" always
        uses strict float32. Other values are those of :func:`convforge.conv2d`.
    algorithm, tune
        As in :func:`convforge.conv2d`.

    Returns
    -------
    tensor of shape (N, K, P, Q) or (K, P, Q), of x's dtype
        Errors are those of :func:`convforge.conv2d`.

    Examples
    --------
    >>> import torch
    >>> import convforge
    >>> x, w = torch.ones(1, 2, 5, 5, requires_grad=True), torch.ones(3, 2, 3, 3)
    >>> y = convforge.torch.conv2d(x, w, padding=1)
    >>> y.shape, y[0, 0, 2, 2].item()
    (torch.Size([1, 3, 5, 5]), 18.0)
    >>> y.sum().backward()
    >>> x.grad[0, 0, 2, 2].item()
    27.0
    """
    key, added = None, bias
    if _may_be_kept(x, padding_mode):
        if type(bias) in PLAIN and bias.dtype in _HALVES and not torch.cuda.is_current_stream_capturing():
            added = in_float32(bias, torch.cuda.current_stream(x.device).cuda_stream)
        last, steady = x.dim() == 4 and is_channels_last(x), torch.are_deterministic_algorithms_enabled()
        given = (stride, padding, dilation, groups, tune)
        plain = tune is None and type(stride) is type(padding) is type(dilation) is type(groups) is int
        result, key = CALLS.again(
            (x, weight, added), (*given, None if plain else kinds(*given), activation, precision, algorithm, steady)
        )  # fmt: skip
        if result is not None:
            return result.permute(0, 3, 1, 2) if last else result if x.dim() == 4 else result[0]
    if activation is not None and not (isinstance(activation, str) and activation in ACTIVATIONS):
        raise ValueError(
            f"activation={activation!r} must be None, 'relu' or 'relu6' here; apply PyTorch's to the result"
        )
    if padding_mode not in _PADDING_MODES:
        raise ValueError(f"padding_mode={padding_mode!r} must be one of {', '.join(_PADDING_MODES)} here")
    if any(isinstance(tensor, fx.Proxy) for tensor in (x, weight, bias)):  # a symbolic trace records this call
        return torch.overrides.handle_torch_function(
            conv2d, (x, weight, bias), x, weight, bias, stride, padding, dilation, groups, padding_mode=padding_mode,
            activation=activation, precision=precision, algorithm=algorithm, tune=tune,
        )  # fmt: skip
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if not isinstance(tensor, torch.Tensor) and not (tensor is None and name == "bias"):
            raise TypeError(
                f"{name} must be a PyTorch tensor; got {type(tensor).__name__}: convforge.conv2d takes other arrays"
            )
    if 0 in (x.numel(), weight.numel()) and x.shape[-3] == 0:
        return _without_channels(x, weight, bias, stride, padding, dilation, groups, padding_mode, activation)
    whole, weight, bias, options = _given(
        x, weight, added, stride, padding, dilation, groups, padding_mode, activation, precision, algorithm, tune
    )
    y = operate(whole, weight, bias, *options) if key is None else forward(whole, weight, bias, *options, key=key)
    return y[0] if x.dim() == 3 else y


class Conv2d(nn.Conv2d):  # type: ignore[misc]
    """``torch.nn.Conv2d`` by convforge, with the same arguments, parameters and state_dict.

    Parameters
    ----------
    *args, **kwargs
        Those of ``torch.nn.Conv2d``.
    activation, precision, algorithm, tune
        Those of :func:`convforge.torch.conv2d`.

    Examples
    --------
    >>> import torch
    >>> import convforge
    >>> layer = convforge.torch.Conv2d(3, 8, 3, padding=1)
    >>> layer.load_state_dict(torch.nn.Conv2d(3, 8, 3, padding=1).state_dict())
    <All keys matched successfully>
    >>> layer(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 8, 8, 8])
    """

    activation: str | None = None
    precision: str = "auto"
    algorithm: str = "auto"
    tune: bool | None = None

    def __init__(
        self, *args: Any, activation: str | None = None, precision: str = "auto", algorithm: str = "auto",
        tune: bool | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        self.activation, self.precision, self.algorithm, self.tune = activation, precision, algorithm, tune

    @classmethod
    def of(cls, layer: Any) -> Conv2d:
        """Make a layer that shares the parameters, hooks and attributes of `layer`."""
        made: Conv2d = cls.__new__(cls)
        made.__dict__ = layer.__dict__.copy()
        return made

    def forward(self, input: Any) -> Any:  # noqa: A002 - its name in nn.Conv2d
        """Convolve; see :func:`convforge.torch.conv2d`."""
        return conv2d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups,
            padding_mode=self.padding_mode, activation=self.activation, precision=self.precision,
            algorithm=self.algorithm, tune=self.tune,
        )  # fmt: skip


def in_float32(bias: Any, stream: int) -> Any:
    """Return a 16-bit bias in float32, the type in which kernels add it; cast once per stream, again after a change.

    A cast on every call would take longer than some layers. The bias is returned unchanged, and the call casts it,
    while gradients are recorded and for tensors without a version.
    """
    if bias.is_inference() or (torch.is_grad_enabled() and bias.requires_grad):
        return bias
    state, kept = (bias._version, bias.data_ptr()), _BIASES.setdefault(bias, {})
    if (found := kept.get(stream)) is None or found[0] != state:
        with torch.inference_mode(False), torch.no_grad():
            found = kept[stream] = (state, bias.detach().to(torch.float32))
    return found[1]


def arguments_of(layer: Any, x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of :func:`convforge.conv2d` for a :class:`Conv2d` and its input x. Raises errors of both."""
    x, weight, bias, options = _given(
        x, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups, layer.padding_mode,
        layer.activation, layer.precision, layer.algorithm, layer.tune,
    )  # fmt: skip
    return arguments(x, weight, bias, options)


def _given(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, padding_mode: str,
    activation: str | None, precision: str, algorithm: str, tune: bool | None,
) -> tuple[Any, Any, Any, Options]:  # fmt: skip
    """Return tensors and options of the operator: tensors cast by autocast, x padded and with a batch axis."""
    # PyTorch 2.11 cannot trace torch.amp.is_autocast_available, so list the devices that the operator supports.
    if x.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = (t if t is None or not _is_cast(t) else t.to(dtype) for t in (x, weight, bias))
    steps, spread = pair(stride, "stride"), pair(dilation, "dilation")
    sides = sides_of(padding, weight.shape[-2:], spread, steps)
    if padding_mode != "zeros" and any(sides):
        x, sides = nn.functional.pad(x, around(sides), mode=padding_mode), [0, 0, 0, 0]
    whole = x[None] if x.dim() == 3 else x
    options = Options(steps, sides, spread, groups, activation or "", False, _precision(precision), algorithm, tune)
    return whole, weight, bias, options


def _without_channels(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, mode: str, activation: Any
) -> Any:
    """Convolve images without channels in PyTorch, to get its result shape and gradients."""
    sides = sides_of(padding, weight.shape[-2:], pair(dilation, "dilation"), pair(stride, "stride"))
    if any(sides):
        x = nn.functional.pad(x, around(sides), mode="constant" if mode == "zeros" else mode)
    y = nn.functional.conv2d(x, weight, bias, stride, 0, dilation, groups)
    return y if activation is None else getattr(nn.functional, activation)(y)


def _may_be_kept(x: Any, padding_mode: str) -> bool:
    """True if a call on x may be cached, because its arguments alone determine its launches."""
    on_gpu = isinstance(x, torch.Tensor) and x.is_cuda
    return on_gpu and padding_mode == "zeros" and not is_watched() and not torch.is_autocast_enabled("cuda")


def _is_cast(tensor: Any) -> bool:
    """True if autocast casts a tensor: floating-point, except float64, as in PyTorch."""
    return bool(tensor.is_floating_point() and tensor.dtype != torch.float64)


def _precision(asked: str) -> str:
    """Return the precision for the operator.

    ``torch.backends.cudnn.allow_tf32`` allows TF32 but does not require it, so "auto" is strict until one of our
    methods is faster in TF32.
    """
    return "strict" if asked == "auto" else asked


def pair(value: Any, name: str) -> list[int]:
    """Return [vertical, horizontal] from a pair, a number for both axes, or as in PyTorch a sequence of one."""
    if isinstance(value, int | torch.SymInt):
        return [value, value]
    if isinstance(value, Integral):  # such as NumPy integers
        return [int(value), int(value)]
    if isinstance(value, list | tuple) and len(value) in (1, 2):
        return [value[0], value[-1]]
    raise TypeError(f"{name}={value!r} must be a whole number or a pair (vertical, horizontal)")


def sides_of(padding: Any, window: Any, dilation: list[int], stride: list[int]) -> list[int]:
    """Return padding in any form as [top, bottom, left, right]; "same" requires stride 1."""
    if padding == "valid":
        return [0, 0, 0, 0]
    if padding == "same":
        if stride != [1, 1]:
            raise ValueError(f"padding='same' goes with stride 1 in PyTorch; stride is {stride}")
        vertical, horizontal = (d * (size - 1) for d, size in zip(dilation, window, strict=True))
        return [vertical // 2, vertical - vertical // 2, horizontal // 2, horizontal - horizontal // 2]
    if isinstance(padding, str):
        raise ValueError(f"padding={padding!r} is unknown; choose 'same', 'valid' or numbers")
    vertical, horizontal = pair(padding, "padding")
    return [*pair(vertical, "padding"), *pair(horizontal, "padding")]
