"""Replace the nn.Conv2d layers of a model by ours if they are faster; fold BatchNorm2d and ReLU; reversible."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from convforge.api import compile_ahead
from convforge.integrations import torch_timing
from convforge.integrations.torch_folding import PASSED, Fold, FoldedConv2d, fold_of, folds
from convforge.integrations.torch_functional import Conv2d, arguments_of
from convforge.integrations.torch_timing import check_whole, compared, time_text
from convforge.timing import Order, order

# Conclusions of a comparison of two times, by its outcome.
ENDS: dict[Order, str] = {
    "faster": ": convforge is faster",
    "slower": ": PyTorch is faster",
    "level": ": as fast as each other, so PyTorch keeps it",
    "unsure": ", but the times vary too much to tell which is faster, so PyTorch keeps it",
}

LATE = "not measured: the time for measuring was spent before"

# Fraction of the budget for compiling the kernels of all layers, before the first layer is measured.
COMPILING = 0.4

# Types of weights that convforge supports here.
TAKEN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Layer:
    """The decision about one convolution.

    Attributes
    ----------
    name : str
        Name in the model; empty if the model itself is the convolution.
    by : {"convforge", "PyTorch"}
        The library that computes it now.
    folded : tuple of str
        Names of the layers folded into it.
    why : str
        Reason for the decision.
    ours_s, torch_s : float or None
        Median seconds of a call by convforge and by PyTorch in its fastest form, if measured.
    """

    name: str
    by: str
    folded: tuple[str, ...]
    why: str
    ours_s: float | None = None
    torch_s: float | None = None


@dataclass(slots=True)
class Replaced:
    """The decisions of :func:`replace`; prints as a table.

    Attributes
    ----------
    layers : list of Layer
        Every two-dimensional convolution of the model.
    notes : list of str
        Reasons why layers were not folded or measured, and times of the whole model.
    """

    layers: list[Layer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _before: list[tuple[Any, type, type]] = field(default_factory=list, repr=False)
    _known: dict[Any, Layer] = field(default_factory=dict, repr=False)
    _deadline: float | None = field(default=None, repr=False)
    _cuda_graph: bool = field(default=False, repr=False)

    def undo(self) -> None:
        """Let PyTorch compute every layer again; layers keep their current mode, dtype and state.

        Raises ``RuntimeError`` if the class of a layer has been changed, such as by ``torch.nn.utils.parametrize``.
        """
        for layer, _, made in self._before:
            if type(layer) is not made:
                raise RuntimeError(
                    f"a {made.__name__} of convforge has become a {type(layer).__name__}: take that back first, "
                    "such as by torch.nn.utils.parametrize.remove_parametrizations, then call undo() again"
                )
        while self._before:
            layer, kind, _ = self._before.pop()
            layer.__class__ = kind
            layer.__dict__.pop("_fold", None)

    def _swap(self, layer: Any, kind: type) -> None:
        """Change the class of a layer, and so its forward."""
        self._before.append((layer, type(layer), kind))
        layer.__class__ = kind

    def __str__(self) -> str:
        rows = [(layer.name or "(the model)", layer.by, ", ".join(layer.folded), layer.why) for layer in self.layers]
        return table_text(("layer", "by", "folded in", "why"), rows, self.notes)


def table_text(columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str]) -> str:
    """Return a table, and the notes below it, as text."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    console = Console(width=140, force_terminal=False, color_system=None)
    with console.capture() as text:
        console.print(table)
        for note in notes:
            console.print(note, highlight=False)
    return str(text.get())


def replace(
    model: Any, *example: Any, fold: bool = True, progress: bool = True, budget_s: float | None = 300.0,
    cuda_graph: bool = False,
) -> Replaced:  # fmt: skip
    """Let convforge compute the nn.Conv2d layers of a model, in place.

    Layers remain the same objects, with their parameters, hooks and names; only their class changes. In eval mode, a
    BatchNorm2d after a convolution, and a ReLU or ReLU6 after it, are folded into the convolution, if a trace of the
    model (torch.fx) shows that nothing else uses the intermediate values or the weights. A model that cannot be traced
    is not folded. In training mode, and after a hook is registered or a plain attribute of a parent module changes, a
    call computes the folded modules one by one.

    With example inputs, each layer is timed in both libraries, alternately, on its own input. It is replaced only if
    convforge is faster by more than the spread. Then the whole model is timed by convforge, and by PyTorch unchanged,
    with BatchNorm2d folded in, and in channels_last. Unless convforge is fastest, PyTorch computes the model, with
    BatchNorm2d folded in if that is faster. Without inputs all layers are replaced, and nothing is measured. Buffers,
    such as statistics in training, are restored afterwards; so is the whole model after an error.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place.
    *example : tensors
        Inputs of the model.
    fold : bool
        Fold BatchNorm2d and activations.
    progress : bool
        Show on standard error which layer is being measured, if it is a terminal.
    budget_s : float or None
        Seconds for measuring layers; None is no limit. Equal layers are measured once. PyTorch computes layers that
        were not measured in time. The last layer and the whole model may exceed the budget.
    cuda_graph : bool
        On a GPU, time replays of CUDA graphs instead of calls: for a model that runs in a ``torch.cuda.graph``. In a
        call of a small layer the host takes longer than the GPU; a replay avoids that.

    Returns
    -------
    Replaced
        The decisions, which print as a table; ``undo()`` restores the model.

    Raises
    ------
    TypeError, ValueError
        The model is not a torch.nn.Module; the budget is negative or NaN.

    Examples
    --------
    >>> import torch
    >>> import convforge
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()
    >>> report = convforge.torch.replace(model)
    >>> report.layers[0].by, report.layers[0].folded
    ('convforge', ('1', '2'))
    >>> report.undo()
    >>> type(model[0])
    <class 'torch.nn.modules.conv.Conv2d'>
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"replace takes a torch.nn.Module, such as a model; got {type(model).__name__}")
    if budget_s is not None and not budget_s >= 0:
        raise ValueError(f"budget_s={budget_s!r} must be a number of seconds, at least 0, or None")
    report = Replaced(_cuda_graph=cuda_graph)
    places = Counter(id(layer) for _, layer in model.named_modules(remove_duplicate=False))
    every = dict(model.named_modules())
    convolutions = {path: layer for path, layer in every.items() if type(layer) in (nn.Conv2d, Conv2d)}
    chains = folds(model, report.notes) if fold and convolutions and not model.training else {}
    if fold and convolutions and model.training:
        report.notes.append("Nothing was folded: the model is in training mode.")
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()] if example else []
    try:
        inputs = _inputs(model, convolutions, example) if example and convolutions else {}
        report._deadline = None if budget_s is None else time.monotonic() + budget_s
        on_gpu = any(x.is_cuda for x in inputs.values())
        with torch_timing.progress(len(inputs) + 1 + on_gpu, progress and bool(inputs)) as begins:
            if on_gpu:
                begins("kernels of all layers")
                measured = {path: x for path, x in inputs.items() if places[id(convolutions[path])] == 1}
                calls = _calls(model, convolutions, chains, measured)
                compile_ahead(calls, None if budget_s is None else COMPILING * budget_s)
            for path, layer in every.items():
                if path in convolutions and places[id(layer)] == 1:
                    if path in inputs:
                        begins(path)
                    names = [path, *chains.get(path, ())]
                    report.layers.append(_swapped(model, names, layer, inputs.get(path), bool(example), report))
                elif why := reason_left(layer, places[id(layer)]):
                    by_pytorch = getattr(layer.__dict__.get("_fold"), "by_pytorch", False)
                    by = "convforge" if isinstance(layer, Conv2d) and not by_pytorch else "PyTorch"
                    report.layers.append(Layer(path, by, (), why))
            if not report.layers:
                report.notes.append("Nothing was done: the model has no two-dimensional convolution.")
            if cuda_graph and on_gpu:
                report.notes.append("Times are of replays of CUDA graphs.")
            if late := sum(layer.why == LATE for layer in report.layers):
                count = len(report.layers)
                report.notes.append(
                    f"{late} of {count} layers were not measured in {budget_s:g} s: try a larger budget_s."
                )
            if example and report._before:
                begins("the whole model")
                _keep_fastest(model, example, report)
    except BaseException:
        report.undo()
        raise
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
    return report


def reason_left(layer: Any, places: int) -> str:
    """Return the reason why a convolution is not replaced; empty for other modules."""
    if isinstance(layer, FoldedConv2d):
        return "replaced before, with what is folded into it"
    if isinstance(layer, nn.ConvTranspose2d):
        return "convforge has no transposed convolution"
    if not isinstance(layer, nn.Conv2d):
        return ""
    if nn.utils.parametrize.is_parametrized(layer):
        return "it is parametrized: its weights are computed at each call"
    if isinstance(layer, nn.LazyConv2d):
        return "it is lazy: it has no weights before its first call"
    if type(layer) not in (nn.Conv2d, Conv2d):
        return f"{type(layer).__name__} is a subclass of Conv2d, which may compute something else"
    return "it is in several places of the model" if places > 1 else ""


def _swapped(model: Any, names: list[str], layer: Any, x: Any, measured: bool, report: Replaced) -> Layer:
    """Decide which library computes a layer, change its class accordingly, and return the decision."""
    path, *behind = names
    if layer.weight.dtype not in TAKEN:
        return Layer(path, "PyTorch", (), f"convforge takes no {layer.weight.dtype}")
    fold = fold_of(model, names, False) if behind else None
    if x is None:
        why = "the example inputs do not reach it" if measured else "not measured: no example inputs were given"
        found = Layer(path, "convforge", tuple(behind), why)
    else:
        end = "alone" if fold is None else fold.activation
        key = layer.extra_repr(), x.shape, x.stride(), x.dtype, x.device, layer.weight.dtype, end
        known = report._known.get(key)  # measure equal layers once
        if known is None and report._deadline is not None and time.monotonic() >= report._deadline:
            known = Layer(path, "PyTorch", (), LATE)
        elif known is None:
            known = report._known[key] = _verdict(names, layer, fold, x, report._cuda_graph)
        found = dataclasses.replace(known, name=path, folded=tuple(behind) if known.by == "convforge" else ())
    if fold is None:
        if found.by == "convforge" and type(layer) is nn.Conv2d:
            report._swap(layer, Conv2d)
        return found
    if found.by == "PyTorch":
        fold = fold_of(model, names[:2], True)
        found = dataclasses.replace(found, folded=tuple(behind[:1]))
    members = [one for one in (fold.norm, fold.end) if one is not None]
    for one, kind in ((layer, FoldedConv2d), *((one, PASSED[type(one)]) for one in members)):
        one.__dict__["_fold"] = fold
        report._swap(one, kind)
    return found


def _calls(
    model: Any, convolutions: dict[str, Any], chains: dict[str, tuple[str, ...]], inputs: dict[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield the arguments of :func:`convforge.conv2d` for each layer that will be measured."""
    for path, x in inputs.items():
        layer, behind = convolutions[path], chains.get(path, ())
        if layer.weight.dtype in TAKEN:
            fold = fold_of(model, [path, *behind], False) if behind else None
            with suppress(TypeError, ValueError):  # reported when the layer is timed
                yield arguments_of(_ours(layer, fold), x)


def _ours(layer: Any, fold: Any) -> Conv2d:
    """Return a convforge layer with the weights and the activation of a layer and its fold."""
    weight, bias = (layer.weight, layer.bias) if fold is None else fold.weights()
    ours = Conv2d.of(layer)
    ours._parameters = {**layer._parameters, "weight": nn.Parameter(weight, False)}
    ours._parameters["bias"] = None if bias is None else nn.Parameter(bias, False)
    ours.activation = None if fold is None else fold.activation
    return ours


def _verdict(names: list[str], layer: Any, fold: Any, x: Any, cuda_graph: bool) -> Layer:
    """Time a layer in both libraries on its input, and return the decision."""
    path, *behind = names
    ours = _ours(layer, fold)
    weight, bias = ours.weight, None if ours.bias is None else ours.bias.to(ours.weight.dtype)  # PyTorch's form
    end = {"relu": torch.relu_, "relu6": nn.functional.relu6, None: lambda y: y}[ours.activation]
    last = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    rivals = [lambda: ours(x), lambda: end(layer._conv_forward(x, weight, bias))]
    if last is not x:
        rivals.append(lambda: end(layer._conv_forward(last, weight, bias)))
    if fold is not None:
        rest = [fold.norm, *([] if fold.end is None else [fold.end])]
        rivals.append(lambda: nn.Sequential(*rest)(layer._conv_forward(x, layer.weight, layer.bias)))
    try:
        mine, *theirs = compared(rivals, x.device, cuda_graph=cuda_graph)
    except (TypeError, ValueError) as refusal:  # UnsupportedProblem is one
        return Layer(path, "PyTorch", (), f"convforge refuses it: {refusal}")
    best = min(theirs, key=lambda one: one.median_s)
    outcome = "faster" if all(order(mine, one) == "faster" for one in theirs) else order(mine, best)
    why = f"convforge takes {time_text(mine)}, PyTorch {time_text(best)}{ENDS[outcome]}"
    by, members = ("convforge", tuple(behind)) if outcome == "faster" else ("PyTorch", ())
    return Layer(path, by, members, why, mine.median_s, best.median_s)


def _keep_fastest(model: Any, example: tuple[Any, ...], report: Replaced) -> None:
    """Time the whole model by convforge and in every form of PyTorch, and keep the fastest form."""
    ours = any(layer.by == "convforge" for layer in report.layers)
    kept, note = check_whole(model, example, report._before, ours, cuda_graph=report._cuda_graph)
    report.notes.append(note)
    if kept == "convforge":
        return
    swapped = [(layer, layer.__dict__.get("_fold")) for layer, _, _ in report._before]
    report.undo()
    folds: dict[int, Fold] = {}
    for layer, fold in swapped if kept == "folded" else ():
        if fold is not None and layer is not fold.end:
            own = folds.setdefault(id(fold), dataclasses.replace(fold, by_pytorch=True, end=None, _kept=None))
            layer.__dict__["_fold"] = own
            report._swap(layer, FoldedConv2d if layer is fold.conv else PASSED[type(layer)])
    why = "alone it would be faster by convforge, but the whole model is not"
    report.layers = [
        dataclasses.replace(
            layer,
            by="PyTorch",
            folded=layer.folded[:1] if folds else (),
            why=why if layer.by == "convforge" else layer.why,
        )
        for layer in report.layers
    ]


def _inputs(model: Any, convolutions: dict[str, Any], example: tuple[Any, ...]) -> dict[str, Any]:
    """Call the model with these inputs; return a copy of the first input of every convolution, by name."""
    found: dict[str, Any] = {}

    def note(path: str, layer: Any, given: Any, named: Any) -> None:
        x = given[0] if given else named["input"]
        found.setdefault(path, x.detach().clone(memory_format=torch.preserve_format))

    with ExitStack() as hooks, torch.no_grad():
        for path, layer in convolutions.items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(note, path), with_kwargs=True))
        model(*example)
    return found
