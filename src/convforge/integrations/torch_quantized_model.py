"""Convert a float model to 8-bit integers: calibrate it on sample batches, and quantise its convolutions.

A trace of the model (torch.fx) gives a graph, see :mod:`convforge.integrations.torch_quantized_graph`. Running it over
the batches gives the range of every value that a convolution reads or returns. A model that cannot be traced gets a
quantised layer in the place of each convolution.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from convforge.backends.cuda.absent import first_line
from convforge.integrations.torch_calibration import observer_maker
from convforge.integrations.torch_folding import is_hooked, traced
from convforge.integrations.torch_quantize_linear import QuantizeLinear
from convforge.integrations.torch_quantized_graph import (
    CONVOLUTIONS,
    FLOATS,
    Plan,
    Settings,
    Site,
    arguments_of,
    drop_identities,
    layer_of,
    observed,
    refusal_of_range,
    result_type,
    sites,
)
from convforge.integrations.torch_replace import reason_left, table_text
from convforge.problem.quantization import BYTES


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """The conversion of one convolution.

    Attributes
    ----------
    name : str
        Name in the model.
    by : {"int8", "float"}
        Type of its weights now.
    folded : tuple of str
        Names of the layers that it computes too.
    input, output : str
        Type, scale and zero point of its input and its result; empty if it was left in float.
    why : str
        Reason why it was left in float; empty otherwise.
    """

    name: str
    by: str
    folded: tuple[str, ...] = ()
    input: str = ""
    output: str = ""
    why: str = ""


@dataclass(slots=True)
class Quantized:
    """The result of :func:`quantize`; prints as a table.

    Attributes
    ----------
    model : torch.nn.Module
        The new model, in eval mode.
    layers : list of QuantizedLayer
        Every two-dimensional convolution of the model.
    notes : list of str
        Remarks about the whole model.
    """

    model: Any
    layers: list[QuantizedLayer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [(one.name, one.by, ", ".join(one.folded), one.input, one.output, one.why) for one in self.layers]
        return table_text(("layer", "by", "folded in", "input", "output", "left in float because"), rows, self.notes)


def quantize(
    model: Any,
    batches: Iterable[Any],
    *,
    observer: str | tuple[str, float] = "minmax",
    dtype: str = "uint8",
    symmetric: bool = False,
    per_channel: bool = True,
    skip: Collection[str] = (),
    algorithm: str = "auto",
    tune: bool | None = None,
) -> Quantized:
    """Make a copy of a float model whose nn.Conv2d layers are :class:`QuantConv2d`, calibrated on sample batches.

    A trace of the model (torch.fx) shows which BatchNorm2d, and which ReLU or ReLU6, follow a convolution directly:
    they are folded into it. The float model runs over the batches, which gives the range of each value. Weights get
    symmetric int8, see :meth:`QuantConv2d.from_float` (with `widen`). A value that a quantised convolution reads from
    another one, also through max pooling, is passed on in 8 bits. Everything else stays in float, between
    :class:`DequantizeLinear` and :class:`QuantizeLinear`. Values without a negative have the least value of the type as
    zero point, so uint8 has 0.

    The new model is a ``torch.fx.GraphModule``, which has the forward of the model but not its other methods. A model
    that cannot be traced gets a QuantizeLinear before each convolution, and results in float; nothing is folded.

    Parameters
    ----------
    model : torch.nn.Module
        Not changed; the copy is in eval mode.
    batches : iterable of tensors, or of tuples of the model's arguments
        Inputs on the model's device, like those that the model will get; a few hundred images are usual.
    observer : {"minmax", "moving", "percentile"} or a pair of such a name and a number
        Range of a value: the least and largest of all batches; a moving average of those of each batch,
        ``("moving", 0.1)``; or the middle 99.99 % of the values, ``("percentile", 99.99)``.
    dtype : {"uint8", "int8"}
        Type of activations.
    symmetric : bool
        Values that can be negative get int8 with the zero point 0, in place of a zero point between.
    per_channel : bool
        A weight scale for each output channel; else one for each layer.
    skip : collection of str
        Names of convolutions, or of modules that contain them, that stay in float.
    algorithm, tune
        As in :func:`convforge.conv2d`, for each layer.

    Returns
    -------
    Quantized
        The new model, and what became of each layer; prints as a table.

    Raises
    ------
    TypeError, ValueError
        The model is not a torch.nn.Module, an argument is invalid, `skip` names no module, or there are no batches.

    Examples
    --------
    >>> import torch
    >>> import convforge
    >>> conv, relu = torch.nn.Conv2d, torch.nn.ReLU
    >>> model = torch.nn.Sequential(conv(3, 8, 3), torch.nn.BatchNorm2d(8), relu(), conv(8, 4, 3)).eval()
    >>> quantized = convforge.torch.quantize(model, [torch.rand(2, 3, 8, 8) for _ in range(4)])
    >>> [(layer.name, layer.by, layer.folded) for layer in quantized.layers]
    [('0', 'int8', ('1', '2')), ('3', 'int8', ())]
    >>> x = torch.rand(2, 3, 8, 8)
    >>> bool((quantized.model(x) - model(x)).abs().max() < 0.1)
    True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize takes a torch.nn.Module, such as a model; got {type(model).__name__}")
    if isinstance(batches, torch.Tensor):
        raise TypeError("batches is a tensor; give a list of batches, such as [x]")
    if dtype not in BYTES:
        raise ValueError(f"dtype={dtype!r} must be one of {', '.join(BYTES)}")
    names = (skip,) if isinstance(skip, str) else tuple(skip)
    if unknown := set(names) - dict(model.named_modules(remove_duplicate=False)).keys():
        raise ValueError(f"skip={skip!r}: the model has no module {', '.join(sorted(unknown))}")
    settings = Settings(
        observer_maker(observer), dtype, symmetric, per_channel, names, {"algorithm": algorithm, "tune": tune}
    )
    with torch.inference_mode(False), torch.no_grad():
        copied = copy.deepcopy(nn.Sequential(model) if type(model) in CONVOLUTIONS else model).eval()
        report = Quantized(copied)
        try:
            graph = traced(copied)
        except Exception as fault:  # any error of a model that cannot be traced
            report.notes.append(
                f"Nothing was folded and every layer returns floats: the model cannot be traced ({first_line(fault)})."
            )
            _by_hooks(report, batches, settings)
        else:
            _by_graph(report, graph, batches, settings)
        for path, layer in copied.named_modules():
            if type(layer) not in CONVOLUTIONS and (why := reason_left(layer, 1)):
                report.layers.append(QuantizedLayer(path, "float", why=why))
    if not report.layers:
        report.notes.append("Nothing was done: the model has no two-dimensional convolution.")
    return report


def _by_graph(report: Quantized, graph: Any, batches: Iterable[Any], settings: Settings) -> None:
    """Quantise the sites of a graph of the model."""
    copied = report.model
    hooked = [path or "the model" for path, one in copied.named_modules() if any(one.children()) and is_hooked(one)]
    if hooked:
        report.notes.append(f"Hooks of {', '.join(hooked)} are not called by the new model.")
    drop_identities(copied, graph)
    found = sites(copied, graph, settings)
    wanted = {node for site in found if not site.why for node in (site.source, site.end)}
    ranges = observed(copied, graph, batches, wanted, settings)
    for site in found:
        if not site.why:
            site.why = refusal_of_range(ranges[site.source])
    while True:  # until every site that remains can be made
        plan = Plan(copied, graph, found, ranges, settings)
        if (made := plan.made()) is not None:
            break
    rewritten_graph = plan.rewritten(made)
    report.model = fx.GraphModule(copied, rewritten_graph, type(copied).__name__).eval()
    for site in found:
        if site.why:
            report.layers.append(QuantizedLayer(site.name, "float", why=site.why))
        else:
            given, result = str(plan.input(site)), str(plan.output(site) or result_type(site.conv))
            report.layers.append(QuantizedLayer(site.name, "int8", site.folded, given, result))
    called = {site.name for site in found}
    for path, layer in copied.named_modules():
        if type(layer) in CONVOLUTIONS and path not in called and not any(layer is site.conv for site in found):
            report.layers.append(QuantizedLayer(path, "float", why="the traced model does not call it"))


def _by_hooks(report: Quantized, batches: Iterable[Any], settings: Settings) -> None:
    """Quantise the convolutions of a model without a graph, each by itself."""
    copied = report.model
    layers = {path: layer for path, layer in copied.named_modules() if type(layer) in CONVOLUTIONS}
    reasons = {path: settings.refusal(path, layer) for path, layer in layers.items()}
    seen = {path: settings.observer() for path, why in reasons.items() if not why}

    def note(path: str, layer: Any, given: Any, named: Any) -> None:
        seen[path].see(given[0] if given else named["input"])

    with ExitStack() as hooks:
        for path in seen:
            hooks.enter_context(layers[path].register_forward_pre_hook(partial(note, path), with_kwargs=True))
        for given in arguments_of(batches):
            copied(*given)
    for path, layer in layers.items():
        why = reasons[path] or refusal_of_range(seen[path])
        if not why:
            numbers = settings.numbers(seen[path])
            try:
                own = getattr(layer, "activation", None)
                made = layer_of(Site(path, layer, None, None, None, activation=own), numbers, None, settings)
            except ValueError as fault:
                why = str(fault)
        if why:
            report.layers.append(QuantizedLayer(path, "float", why=why))
            continue
        result = result_type(layer)
        steps = [QuantizeLinear(*numbers, device=layer.weight.device), made]
        if layer.weight.dtype not in FLOATS:
            steps.append(_Cast(layer.weight.dtype))
        _swap(copied, layer, nn.Sequential(*steps))
        report.layers.append(QuantizedLayer(path, "int8", (), str(numbers), result))


class _Cast(nn.Module):  # type: ignore[misc]
    """Casts its input to a type."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, input: Any) -> Any:  # noqa: A002 - as in PyTorch's modules
        return input.to(self.dtype)


def _swap(model: Any, before: Any, now: Any) -> None:
    """Put a module in every place of another one."""
    for parent in list(model.modules()):
        for name, one in parent._modules.items():
            if one is before:
                parent._modules[name] = now
