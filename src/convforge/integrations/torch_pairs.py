"""Pairs in a model that a convolution may compute: found in a trace, left alone where somebody sees what is between."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

from torch import fx, nn
from torch.nn.modules import module as hooks_of_all

from convforge.integrations.torch_folding import _HOOKS, _HOOKS_OF_ALL, ACTIVATIONS, PASSED, Fold, flags, is_hooked
from convforge.integrations.torch_layers import Conv2d


class _Tracer(fx.Tracer):  # type: ignore[misc]
    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        """Take our layers for one step each, as PyTorch's are."""
        return isinstance(m, (Conv2d, *PASSED.values())) or bool(super().is_leaf_module(m, module_qualified_name))


def folds(model: Any, notes: list[str]) -> dict[str, tuple[str, ...]]:
    """Names of the BatchNorm2d behind each convolution, and of the activation behind that; notes say why not more."""
    if any(getattr(hooks_of_all, name) for name in _HOOKS_OF_ALL):
        notes.append("Nothing was folded: hooks are registered for all modules, and would see other calls.")
        return {}
    try:
        graph = _traced(model)
    except Exception as fault:  # whatever a model does that cannot be traced
        reason = (str(fault).strip().splitlines() or [type(fault).__name__])[0]
        notes.append(f"Nothing was folded: the model cannot be traced ({reason}).")
        return {}
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    places = Counter(id(layer) for _, layer in model.named_modules(remove_duplicate=False))

    def alone(node: Any) -> bool:
        """Called once, in one place, and its weights are read nowhere else."""
        name = node.target
        return node.op == "call_module" and calls[name] == 1 and name not in read and places[_at(model, name)] == 1

    found = {}
    for node in graph.nodes:
        if node.op != "call_module" or type(model.get_submodule(node.target)) not in (nn.Conv2d, Conv2d):
            continue
        chain: list[str] = []
        last = node
        for kinds in ((nn.BatchNorm2d,), tuple(ACTIVATIONS)):
            if not alone(last) or len(last.users) != 1:
                break
            (after,) = last.users
            if after.op != "call_module" or type(model.get_submodule(after.target)) not in kinds or not alone(after):
                break
            why = _seen(model, [str(node.target), *chain, str(after.target)])
            if why:
                notes.append(f"{after.target} was not folded into {node.target}: {why}.")
                break
            chain.append(str(after.target))
            last = after
        if chain:
            found[str(node.target)] = tuple(chain)
    return found


def fold_of(model: Any, names: list[str], by_pytorch: bool) -> Fold:
    """The fold of a convolution and the modules behind it, with all that it depends on."""
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


def _seen(model: Any, names: list[str]) -> str:
    """Reason why modules must compute one by one; empty where there is none."""
    for name in (*names, *_bounds(names)):
        if is_hooked(model.get_submodule(name)):
            return f"{name} has a hook, which would see other values"
    conv, norm = (model.get_submodule(name) for name in names[:2])
    if conv.training or norm.training:
        return "it is in training mode"
    return "it has no statistics" if norm.running_mean is None else ""


def _above(name: str) -> list[str]:
    """Names of the modules around one, the model itself (an empty name) included."""
    parts = name.split(".")[:-1]
    return ["", *(".".join(parts[: at + 1]) for at in range(len(parts)))]


def _bounds(names: list[str]) -> list[str]:
    """Names of the containers around some of these, but not around all."""
    every = [set(_above(name)) for name in names]
    return sorted(path for path in every[0].union(*every) if not all(path in one for one in every))


def _at(model: Any, name: str) -> int:
    return id(model.get_submodule(name))


def _traced(model: Any) -> Any:
    """The graph of a model, which is afterwards what it was: what it notes of itself would be of the trace."""
    before = [(layer, layer.__dict__.copy()) for layer in model.modules()]
    try:
        for layer, _ in before:
            layer.__dict__.update({name: OrderedDict() for name in _HOOKS})
        return _Tracer().trace(model)
    finally:
        for layer, held in before:
            layer.__dict__.clear()
            layer.__dict__.update(held)
