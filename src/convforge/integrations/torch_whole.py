"""A whole model by convforge against PyTorch in every form that it has: as it was, folded, and in channels_last."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch

from convforge.integrations.torch_timing import compared, told
from convforge.timing import Timing, order

Kept = Literal["convforge", "folded", "PyTorch"]
_NAMES = {
    "PyTorch": "PyTorch as it was",
    "folded": "PyTorch with BatchNorm2d folded in",
    "channels_last": "PyTorch in channels_last",
    "convforge": "convforge",
}


def check_whole(
    model: Any, example: tuple[Any, ...], swapped: list[tuple[Any, type, type]], ours: bool, *, cuda_graph: bool = False
) -> tuple[Kept, str]:
    """Time a model in its forms, and say which is to be kept; it is left in the form that it had.

    Parameters
    ----------
    model : torch.nn.Module
    example : tensors
        What it is called with.
    swapped : list of (layer, its class, the class that it has now)
    ours : bool
        Whether convforge computes any of the layers.
    cuda_graph : bool
        On a GPU, time the forms in CUDA graphs.

    Returns
    -------
    str, str
        The form, and a sentence with all times.
    """
    forms = _Forms(model, swapped)
    last = tuple(_last(one) for one in example)
    calls = {"PyTorch": example}
    if forms.has_folds:
        calls["folded"] = example
    if any(now is not then for now, then in zip(last, example, strict=True)):
        calls["channels_last"] = last
    if ours:
        calls["convforge"] = example

    def call(form: str, given: tuple[Any, ...]) -> Any:
        forms.take(form)
        return model(*given)

    device = next((t.device for t in (*example, *model.parameters()) if isinstance(t, torch.Tensor)), None)
    try:
        found = compared(
            [lambda form=form, given=given: call(form, given) for form, given in calls.items()],  # type: ignore[misc]
            device or torch.device("cpu"), cuda_graph=cuda_graph,
        )  # fmt: skip
    finally:
        forms.take("convforge")
    times = dict(zip(calls, found, strict=True))
    kept, why = _decide(times)
    listed = ", ".join(f"{_NAMES[form]} {told(taken)}" for form, taken in times.items())
    return kept, f"The whole model: {listed}. {why}"


def _decide(times: dict[str, Timing]) -> tuple[Kept, str]:
    """The form to keep: ours only where it is faster than every other."""
    mine = times.get("convforge")
    others = {form: taken for form, taken in times.items() if form != "convforge"}
    fastest = min(others, key=lambda form: others[form].median_s)
    if mine is not None and all(order(mine, taken) == "faster" for taken in others.values()):
        return "convforge", "convforge is the fastest."
    kept: Kept = "folded" if "folded" in times and order(times["folded"], times["PyTorch"]) == "faster" else "PyTorch"
    why = f"It is left to {_NAMES[kept]}"
    if mine is not None:
        why += {
            "faster": ", for convforge is not clearly faster than each of these",
            "level": f", for {_NAMES[fastest]} is as fast as convforge",
            "slower": f", for {_NAMES[fastest]} is faster than convforge",
            "unsure": ", for the times vary too much to tell whether convforge is faster",
        }[order(mine, others[fastest])]
    if "channels_last" in times and order(times["channels_last"], times[kept]) == "faster":
        why += "; PyTorch is faster still after model.to(memory_format=torch.channels_last), with inputs alike"
    return kept, why + "."


class _Forms:
    """The forms of a model, changed by classes of layers and the memory of their weights."""

    def __init__(self, model: Any, swapped: list[tuple[Any, type, type]]) -> None:
        self._layers = [(layer, kind, made, layer.__dict__.get("_fold")) for layer, kind, made in swapped]
        folds = {id(fold): fold for *_, fold in self._layers if fold is not None}
        self.has_folds = bool(folds)
        # Each form keeps folded weights of its own.
        self._by_pytorch = {
            form: {at: dataclasses.replace(fold, by_pytorch=True, end=None, _kept=None) for at, fold in folds.items()}
            for form in ("folded", "channels_last")
        }
        self._weights = [(p, p.data, _last(p.data)) for p in model.parameters() if p.dim() == 4]

    def take(self, form: str) -> None:
        """Give the model one of its forms."""
        for parameter, plain, last in self._weights:
            parameter.data = last if form == "channels_last" else plain
        for layer, kind, made, fold in self._layers:
            if form == "convforge":
                layer.__class__ = made
                if fold is not None:
                    layer.__dict__["_fold"] = fold
            elif fold is None or form == "PyTorch" or layer is fold.end:
                layer.__class__ = kind
            else:
                layer.__class__ = made
                layer.__dict__["_fold"] = self._by_pytorch[form][id(fold)]


def _last(value: Any) -> Any:
    """A tensor of four axes in channels_last; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or not value.is_floating_point():
        return value
    return value.contiguous(memory_format=torch.channels_last)
