"""The colours of pages, and the colour, dash and shape of each method, which are unique and equal in all charts.

Our methods are saturated, solid and filled; peers are grey, dashed and hollow. Hues follow Okabe and Ito (Color
universal design, 2008), darkened to a contrast of at least 3:1 against the page. Shape and dash also identify the
method, for readers and printers without colour. A method defines its look next to its class (`algorithms/traits.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count, cycle
from typing import Literal

from convforge.peers import every_algorithm

Theme = Literal["page", "light", "dark"]

# Fonts with Latin glyphs first, then those with Chinese glyphs.
FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'PingFang SC', 'Microsoft YaHei', "
    "'Noto Sans CJK SC', 'Noto Sans SC', sans-serif"
)

# Page colours: name -> light, dark.
INKS = {
    "ink": ("#1b1f24", "#e8ebef"),
    "muted": ("#5b636d", "#a2abb6"),
    "line": ("#d9dde2", "#343b45"),
    "paper": ("#ffffff", "#14181d"),
    "accent": ("#0067b1", "#58a9f5"),
}

# Colours on a light and on a dark page. Each library has one shade of grey; its functions differ in shape and dash.
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

# Hues of methods that define no look: ours, and peers with their dashes.
_SPARE = ("mauve", "crimson", "indigo", "moss", "brown", "pink", "teal")
_SPARE_PEERS = ("cupy", "cudnn", "cublas", "npp")
_SPARE_DASHES = ((5, 2), (4, 2), (3, 4), (9, 4))

# Looks of lines that do not represent methods, for example partitions or clocks.
_NAMED: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("blue", ()), ("amber", (8, 3)), ("green", (2, 2)), ("vermillion", (8, 3, 2, 3)), ("purple", (4, 4)),
    ("sky", (12, 3)), ("pink", (6, 2, 2, 2)), ("olive", (1, 3)), ("indigo", (12, 3, 2, 3, 2, 3)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """One method's look: colours on a light and a dark page, Vega's shape, and dashes in pixels (none: solid)."""

    light: str
    dark: str
    shape: str
    dash: tuple[int, ...] = ()
    ours: bool = True


@dataclass(frozen=True)
class Ink:
    """The colours of one theme.

    On the page, colours are CSS variables, so that charts switch between dark, light and print automatically. In files,
    they are the light or dark values.
    """

    theme: Theme
    methods: dict[str, Look]
    _named: Iterator[Look] = field(default_factory=lambda: _named_looks(), init=False, repr=False, compare=False)

    def add(self, names: Iterable[str]) -> None:
        """Give each name that is not a method (for example a clock) its own colour, shape and dash."""
        for name in names:
            if name not in self.methods:
                self.methods[name] = next(self._named)

    def __call__(self, name: str) -> str:
        """Return a page colour."""
        return f"var(--{name})" if self.theme == "page" else INKS[name][self.theme == "dark"]

    def method(self, name: str) -> str:
        """Return a method's colour."""
        look = self.methods[name]
        if self.theme == "page":
            return f"var(--m{list(self.methods).index(name)})"
        return look.dark if self.theme == "dark" else look.light


def css_variables(inks: Mapping[str, Ink]) -> str:
    """Return the CSS variables of the page's colours and, for each selector, of its ink's methods."""
    blocks = [(":root", [("--" + name, *pair) for name, pair in INKS.items()])]
    for selector, ink in inks.items():
        blocks.append((selector, [(f"--m{i}", x.light, x.dark) for i, x in enumerate(ink.methods.values())]))
    light = "".join(f"{selector}{{{''.join(f'{n}:{a};' for n, a, _ in rows)}}}" for selector, rows in blocks)
    dark = "".join(f"{selector}{{{''.join(f'{n}:{b};' for n, _, b in rows)}}}" for selector, rows in blocks)
    return f"{light}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"


def looks(methods: Iterable[tuple[str, bool]]) -> dict[str, Look]:
    """Return the look of each method, given as (name, True if ours); each has a unique colour, dash and shape."""
    named = dict(methods)
    stated = {(a.name, a.ours): a.look for a in every_algorithm() if a.look is not None}
    found = {name: _look(*stated[name, ours], ours) for name, ours in named.items() if (name, ours) in stated}
    # Sorted by name, so that a method's look does not depend on the order of methods.
    taken, spare = set(found.values()), {ours: _spare(ours) for ours in (True, False)}
    for name in sorted(named.keys() - found.keys()):
        found[name] = next(look for look in spare[named[name]] if look not in taken)
    return {name: found[name] for name in named}


def _named_looks() -> Iterator[Look]:
    kinds = zip(cycle(_NAMED), cycle(SHAPES), strict=False)
    return (_look(hue, shape, dash) for (hue, dash), shape in kinds)


def _look(hue: str, shape: str, dash: tuple[int, ...] = (), ours: bool = True) -> Look:
    return Look(*HUES[hue], shape, dash, ours)


def _spare(ours: bool) -> Iterator[Look]:
    """Looks for methods that define none; new dashes are added once all colours and shapes are used."""
    dashes = chain(((), *_SPARE_DASHES) if ours else _SPARE_DASHES, ((n, n) for n in count(5)))
    hues = _SPARE if ours else _SPARE_PEERS
    return (_look(hue, shape, dash, ours) for dash in dashes for shape in SHAPES for hue in hues)
