"""``QuantConv2d``, a layer of 8-bit integers, and the conversion of an ``nn.Conv2d`` to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from convforge.integrations.torch_functional import pair, sides_of
from convforge.integrations.torch_operator import ACTIVATIONS
from convforge.integrations.torch_quantize_linear import WithScales, byte_name, on_host, quantize_linear
from convforge.integrations.torch_quantized_operator import Numbers, Words, operate, quantization_of
from convforge.problem.quantization import BYTES, Quantization

# Scales below this count as zero: their products with other scales would leave the range of float32.
LEAST_SCALE = 2.0**-100
# Largest magnitude of weights; of a bias in int32; of a bias for which sums are exact; of a bias without weights.
WEIGHTS, BIAS, EXACT_BIAS, LONE_BIAS = 127, 2**31 - 1, 2**28, 2**20


class QuantConv2d(WithScales):
    """A convolution of 8-bit integers, equal to ONNX's QLinearConv to the last bit; for inference only.

    Weights and numbers are buffers: `weight` (int8), `weight_scale` (float32), `bias` (int32, of scale input_scale *
    weight_scale), `input_scale`, `input_zero_point`, and for a quantised result `output_scale`, `output_zero_point`.
    ``state_dict``, ``load_state_dict``, ``to``, ``deepcopy`` and ``pickle`` take all of them. A change of any of them
    takes effect at the next call. Scales stay float32 under ``half()`` and ``double()``. Integers have no gradients, so
    no gradient is recorded. The page on quantised convolution defines the result.

    The first call, and the first after a change, reads the scales on the host and prepares the weights. Make it before
    a CUDA graph is captured. Buffers that were made in ``torch.inference_mode`` show no changes, so each call prepares.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device
        As in ``torch.nn.Conv2d``. Padding of zeros stands for the number 0.
    x : (float, int) or (float, int, {"uint8", "int8"})
        Scale and zero point of the input; with a third element its type, which each call checks.
    output : None, {"float16", "float32", "float64"}, (float, int) or (float, int, {"uint8", "int8"})
        The result: int32 sums, numbers, or integers of that scale and zero point, as in :class:`Quantization`.
    w_scale : float or tensor of shape (out_channels,), optional
        Scale of the weights; by default 1 for each output channel, to be loaded.
    activation : {None, "relu", "relu6"}
        Applied in the same kernel.
    algorithm, tune
        As in :func:`convforge.conv2d`.

    Raises
    ------
    TypeError, ValueError
        A scale, a zero point or another argument is invalid; at a call, the input is not uint8 or int8, or not `x`'s
        type. Otherwise as :func:`convforge.conv2d`.

    Examples
    --------
    >>> import torch
    >>> import convforge
    >>> layer = convforge.torch.QuantConv2d(3, 8, 3, padding=1, x=(0.02, 128), output=(0.1, 3), w_scale=0.01)
    >>> _ = layer.weight.random_(-127, 128)
    >>> y = layer(torch.zeros(1, 3, 6, 6, dtype=torch.uint8))
    >>> y.shape, y.dtype
    (torch.Size([1, 8, 6, 6]), torch.uint8)
    """

    weight: Any
    bias: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | str | Sequence[Any] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        *,
        x: Sequence[Any],
        output: Any = None,
        w_scale: Any = None,
        activation: str | None = None,
        algorithm: str = "auto",
        tune: bool | None = None,
    ) -> None:
        super().__init__()
        like = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, "meta"
        )  # checks the arguments
        for name in (*nn.Conv2d.__constants__, "transposed"):
            setattr(self, name, getattr(like, name))
        if activation is not None and activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation!r} must be None, 'relu' or 'relu6' here")
        if output is None and activation == "relu6":
            raise ValueError(
                "activation='relu6' of int32 sums: a sum has no scale, so 6 has no meaning; give an output"
            )
        self.activation, self.algorithm, self.tune = activation, algorithm, tune
        if not isinstance(x, tuple | list) or len(x) not in (2, 3):
            raise TypeError(f"x={x!r} must be (scale, zero_point) or (scale, zero_point, type)")
        self.input_dtype = byte_name(x[2], "x") if len(x) == 3 else ""
        if isinstance(output, tuple | list):
            output = tuple(on_host(one) for one in output)
        w_scale = torch.ones(out_channels) if w_scale is None else torch.as_tensor(w_scale, dtype=torch.float32)
        made = Quantization(x=(on_host(x[0]), on_host(x[1])), w=(on_host(w_scale), 0), output=output)
        made.check_weights("int8", out_channels)
        if self.input_dtype:
            made.check_input(self.input_dtype)
        quantised = output is not None and not isinstance(output, str)
        self.output_dtype = made.out_dtype if output is not None else ""
        given = Numbers(
            weight=torch.zeros(like.weight.shape, dtype=torch.int8), weight_scale=w_scale.clone(),
            bias=torch.zeros(out_channels, dtype=torch.int32) if bias else None,
            input_scale=torch.tensor(on_host(x[0]), dtype=torch.float32),
            input_zero_point=torch.tensor(made.x_zero_point, dtype=torch.int32),
            output_scale=torch.tensor(output[0], dtype=torch.float32) if quantised else None,
            output_zero_point=torch.tensor(made.zero_point, dtype=torch.int32) if quantised else None,
        )  # fmt: skip
        for name, tensor in given._asdict().items():
            self.register_buffer(name, tensor if tensor is None else tensor.to(device))

    @classmethod
    def from_float(
        cls, conv: Any, x: Sequence[Any], output: Any = "float32", activation: str | None = None, *,
        per_channel: bool = True, widen: bool = False, algorithm: str = "auto", tune: bool | None = None,
    ) -> QuantConv2d:  # fmt: skip
        """Quantise a float layer: weights symmetrically to int8, the bias to int32.

        A weight scale is ``max|w| / 127``, so that the zero point is 0 and the values are from -127 to 127. The unit of
        the bias is input scale * weight scale. A channel of zeros gets a scale in which its bias is exact to 2^-21.

        Parameters
        ----------
        conv : torch.nn.Conv2d
        x, output, activation, algorithm, tune
            As in :class:`QuantConv2d`. A :class:`convforge.torch.Conv2d` keeps its activation.
        per_channel : bool
            A weight scale for each output channel; else one for all.
        widen : bool
            Raise a weight scale where the bias would exceed 2^28, as LiteRT does. The weights of such a channel are so
            small beside its bias that the larger steps change the result by less than 2^-21 of the bias for each tap.

        Raises
        ------
        TypeError
            `conv` is no nn.Conv2d.
        ValueError
            A weight or a bias is not finite, or the bias does not fit int32; or as :class:`QuantConv2d`.

        Examples
        --------
        >>> import torch
        >>> import convforge
        >>> conv = torch.nn.Conv2d(3, 8, 3)
        >>> layer = convforge.torch.QuantConv2d.from_float(conv, x=(1 / 255, 0), output="float32")
        >>> image = torch.randint(0, 256, (1, 3, 9, 9), dtype=torch.uint8)
        >>> bool((layer(image) - conv(image / 255)).abs().max() < 0.02)
        True
        """
        if not isinstance(conv, nn.Conv2d):
            raise TypeError(f"from_float takes a torch.nn.Conv2d; got {type(conv).__name__}")
        return cls._of(
            conv, conv.weight, conv.bias, x, output, activation or getattr(conv, "activation", None),
            per_channel=per_channel, widen=widen, algorithm=algorithm, tune=tune,
        )  # fmt: skip

    @classmethod
    def _of(
        cls, conv: Any, weight: Any, bias: Any, x: Sequence[Any], output: Any, activation: str | None, *,
        per_channel: bool, widen: bool, **options: Any,
    ) -> QuantConv2d:  # fmt: skip
        """Quantise these weights and this bias, for a layer like `conv`."""
        integers, scale, added = quantized_weights(weight, bias, float(on_host(x[0])), per_channel, widen)
        made = cls(
            conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation,
            conv.groups, added is not None, conv.padding_mode, weight.device,
            x=x, output=output, w_scale=scale, activation=activation, **options,
        )  # fmt: skip
        made.weight.copy_(integers)
        if added is not None:
            made.bias.copy_(added)
        made.training = conv.training
        return made

    def quantization(self) -> Quantization:
        """Return the scales and zero points, as :func:`convforge.conv2d` takes them; reads them on the host."""
        return quantization_of(self._numbers(), self.output_dtype)

    def forward(self, input: Any) -> Any:  # noqa: A002 - its name in nn.Conv2d
        """Convolve.

        `input` has the shape (N, C, H, W) or (C, H, W), in any memory format. The result has its memory format and the
        shape (N, K, P, Q) or (K, P, Q).
        """
        numbers, words = self._numbers(), self._words()
        if isinstance(input, fx.Proxy):  # a symbolic trace records the operator
            return torch.ops.convforge.quant_conv2d(input, *numbers, *words)
        expected = (self.input_dtype,) if self.input_dtype else BYTES
        if str(input.dtype).removeprefix("torch.") not in expected:
            raise TypeError(
                f"the input is {input.dtype}; this layer takes {' or '.join(expected)}: quantise it, such as by "
                "convforge.torch.QuantizeLinear"
            )
        y = operate(input[None] if input.dim() == 3 else input, numbers, words)
        return y[0] if input.dim() == 3 else y

    def extra_repr(self) -> str:
        text = str(nn.Conv2d.extra_repr(self))
        text += f", input={self.input_dtype or 'of 8 bits'}, output={self.output_dtype or self._result_name()}"
        return text if self.activation is None else f"{text}, activation={self.activation}"

    def _result_name(self) -> str:
        return "int32" if self._buffers["output_scale"] is None else "as input"

    def _numbers(self) -> Numbers:
        return Numbers(*[self._buffers[name] for name in Numbers._fields])

    def _words(self) -> Words:
        stride, dilation = pair(self.stride, "stride"), pair(self.dilation, "dilation")
        around = sides_of(self.padding, self.kernel_size, dilation, stride)
        return Words(
            self.output_dtype, self.padding_mode, tuple(stride), tuple(around), tuple(dilation), self.groups,
            self.activation or "", self.algorithm, self.tune,
        )  # fmt: skip


def quantized_weights(
    weight: Any, bias: Any, x_scale: float, per_channel: bool, widen: bool = False
) -> tuple[Any, Any, Any]:
    """Return int8 weights, their scales, and the int32 bias or None; see :meth:`QuantConv2d.from_float`.

    Raises ``ValueError`` if a number is not finite, or the bias does not fit.
    """
    with torch.inference_mode(False), torch.no_grad():
        numbers = weight.detach().to(torch.float64)
        added = None if bias is None else bias.detach().to(torch.float64)
        for name, tensor in (("weights", numbers), ("bias", added)):
            if tensor is not None and not bool(tensor.isfinite().all()):
                raise ValueError(f"the {name} have values that are not finite, which no scale can represent")
        peak = numbers.abs().amax((1, 2, 3)) if per_channel else numbers.abs().amax()
        load = torch.zeros_like(peak) if added is None else added.abs() if per_channel else added.abs().amax()
        scale = peak / WEIGHTS
        lone = torch.where(load > x_scale * LONE_BIAS * LEAST_SCALE, load / (x_scale * LONE_BIAS), 1.0)
        scale = torch.where(scale < LEAST_SCALE, lone, scale)
        if widen:
            scale = torch.maximum(scale, load / (x_scale * EXACT_BIAS))
        scale = scale.to(torch.float32)
        integers = quantize_linear(numbers, scale.reshape(-1, 1, 1, 1) if per_channel else scale, 0, "int8")
        integers.clamp_(-WEIGHTS)
        if added is None:
            return integers, scale, None
        unit = scale * np.float32(x_scale).item()
        whole = (added / unit.to(torch.float64)).round()
        if bool((whole.abs() > BIAS).any()):
            k = int(whole.abs().argmax())
            one, largest = unit.expand(len(whole))[k].item(), peak.expand(len(whole))[k].item()
            raise ValueError(
                f"the bias {added[k].item():g} of output channel {k} does not fit int32: its unit, input scale * "
                f"weight scale, is {one:g}, because the largest weight of its scale is {largest:g}. Give "
                "widen=True, which raises the scale, or leave the layer in float"
            )
        return integers, scale, whole.to(torch.int32)
