"""How each method looks in every chart: one colour, dash and shape, the same on every page.

Ours are saturated, solid and filled; peers are grey, dashed and hollow. Hues follow Okabe and Ito (Color universal
design, 2008), darkened until each has a contrast of 3:1 against the page; shape and dash say the same once more, for
eyes and printers that see no colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Look:
    """One method's look.

    Attributes
    ----------
    light, dark : str
        Colour on a light and on a dark page.
    shape : str
        One of Vega's.
    dash : tuple of int
        Lengths of dashes and gaps in pixels; empty: solid.
    ours : bool
    """

    light: str
    dark: str
    shape: str
    dash: tuple[int, ...] = ()
    ours: bool = True


_BLUE = ("#0067b1", "#58a9f5")
_SKY = ("#2f93c8", "#8fd0f5")
_AMBER = ("#b86e00", "#f0a63c")
_MAGENTA = ("#b3479f", "#ec96da")
_PURPLE = ("#6f3aa0", "#b795ee")
_GREEN = ("#00805a", "#35c79a")
_VERMILLION = ("#cb3d17", "#ff8059")
_OLIVE = ("#7d6b00", "#d0bb45")
_TEAL = ("#008593", "#3cc8d2")
_INDIGO = ("#5652c4", "#a3a0ff")
_MOSS = ("#557a12", "#a3cc5c")
_PINK = ("#c2277a", "#ff86bd")
_CRIMSON = ("#a8324a", "#f58a9c")

# Method -> colours and shape. Methods that share a colour belong to different operations.
_OURS: dict[str, tuple[tuple[str, str], str]] = {
    "direct_naive": (_SKY, "square"),
    "direct_rows": (_BLUE, "circle"),
    "im2col": (_AMBER, "diamond"),
    "implicit_gemm": (_TEAL, "square"),
    "winograd_f2": (_MAGENTA, "triangle-up"),
    "winograd_f4": (_PURPLE, "triangle-down"),
    "fft": (_GREEN, "triangle-right"),
    "separable": (_VERMILLION, "cross"),
    "gemm_1x1": (_OLIVE, "triangle-left"),
    "direct_constant": (_INDIGO, "circle"),
    "direct_shared": (_MOSS, "triangle-up"),
    "direct_tiled": (_PINK, "triangle-down"),
    "direct_boxes": (_CRIMSON, "diamond"),
    "direct_small": (_TEAL, "cross"),
    "depthwise": (_OLIVE, "circle"),
    "depthwise_channels": (_OLIVE, "diamond"),
    "depthwise_planes": (_OLIVE, "square"),
    "fft_fused": (_GREEN, "triangle-up"),
    "gemm_loops": (_SKY, "square"),
    "gemm_blocked": (_AMBER, "diamond"),
    "gemm_blas": (_BLUE, "circle"),
    "max_pool_rows": (_BLUE, "circle"),
    "relu": (_BLUE, "circle"),
}

# For methods that have no line above yet: in the order of their names.
_MORE: tuple[tuple[tuple[str, str], str], ...] = (
    (("#8f5a88", "#cf9fca"), "square"),
    (_CRIMSON, "square"),
    (_INDIGO, "square"),
    (_MOSS, "circle"),
    (("#8a4b2a", "#d99a75"), "cross"),
    (_PINK, "cross"),
)

# Method -> colours, shape, dash. A library has one tint of grey; its functions differ in dash and shape.
_TORCH = ("#7a5c4d", "#c2a795")
_OPENCV = ("#3f4a56", "#d3dae2")
_SCIPY = ("#85898f", "#8d939b")
_CUDNN = ("#5c6b3f", "#b9c79d")
_CUBLAS = ("#5f5873", "#bdb5d3")
_CUPY = ("#4f6a63", "#a3bdb6")
_NPP = ("#6a6f76", "#a9aeb6")
_PEERS: dict[str, tuple[tuple[str, str], str, tuple[int, ...]]] = {
    "torch_conv2d": (_TORCH, "circle", (7, 3)),
    "torch_conv2d_channels_last": (_TORCH, "diamond", (7, 3, 2, 3)),
    "torch_conv2d_packed": (_TORCH, "triangle-up", (3, 3)),
    "torch_max_pool2d": (_TORCH, "circle", (7, 3)),
    "torch_matmul": (_TORCH, "circle", (7, 3)),
    "torch_relu": (_TORCH, "circle", (7, 3)),
    "opencv_filter2d": (_OPENCV, "square", (2, 2)),
    "opencv_filter2d_dft": (_OPENCV, "triangle-right", (6, 2, 2, 2)),
    "opencv_sepfilter2d": (_OPENCV, "cross", (4, 4)),
    "scipy_ndimage": (_SCIPY, "diamond", (8, 3, 2, 3)),
    "scipy_oaconvolve": (_SCIPY, "triangle-down", (5, 3)),
    "torch_conv2d_tf32": (_TORCH, "square", (7, 3)),
    "torch_conv2d_channels_last_tf32": (_TORCH, "cross", (7, 3, 2, 3)),
    "torch_matmul_tf32": (_TORCH, "square", (7, 3)),
    "cudnn": (_CUDNN, "circle", (6, 3)),
    "cudnn_tf32": (_CUDNN, "square", (6, 3)),
    "cudnn_legacy": (_CUDNN, "triangle-up", (3, 3)),
    "cudnn_legacy_tf32": (_CUDNN, "cross", (3, 3)),
    "cudnn_legacy_winograd": (_CUDNN, "diamond", (6, 2, 2, 2)),
    "cudnn_legacy_fft": (_CUDNN, "triangle-down", (2, 2)),
    "cublas": (_CUBLAS, "circle", (6, 3)),
    "cublas_tf32": (_CUBLAS, "square", (6, 3)),
    "cupy_ndimage": (_CUPY, "diamond", (8, 3, 2, 3)),
    "npp_filter": (_NPP, "triangle-right", (4, 2, 1, 2)),
}
_MORE_PEERS: tuple[tuple[tuple[str, str], str, tuple[int, ...]], ...] = (
    (("#4f6a63", "#a3bdb6"), "triangle-up", (5, 2)),
    (("#5c6b3f", "#b9c79d"), "square", (4, 2)),
    (("#5f5873", "#bdb5d3"), "cross", (3, 3)),
    (("#6a6f76", "#a9aeb6"), "triangle-left", (4, 4)),
)


def looks(methods: Iterable[tuple[str, bool]]) -> dict[str, Look]:
    """The look of each method.

    Parameters
    ----------
    methods : iterable of (str, bool)
        Name, and whether it is ours.

    Examples
    --------
    >>> found = looks([("direct_rows", True), ("torch_conv2d", False)])
    >>> found["direct_rows"].dash, found["torch_conv2d"].dash
    ((), (7, 3))
    """
    named = dict(methods)
    more = {name: _MORE[i % len(_MORE)] for i, name in enumerate(_unknown(named, True))}
    more_peers = {name: _MORE_PEERS[i % len(_MORE_PEERS)] for i, name in enumerate(_unknown(named, False))}
    found: dict[str, Look] = {}
    for name, ours in named.items():
        if ours:
            (light, dark), shape = _OURS.get(name) or more[name]
            found[name] = Look(light, dark, shape)
        else:
            (light, dark), shape, dash = _PEERS.get(name) or more_peers[name]
            found[name] = Look(light, dark, shape, dash, ours=False)
    return found


def _unknown(named: Mapping[str, bool], ours: bool) -> list[str]:
    known = _OURS if ours else _PEERS
    return sorted(name for name, mine in named.items() if mine is ours and name not in known)
