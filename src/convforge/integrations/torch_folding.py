"""BatchNorm2d and ReLU computed by the convolution in front of them, for as long as that changes nothing.

The modules of a fold stay where they are, with their parameters, buffers, hooks and flags; their class alone changes,
and with it the computation. Each call asks :meth:`Fold.holds`; where it does not hold (training, a hook, a flag of
a module around it that has changed, an exchanged module), every module computes what it always did. So ``state_dict``,
``load_state_dict``, ``train``, ``to``, ``requires_grad_`` and gradients are those of the model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks_of_all

from convforge.integrations.torch_functional import conv2d
from convforge.integrations.torch_layers import Conv2d

# Layers that become part of a convolution, by the names that it has for them.
ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.ReLU6: "relu6"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_ALL = tuple(f"_global{name}" for name in _HOOKS)
# Types of attributes by which a forward may choose its way.
_FLAGS = (bool, int, float, str, type(None))
# Attributes that torch.compile sets on the module that it is given: no forward reads them.
_OF_COMPILER = ("_is_torch_compile", "_compiled_call_impl")


def is_hooked(module: Any) -> bool:
    """Tell if anybody sees what goes into a module, comes out of it, or goes back through it."""
    return any(getattr(module, name) for name in _HOOKS)


def flags(module: Any) -> dict[str, Any]:
    """The plain attributes of a module, by which its forward may choose its way."""
    return {
        name: value for name, value in module.__dict__.items() if type(value) in _FLAGS and name not in _OF_COMPILER
    }


def _has_changed(module: Any, then: dict[str, Any]) -> bool:
    """Tell if a module's plain attributes are not what they were.

    A compiler follows single attributes alone, and its graph is made again when one of them changes; an attribute
    that is new is seen by calls that are not compiled.
    """
    if torch.compiler.is_compiling():
        return any(getattr(module, name, None) != value for name, value in then.items())
    return flags(module) != then


@dataclass(eq=False)
class Fold:
    """A convolution and the modules behind it that are part of it: a BatchNorm2d, and perhaps a ReLU or ReLU6.

    Attributes
    ----------
    conv, norm, end : modules
        `end` is None where there is no activation.
    by_pytorch : bool
        PyTorch convolves; an activation is then computed by its own module.
    around : list of (module, its plain attributes)
        The modules whose forwards call those of the fold.
    places : list of (parent, name, module)
        Where the modules of the fold are.
    bounds : list of modules
        Containers around some modules of the fold, but not all.
    """

    conv: Any
    norm: Any
    end: Any
    by_pytorch: bool
    around: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    places: list[tuple[Any, str, Any]] = field(default_factory=list)
    bounds: list[Any] = field(default_factory=list)
    _kept: Any = None

    def holds(self) -> bool:
        """Tell if the fold computes what its modules would compute one by one."""
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
        """Name of the activation that the convolution computes."""
        return next((name for kind, name in ACTIVATIONS.items() if isinstance(self.end, kind)), None)

    def weights(self) -> tuple[Any, Any]:
        """Weights and bias with the BatchNorm2d in them, computed again after any of their tensors has changed.

        The bias is of the type that our kernels add it in, so that no call has to cast it; for PyTorch of the weights'.
        """
        conv, norm = self.conv, self.norm
        tensors = (conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        given = [t for t in tensors if t is not None]
        if (
            torch.compiler.is_compiling()
            or type(conv.weight) is not nn.Parameter  # a trace's proxy, or parametrized
            or any(type(t) not in (torch.Tensor, nn.Parameter) or t.is_inference() for t in given)
            or (torch.is_grad_enabled() and any(t.requires_grad for t in given))
        ):
            return self._folded(tensors)
        state = [(t.data_ptr(), t._version, t.dtype) for t in given], norm.eps
        if self._kept is None or self._kept[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                held = [t.detach() for t in given]  # so that no other tensor gets their addresses
                self._kept = state, held, self._folded(tensors)
        made: tuple[Any, Any] = self._kept[2]
        return made

    def _folded(self, tensors: Sequence[Any]) -> tuple[Any, Any]:
        weight, bias = folded(tensors, self.norm.eps)
        return weight, bias.to(weight.dtype) if self.by_pytorch else bias

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}


def folded(tensors: Sequence[Any], eps: float) -> tuple[Any, Any]:
    """Weights and bias of a convolution with a BatchNorm2d behind it.

    Of types of 16 bits all is computed in float32, and the bias stays in it.

    Parameters
    ----------
    tensors : sequence of tensors
        Weights and bias of the convolution; mean, variance, weight and bias of the BatchNorm2d. Biases and the last
        weight may be None.
    """
    weight, bias, mean, var, scale, shift = tensors
    dtype = torch.promote_types(torch.promote_types(weight.dtype, mean.dtype), torch.float32)
    factor = torch.rsqrt(var.to(dtype) + eps) * (1 if scale is None else scale)
    start = -mean.to(dtype) if bias is None else bias - mean.to(dtype)
    made = start * factor + (0 if shift is None else shift)
    of_sums = torch.promote_types(weight.dtype, torch.float32)
    return (weight * factor[:, None, None, None]).to(weight.dtype), made.to(of_sums)


class FoldedConv2d(Conv2d):
    """A convolution that computes the modules behind it as well where its fold holds."""

    def forward(self, input: Any) -> Any:  # noqa: A002 - its name in nn.Conv2d
        """Convolve with what is folded in, or alone."""
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
        """Pass on what the convolution has computed already, or compute it."""
        return input if self.__dict__["_fold"].holds() else super().forward(input)  # type: ignore[misc]


class FoldedBatchNorm2d(_Passed, nn.BatchNorm2d):  # type: ignore[misc]
    """A BatchNorm2d that a convolution computes where its fold holds."""


class FoldedReLU(_Passed, nn.ReLU):  # type: ignore[misc]
    """A ReLU that a convolution computes where its fold holds."""


class FoldedReLU6(_Passed, nn.ReLU6):  # type: ignore[misc]
    """A ReLU6 that a convolution computes where its fold holds."""


PASSED: dict[type, type] = {nn.BatchNorm2d: FoldedBatchNorm2d, nn.ReLU: FoldedReLU, nn.ReLU6: FoldedReLU6}
