"""The graph of a model whose convolutions are quantised, made from a trace of the float model.

:func:`sites` finds each convolution with the BatchNorm2d and the activation behind it. :class:`Plan` decides which
values are integers, makes the layers, and writes the new graph. A value that a quantised convolution reads from another
one, also through max pooling, is integers, whose scale and zero point belong to the value: so its producer and its
readers have the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from convforge.integrations.torch_calibration import Numbers, Observer, numbers_of
from convforge.integrations.torch_folding import ACTIVATIONS, folded, is_hooked
from convforge.integrations.torch_functional import Conv2d, pair
from convforge.integrations.torch_quantize_linear import DequantizeLinear, QuantizeLinear
from convforge.integrations.torch_quantized import QuantConv2d
from convforge.integrations.torch_replace import TAKEN
from convforge.problem.types import WIDE, limits, magnitude

CONVOLUTIONS = (nn.Conv2d, Conv2d)
_FUNCTIONS: dict[Any, str] = {
    torch.relu: "relu", torch.relu_: "relu", nn.functional.relu: "relu", nn.functional.relu6: "relu6", "relu": "relu",
    "relu_": "relu",
}  # fmt: skip
_IN_PLACE = (
    operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod,
    operator.ipow, operator.iand, operator.ior, operator.ixor,
)  # fmt: skip
# Modules that return their input in eval mode.
_IDENTITIES = (nn.Identity, nn.Dropout, nn.Dropout2d)
FLOATS = {torch.float16: "float16", torch.float32: "float32", torch.float64: "float64"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments of :func:`quantize`."""

    observer: Callable[[], Observer]
    dtype: str
    symmetric: bool
    per_channel: bool
    skip: tuple[str, ...]
    options: dict[str, Any]  # of QuantConv2d

    def numbers(self, seen: Observer) -> Numbers:
        return numbers_of(seen.low, seen.high, self.dtype, self.symmetric)

    def refusal(self, path: str, layer: Any) -> str:
        """Return the reason why a convolution stays in float, whatever its range; empty if there is none."""
        if any(path == name or path.startswith(f"{name}.") for name in self.skip):
            return "skip= names it"
        if layer.weight.dtype not in TAKEN:
            return f"convforge takes no {layer.weight.dtype}"
        return "it has a hook, which would see other values" if is_hooked(layer) else ""


@dataclass(eq=False, slots=True)
class Site:
    """A call of a convolution in the graph, with the modules behind it that it can compute."""

    name: str
    conv: Any
    node: Any
    source: Any  # node of its input
    end: Any  # last node that it computes
    norm: Any = None
    activation: str | None = None
    folded: tuple[str, ...] = ()
    why: str = ""  # it stays in float


def sites(model: Any, graph: Any, settings: Settings) -> list[Site]:
    """Find every call of a convolution in a graph, with the BatchNorm2d and the activation that only it feeds."""
    changes = _changes_in_place(model, graph)
    order = {node: at for at, node in enumerate(graph.nodes)}
    found = []
    for node in graph.nodes:
        layer = _module_of(model, node)
        if type(layer) not in CONVOLUTIONS:
            continue
        name = str(node.target)
        source = node.args[0] if node.args else node.kwargs["input"]
        site = Site(name, layer, node, source, node, why=settings.refusal(name, layer))
        if order.get(changes.get(source), math.inf) < order[node]:
            site.why = site.why or "its input has been changed in place"
        found.append(site)
        if (own := getattr(layer, "activation", None)) is not None:  # of a layer of convforge
            site.activation = own
            continue
        after = _only_user(site.end)
        norm = _module_of(model, after)
        if type(norm) is nn.BatchNorm2d and norm.running_mean is not None and not is_hooked(norm):
            site.norm, site.end, site.folded = norm, after, (str(after.target),)
            after = _only_user(site.end)
        if (activation := _activation(model, after)) is not None:
            site.activation, site.end = activation, after
            site.folded += (str(after.target) if after.op == "call_module" else activation,)
    return found


def _module_of(model: Any, node: Any) -> Any:
    return model.get_submodule(node.target) if node is not None and node.op == "call_module" else None


def _only_user(node: Any) -> Any:
    """Return the only node that reads this one, if it reads nothing else; else None."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].all_input_nodes == [node] else None


def _activation(model: Any, node: Any) -> str | None:
    """Return the name of the activation that a node computes."""
    if node is None:
        return None
    if (layer := _module_of(model, node)) is not None:
        return None if is_hooked(layer) else ACTIVATIONS.get(type(layer))
    return _FUNCTIONS.get(node.target) if node.op in ("call_function", "call_method") else None


def _changes_in_place(model: Any, graph: Any) -> dict[Any, Any]:
    """Return the first node that changes each changed node in place."""
    found: dict[Any, Any] = {}
    for node in graph.nodes:
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if node.op in ("call_method", "call_function"):
            inplace = (name.endswith("_") and not name.endswith("__")) or node.kwargs.get("inplace", False)
            inplace = inplace or (node.target in _FUNCTIONS and True in node.args[1:])
            inplace = inplace or node.target in _IN_PLACE
        else:
            inplace = getattr(_module_of(model, node), "inplace", False)
        if inplace and node.args:
            found.setdefault(node.args[0], node)
    return found


def drop_identities(model: Any, graph: Any) -> None:
    """Remove the nodes of modules that return their input in eval mode."""
    for node in list(graph.nodes):
        if type(layer := _module_of(model, node)) in _IDENTITIES and not is_hooked(layer) and node.args:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


class _Calibration(fx.Interpreter):  # type: ignore[misc]
    """Runs a graph, and notes the ranges of some nodes."""

    def __init__(self, model: Any, graph: Any, seen: dict[Any, Observer]) -> None:
        super().__init__(model, graph=graph)
        self._seen = seen

    def run_node(self, n: Any) -> Any:
        value = super().run_node(n)
        if n in self._seen:
            self._seen[n].see(value)
        return value


def arguments_of(batches: Iterable[Any]) -> Iterable[tuple[Any, ...]]:
    """Yield the model's arguments of each batch; raise ``ValueError`` if there is none."""
    count = 0
    for batch in batches:
        count += 1
        yield tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if not count:
        raise ValueError("batches is empty: give at least one batch, from which the ranges of the values are taken")


def observed(
    model: Any, graph: Any, batches: Iterable[Any], nodes: Iterable[Any], settings: Settings
) -> dict[Any, Observer]:
    """Run the float graph over the batches; return the ranges of these nodes."""
    seen = {node: settings.observer() for node in nodes}
    run = _Calibration(model, graph, seen)
    for given in arguments_of(batches):
        run.run(*given)
    return seen


def refusal_of_range(seen: Observer) -> str:
    """Return the reason why a convolution of values in this range stays in float; empty if there is none."""
    if not seen.batches:
        return "the batches do not reach it"
    if not (math.isfinite(seen.low) and math.isfinite(seen.high)):
        return f"its input has values from {seen.low:g} to {seen.high:g}, which no scale can represent"
    return ""


def result_type(conv: Any) -> str:
    """Return the type in which a quantised convolution returns floats; bfloat16 is cast from float32."""
    return FLOATS.get(conv.weight.dtype, "float32")


def layer_of(site: Site, given: Numbers, result: Numbers | None, settings: Settings) -> QuantConv2d:
    """Make the quantised layer of a site; raise ``ValueError`` if its numbers do not fit."""
    conv, norm, activation = site.conv, site.norm, site.activation
    weight, bias, taps = conv.weight, conv.bias, conv.weight[0].numel()
    if taps * (magnitude(given.dtype) + abs(given.zero_point)) * magnitude("int8") > WIDE:
        raise ValueError(f"sums of {taps} products of {given.dtype}, zero point {given.zero_point}, can exceed int32")
    if norm is not None:
        weight, bias = folded((weight, bias, norm.running_mean, norm.running_var, norm.weight, norm.bias), norm.eps)
    if activation == "relu6" and result is not None:
        low, high = limits(result.dtype)
        if result.zero_point == low and round(6 / result.scale) + low >= high:
            activation = "relu"  # the largest value of the type is at most 6: saturation is the rest
    return QuantConv2d._of(
        conv, weight, bias, given, result_type(conv) if result is None else result, activation,
        per_channel=settings.per_channel, widen=True, **settings.options,
    )  # fmt: skip


class Plan:
    """The values of a graph that are passed on as integers, if all sites without a reason against it are quantised."""

    def __init__(
        self, model: Any, graph: Any, found: list[Site], ranges: dict[Any, Observer], settings: Settings
    ) -> None:
        self.model, self.graph, self.ranges, self.settings = model, graph, ranges, settings
        self.sites = {site.node: site for site in found if not site.why}
        self.ends = {site.end: site for site in self.sites.values()}
        self.pools = {node: pool for node in graph.nodes if (pool := _pool_of(model, node)) is not None}
        changes, order = _changes_in_place(model, graph), {node: at for at, node in enumerate(graph.nodes)}
        takes: set[Any] = set()  # nodes that read integers
        for node in reversed(graph.nodes):
            changed = any(order.get(changes.get(given), math.inf) < order[node] for given in node.all_input_nodes)
            if node in self.sites or (node in self.pools and not changed and any(user in takes for user in node.users)):
                takes.add(node)
        # Nodes whose value is integers, and the node whose range gives its scale.
        self.roots: dict[Any, Any] = {}
        for node in graph.nodes:
            if node in self.ends and any(user in takes for user in node.users) and self._is_finite(node):
                self.roots[node] = node
            elif node in self.pools and node in takes and node.all_input_nodes[0] in self.roots:
                self.roots[node] = self.roots[node.all_input_nodes[0]]

    def _is_finite(self, node: Any) -> bool:
        return math.isfinite(self.ranges[node].low) and math.isfinite(self.ranges[node].high)

    def input(self, site: Site) -> Numbers:
        return self.settings.numbers(self.ranges[self.roots.get(site.source, site.source)])

    def output(self, site: Site) -> Numbers | None:
        """Return the numbers of the result; None if it is in floats."""
        return self.settings.numbers(self.ranges[site.end]) if site.end in self.roots else None

    def made(self) -> dict[Any, QuantConv2d] | None:
        """Make the layer of each site; if one cannot be made, note the reason in its site and return None."""
        layers = {}
        for node, site in self.sites.items():
            try:
                layers[node] = layer_of(site, self.input(site), self.output(site), self.settings)
            except ValueError as fault:
                site.why = str(fault)
                return None
        return layers

    def rewritten(self, layers: dict[Any, QuantConv2d]) -> Any:
        """Put the layers into the model, and return the graph that calls them."""
        made = fx.Graph()
        dtypes: dict[Any, Any] = {}  # of floats, by site's end
        floats: dict[Any, Any] = {}  # nodes of the new graph, by node of the old one
        integers: dict[Any, Any] = {}
        calls: dict[str, int] = {}

        def added(name: str, layer: Any, given: Any) -> Any:
            return made.call_module(_placed(self.model, name, layer), (given,))

        def as_float(node: Any) -> Any:
            if node not in floats:
                root = self.roots[node]
                numbers = self.settings.numbers(self.ranges[root])
                layer = DequantizeLinear(numbers.scale, numbers.zero_point, dtypes[root], device=self._device(root))
                floats[node] = added(f"dequantize_{node.name}", layer, integers[node])
            return floats[node]

        def as_integers(site: Site) -> Any:
            node = site.source
            if node not in integers:
                layer = QuantizeLinear(*self.input(site), device=site.conv.weight.device)
                integers[node] = added(f"quantize_{node.name}", layer, as_float(node))
            return integers[node]

        inside = {node for site in self.sites.values() for node in _chain(site)}
        for node in self.graph.nodes:
            if node in self.sites:
                site, layer = self.sites[node], layers[node]
                given = as_integers(site)
                many = calls[site.name] = calls.get(site.name, 0) + 1
                called = self._call(made, site, layer, given, many)
                dtypes[site.end] = site.conv.weight.dtype
                (integers if site.end in self.roots else floats)[site.end] = called
            elif node in self.roots and node not in self.ends:
                layer = IntegerMaxPool2d(*_pool_arguments(self.pools[node]))
                integers[node] = added(f"integer_{node.name}", layer, integers[node.all_input_nodes[0]])
            elif node not in inside:
                floats[node] = made.node_copy(node, as_float)
        made.lint()
        return made

    def _call(self, made: Any, site: Site, layer: Any, given: Any, many: int) -> Any:
        """Add the call of a quantised layer; under a new name if the graph uses the float layer elsewhere too."""
        uses = [str(node.target) for node in self.graph.nodes if node.op in ("call_module", "get_attr")]
        if uses.count(site.name) > 1 or any(name.startswith(f"{site.name}.") for name in uses):
            called = made.call_module(_placed(self.model, f"{site.name}_call{many}", layer), (given,))
        else:
            above, _, own = site.name.rpartition(".")
            self.model.get_submodule(above)._modules[own] = layer
            called = made.call_module(site.name, (given,))
        if site.end not in self.roots and site.conv.weight.dtype not in FLOATS:
            called = made.call_method("to", (called, site.conv.weight.dtype))
        return called

    def _device(self, end: Any) -> Any:
        return self.ends[end].conv.weight.device


def _chain(site: Site) -> list[Any]:
    """Return the nodes that a site computes."""
    nodes = [site.node]
    while nodes[-1] is not site.end:
        nodes += nodes[-1].users
    return nodes


def _placed(model: Any, name: str, layer: Any) -> str:
    """Put a layer into the model under this name, or one like it that is free; return the name."""
    above, _, own = name.rpartition(".")
    parent, free, number = model.get_submodule(above), own, 1
    while hasattr(parent, free):
        free, number = f"{own}_{number}", number + 1
    parent.add_module(free, layer)
    return f"{above}.{free}" if above else free


class IntegerMaxPool2d(nn.MaxPool2d):  # type: ignore[misc]
    """Max pooling of 8-bit integers: PyTorch's on the CPU, convforge's on a GPU, for which PyTorch has none."""

    def forward(self, input: Any) -> Any:  # noqa: A002 - its name in PyTorch
        if not input.is_cuda:
            return super().forward(input)
        words = [pair(getattr(self, name), name) for name in ("kernel_size", "stride", "padding", "dilation")]
        y = torch.ops.convforge.max_pool2d(input[None] if input.dim() == 3 else input, *words, self.ceil_mode)
        return y[0] if input.dim() == 3 else y


def _pool_of(model: Any, node: Any) -> Any:
    """Return the nn.MaxPool2d that a node computes; None for another node."""
    layer = _module_of(model, node)
    if node.op == "call_function" and node.target is nn.functional.max_pool2d:
        words = {name: value for name, value in node.kwargs.items() if name != "input"}
        layer = nn.MaxPool2d(*node.args[1:], **words) if len(node.args) > 1 and _are_plain(words) else None
    plain = type(layer) is nn.MaxPool2d and not layer.return_indices and not is_hooked(layer)
    return layer if plain and len(node.all_input_nodes) == 1 else None


def _are_plain(words: dict[str, Any]) -> bool:
    return not any(isinstance(value, fx.Node) for value in words.values())


def _pool_arguments(pool: Any) -> tuple[Any, ...]:
    return pool.kernel_size, pool.stride, pool.padding, pool.dilation, False, pool.ceil_mode
