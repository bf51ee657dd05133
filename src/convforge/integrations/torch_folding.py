"""Fold BatchNorm2d and ReLU into the convolution before them, as long as no result changes.

Folded modules stay in the model, with their parameters, buffers, hooks and flags; only their class, and so their
forward, changes. Each call checks :meth:`Fold.holds`. If it is false (training, a hook, a changed flag of a parent, a
replaced module), every module computes its own part. So ``state_dict``, ``load_state_dict``, ``train``, ``to``,
``requires_grad_`` and gradients work as before. :func:`folds` finds the modules in a trace of the model.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules import module as hooks_of_all

from convforge.backends.cuda.absent import first_line
from convforge.integrations.torch_functional import Conv2d, conv2d

# Activation modules that a convolution can compute, and their names in convforge.
ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.ReLU6: "relu6"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_ALL = tuple(f"_global{name}" for name in _HOOKS)
# Types of the plain attributes, on which a forward may depend.
_FLAGS = (bool, int, float, str, type(None))
# Attributes that torch.compile sets on a module; no forward reads them.
_OF_COMPILER = ("_is_torch_compile", "_compiled_call_impl")


def is_hooked(module: Any) -> bool:
    return any(getattr(module, name) for name in _HOOKS)


def flags(module: Any) -> dict[str, Any]:
    """Return the plain attributes of a module by name; its forward may depend on them."""
    return {
        name: value for name, value in module.__dict__.items() if type(value) in _FLAGS and name not in _OF_COMPILER
    }


def _has_changed(module: Any, then: dict[str, Any]) -> bool:
    """True if a module's plain attributes have changed.

    A compiler guards each attribute that exists, and compiles again when one changes; new attributes are detected only
    in calls that are not compiled.
    """
    if torch.compiler.is_compiling():
        return any(getattr(module, name, None) != value for name, value in then.items())
    return flags(module) != then


@dataclass(eq=False)
class Fold:
    """A convolution, the BatchNorm2d folded into it, and optionally a ReLU or ReLU6."""

    conv: Any
    norm: Any
    end: Any  # activation or None
    by_pytorch: bool  # PyTorch computes the convolution, and the activation's module the activation
    around: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)  # parents with their attributes
    places: list[tuple[Any, str, Any]] = field(default_factory=list)  # (parent, name, module)
    bounds: list[Any] = field(default_factory=list)  # containers of some of the modules, not of all
    _kept: Any = None

    def holds(self) -> bool:
        """True if the fold still gives the same result as its modules one by one."""
        members = (self.conv, self.norm) if self.end is None else (self.conv, self.norm, self.end)
        return not (
            self.conv.training or self.norm.training or self.norm.running_mean is None
            or any(is_hooked(module) for module in (*members, *self.bounds))
            or any(getattr(hooks_of_all, name) for name in _HOOKS_OF_ALL)
            or any(parent._modules.get(name) is not module for parent, name, module in self.places)
            or any(_has_changed(module, then) for module, then in self.around)
        )  # fmt: skip

    @property
    def activation(self) -> str | None:
        return next((name for kind, name in ACTIVATIONS.items() if isinstance(self.end, kind)), None)

    def weights(self) -> tuple[Any, Any]:
        """Return weights and bias with the BatchNorm2d folded in; recompute them after a tensor has changed.

        The bias has the type in which our kernels add it, so that no call casts it; for PyTorch, the weights' type.
        """
        conv, norm = self.conv, self.norm
        tensors = (conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        given = [t for t in tensors if t is not None]
        if (
            torch.compiler.is_compiling()
            or type(conv.weight) is not nn.Parameter  # a proxy in a trace, or parametrized
            or any(type(t) not in (torch.Tensor, nn.Parameter) or t.is_inference() for t in given)
            or (torch.is_grad_enabled() and any(t.requires_grad for t in given))
        ):
            return self._folded(tensors)
        state = [(t.data_ptr(), t._version, t.dtype) for t in given], norm.eps
        if self._kept is None or self._kept[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                held = [t.detach() for t in given]  # keeps the memory, so that no other tensor gets these addresses
                self._kept = state, held, self._folded(tensors)
        made: tuple[Any, Any] = self._kept[2]
        return made

    def _folded(self, tensors: Sequence[Any]) -> tuple[Any, Any]:
        weight, bias = folded(tensors, self.norm.eps)
        return weight, bias.to(weight.dtype) if self.by_pytorch else bias

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}


def folded(tensors: Sequence[Any], eps: float) -> tuple[Any, Any]:
    """Return weights and bias with a BatchNorm2d folded in; for 16-bit types, the bias is float32.

    `tensors` are weights and bias of the convolution, then mean, variance, weight and bias of the BatchNorm2d. Both
    biases and the BatchNorm2d's weight may be None. 16-bit types are computed in float32.
    """
    weight, bias, mean, var, scale, shift = tensors
    dtype = torch.promote_types(torch.promote_types(weight.dtype, mean.dtype), torch.float32)
    factor = torch.rsqrt(var.to(dtype) + eps) * (1 if scale is None else scale)
    start = -mean.to(dtype) if bias is None else bias - mean.to(dtype)
    made = start * factor + (0 if shift is None else shift)
    of_sums = torch.promote_types(weight.dtype, torch.float32)
    return (weight * factor[:, None, None, None]).to(weight.dtype), made.to(of_sums)


class FoldedConv2d(Conv2d):
    """A convolution that also computes the modules folded into it, while the fold holds."""

    def forward(self, input: Any) -> Any:  # noqa: A002 - its name in nn.Conv2d
        fold: Fold = self.__dict__["_fold"]
        if not fold.holds():
            return nn.Conv2d.forward(self, input) if fold.by_pytorch else super().forward(input)
        weight, bias = fold.weights()
        if fold.by_pytorch:
            return self._conv_forward(input, weight, bias)
        return conv2d(
            input, weight, bias, self.stride, self.padding, self.dilation, self.groups, padding_mode=self.padding_mode,
            activation=fold.activation, precision=self.precision,
            algorithm=self.algorithm, tune=self.tune,
        )  # fmt: skip


class _Passed:
    def forward(self, input: Any) -> Any:  # noqa: A002 - its name in PyTorch
        return input if self.__dict__["_fold"].holds() else super().forward(input)  # type: ignore[misc]


class FoldedBatchNorm2d(_Passed, nn.BatchNorm2d):  # type: ignore[misc]
    """A BatchNorm2d that returns its input while its fold holds."""


class FoldedReLU(_Passed, nn.ReLU):  # type: ignore[misc]
    ...


class FoldedReLU6(_Passed, nn.ReLU6):  # type: ignore[misc]
    ...


PASSED: dict[type, type] = {nn.BatchNorm2d: FoldedBatchNorm2d, nn.ReLU: FoldedReLU, nn.ReLU6: FoldedReLU6}


class _Tracer(fx.Tracer):  # type: ignore[misc]
    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        ours = isinstance(m, (Conv2d, *PASSED.values())) or type(m).__module__.startswith("convforge.")
        return ours or bool(super().is_leaf_module(m, module_qualified_name))


def folds(model: Any, notes: list[str]) -> dict[str, tuple[str, ...]]:
    """Return the names of the modules to fold into each convolution, in order; append reasons against it to `notes`."""
    if any(getattr(hooks_of_all, name) for name in _HOOKS_OF_ALL):
        notes.append("Nothing was folded: hooks are registered for all modules, and would see other calls.")
        return {}
    try:
        graph = traced(model)
    except Exception as fault:  # any error of a model that cannot be traced
        notes.append(f"Nothing was folded: the model cannot be traced ({first_line(fault)}).")
        return {}
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    places = Counter(id(layer) for _, layer in model.named_modules(remove_duplicate=False))

    def alone(node: Any) -> bool:
        """True if the model calls the module once, has it in one place, and reads its weights nowhere else."""
        name = node.target
        return (
            node.op == "call_module"
            and calls[name] == 1
            and name not in read
            and places[id(model.get_submodule(name))] == 1
        )

    found = {}
    for node in graph.nodes:
        layer = model.get_submodule(node.target) if node.op == "call_module" else None
        if type(layer) not in (nn.Conv2d, Conv2d) or getattr(layer, "activation", None) is not None:
            continue  # an activation between a convolution and what follows cannot be folded
        chain: list[str] = []
        last = node
        for kinds in ((nn.BatchNorm2d,), tuple(ACTIVATIONS)):
            if not alone(last) or len(last.users) != 1:
                break
            (after,) = last.users
            if after.op != "call_module" or type(model.get_submodule(after.target)) not in kinds or not alone(after):
                break
            why = _refusal(model, [str(node.target), *chain, str(after.target)])
            if why:
                notes.append(f"{after.target} was not folded into {node.target}: {why}.")
                break
            chain.append(str(after.target))
            last = after
        if chain:
            found[str(node.target)] = tuple(chain)
    return found


def fold_of(model: Any, names: list[str], by_pytorch: bool) -> Fold:
    conv, norm, *end = (model.get_submodule(name) for name in names)
    around = {path: model.get_submodule(path) for name in names for path in _above(name)}
    places = []
    for name in names:
        for path in (name, *_above(name)):
            if path:
                above, _, own = path.rpartition(".")
                places.append((model.get_submodule(above), own, model.get_submodule(path)))
    bounds = [model.get_submodule(path) for path in _bounds(names)]
    return Fold(
        conv, norm, end[0] if end else None, by_pytorch, [(one, flags(one)) for one in around.values()],
        list({(id(parent), own): (parent, own, one) for parent, own, one in places}.values()), bounds,
    )  # fmt: skip


def _refusal(model: Any, names: list[str]) -> str:
    """Return the reason why these modules cannot be folded; empty if they can."""
    for name in (*names, *_bounds(names)):
        if is_hooked(model.get_submodule(name)):
            return f"{name} has a hook, which would see other values"
    conv, norm = (model.get_submodule(name) for name in names[:2])
    if conv.training or norm.training:
        return "it is in training mode"
    return "it has no statistics" if norm.running_mean is None else ""


def _above(name: str) -> list[str]:
    """Return the names of a module's parents, including the model (an empty name)."""
    parts = name.split(".")[:-1]
    return ["", *(".".join(parts[: at + 1]) for at in range(len(parts)))]


def _bounds(names: list[str]) -> list[str]:
    """Return the names of the containers of some of these modules, but not of all."""
    every = [set(_above(name)) for name in names]
    return sorted(path for path in every[0].union(*every) if not all(path in one for one in every))


def traced(model: Any) -> Any:
    """Trace a model without its hooks, then restore its attributes, which the trace may have changed."""
    before = [(layer, layer.__dict__.copy()) for layer in model.modules()]
    try:
        for layer, _ in before:
            layer.__dict__.update({name: OrderedDict() for name in _HOOKS})
        return _Tracer().trace(model)
    finally:
        for layer, held in before:
            layer.__dict__.clear()
            layer.__dict__.update(held)
