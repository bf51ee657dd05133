"""Drawings of tiles, halos and borders as SVG, made from the same problems and tables that the methods use."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from convforge.problem import PADDING_MODES, Conv2dProblem, border_indices

CELL = 18
_COLOURS = {
    "picture": "#cfe3f5",
    "halo": "#f6c98f",
    "tile": "#7fb069",
    "outside": "#e3e3e3",
    "a": "#e3a6a1",
    "b": "#f3d38c",
    "c": "#a9cf9b",
    "d": "#9fc3e6",
    "": "none",
}


@dataclass
class Drawing:
    """An SVG that a notebook shows in place; parts are added left to right.

    Attributes
    ----------
    caption : str
    """

    caption: str = ""
    _parts: list[str] = field(default_factory=list)
    _x: int = 1
    _height: int = 0

    def grid(self, cells: Sequence[Sequence[str]], title: str = "", letters: Sequence[Sequence[str]] = ()) -> Drawing:
        """Add a grid of squares; each cell is the name of a colour."""
        top = 20 if title else 2
        self._text(self._x, 13, title)
        for i, row in enumerate(cells):
            for j, name in enumerate(row):
                x, y = self._x + j * CELL, top + i * CELL
                self._parts.append(
                    f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{_COLOURS[name]}" '
                    'stroke="currentColor" stroke-opacity="0.45"/>'
                )
                if letters and letters[i][j]:
                    dark = ' style="fill:#222"' if name else ""
                    self._text(x + CELL / 2, y + 13, letters[i][j], f'text-anchor="middle"{dark}')
        self._height = max(self._height, top + len(cells) * CELL + 2)
        self._x += max(max(map(len, cells)) * CELL, int(len(title) * 7.4)) + 2
        return self

    def words(self, text: str) -> Drawing:
        """Add words between two grids, such as an arrow."""
        self._text(self._x + 10, 20 + 2 * CELL, text)
        self._x += int(len(text) * 7.8) + 22
        return self

    def _text(self, x: float, y: float, text: str, more: str = "") -> None:
        if text:
            self._parts.append(f'<text x="{x:g}" y="{y:g}" font-size="12" {more}>{html.escape(text)}</text>')

    def _repr_html_(self) -> str:
        width, height = self._x + 4, self._height + 2
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return (
            f'<figure class="drawing"><svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}"><title>{html.escape(self.caption)}</title>'
            f"{''.join(self._parts)}</svg>{caption}</figure>"
        )


def colours(rows: int, columns: int, boxes: Iterable[tuple[str, int, int, int, int]]) -> list[list[str]]:
    """A grid of "picture", with boxes (colour, first row, past the last, first column, past the last) laid over it."""
    cells = [["picture"] * columns for _ in range(rows)]
    for name, h0, h1, w0, w1 in boxes:
        for i in range(max(h0, 0), min(h1, rows)):
            for j in range(max(w0, 0), min(w1, columns)):
                cells[i][j] = name
    return cells


def tile_and_halo(problem: Conv2dProblem, tile_p: int, tile_q: int, which: int, caption: str = "") -> Drawing:
    """One tile of ``problem.split(tile_p, tile_q)``: its outputs at the right, what it reads of x at the left.

    The pixels of x that lie below an output are drawn like the output, the others that are read as halo.
    """
    tile = list(problem.split(tile_p, tile_q))[which]
    top, _, left, _ = problem.padding
    centre_h, centre_w = problem.extent_h // 2 - top, problem.extent_w // 2 - left
    read = ("halo", tile.h0, tile.h1, tile.w0, tile.w1)
    below = [
        ("tile", h, h + 1, w, w + 1)
        for h in (p * problem.stride[0] + centre_h for p in range(tile.p0, tile.p1))
        for w in (q * problem.stride[1] + centre_w for q in range(tile.q0, tile.q1))
    ]
    drawing = Drawing(caption)
    drawing.grid(colours(problem.h, problem.w, [read, *below]), f"x, {problem.h} x {problem.w}").words("->")
    outputs = [("tile", tile.p0, tile.p1, tile.q0, tile.q1)]
    return drawing.grid(colours(problem.p, problem.q, outputs), f"out, {problem.p} x {problem.q}")


def fragments(of_word: int = 2) -> Drawing:
    """Which lane of a warp holds which numbers of a product of A, 16 x K, and B, K x 8; a colour for each register.

    A register of 32 bits holds two numbers of 16 bits, of K = 16, or four bytes, of K = 32.
    """
    depth, half = 8 * of_word, 4 * of_word

    def held(rows: int, columns: int, register: Any, lane: Any) -> tuple[list[list[str]], list[list[str]]]:
        every = [[(i, j) for j in range(columns)] for i in range(rows)]
        return [["abcd"[register(*at)] for at in row] for row in every], [
            [str(lane(*at)) for at in row] for row in every
        ]

    of_a = held(16, depth, lambda m, k: m // 8 + k // half * 2, lambda m, k: m % 8 * 4 + k % half // of_word)
    of_b = held(depth, 8, lambda k, n: k // half, lambda k, n: n * 4 + k % half // of_word)
    of_c = held(16, 8, lambda m, n: m // 8, lambda m, n: m % 8 * 4 + n // 2)
    drawing = Drawing(
        "lanes of a warp, by the numbers that they hold; a colour for each 32-bit register, of C for two sums"
    )
    drawing.grid(of_a[0], f"A, 16 x {depth}", of_a[1]).words("x").grid(of_b[0], f"B, {depth} x 8", of_b[1])
    return drawing.words("+=").grid(of_c[0], "C, 16 x 8", of_c[1])


def border(mode: str, pixels: int = 4, beyond: int = 4) -> Drawing:
    """The pixels a b c d with what the mode puts beyond either side."""
    table = border_indices(pixels, beyond, beyond, mode)
    outside = "0" if mode == "zeros" else "v"
    letters = [outside if i < 0 else "abcdefgh"[i] for i in table]
    names = ["outside" if i < 0 else "abcd"[int(i) % 4] for i in table]
    cells = [*names[:beyond], *names[beyond : beyond + pixels], *names[beyond + pixels :]]
    drawing = Drawing()
    drawing.grid([cells[:beyond]], letters=[letters[:beyond]])
    drawing._x += 4
    drawing.grid([cells[beyond : beyond + pixels]], letters=[letters[beyond : beyond + pixels]])
    drawing._x += 4
    drawing.grid([cells[beyond + pixels :]], letters=[letters[beyond + pixels :]])
    return drawing


@dataclass
class Table:
    """Rows as an HTML table; a cell may be a :class:`Drawing`."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        return (
            '<div class="table-wrapper"><table class="docutils align-default">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


def _cell(value: object) -> str:
    shown = getattr(value, "_repr_html_", None)
    return shown() if shown else html.escape(str(value))


def borders() -> Table:
    """Every border mode, drawn."""
    return Table(("mode", "four pixels a b c d, and four beyond either side"), [(m, border(m)) for m in PADDING_MODES])
