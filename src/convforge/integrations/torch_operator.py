"""The operator ``torch.ops.convforge.conv2d``, its gradients, and its rules for PyTorch's transformations.

At stride 1 the operator itself computes the input's gradient: it convolves the padded gradient of the output with the
filter, flipped and with its channel axes swapped. PyTorch's ``aten.convolution_backward`` computes the input's gradient
at other strides, and the weights' gradient.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._C import _functorch
from torch.autograd import forward_ad

from convforge.api import conv2d as compute
from convforge.api import convolved
from convforge.call.cache import Calls
from convforge.tuning import CHOICES

_NAME = "convforge::conv2d"
# Arguments of :func:`convforge.conv2d` for each activation that has a gradient here.
ACTIVATIONS: dict[str, Any] = {"relu": "relu", "relu6": ("clipped_relu", 6.0)}
PLAIN = (torch.Tensor, nn.Parameter)
# The call cache of :func:`convforge.torch.conv2d`, for calls on a GPU.
CALLS = Calls(CHOICES.generation)
_SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias, int[2] stride, int[4] padding, int[2] dilation, int groups, "
    "str activation, bool flip, str precision, str algorithm, bool? tune=None) -> Tensor"
)


class Options(NamedTuple):
    """Arguments of the operator after its tensors."""

    stride: Any
    padding: Any  # top, bottom, left, right
    dilation: Any
    groups: int
    activation: str
    flip: bool
    precision: str
    algorithm: str
    tune: bool | None = None


def operate(x: Any, weight: Any, bias: Any, *options: Any) -> Any:
    """Call the operator, without PyTorch's dispatcher where possible.

    To call a Python function, the dispatcher takes longer than a small convolution, and even longer while gradients are
    recorded.
    """
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    if x.is_meta or is_watched() or any(type(t) not in PLAIN or _functorch.is_legacy_batchedtensor(t) for t in tensors):
        if not torch.compiler.is_compiling() and _is_differentiated(tensors):
            return _Transformed.apply(x, weight, bias, *options)
        return torch.ops.convforge.conv2d(x, weight, bias, *options)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _Recorded.apply(x, weight, bias, *options)
    return forward(x, weight, bias, *options)


def is_watched() -> bool:
    """True if a compiler, tracer, transformation or dispatch mode is active: it must receive the operator itself."""
    return bool(
        torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
        or _functorch.peek_interpreter_stack() is not None or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
    )  # fmt: skip


def _is_differentiated(tensors: list[Any]) -> bool:
    """True if torch.func (grad, vjp, jvp) or forward mode differentiates: both ignore the operator's own rules."""
    if any(level.key().name in ("Grad", "Jvp") for level in _functorch.get_interpreter_stack() or ()):
        return True
    return forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def is_channels_last(x: Any) -> bool:
    """True if x is in channels_last; with one channel or one pixel both formats apply, and the strides decide."""
    return bool(x.is_contiguous(memory_format=torch.channels_last) and x.stride(1) == 1 and x.stride(3) == x.shape[1])


def forward(x: Any, weight: Any, bias: Any, *options: Any, key: Any = None) -> Any:
    """Compute the operator; cache the call if a key is given."""
    call, o = compute if key is None else partial(convolved, CALLS, key), Options(*options)
    given, words = arguments(x, weight, bias, o)
    steady = torch.are_deterministic_algorithms_enabled()
    y = call(*given, **words, algorithm=o.algorithm, tune=o.tune, deterministic=steady)
    return y.permute(0, 3, 1, 2) if words["layout"] == "NHWC" else y


def arguments(x: Any, weight: Any, bias: Any, o: Options) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of :func:`convforge.conv2d` for the operator; x in channels_last becomes NHWC."""
    last = is_channels_last(x)
    top, bottom, left, right = o.padding
    return (x.permute(0, 2, 3, 1) if last else x, weight, bias), {
        "stride": tuple(o.stride), "padding": ((top, bottom), (left, right)), "dilation": tuple(o.dilation),
        "groups": o.groups, "layout": "NHWC" if last else "NCHW",
        "mode": "convolution" if o.flip else "cross-correlation",
        "activation": ACTIVATIONS[o.activation] if o.activation else None, "precision": o.precision,
    }  # fmt: skip


def _evenly_padded(x: Any, padding: Any) -> tuple[Any, list[int]]:
    """Return x and its padding in PyTorch's form; pad x here if opposite sides differ."""
    top, bottom, left, right = padding
    if top == bottom and left == right:
        return x, [top, left]
    return nn.functional.pad(x, around(padding)), [0, 0]


def around(padding: Any) -> list[int]:
    """Return (top, bottom, left, right) in the order of PyTorch's pad: left, right, top, bottom."""
    return [*padding[2:], *padding[:2]]


def _fake(x: Any, weight: Any, bias: Any, *options: Any) -> Any:
    return empty_result(x, weight, Options(*options), _result_dtype(x.dtype, weight.dtype))


def empty_result(x: Any, weight: Any, o: Options, dtype: Any) -> Any:
    """Return an empty tensor with the shape, memory format and device of the result: all that a fake call knows."""
    n, _, h, w = x.shape
    k, _, r, s = weight.shape
    p = (h + sum(o.padding[:2]) - o.dilation[0] * (r - 1) - 1) // o.stride[0] + 1
    q = (w + sum(o.padding[2:]) - o.dilation[1] * (s - 1) - 1) // o.stride[1] + 1
    form = torch.channels_last if is_channels_last(x) else torch.contiguous_format
    return torch.empty((n, k, p, q), dtype=dtype, device=x.device, memory_format=form)


def _result_dtype(x: Any, weight: Any) -> Any:
    if x.is_floating_point:
        return x
    return torch.float64 if weight == torch.float64 else torch.float32 if weight.is_floating_point else torch.int32


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, _, *options = inputs
    ctx.options = Options(*options)
    ctx.save_for_backward(x, weight, output if ctx.options.activation else None)


def _through(activation: str, grad: Any, output: Any) -> Any:
    """Multiply a gradient or a tangent by the activation's derivative."""
    if activation == "relu":
        return torch.ops.aten.threshold_backward(grad, output, 0)
    if activation == "relu6":
        return torch.ops.aten.hardtanh_backward(grad, output, 0, 6)
    return grad


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    x, weight, output = ctx.saved_tensors
    o: Options = ctx.options
    wants_x, wants_w, wants_b = ctx.needs_input_grad[:3]
    grad = _through(o.activation, grad, output)
    grad_x = grad_w = None
    full = [d * (size - 1) - side
            for d, size, sides in zip(o.dilation, weight.shape[2:], (o.padding[:2], o.padding[2:]), strict=True)
            for side in sides]  # fmt: skip
    if wants_x and x.numel() and list(o.stride) == [1, 1] and min(full) >= 0:  # in an empty batch H may be 0
        reordered = weight.unflatten(0, (o.groups, -1)).transpose(1, 2).flatten(0, 1)  # (C, K / groups, R, S)
        options = o._replace(padding=full, activation="", flip=not o.flip, algorithm="auto")
        grad_x, wants_x = operate(grad, reordered, None, *options), False
    if wants_x or wants_w:
        # For integer x the result and its gradient have the accumulation type.
        pixels = x.to(grad.dtype)
        whole, sides = _evenly_padded(pixels, o.padding)
        w = (weight.flip((2, 3)) if o.flip else weight).to(grad.dtype)
        found_x, found_w, _ = torch.ops.aten.convolution_backward(
            grad, whole, w, None, o.stride, sides, o.dilation, False, [0, 0], o.groups, [wants_x, wants_w, False]
        )
        if wants_x:
            grad_x = found_x if whole is pixels else nn.functional.pad(found_x, [-side for side in around(o.padding)])
        if wants_w:
            grad_w = (found_w.flip((2, 3)) if o.flip else found_w).to(weight.dtype)
    grad_b = grad.sum((0, 2, 3)) if wants_b else None
    return grad_x, grad_w, grad_b, *(None,) * len(o)


def _batched(info: Any, dims: Any, x: Any, weight: Any, bias: Any, *options: Any) -> tuple[Any, int]:
    """Rule for vmap: a batch of x alone becomes a larger N; batches of weights or biases run one by one."""
    if dims[1] is None and (bias is None or dims[2] is None):
        images = x.movedim(dims[0], 0)
        return operate(images.flatten(0, 1), weight, bias, *options).unflatten(0, images.shape[:2]), 0
    split = [
        [t] * info.batch_size if dim is None else t.unbind(dim) for t, dim in zip((x, weight, bias), dims, strict=False)
    ]
    return torch.stack([operate(*tensors, *options) for tensors in zip(*split, strict=True)]), 0


class _Recorded(torch.autograd.Function):  # type: ignore[misc]
    """The operator with its gradients, for autograd without transformations."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = forward(*inputs)
        _keep(ctx, inputs, output)
        return output

    backward = staticmethod(_backward)


class _Transformed(torch.autograd.Function):  # type: ignore[misc]
    """The operator with its gradients and tangents, for torch.func and forward mode."""

    @staticmethod
    def forward(x: Any, weight: Any, bias: Any, *options: Any) -> Any:
        return operate(x, weight, bias, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _keep(ctx, inputs, output)
        ctx.sizes = output.shape
        ctx.save_for_forward(inputs[0], inputs[1], output if ctx.options.activation else None)

    backward = staticmethod(_backward)
    vmap = staticmethod(_batched)

    @staticmethod
    def jvp(ctx: Any, along_x: Any, along_w: Any, along_b: Any, *_: Any) -> Any:
        """Return the tangent of the result: the convolution is linear in x, in the weights and in the bias."""
        x, weight, output = ctx.saved_tensors
        options = ctx.options._replace(activation="")
        terms = [] if along_x is None else [operate(along_x, weight, None, *options)]
        if along_w is not None:
            terms.append(operate(x, along_w, None, *options))
        total: Any = sum(terms[1:], start=terms[0]) if terms else None
        if along_b is not None:
            column = along_b[:, None, None]
            total = column.expand(ctx.sizes) if total is None else total + column
        return _through(ctx.options.activation, total, output)


# `torch.library.custom_op` does the same, but checks for aliases on every call, which takes microseconds.
torch.library.define(_NAME, _SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
torch.library.impl(_NAME, ("cpu", "cuda"), forward)
torch.library.register_fake(_NAME, _fake)
torch.library.register_autograd(_NAME, _backward, setup_context=_keep)
torch.library.register_vmap(_NAME, _batched)
