"""How each method looks in every chart: one colour, dash and shape, the same on every page; no two look the same.

Ours are saturated, solid and filled; peers are grey, dashed and hollow. Hues follow Okabe and Ito (Color universal
design, 2008), darkened until each has a contrast of 3:1 against the page; shape and dash say the same once more, for
eyes and printers that see no colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count


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
_BROWN = ("#8a4b2a", "#d99a75")
_MAUVE = ("#8f5a88", "#cf9fca")

SHAPES = (
    "circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left",
)  # fmt: skip

# Method -> colours and shape.
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
    "direct_small": (_OLIVE, "cross"),
    "direct_mma": (_TEAL, "triangle-down"),
    "depthwise": (_OLIVE, "circle"),
    "depthwise_channels": (_OLIVE, "diamond"),
    "depthwise_planes": (_OLIVE, "square"),
    "depthwise_rows": (_OLIVE, "triangle-up"),
    "depthwise_mma": (_OLIVE, "triangle-down"),
    "depthwise_batch": (_OLIVE, "triangle-right"),
    "fft_fused": (_GREEN, "triangle-up"),
    "gemm_loops": (_PURPLE, "square"),
    "gemm_blocked": (_AMBER, "triangle-up"),
    "gemm_blas": (_BLUE, "triangle-down"),
    "gemm_naive": (_BROWN, "square"),
    "gemm_shared": (_PURPLE, "triangle-up"),
    "gemm_tile_1d": (_MAGENTA, "triangle-left"),
    "gemm_tile_2d": (_VERMILLION, "triangle-down"),
    "gemm_vectorised": (_SKY, "circle"),
    "gemm_warp_tiled": (_GREEN, "diamond"),
    "max_pool": (_BLUE, "diamond"),
    "max_pool_rows": (_BLUE, "square"),
    "relu": (_BLUE, "cross"),
}

# Colours of methods that have no line above yet.
_SPARE = (_MAUVE, _CRIMSON, _INDIGO, _MOSS, _BROWN, _PINK, _TEAL)

# What a chart tells apart beside methods, such as partitions or clocks: hues far from each other, and a shape and a
# dash each, for those lines stand in no chart of methods.
_NAMED: tuple[tuple[tuple[str, str], tuple[int, ...]], ...] = (
    (_BLUE, ()), (_AMBER, (8, 3)), (_GREEN, (2, 2)), (_VERMILLION, (8, 3, 2, 3)), (_PURPLE, (4, 4)),
    (_SKY, (12, 3)), (_PINK, (6, 2, 2, 2)), (_OLIVE, (1, 3)), (_INDIGO, (12, 3, 2, 3, 2, 3)),
)  # fmt: skip

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
    "torch_max_pool2d": (_TORCH, "triangle-left", (7, 3)),
    "torch_matmul": (_TORCH, "triangle-right", (7, 3)),
    "torch_relu": (_TORCH, "triangle-left", (3, 3)),
    "opencv_filter2d": (_OPENCV, "square", (2, 2)),
    "opencv_filter2d_dft": (_OPENCV, "triangle-right", (6, 2, 2, 2)),
    "opencv_sepfilter2d": (_OPENCV, "cross", (4, 4)),
    "scipy_ndimage": (_SCIPY, "diamond", (8, 3, 2, 3)),
    "scipy_oaconvolve": (_SCIPY, "triangle-down", (5, 3)),
    "torch_conv2d_tf32": (_TORCH, "square", (7, 3)),
    "torch_conv2d_channels_last_tf32": (_TORCH, "cross", (7, 3, 2, 3)),
    "torch_matmul_tf32": (_TORCH, "triangle-down", (7, 3)),
    "cudnn": (_CUDNN, "square", (2, 3)),
    "cudnn_tf32": (_CUDNN, "triangle-right", (2, 3)),
    "cudnn_legacy": (_CUDNN, "triangle-up", (3, 3)),
    "cudnn_legacy_tf32": (_CUDNN, "cross", (3, 3)),
    "cudnn_legacy_winograd": (_CUDNN, "diamond", (6, 2, 2, 2)),
    "cudnn_legacy_fft": (_CUDNN, "triangle-down", (2, 2)),
    "cublas": (_CUBLAS, "circle", (6, 3)),
    "cublas_tf32": (_CUBLAS, "square", (6, 3)),
    "cupy_ndimage": (_CUPY, "diamond", (8, 3, 2, 3)),
    "npp_filter": (_NPP, "triangle-right", (4, 2, 1, 2)),
}
_SPARE_PEERS = (_CUPY, _CUDNN, _CUBLAS, _NPP)
_SPARE_DASHES = ((5, 2), (4, 2), (3, 4), (9, 4))


def looks(methods: Iterable[tuple[str, bool]]) -> dict[str, Look]:
    """The look of each method; no two have the same colour, dash and shape.

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
    found: dict[str, Look] = {}
    for name, ours in named.items():
        if ours and name in _OURS:
            (light, dark), shape = _OURS[name]
            found[name] = Look(light, dark, shape)
        elif not ours and name in _PEERS:
            (light, dark), shape, dash = _PEERS[name]
            found[name] = Look(light, dark, shape, dash, ours=False)
    # By name, so that a method looks the same whatever stands before it.
    taken, spare = set(found.values()), {ours: _spare(ours) for ours in (True, False)}
    for name in sorted(named.keys() - found.keys()):
        found[name] = next(look for look in spare[named[name]] if look not in taken)
    return {name: found[name] for name in named}


def named_looks(names: Iterable[str]) -> dict[str, Look]:
    """The looks of what one chart tells apart that is no method: each has a colour, a shape and a dash of its own.

    Examples
    --------
    >>> found = named_looks(["pixel", "row"])
    >>> found["pixel"].shape, found["row"].shape, found["row"].dash
    ('circle', 'square', (8, 3))
    """
    found = {}
    for i, name in enumerate(dict.fromkeys(names)):
        (light, dark), dash = _NAMED[i % len(_NAMED)]
        found[name] = Look(light, dark, SHAPES[i % len(SHAPES)], dash)
    return found


def _spare(ours: bool) -> Iterator[Look]:
    """Looks for methods without one, neighbours far apart; ever more dashes once colours and shapes are used up."""
    colours = _SPARE if ours else _SPARE_PEERS
    dashes = ((), *_SPARE_DASHES) if ours else _SPARE_DASHES
    for dash in chain(dashes, ((n, n) for n in count(5))):
        for turn in range(len(SHAPES)):
            for i, (light, dark) in enumerate(colours):
                yield Look(light, dark, SHAPES[(i + turn) % len(SHAPES)], dash, ours)
