"""Layers by convforge."""

from __future__ import annotations

from typing import Any

from torch import nn

from convforge.integrations.torch_functional import conv2d


class Conv2d(nn.Conv2d):  # type: ignore[misc]
    """``torch.nn.Conv2d`` by convforge: the same arguments, the same parameters, the same state_dict.

    Parameters
    ----------
    *args, **kwargs
        As of ``torch.nn.Conv2d``.
    activation, precision, algorithm, tune
        As of :func:`convforge.torch.conv2d`.

    Examples
    --------
    >>> import torch
    >>> import convforge
    >>> layer = convforge.torch.Conv2d(3, 8, 3, padding=1)
    >>> layer.load_state_dict(torch.nn.Conv2d(3, 8, 3, padding=1).state_dict())
    <All keys matched successfully>
    >>> layer(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 8, 8, 8])
    """

    activation: str | None = None
    precision: str = "auto"
    algorithm: str = "auto"
    tune: bool | None = None

    def __init__(
        self, *args: Any, activation: str | None = None, precision: str = "auto", algorithm: str = "auto",
        tune: bool | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        self.activation, self.precision, self.algorithm, self.tune = activation, precision, algorithm, tune

    @classmethod
    def of(cls, layer: Any) -> Conv2d:
        """The same layer by convforge: it has the parameters, the hooks and the mode of `layer`, not copies of them."""
        made: Conv2d = cls.__new__(cls)
        made.__dict__ = layer.__dict__.copy()
        return made

    def forward(self, input: Any) -> Any:  # noqa: A002 - its name in nn.Conv2d
        """Convolve; see :func:`convforge.torch.conv2d`."""
        return conv2d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups,
            padding_mode=self.padding_mode, activation=self.activation, precision=self.precision,
            algorithm=self.algorithm, tune=self.tune,
        )  # fmt: skip
