"""convforge in PyTorch: an operator with gradients, a layer, and models whose layers are swapped.

Public as ``convforge.torch``. The operator ``torch.ops.convforge.conv2d`` is what the rest calls: PyTorch's compiler
sees one node with a known result, its graphs capture the launches, and its autograd finds the gradients.

Gradients: the input's is a convolution where the stride is 1 (of the output's gradient, padded, with the flipped filter
whose channels have changed places), and is computed by this operator; with another stride, and for weights, by
PyTorch's ``aten.convolution_backward``. On the CPU bfloat16 is PyTorch's as well, as NumPy has no such type.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

from convforge.api import conv2d as compute
from convforge.api import convolved
from convforge.integrations.torch_replace import Layer, Replaced, replace
from convforge.replay import Calls, kinds
from convforge.tuning import CHOICES, check_method

__all__ = ["Conv2d", "Layer", "Replaced", "conv2d", "replace"]

_NAME = "convforge::conv2d"
# What :func:`convforge.conv2d` is told of each activation that has a gradient here.
_ACTIVATIONS: dict[str, Any] = {"relu": "relu", "relu6": ("clipped_relu", 6.0)}
_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
_PLAIN = (torch.Tensor, nn.Parameter)
# Calls of :func:`conv2d` on a GPU that can be made again, by its own arguments.
_CALLS = Calls(CHOICES.generation)
_SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias, int[2] stride, int[4] padding, int[2] dilation, int groups, "
    "str activation, bool flip, str precision, str algorithm, bool? tune=None) -> Tensor"
)


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
    """``torch.nn.functional.conv2d`` by convforge, with gradients, under autocast, torch.compile and CUDA graphs.

    Parameters
    ----------
    x : tensor of shape (N, C, H, W) or (C, H, W)
        The result has its memory format: channels_last where it is in that, else contiguous.
    weight : tensor of shape (K, C / groups, R, S)
    bias : tensor of shape (K,), optional
    stride, dilation, groups
        As in PyTorch.
    padding : int, pair of int, "valid", "same", or ((top, bottom), (left, right))
    padding_mode : {"zeros", "reflect", "replicate", "circular"}
        Others than zeros are PyTorch's pad, in front of the convolution, whose negative padding crops.
    activation : {None, "relu", "relu6"}
        In the same kernel.
    precision : str
        "auto" follows PyTorch's setting of TF32: it allows TF32, and strict float32 is always allowed, so today it is
        strict. Else as in :func:`convforge.conv2d`.
    algorithm, tune
        As in :func:`convforge.conv2d`. Whichever is named, bfloat16 on the CPU is computed by PyTorch.

    Returns
    -------
    tensor of shape (N, K, P, Q) or (K, P, Q), of x's dtype

    Raises
    ------
    ValueError, TypeError, convforge.UnsupportedProblem
        As :func:`convforge.conv2d`.

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
    key = None
    if _may_be_kept(x, padding_mode):
        last, steady = x.dim() == 4 and _is_channels_last(x), torch.are_deterministic_algorithms_enabled()
        given = (stride, padding, dilation, groups, tune)
        result, key = _CALLS.again(
            (x, weight, bias), (*given, kinds(*given), activation, precision, algorithm, steady)
        )  # fmt: skip
        if result is not None:
            return result.permute(0, 3, 1, 2) if last else result if x.dim() == 4 else result[0]
    if activation is not None and not (isinstance(activation, str) and activation in _ACTIVATIONS):
        raise ValueError(
            f"activation={activation!r} must be None, 'relu' or 'relu6' here; apply PyTorch's to the result"
        )
    if padding_mode not in _PADDING_MODES:
        raise ValueError(f"padding_mode={padding_mode!r} must be one of {', '.join(_PADDING_MODES)} here")
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if not isinstance(tensor, torch.Tensor) and not (tensor is None and name == "bias"):
            raise TypeError(
                f"{name} must be a PyTorch tensor; got {type(tensor).__name__}: convforge.conv2d takes other arrays"
            )
    if not torch.compiler.is_compiling():
        _no_transform((x, weight, bias))
    # PyTorch 2.11 cannot trace torch.amp.is_autocast_available; these are the devices that the operator is for.
    if x.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = (t if t is None or not _is_cast(t) else t.to(dtype) for t in (x, weight, bias))
    steps, spread = _pair(stride, "stride"), _pair(dilation, "dilation")
    sides = _sides(padding, weight.shape[-2:], spread, steps)
    if padding_mode != "zeros" and any(sides):
        x, sides = nn.functional.pad(x, _around(sides), mode=padding_mode), [0, 0, 0, 0]
    options = (steps, sides, spread, groups, activation or "", False, _precision(precision), algorithm, tune)
    whole = x[None] if x.dim() == 3 else x
    y = _operate(whole, weight, bias, *options) if key is None else _forward(whole, weight, bias, *options, key=key)
    return y[0] if x.dim() == 3 else y


def _may_be_kept(x: Any, padding_mode: str) -> bool:
    """Whether a call on x may be made again by the arguments that it is made with: nothing else has a part in it."""
    on_gpu = isinstance(x, torch.Tensor) and x.is_cuda
    return on_gpu and padding_mode == "zeros" and not _is_watched() and not torch.is_autocast_enabled("cuda")


def _is_cast(tensor: Any) -> bool:
    """Whether autocast casts a tensor: as PyTorch's, one of float64 stays as it is."""
    return bool(tensor.is_floating_point() and tensor.dtype != torch.float64)


def _no_transform(tensors: Sequence[Any]) -> None:
    """Refuse what has no rule here, and would come out as a gradient of zero, or as an error of PyTorch's insides."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    if any(level.key().name in ("Grad", "Jvp") for level in levels):  # a vmap may stand on top of them
        raise NotImplementedError(
            "convforge.torch.conv2d has no rule for torch.func's grad, jvp, jacrev and hessian: use x.requires_grad_() "
            "and backward(), or torch.autograd.grad"
        )
    if forward_ad._current_level >= 0:
        for tensor in tensors:
            if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
                raise NotImplementedError(
                    "convforge.torch.conv2d has no rule for forward-mode differentiation: use backward()"
                )


def _operate(x: Any, weight: Any, bias: Any, *options: Any) -> Any:
    """The operator, by the shortest way: to reach a function in Python PyTorch's dispatcher takes longer than a small
    convolution takes, and longer still where gradients are recorded.
    """
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    if x.is_meta or _is_watched() or any(type(tensor) not in _PLAIN for tensor in tensors):
        return torch.ops.convforge.conv2d(x, weight, bias, *options)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _Recorded.apply(x, weight, bias, *options)
    return _forward(x, weight, bias, *options)


def _is_watched() -> bool:
    """Whether a compiler, tracer or mode looks on, which is to see the operator itself."""
    return bool(
        torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
    )  # fmt: skip


def _precision(asked: str) -> str:
    """The arithmetic that the operator may use.

    PyTorch's ``torch.backends.cudnn.allow_tf32`` allows TF32 and asks for nothing, and strict float32 is allowed at any
    setting; so "auto" is strict for as long as no method of ours is faster in TF32. This is the one place to change.
    """
    return "strict" if asked == "auto" else asked


def _pair(value: Any, name: str) -> list[int]:
    """A number for both axes, or two; of a sequence of one number PyTorch makes both as well."""
    if isinstance(value, int | torch.SymInt):
        return [value, value]
    if isinstance(value, Integral):  # such as NumPy's
        return [int(value), int(value)]
    if isinstance(value, list | tuple) and len(value) in (1, 2):
        return [value[0], value[-1]]
    raise TypeError(f"{name}={value!r} must be a whole number or a pair (vertical, horizontal)")


def _sides(padding: Any, window: Any, dilation: list[int], stride: list[int]) -> list[int]:
    """Top, bottom, left and right, as :func:`convforge.conv2d` understands padding; of "same" with stride 1."""
    if padding == "valid":
        return [0, 0, 0, 0]
    if padding == "same":
        if stride != [1, 1]:
            raise ValueError(f"padding='same' goes with stride 1 in PyTorch; stride is {stride}")
        vertical, horizontal = (d * (size - 1) for d, size in zip(dilation, window, strict=True))
        return [vertical // 2, vertical - vertical // 2, horizontal // 2, horizontal - horizontal // 2]
    if isinstance(padding, str):
        raise ValueError(f"padding={padding!r} is unknown; choose 'same', 'valid' or numbers")
    vertical, horizontal = _pair(padding, "padding")
    return [*_pair(vertical, "padding"), *_pair(horizontal, "padding")]


def _is_channels_last(x: Any) -> bool:
    """Whether x is in that memory format; strides tell it also where, of one channel or pixel, it is in both."""
    return bool(x.is_contiguous(memory_format=torch.channels_last) and x.stride(1) == 1 and x.stride(3) == x.shape[1])


def _forward(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, activation: str, flip: bool,
    precision: str, algorithm: str, tune: bool | None = None, *, key: Any = None,
) -> Any:  # fmt: skip
    """The operator itself; kept under the key where there is one."""
    if x.dtype == torch.bfloat16 and not x.is_cuda:
        check_method("conv2d", "cpu", algorithm, precision, tune)
        return _by_pytorch(x, weight, bias, stride, padding, dilation, groups, activation, flip)
    last = _is_channels_last(x)
    top, bottom, left, right = padding
    end = _ACTIVATIONS[activation] if activation else None
    call = compute if key is None else partial(convolved, _CALLS, key)
    y = call(
        x.permute(0, 2, 3, 1) if last else x, weight, bias, (stride[0], stride[1]), ((top, bottom), (left, right)),
        (dilation[0], dilation[1]), groups, layout="NHWC" if last else "NCHW",
        mode="convolution" if flip else "cross-correlation", activation=end, precision=precision,
        algorithm=algorithm, tune=tune, deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return y.permute(0, 3, 1, 2) if last else y


def _by_pytorch(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, activation: str, flip: bool
) -> Any:
    x, sides = _evenly_padded(x, padding)
    w = weight.flip((2, 3)) if flip else weight
    y = nn.functional.conv2d(x, w, bias, stride, sides, dilation, groups)
    form = torch.channels_last if _is_channels_last(x) else torch.contiguous_format
    made = {"relu": torch.relu_, "relu6": nn.functional.relu6}.get(activation)
    return (y if made is None else made(y)).contiguous(memory_format=form)


def _evenly_padded(x: Any, padding: Any) -> tuple[Any, list[int]]:
    """x, and the padding of its rows and columns as PyTorch's operators take it; written out where sides differ."""
    top, bottom, left, right = padding
    if top == bottom and left == right:
        return x, [top, left]
    return nn.functional.pad(x, _around(padding)), [0, 0]


def _around(padding: Any) -> list[int]:
    """Top, bottom, left and right in the order of PyTorch's pad."""
    return [*padding[2:], *padding[:2]]


def _fake(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, activation: str, flip: bool,
    precision: str, algorithm: str, tune: bool | None = None,
) -> Any:  # fmt: skip
    """Shape, type and memory format of the result."""
    n, _, h, w = x.shape
    k, _, r, s = weight.shape
    p = (h + padding[0] + padding[1] - dilation[0] * (r - 1) - 1) // stride[0] + 1
    q = (w + padding[2] + padding[3] - dilation[1] * (s - 1) - 1) // stride[1] + 1
    form = torch.channels_last if _is_channels_last(x) else torch.contiguous_format
    return torch.empty((n, k, p, q), dtype=_result_dtype(x.dtype, weight.dtype), device=x.device, memory_format=form)


def _result_dtype(x: Any, weight: Any) -> Any:
    """The type of sums: x's own where that is a float type."""
    if x.is_floating_point:
        return x
    return torch.float64 if weight == torch.float64 else torch.float32 if weight.is_floating_point else torch.int32


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    """What the gradients need."""
    x, weight, bias, *ctx.options = inputs
    activation = ctx.options[4]
    ctx.bias_sizes = None if bias is None else list(bias.shape)
    ctx.save_for_backward(x, weight, output if activation else None)


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    """Gradients of the three tensors."""
    x, weight, output = ctx.saved_tensors
    stride, padding, dilation, groups, activation, flip, precision, _, tune = ctx.options
    wants_x, wants_w, wants_b = ctx.needs_input_grad[:3]
    if activation == "relu":
        grad = torch.ops.aten.threshold_backward(grad, output, 0)
    elif activation == "relu6":
        grad = torch.ops.aten.hardtanh_backward(grad, output, 0, 6)
    grad_x = grad_w = None
    full = [d * (size - 1) - side
            for d, size, sides in zip(dilation, weight.shape[2:], (padding[:2], padding[2:]), strict=True)
            for side in sides]  # fmt: skip
    if wants_x and list(stride) == [1, 1] and min(full) >= 0:
        turned = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)  # (C, K / groups, R, S)
        options = (stride, full, dilation, groups, "", not flip, precision, "auto", tune)
        grad_x, wants_x = _operate(grad, turned, None, *options), False
    if wants_x or wants_w:
        # Of integers the result is of the type that it was summed in, and so is its gradient.
        pixels = x.to(grad.dtype)
        whole, sides = _evenly_padded(pixels, padding)
        w = (weight.flip((2, 3)) if flip else weight).to(grad.dtype)
        found_x, found_w, _ = torch.ops.aten.convolution_backward(
            grad, whole, w, None, stride, sides, dilation, False, [0, 0], groups, [wants_x, wants_w, False]
        )
        if wants_x:
            grad_x = found_x if whole is pixels else nn.functional.pad(found_x, [-side for side in _around(padding)])
        if wants_w:
            grad_w = (found_w.flip((2, 3)) if flip else found_w).to(weight.dtype)
    grad_b = grad.sum((0, 2, 3)) if wants_b else None
    return grad_x, grad_w, grad_b, *(None,) * len(ctx.options)


class _Recorded(torch.autograd.Function):  # type: ignore[misc]
    """The operator with its gradients, for tensors that nothing but autograd looks at."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """Convolve, and keep what the gradients need: in one, as PyTorch calls two by way of their signatures."""
        output = _forward(*inputs)
        _keep(ctx, inputs, output)
        return output

    backward = staticmethod(_backward)


# `torch.library.custom_op` would do all this in one, and look for aliases on every call, which takes microseconds.
torch.library.define(_NAME, _SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
torch.library.impl(_NAME, ("cpu", "cuda"), _forward)
torch.library.register_fake(_NAME, _fake)
torch.library.register_autograd(_NAME, _backward, setup_context=_keep)


class Conv2d(nn.Conv2d):  # type: ignore[misc]
    """``torch.nn.Conv2d`` by convforge: the same arguments, the same parameters, the same state_dict.

    Parameters
    ----------
    *args, **kwargs
        As of ``torch.nn.Conv2d``.
    activation, precision, algorithm, tune
        As of :func:`convforge.torch.conv2d`.

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
        """The same layer by convforge: it has the parameters, the hooks and the mode of `layer`, not copies of them."""
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
