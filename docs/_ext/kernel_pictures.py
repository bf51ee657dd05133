"""Pictures of a kernel's threads and tiles, drawn from a trace of the kernel itself: see convforge.course.traces.

Three panels: which block computes which output, which of its threads does, and what the block reads of the input. Every
colour and number is what the emulator saw; nothing is drawn from what a kernel says of itself.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from drawings import _COLOURS
from numpy.typing import NDArray
from scipy import ndimage

from convforge.course.traces import Touched, Trace
from convforge.problem import Conv2dProblem, GemmProblem, Pool2dProblem, Problem

Grid = NDArray[np.int64]

# Colours that neighbours differ in, and those of the other cells. Text on them is dark, in light and dark pages.
_NEIGHBOURS = ("#9fc3e6", "#f3d38c", "#a9cf9b", "#e3a6a1", "#c9b3e0", "#c7c7c7")
_NOBODY, _READ, _HALO = _COLOURS["outside"], _COLOURS["tile"], _COLOURS["halo"]

# Pixels: a panel without numbers, one with them, and sides of a cell.
SMALL, LARGE = (330, 230), (690, 400)
LARGEST, SMALLEST = 26, 1.5
# Below this side no thread's number can be read: then cells are drawn by warps. Below this size of text no number is.
LEGIBLE, READABLE = 5, 6


@dataclass
class Panel:
    """One grid of cells, with words above it and numbers in it.

    Attributes
    ----------
    title : str
    labels : 2-D array of int
        Cells of one label are drawn in one colour; negative ones are nobody's.
    fills : dict of int to str
        Colour of a label.
    words : sequence of (row, column, text, rows, columns)
        Text in the middle of a run of cells, where it fits.
    outlines : sequence of 2-D array of bool
        Cells with a line around them.
    most : (int, int)
        Pixels that it may be wide and high.
    """

    title: str
    labels: Grid
    fills: dict[int, str]
    words: Sequence[tuple[int, int, str, int, int]] = ()
    outlines: Sequence[NDArray[np.bool_]] = ()
    most: tuple[int, int] = LARGE

    def cell(self) -> float:
        """Pixels of a cell's side."""
        return side(self.labels.shape, self.most)

    def svg(self) -> str:
        """The panel as a figure of its own."""
        rows, columns = self.labels.shape
        cell = self.cell()
        parts = [
            f'<rect x="{left * cell:g}" y="{top * cell:g}" width="{wide * cell:g}" height="{high * cell:g}" '
            f'fill="{self.fills[label]}"/>'
            for label, top, left, high, wide in rectangles(self.labels)
        ]
        if cell >= LEGIBLE:
            step = "".join(f"M{j * cell:g} 0V{rows * cell:g}" for j in range(columns + 1))
            step += "".join(f"M0 {i * cell:g}H{columns * cell:g}" for i in range(rows + 1))
            parts.append(f'<path d="{step}" class="cells"/>')
        parts += [f'<path d="{edges(outline, cell)}" class="outline"/>' for outline in self.outlines]
        sizes = [min(12.0, 0.62 * high * cell, 1.5 * wide * cell / len(text)) for _, _, text, high, wide in self.words]
        # One size for all, where the longest can be read so.
        if sizes and min(sizes) >= READABLE:
            sizes = [min(sizes)] * len(sizes)
        for (row, column, text, high, wide), size in zip(self.words, sizes, strict=True):
            if size >= READABLE:
                x, y = (column + wide / 2) * cell, (row + high / 2) * cell + 0.36 * size
                parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size:.3g}">{html.escape(text)}</text>')
        width, height = columns * cell, rows * cell
        return (
            f'<div class="panel"><p>{html.escape(self.title)}</p><svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="-1 -1 {width + 2:g} {height + 2:g}" width="{width + 2:g}" height="{height + 2:g}">'
            f"<title>{html.escape(self.title)}</title>{''.join(parts)}</svg></div>"
        )


def side(shape: tuple[int, ...], most: tuple[int, int]) -> float:
    """Pixels of a cell's side, for a grid of this shape."""
    return max(SMALLEST, min(LARGEST, most[0] / shape[1], most[1] / shape[0]))


@dataclass
class Picture:
    """Panels, and what they show in words.

    Attributes
    ----------
    trace : Trace
    launch : int
        Index of the launch that is drawn.
    block, thread : int
        Those that are drawn apart.
    """

    trace: Trace
    launch: int
    block: int
    thread: int
    panels: list[Panel] = field(default_factory=list)
    caption: str = ""

    def html(self) -> str:
        """The figure."""
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>"
        return f'<figure class="drawing kernel-picture">{"".join(p.svg() for p in self.panels)}{caption}</figure>'


def picture(trace: Trace, kernel: str = "") -> Picture:
    """A traced call, drawn.

    Parameters
    ----------
    trace : Trace
    kernel : str
        Which of its launches; by default the last that writes to the output.
    """
    launch = trace.writer() if not kernel else _launch_of(trace, kernel)
    problem, wrote = trace.plan.problem, target_of(trace, launch)
    target = wrote or trace.touched("x", launch)
    owners = plane(problem, target.last("blocks"), "out" if wrote else "x")
    block = _middle(owners)
    own = target.of_block(block)
    thread = _middle(plane(problem, own.last("threads"), "out" if wrote else "x"))
    found = Picture(trace, launch, block, thread)
    if wrote:
        found.panels += _output_panels(found, owners, own)
    found.panels += _input_panels(found)
    found.caption = _caption(found, own if wrote else None)
    return found


def target_of(trace: Trace, launch: int) -> Touched | None:
    """What a launch writes that can be drawn: the output, or im2col's matrix (C R S rows, N P Q columns)."""
    wrote = trace.touched("out", launch, written=True)
    if wrote.accesses:
        return wrote
    if trace.launches[launch].info.kernel != "im2col":
        return None
    problem, entries = trace.plan.problem, trace.touched("workspace", launch, written=True)
    size = np.dtype(problem.acc_dtype).itemsize
    # The workspace is bytes, and the matrix begins where it is aligned.
    places = entries.elements - entries.elements.min()
    first = places % size == 0
    shape = problem.taps, problem.n * problem.p * problem.q
    return Touched(shape, places[first] // size, entries.blocks[first], entries.threads[first], entries.accesses)


def _launch_of(trace: Trace, kernel: str) -> int:
    names = [launch.info.kernel for launch in trace.launches]
    if kernel not in names:
        raise ValueError(f"there is no launch of {kernel!r}; there are {', '.join(names)}")
    return names.index(kernel)


def _output_panels(found: Picture, owners: Grid, own: Touched) -> Iterator[Panel]:
    problem, info = found.trace.plan.problem, found.trace.launches[found.launch].info
    yield Panel(
        f"{_output_name(found)}: the block that computes each element, of a grid of {_sizes(info.grid)}",
        owners, colours(owners), names(owners), [owners == found.block], SMALL,
    )  # fmt: skip
    threads = plane(problem, own.last("threads"), "out")
    cut = box(threads >= 0)
    threads = threads[cut]
    warps = threads // 32
    several = [warps == warp for warp in np.unique(warps[warps >= 0])] if (warps > 0).any() else []
    outlines = [threads == found.thread, *several]
    words = f", {len(several)} warps" if several else ""
    if side(threads.shape, LARGE) < LEGIBLE:
        threads, several, words = np.where(threads < 0, -1, warps), [], ", coloured by warps"
        outlines = outlines[:1]
    yield Panel(
        f"block {found.block}: the thread that computes each element, of {_sizes(info.block)} threads{words}",
        threads, colours(threads), names(threads), outlines,
    )  # fmt: skip


def _input_panels(found: Picture) -> Iterator[Panel]:
    problem = found.trace.plan.problem
    for name in ("x", "w") if isinstance(problem, GemmProblem) else ("x",):
        read = found.trace.touched(name, found.launch)
        if not read.accesses:
            continue
        of_block = read.of_block(found.block)
        counts = plane(problem, of_block.counts(), name)
        by_thread = plane(problem, of_block.of_thread(found.block, found.thread).counts(), name) > 0
        seen = counts > 0
        cut = box(seen, margin=1)
        labels = np.where(seen, 0, -1)
        fills = {-1: _NOBODY, 0: _READ}
        if (beneath := _beneath(found, problem)) is not None:
            labels[seen & ~beneath] = 1
            fills[1] = _HALO
        shown, counts, outline = labels[cut], counts[cut], by_thread[cut]
        words = [(i, j, str(counts[i, j]), 1, 1) for i, j in np.argwhere(counts > 0)]
        title = {"x": "x", "w": "w"} if not isinstance(problem, GemmProblem) else {"x": "A", "w": "B"}
        yield Panel(
            f"{title[name]}: how often block {found.block} reads each element from global memory",
            shown, fills, words, [outline] if outline.any() else [],
        )  # fmt: skip


def _beneath(found: Picture, problem: Problem) -> NDArray[np.bool_] | None:
    """The pixels of x in the middle of the windows of a block's outputs; None where there are no windows."""
    if not isinstance(problem, (Conv2dProblem, Pool2dProblem)):
        return None
    wrote = found.trace.touched("out", found.launch, written=True).of_block(found.block)
    if not len(wrote.elements):
        return None
    outputs = plane(problem, wrote.counts(), "out") > 0
    extent = [problem.dilation[i] * (size - 1) // 2 for i, size in enumerate((problem.r, problem.s))]
    beneath = np.zeros((problem.h, problem.w), bool)
    for p, q in np.argwhere(outputs):
        h = p * problem.stride[0] - problem.padding[0] + extent[0]
        w = q * problem.stride[1] - problem.padding[2] + extent[1]
        beneath[max(h, 0) : h + problem.stride[0], max(w, 0) : w + problem.stride[1]] = True
    return beneath


def _caption(found: Picture, own: Touched | None) -> str:
    """What the block does, in figures of the trace."""
    launch = found.trace.launches[found.launch]
    words = [f"{launch.info.kernel} on {found.trace.plan.problem} with {found.trace.plan.config or 'its only config'}:"]
    if own is not None:
        outputs = len(np.unique(own.elements))
        words.append(f"block {found.block} computes {outputs} elements")
        per_thread = np.bincount(own.threads)
        words[-1] += f", {_range(per_thread[per_thread > 0])} a thread"
    for name, label in (("x", "x"), ("w", "w")):
        if not (name in found.trace.arrays and found.trace.touched(name, found.launch).accesses):
            continue
        read = found.trace.touched(name, found.launch).of_block(found.block)
        distinct = len(np.unique(read.elements))
        if distinct:
            label = {"x": "A", "w": "B"}[name] if isinstance(found.trace.plan.problem, GemmProblem) else label
            times = len(read.elements) / distinct
            often = "once" if times == 1 else f"{times:.3g} times on average"
            words.append(f"it reads {distinct} elements of {label}, each {often}")
    text = words[0] + " " + "; ".join(words[1:]) + "."
    if launch.shared.reads:
        blocks = int(np.prod(launch.info.grid))
        text += f" From shared memory all blocks load {launch.shared.reads / blocks:,.0f} times each."
    return text + f" Outlined: the block, what thread {found.thread} computes, and what it loads itself."


def _range(counts: Grid) -> str:
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low} to {high}"


def plane(problem: Problem, values: Grid, name: str) -> Grid:
    """One plane of an array, as it is drawn: of a picture the first channel of the first, of a vector rows of 32."""
    if isinstance(problem, (Conv2dProblem, Pool2dProblem)):
        if isinstance(problem, Conv2dProblem):
            layout = problem.x_layout if name == "x" else problem.out_layout
        else:
            layout = problem.layout
        if values.ndim == 4:
            return values[0, 0] if layout == "NCHW" else values[0, :, :, 0]
    if values.ndim == 1:
        width = min(32, values.size)
        return np.pad(values, (0, -values.size % width), constant_values=-1).reshape(-1, width)
    return values


def _output_name(found: Picture) -> str:
    problem = found.trace.plan.problem
    if isinstance(problem, GemmProblem):
        return "C"
    if not found.trace.touched("out", found.launch, written=True).accesses:
        return "the matrix"
    several = isinstance(problem, Conv2dProblem) and problem.k > 1
    return "the first channel of the output" if several else "the output"


def _sizes(sizes: Iterable[int]) -> str:
    sizes = list(sizes)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return " x ".join(map(str, sizes))


def _middle(owners: Grid) -> int:
    """The owner of the element nearest to the middle that has one."""
    there = np.argwhere(owners >= 0)
    middle = (np.array(owners.shape) - 1) / 2.2
    return int(owners[tuple(there[np.argmin(((there - middle) ** 2).sum(axis=1))])])


def box(inside: NDArray[np.bool_], margin: int = 0) -> tuple[slice, slice]:
    """The rows and columns that hold every true cell, and a margin where there is room."""
    found = []
    for axis in (0, 1):
        there = np.flatnonzero(inside.any(axis=1 - axis))
        found.append(slice(max(int(there[0]) - margin, 0), int(there[-1]) + 1 + margin))
    return found[0], found[1]


def colours(labels: Grid) -> dict[int, str]:
    """A colour for every label, so that labels side by side differ where that can be."""
    neighbours: dict[int, set[int]] = {int(label): set() for label in np.unique(labels)}
    for a, b in ((labels[1:], labels[:-1]), (labels[:, 1:], labels[:, :-1])):
        for one, other in np.unique(np.stack([a[a != b], b[a != b]], axis=1), axis=0):
            neighbours[int(one)].add(int(other))
            neighbours[int(other)].add(int(one))
    found: dict[int, int] = {}
    for label in neighbours:
        taken = {found[other] for other in neighbours[label] if other in found}
        found[label] = next((i for i in range(len(_NEIGHBOURS)) if i not in taken), label % len(_NEIGHBOURS))
    return {label: _NOBODY if label < 0 else _NEIGHBOURS[index] for label, index in found.items()}


def names(labels: Grid) -> list[tuple[int, int, str, int, int]]:
    """The number of every connected part of a label, with the rectangle that it stands in."""
    found = []
    for label, top, left, high, wide in rectangles(labels):
        if label >= 0:
            found.append((top, left, str(label), high, wide))
    return found


def rectangles(labels: Grid) -> Iterator[tuple[int, int, int, int, int]]:
    """The cells as few rectangles (label, top, left, rows, columns): every connected part, or its rows where odd."""
    for label in np.unique(labels):
        parts, _ = ndimage.label(labels == label)
        for i, place in enumerate(ndimage.find_objects(parts), 1):
            rows, columns = place
            if (parts[place] == i).all():
                yield int(label), rows.start, columns.start, rows.stop - rows.start, columns.stop - columns.start
                continue
            for row in range(rows.start, rows.stop):
                for start, stop in runs(parts[row, columns] == i):
                    yield int(label), row, columns.start + start, 1, stop - start


def edges(inside: NDArray[np.bool_], cell: float) -> str:
    """The path around a set of cells."""
    padded = np.pad(inside, 1)
    found = []
    for i, row in enumerate(padded[1:] != padded[:-1]):
        found += [f"M{(a - 1) * cell:g} {i * cell:g}h{(b - a) * cell:g}" for a, b in runs(row)]
    for j, column in enumerate((padded[:, 1:] != padded[:, :-1]).T):
        found += [f"M{j * cell:g} {(a - 1) * cell:g}v{(b - a) * cell:g}" for a, b in runs(column)]
    return "".join(found)


def runs(inside: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where runs of true elements begin and where they end."""
    turns = np.flatnonzero(np.diff(np.pad(inside.astype(np.int8), 1))).tolist()
    return list(zip(turns[::2], turns[1::2], strict=True))
