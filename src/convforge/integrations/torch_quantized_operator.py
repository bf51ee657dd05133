"""The operator ``torch.ops.convforge.quant_conv2d``: a convolution of 8-bit integers, whose scales are tensors.

A call reads the scales and zero points on the host, and makes a :class:`convforge.Filter` of them and of the weights.
The filter is kept for the weights until one of these tensors changes. So later calls, and calls that a CUDA graph
captures, read nothing from a GPU and send nothing to it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from convforge.api import Filter, max_pool2d
from convforge.integrations.torch_operator import PLAIN, Options, arguments, empty_result, is_channels_last, is_watched
from convforge.problem.quantization import Quantization

_NAME, _POOL = "convforge::quant_conv2d", "convforge::max_pool2d"
_SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias, Tensor weight_scale, Tensor input_scale, Tensor input_zero_point, "
    "Tensor? output_scale, Tensor? output_zero_point, str output_dtype, str padding_mode, int[2] stride, "
    "int[4] padding, int[2] dilation, int groups, str activation, str algorithm, bool? tune=None) -> Tensor"
)
_POOL_SCHEMA = "(Tensor x, int[2] window, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode) -> Tensor"
# Filters by weights, then by options: (state of the tensors, the tensors, filter). Maximum number for one tensor.
_FILTERS = WeakTensorKeyDictionary()
_FILTERS_KEPT = 8
# Filters that a CUDA graph captured, by weights: its replays read their memory, also after a change of the weights.
_CAPTURED = WeakTensorKeyDictionary()
# Shapes and strides of x with which compiled code has called a filter.
_CALLED: WeakKeyDictionary[Filter, set[Any]] = WeakKeyDictionary()


class Numbers(NamedTuple):
    """Tensors of the operator after x."""

    weight: Any  # int8, (K, C / groups, R, S)
    bias: Any  # int32, (K,), or None
    weight_scale: Any  # float32, (K,) or ()
    input_scale: Any  # float32, ()
    input_zero_point: Any  # int32, ()
    output_scale: Any  # float32, (), or None
    output_zero_point: Any  # int32, (), or None


class Words(NamedTuple):
    """Arguments of the operator after its tensors."""

    output_dtype: str  # empty: with an output scale x's, else int32
    padding_mode: str
    stride: Any
    padding: Any  # top, bottom, left, right
    dilation: Any
    groups: int
    activation: str
    algorithm: str
    tune: bool | None = None

    @property
    def options(self) -> Options:
        return Options(
            self.stride, self.padding, self.dilation, self.groups, self.activation, False, "strict", self.algorithm,
            self.tune,
        )  # fmt: skip


def operate(x: Any, numbers: Numbers, words: Words) -> Any:
    """Call the operator, without PyTorch's dispatcher where nothing has to see the call. `words` must be hashable."""
    if x.is_meta or is_watched() or any(type(one) not in PLAIN for one in (x, *numbers) if one is not None):
        return torch.ops.convforge.quant_conv2d(x, *numbers, *words)
    return _convolved(x, numbers, words)


def forward(x: Any, *given: Any) -> Any:
    """Compute the operator, whose arguments come as lists from PyTorch's dispatcher."""
    numbers, words = _parts([tuple(one) if isinstance(one, list) else one for one in given])
    if x.is_cuda and not torch.cuda.is_current_stream_capturing():
        _call_outside_pools(x, numbers, words)
    return _convolved(x, numbers, words)


def _call_outside_pools(x: Any, numbers: Numbers, words: Words) -> None:
    """Make the first call of a filter with a shape in a thread of its own; later ones do nothing here.

    The first call keeps prepared weights. ``torch.compile(mode="reduce-overhead")`` makes it while PyTorch gives the
    thread memory from the pool of a CUDA graph, which must hold nothing but results afterwards.
    """
    made = _filter(x, numbers, words, is_channels_last(x), _in_thread)
    shape = x.shape, x.stride()
    seen = _CALLED.setdefault(made, set())
    if shape not in seen:
        _in_thread(_convolved, x, numbers, words)
        seen.add(shape)


def _in_thread(function: Callable[..., Any], x: Any, *given: Any) -> Any:
    """Call a function of x in a new thread, on the caller's stream."""
    stream = torch.cuda.current_stream(x.device)

    def call() -> Any:
        with torch.cuda.stream(stream):
            return function(x, *given)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def _parts(given: Any) -> tuple[Numbers, Words]:
    count = len(Numbers._fields)
    return Numbers(*given[:count]), Words(*given[count:])


def _convolved(x: Any, numbers: Numbers, words: Words) -> Any:
    if is_channels_last(x):
        return _filter(x, numbers, words, True)(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return _filter(x, numbers, words, False)(x)


def _directly(function: Callable[..., Any], *given: Any) -> Any:
    return function(*given)


def _filter(x: Any, numbers: Numbers, words: Words, last: bool, call: Callable[..., Any] = _directly) -> Filter:
    """Return the filter of these tensors and options; `call` makes it again after one of the tensors has changed."""
    try:
        state = [None if one is None else (one.data_ptr(), one._version) for one in numbers]
    except RuntimeError:  # a tensor of inference mode has no version, which would tell whether it has changed
        unkept: Filter = call(_made, x, numbers, words)
        return unkept
    key = last, torch.are_deterministic_algorithms_enabled(), words
    kept = _FILTERS.setdefault(numbers.weight, {})
    found = kept.get(key)
    if found is None or found[0] != state:
        # An alias of each tensor keeps its memory, so that no other tensor gets these addresses.
        aliases = [None if one is None else one.detach() for one in numbers]
        found = state, aliases, call(_made, x, numbers, words)
        while len(kept) >= _FILTERS_KEPT:
            kept.pop(next(iter(kept)), None)
        kept[key] = found
    made: Filter = found[2]
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        held = _CAPTURED.setdefault(numbers.weight, [])
        if made not in held:
            held.append(made)
    return made


def _made(x: Any, numbers: Numbers, words: Words) -> Filter:
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "quant_conv2d reads scales from the GPU and prepares the weights at its first call, and after a change of "
            "one of its tensors: call it once before the graph is captured"
        )
    for name, tensor in zip(Numbers._fields, numbers, strict=True):
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device} and x on {x.device}: move the layer or x")
    with torch.inference_mode(False), torch.no_grad():
        options = arguments(x, numbers.weight, numbers.bias, words.options)[1]
        return Filter(
            numbers.weight, numbers.bias, **options, padding_mode=words.padding_mode, algorithm=words.algorithm,
            tune=words.tune, deterministic=torch.are_deterministic_algorithms_enabled(),
            quantization=quantization_of(numbers, words.output_dtype),
        )  # fmt: skip


def quantization_of(numbers: Numbers, output_dtype: str) -> Quantization:
    """Return the scales and zero points on the host."""
    output: Any = output_dtype or None
    if numbers.output_scale is not None:
        output = numbers.output_scale.item(), int(numbers.output_zero_point)
        output = (*output, output_dtype) if output_dtype else output
    scales = numbers.weight_scale.detach().cpu().numpy()
    return Quantization(
        x=(numbers.input_scale.item(), int(numbers.input_zero_point)), w=(scales, 0), output=output
    )  # fmt: skip


def _fake(x: Any, *given: Any) -> Any:
    numbers, words = _parts(given)
    dtype = getattr(torch, words.output_dtype) if words.output_dtype else x.dtype
    if numbers.output_scale is None and not words.output_dtype:
        dtype = torch.int32
    return empty_result(x, numbers.weight, words.options, dtype)


def pool(x: Any, window: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    """Compute the maximum of each window of 8-bit integers, which PyTorch computes on the CPU only."""
    last = is_channels_last(x)
    given = (tuple(window), tuple(stride), tuple(padding), tuple(dilation), ceil_mode)
    y = max_pool2d(x.permute(0, 2, 3, 1) if last else x, *given, layout="NHWC" if last else "NCHW")
    return y.permute(0, 3, 1, 2) if last else y


def _fake_pool(x: Any, window: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    floats = torch.nn.functional.max_pool2d(x.to(torch.float32), window, stride, padding, dilation, ceil_mode)
    form = torch.channels_last if is_channels_last(x) else torch.contiguous_format
    return torch.empty(floats.shape, dtype=x.dtype, device=x.device, memory_format=form)


for _name, _schema, _impl, _fake_impl in ((_NAME, _SCHEMA, forward, _fake), (_POOL, _POOL_SCHEMA, pool, _fake_pool)):
    torch.library.define(_name, _schema, tags=(torch.Tag.pt2_compliant_tag,))
    # While compiled code runs, Dynamo would trace the first call, which prepares weights in generators and fails.
    torch.library.impl(_name, ("cpu", "cuda"), torch._disable_dynamo(_impl))
    torch.library.register_fake(_name, _fake_impl)
