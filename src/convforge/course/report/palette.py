"""How each method looks in every chart: one colour, dash and shape, the same on every page; no two look the same.

Ours are saturated, solid and filled; peers are grey, dashed and hollow. Hues follow Okabe and Ito (Color universal
design, 2008), darkened until each has a contrast of 3:1 against the page; shape and dash say the same once more, for
eyes and printers that see no colour. A method states its look beside its class (`algorithms/traits.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count

from convforge.peers import every_algorithm


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


# Colours on a light and on a dark page. A library has one tint of grey; its functions differ in shape and dash.
HUES = {
    "blue": ("#0067b1", "#58a9f5"),
    "sky": ("#2f93c8", "#8fd0f5"),
    "amber": ("#b86e00", "#f0a63c"),
    "magenta": ("#b3479f", "#ec96da"),
    "purple": ("#6f3aa0", "#b795ee"),
    "green": ("#00805a", "#35c79a"),
    "vermillion": ("#cb3d17", "#ff8059"),
    "olive": ("#7d6b00", "#d0bb45"),
    "teal": ("#008593", "#3cc8d2"),
    "indigo": ("#5652c4", "#a3a0ff"),
    "moss": ("#557a12", "#a3cc5c"),
    "pink": ("#c2277a", "#ff86bd"),
    "crimson": ("#a8324a", "#f58a9c"),
    "brown": ("#8a4b2a", "#d99a75"),
    "mauve": ("#8f5a88", "#cf9fca"),
    "torch": ("#7a5c4d", "#c2a795"),
    "opencv": ("#3f4a56", "#d3dae2"),
    "scipy": ("#85898f", "#8d939b"),
    "cudnn": ("#5c6b3f", "#b9c79d"),
    "cublas": ("#5f5873", "#bdb5d3"),
    "cupy": ("#4f6a63", "#a3bdb6"),
    "npp": ("#6a6f76", "#a9aeb6"),
}

SHAPES = (
    "circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left",
)  # fmt: skip

# Hues of methods that state no look: ours, and peers with their dashes.
_SPARE = ("mauve", "crimson", "indigo", "moss", "brown", "pink", "teal")
_SPARE_PEERS = ("cupy", "cudnn", "cublas", "npp")
_SPARE_DASHES = ((5, 2), (4, 2), (3, 4), (9, 4))

# What a chart tells apart beside methods, such as partitions or clocks: hues far from each other, and a shape and a
# dash each, for those lines stand in no chart of methods.
_NAMED: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("blue", ()), ("amber", (8, 3)), ("green", (2, 2)), ("vermillion", (8, 3, 2, 3)), ("purple", (4, 4)),
    ("sky", (12, 3)), ("pink", (6, 2, 2, 2)), ("olive", (1, 3)), ("indigo", (12, 3, 2, 3, 2, 3)),
)  # fmt: skip


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
    stated = {(a.name, a.ours): a.look for a in every_algorithm() if a.look is not None}
    found = {name: _look(*stated[name, ours], ours) for name, ours in named.items() if (name, ours) in stated}
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
        hue, dash = _NAMED[i % len(_NAMED)]
        found[name] = _look(hue, SHAPES[i % len(SHAPES)], dash)
    return found


def _look(hue: str, shape: str, dash: tuple[int, ...] = (), ours: bool = True) -> Look:
    return Look(*HUES[hue], shape, dash, ours)


def _spare(ours: bool) -> Iterator[Look]:
    """Looks for methods without one, neighbours far apart; ever more dashes once colours and shapes are used up."""
    hues = _SPARE if ours else _SPARE_PEERS
    dashes = ((), *_SPARE_DASHES) if ours else _SPARE_DASHES
    for dash in chain(dashes, ((n, n) for n in count(5))):
        for turn in range(len(SHAPES)):
            for i, hue in enumerate(hues):
                yield _look(hue, SHAPES[(i + turn) % len(SHAPES)], dash, ours)
