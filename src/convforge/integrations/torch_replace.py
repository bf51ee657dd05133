"""Models whose layers are swapped: nn.Conv2d by ours, in eval with what follows folded in; measured, told, undone."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

# Seconds for which a layer is timed by either side.
BUDGET_S = 0.02
# A layer is left to PyTorch where ours takes this many times as long, or more.
WORTH = 1.0
# Layers that become part of a convolution, by the names that it has for them.
_ACTIVATIONS = {nn.ReLU: "relu", nn.ReLU6: "relu6"}
# Types of weights that are swapped.
_TAKEN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Layer:
    """What became of a convolution.

    Attributes
    ----------
    name : str
        In the model.
    by : {"convforge", "PyTorch"}
        Who computes it now.
    folded : tuple of str
        Names of the layers behind it that are part of it now.
    why : str
        Why it is so.
    ours_s, torch_s : float or None
        Seconds of a call, where they were measured.
    """

    name: str
    by: str
    folded: tuple[str, ...]
    why: str
    ours_s: float | None = None
    torch_s: float | None = None


@dataclass(slots=True)
class Replaced:
    """What :func:`replace` did, which prints as a table.

    Attributes
    ----------
    layers : list of Layer
        Every nn.Conv2d of the model.
    notes : list of str
        What was not done, and why.
    """

    layers: list[Layer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _before: list[tuple[Any, str, Any]] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Put every layer back that was there before: the very same objects, in the same places."""
        while self._before:
            parent, name, layer = self._before.pop()
            parent._modules[name] = layer

    def _put(self, model: Any, path: str, layer: Any) -> None:
        """Put a layer where another was; exactly one place, as :func:`replace` has made sure."""
        above, _, name = path.rpartition(".")
        parent = model.get_submodule(above)
        self._before.append((parent, name, parent._modules[name]))
        parent._modules[name] = layer

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table("layer", "by", "folded in", "ours, us", "PyTorch, us", "why")
        for layer in self.layers:
            times = ("" if s is None else f"{s * 1e6:.1f}" for s in (layer.ours_s, layer.torch_s))
            table.add_row(layer.name, layer.by, ", ".join(layer.folded), *times, layer.why)
        console = Console(width=140, force_terminal=False, color_system=None)
        with console.capture() as text:
            console.print(table)
            for note in self.notes:
                console.print(note, highlight=False)
        return str(text.get())


def replace(model: Any, *example: Any, fold: bool = True) -> Replaced:
    """Swap the nn.Conv2d layers of a model for :class:`convforge.torch.Conv2d`, in place.

    In eval mode a BatchNorm2d behind a convolution, and a ReLU or ReLU6 behind that, are folded into it, where a trace
    of the model (torch.fx) shows that nothing else sees what is in between, or reads the weights; of a model that
    cannot be traced nothing is folded. With example inputs each layer is timed by both sides on what reaches it, and
    left to PyTorch where that is faster; without them all layers are swapped, and the report says that nothing was
    measured. Last the whole model is timed before and after; where it has become slower it is left as it was. Buffers,
    such as statistics in training, are afterwards what they were; where anything raises, so is the model.

    Parameters
    ----------
    model : torch.nn.Module
        Changed; weights that are folded are new, those of the model itself stay as they are.
    *example : tensors
        What the model is called with.
    fold : bool
        Whether to fold.

    Returns
    -------
    Replaced
        Prints as a table; its ``undo()`` brings the model back.

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
    report = Replaced()
    places = Counter(id(layer) for _, layer in model.named_modules(remove_duplicate=False))
    convolutions = {path: layer for path, layer in model.named_modules() if type(layer) is nn.Conv2d}
    chains = _chains(model, report) if fold and not model.training else {}
    if fold and model.training:
        report.notes.append("Nothing was folded: the model is in training mode.")
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()] if example else []
    try:
        inputs = _inputs(model, convolutions, example) if example else {}
        before_s = _seconds(lambda given: model(*given), example) if example else 0.0
        for path, layer in convolutions.items():
            if path and places[id(layer)] == 1:
                behind = [(name, model.get_submodule(name)) for name in chains.get(path, ())]
                behind = _foldable(layer, behind, places)
                report.layers.append(_swapped(model, path, layer, behind, inputs.get(path), bool(example), report))
            else:
                why = "it stands in several places of the model" if path else "it is the model itself"
                report.layers.append(Layer(path, "PyTorch", (), why))
        if example:
            _check_whole(model, example, before_s, report)
    except BaseException:
        report.undo()
        raise
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
    return report


def _swapped(
    model: Any, path: str, layer: Any, behind: list[tuple[str, Any]], x: Any, measured: bool, report: Replaced
) -> Layer:
    """Put ours, or PyTorch's with the BatchNorm2d folded in, in a layer's place."""
    from convforge.integrations.torch_layers import Conv2d

    plain = _folded(layer, behind)
    ours = Conv2d.of(plain)
    ours.activation = next((name for _, other in behind if (name := _ACTIVATIONS.get(type(other)))), None)
    found = _verdict(path, behind, ours, plain, x, measured)
    if found.by == "convforge":
        report._put(model, path, ours)
        for name, _ in behind:
            report._put(model, name, nn.Identity())
    elif plain is not layer:
        report._put(model, path, plain)
        report._put(model, behind[0][0], nn.Identity())
    return found


def _check_whole(model: Any, example: tuple[Any, ...], before_s: float, report: Replaced) -> None:
    """Bring the model back where all its layers together take longer than they did: each was timed by itself.

    What it took before is then measured once more, as a machine that has become slower meanwhile says nothing.
    """
    after_s = _seconds(lambda given: model(*given), example)
    told = f"The whole model took {before_s * 1e6:.1f} us before and {after_s * 1e6:.1f} us after"
    if after_s <= before_s:
        report.notes.append(f"{told}.")
        return
    put, swapped = list(report._before), [(parent, name, parent._modules[name]) for parent, name, _ in report._before]
    report.undo()
    again_s = _seconds(lambda given: model(*given), example)
    report.notes.append(f"{told}, and brought back {again_s * 1e6:.1f} us.")
    if after_s <= again_s:
        report._before = put
        for parent, name, layer in swapped:
            parent._modules[name] = layer
        return
    report.notes.append("So it was left as it was.")
    why = "by itself it would be faster, the whole model is not"
    report.layers = [
        dataclasses.replace(layer, by="PyTorch", folded=(), why=why if layer.by == "convforge" else layer.why)
        for layer in report.layers
    ]


def _verdict(path: str, behind: Any, ours: Any, plain: Any, x: Any, measured: bool) -> Layer:
    """Who is to compute a layer."""
    folded = tuple(name for name, _ in behind)
    kept = tuple(name for name, other in behind if type(other) not in _ACTIVATIONS)
    if plain.weight.dtype not in _TAKEN:
        return Layer(path, "PyTorch", kept, f"convforge takes no {plain.weight.dtype}")
    if x is None:
        why = "the example inputs do not reach it" if measured else "not measured: no example inputs were given"
        return Layer(path, "convforge", folded, why)

    def by_pytorch(x: Any) -> Any:
        y = plain(x)
        if ours.activation == "relu6":
            return nn.functional.relu6(y, inplace=True)
        return y if ours.activation is None else y.relu_()

    try:
        ours_s, torch_s = _seconds(ours, x), _seconds(by_pytorch, x)
    except (TypeError, ValueError) as refusal:  # UnsupportedProblem is one
        return Layer(path, "PyTorch", kept, f"convforge refuses it: {refusal}")
    if ours_s < WORTH * torch_s:
        return Layer(path, "convforge", folded, "measured: ours is faster", ours_s, torch_s)
    return Layer(path, "PyTorch", kept, "measured: PyTorch is faster", ours_s, torch_s)


def _seconds(call: Any, x: Any) -> float:
    """Seconds of a call on a tensor, the smaller of two medians."""
    from torch.utils.benchmark import Timer

    with torch.no_grad():
        call(x)
        timer = Timer("call(x)", globals={"call": call, "x": x}, num_threads=torch.get_num_threads())
        return min(float(statistics.median(timer.blocked_autorange(min_run_time=BUDGET_S).times)) for _ in range(2))


def _inputs(model: Any, convolutions: dict[str, Any], example: tuple[Any, ...]) -> dict[str, Any]:
    """What reaches each convolution first when the model is called with these inputs."""
    found: dict[str, Any] = {}
    hooks = [
        layer.register_forward_pre_hook(_noting(found, path), with_kwargs=True) for path, layer in convolutions.items()
    ]
    try:
        with torch.no_grad():
            model(*example)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _noting(found: dict[str, Any], path: str) -> Any:
    def note(layer: Any, given: Any, named: Any) -> None:
        x = given[0] if given else named["input"]
        found.setdefault(path, x.detach().clone(memory_format=torch.preserve_format))

    return note


# Folding.


def _foldable(layer: Any, behind: list[tuple[str, Any]], places: Counter[int]) -> list[tuple[str, Any]]:
    """Those of the layers behind a convolution that can be part of it: each once in the model, with no hooks."""
    kept: list[tuple[str, Any]] = []
    for (name, other), kinds in zip(behind, ((nn.BatchNorm2d,), tuple(_ACTIVATIONS)), strict=False):
        before = layer if not kept else kept[-1][1]
        if type(other) not in kinds or places[id(other)] > 1 or _hooked(other) or _hooked(before):
            break
        if isinstance(other, nn.BatchNorm2d) and (other.running_mean is None or other.training or layer.training):
            break
        kept.append((name, other))
    return kept


def _hooked(layer: Any) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def _folded(layer: Any, behind: list[tuple[str, Any]]) -> Any:
    """A convolution with the BatchNorm2d behind it in its weights; the layer itself where there is none."""
    if not behind:
        return layer
    return nn.utils.fuse_conv_bn_eval(layer, behind[0][1])


def _chains(model: Any, report: Replaced) -> dict[str, tuple[str, ...]]:
    """What stands behind each convolution, and is seen by nothing else: names of up to two layers."""
    try:
        graph = _traced(model)
    except Exception as fault:  # whatever a model does that cannot be traced
        reason = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
        report.notes.append(f"Nothing was folded: the model cannot be traced ({reason}).")
        return {}
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    watched = [path for path, layer in model.named_modules() if path and _hooked(layer)]

    def alone(name: Any) -> bool:
        """Called once, and its weights are read nowhere else."""
        return calls[name] == 1 and name not in read

    def inside(name: Any) -> list[str]:
        """The containers around a layer of which hooks see what goes in and comes out."""
        return [path for path in watched if str(name).startswith(f"{path}.")]

    found = {}
    for node in graph.nodes:
        if node.op == "call_module" and alone(node.target):
            chain: list[str] = []
            last = node
            while len(last.users) == 1 and len(chain) < 2:
                (last,) = last.users
                if last.op != "call_module" or not alone(last.target) or inside(last.target) != inside(node.target):
                    break
                chain.append(str(last.target))
            found[str(node.target)] = tuple(chain)
    return found


def _traced(model: Any) -> Any:
    """The graph of a model, which is afterwards what it was: what it notes of itself would be of the trace."""
    before = [(layer, layer.__dict__.copy()) for layer in model.modules()]
    try:
        for layer, _ in before:
            layer._forward_hooks, layer._forward_pre_hooks = OrderedDict(), OrderedDict()
        return fx.Tracer().trace(model)
    finally:
        for layer, held in before:
            layer.__dict__.clear()
            layer.__dict__.update(held)
