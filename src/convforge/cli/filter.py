"""`convforge filter`: a picture in, a kernel over it, a picture out; what was done, by which method, how fast."""

from __future__ import annotations

import difflib
import importlib
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from convforge.images.picture import MAX_PIXELS

if TYPE_CHECKING:
    from convforge.algorithms.contract import Plan
    from convforge.images.kernels import Kernel
    from convforge.images.picture import Picture

Array = NDArray[Any]

SAMPLE_TYPES = tuple(
    np.dtype(kind + size).name for kind, sizes in (("u", "1248"), ("i", "1248"), ("f", "248")) for size in sizes
)

# Whole numbers up to here are float64 numbers.
EXACT = 2**53

# Side of the part of the picture on which kernels are compiled before the whole picture is timed.
WARM_SIDE = 1024

# Decoders of the file types, so that loading them is not taken for reading.
_DECODERS = {
    ".png": ("imagecodecs",),
    ".jpg": ("PIL.JpegImagePlugin",),
    ".jpeg": ("PIL.JpegImagePlugin",),
    ".tif": ("imagecodecs", "tifffile"),
    ".tiff": ("imagecodecs", "tifffile"),
}


def filter_command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="PNG, JPEG, TIFF or .npy.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Its ending names the format; may be IN.")],
    kernel: Annotated[
        str,
        typer.Option(
            metavar='NAME|FILE|"1 1 1; 1 -8 1; 1 1 1"',
            help="laplacian, sobel-x, sobel-y, scharr-x, scharr-y, gaussian:SIZE:SIGMA, box:SIZE, sharpen, emboss or "
            "identity; a .npy or text file; or the matrix. It is not flipped.",
        ),
    ],
    channels: Annotated[str, typer.Option(metavar="each|sum", help="Each band by itself, or all summed.")] = "each",
    method: Annotated[str, typer.Option(help="An algorithm of conv2d, such as direct_rows or fft.")] = "auto",
    stride: Annotated[str, typer.Option(metavar="N|HxW", help="Keep every so many-th row and column.")] = "1",
    border: Annotated[
        str, typer.Option(help="Outside the picture: zeros, constant, reflect, symmetric, replicate or circular.")
    ] = "reflect",
    cval: Annotated[float | None, typer.Option(help="The value outside, with --border constant.")] = None,
    out_dtype: Annotated[
        str | None, typer.Option(help="Sample type of OUT; integers round half to even and saturate. [default: IN's]")
    ] = None,
    magnitude: Annotated[bool, typer.Option("--abs", help="Magnitudes: edges of both signs show.")] = False,
    scale: Annotated[float, typer.Option(help="Multiply the result, before it is rounded.")] = 1.0,
    gray: Annotated[bool, typer.Option("--gray", help="Turn red, green and blue into gray first.")] = False,
    max_pixels: Annotated[int, typer.Option(help="Most pixels that IN may declare, pages counted.")] = MAX_PIXELS,
    device: Annotated[str, typer.Option(help="Where to run.")] = "cpu",
) -> None:
    """Filter a picture: edges, blur, sharpening, any kernel; alpha, resolution and description are kept.

    Cross-correlation, the kernel's centre over each pixel. Integers round and saturate once, at the end.
    """
    from convforge.images.kernels import load_kernel
    from convforge.problem import PADDING_MODES

    order = _Order(
        kernel=load_kernel(kernel),
        channels=_one_of(channels, ("each", "sum"), "--channels"),
        method=_known_method(method, device),
        stride=_stride(stride),
        border=_one_of(border, tuple(PADDING_MODES), "--border"),
        cval=_cval(cval, border),
        out_dtype=None if out_dtype is None else np.dtype(_one_of(out_dtype, SAMPLE_TYPES, "--out-dtype")),
        magnitude=magnitude,
        scale=_finite(scale, "--scale"),
        gray=gray,
        device=device,
    )
    clock = _Clock()
    _load_decoders(source, target)
    _check_place(target)
    with clock("read"):
        picture = _read(source, max_pixels)
    _check_holds(target, picture, order)
    try:
        done = _filtered(picture, order, clock)
    except MemoryError as error:
        from convforge.cli.app import Failure

        raise Failure(f"{source}: there is not enough memory to filter it; cut it into parts first") from error
    with clock("write"):
        _write(target, done.picture)
    for line in _report(source, target, picture, order, done, clock):
        typer.echo(line)


@dataclass(frozen=True, slots=True)
class _Order:
    """What the user asks for, checked; `out_dtype` None is the picture's own type."""

    kernel: Kernel
    channels: str
    method: str
    stride: tuple[int, int]
    border: str
    cval: float
    out_dtype: np.dtype[Any] | None
    magnitude: bool
    scale: float
    gray: bool
    device: str

    @property
    def bends(self) -> bool:
        """Whether something is done to the sums before they are rounded."""
        return self.magnitude or self.scale != 1

    def bands(self, picture: Picture) -> int:
        """Bands of the result."""
        return 1 if self.gray or self.channels == "sum" else picture.bands


@dataclass(frozen=True, slots=True)
class _Done:
    """The filtered picture, and how it was made."""

    picture: Picture
    plan: Plan
    why: str
    note: str


@dataclass(slots=True)
class _Clock:
    """Seconds by name, each stretch timed apart; a name that comes twice adds up."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - begin


# The work.


def _filtered(picture: Picture, order: _Order, clock: _Clock) -> _Done:
    """Filter the bands of every page; the sums are rounded once, to the type of the result."""
    from convforge.images.convert import to_dtype

    wanted = order.out_dtype or picture.pixels.dtype
    stack = _stack(picture, order.gray, clock)
    straight = not order.bends and wanted.name in _computable()
    result, plan, why, note = _convolved(stack, wanted if straight else _sums_dtype(stack, order), order, clock)
    if not straight:
        with clock("convert"):
            result = to_dtype(result, wanted, scale=order.scale, absolute=order.magnitude)
    result = result if picture.pages else result[0]
    result = result[..., 0] if result.shape[-1] == 1 else result
    return _Done(picture.filtered(result, stride=order.stride), plan, why, note)


def _convolved(stack: Array, dtype: np.dtype[Any], order: _Order, clock: _Clock) -> tuple[Array, Plan, str, str]:
    """The sums of a (T, H, W, C) stack as (T, P, Q, K) of `dtype`, the plan, why it was taken, and its note.

    The kernels are compiled, or read from the cache, on a part of the first page with the plan's own method and
    config, so that the time of the whole picture holds no compiling.
    """
    from convforge.algorithms.contract import Operands
    from convforge.execution import find_plan
    from convforge.tuning import choose

    with clock("plan"):
        plan, x, w = _plan(stack, dtype, order)
        why = "asked for by name"
        if order.method == "auto":
            why = choose(plan.problem, plan.runtime).reason
    side = max(WARM_SIDE, 2 * max(order.kernel.shape))
    part = np.ascontiguousarray(x[:1, :side, :side])
    small = plan.problem.replace(n=1, h=part.shape[1], w=part.shape[2])
    with clock("first call"):
        warm = find_plan(small, plan.algorithm.name, plan.config, order.device, None)
        warm(part, warm.prepare(w), Operands(), np.empty(small.out_shape, dtype))
    out = np.empty(plan.problem.out_shape, dtype)
    with clock("filter"):
        prepared = plan.prepare(w)
        plan(x, prepared, Operands(), out)
    return out, plan, why, prepared.note


def _plan(stack: Array, dtype: np.dtype[Any] | None, order: _Order) -> tuple[Plan, Array, Array]:
    from convforge.errors import UnsupportedProblem
    from convforge.filtering import plan_filter

    try:
        return plan_filter(
            stack, order.kernel.values, channels=order.channels, border=order.border, cval=order.cval,
            stride=order.stride, out_dtype=dtype, device=order.device, algorithm=order.method,
        )  # fmt: skip
    except UnsupportedProblem as error:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in error.reasons.items())
        raise ValueError(f"--method {order.method} cannot filter this picture ({reasons})") from error


def _stack(picture: Picture, gray: bool, clock: _Clock) -> Array:
    """The pixels as (T, H, W, C), gray if asked, in a type that can be computed with and holds them exactly."""
    from convforge.cli.app import Failure
    from convforge.images.convert import to_gray

    pixels = picture.pixels if picture.pages else picture.pixels[np.newaxis]
    if pixels.ndim == 3:
        pixels = pixels[..., np.newaxis]
    if gray and picture.bands > 1:
        if picture.bands != 3:
            raise ValueError(f"--gray needs red, green and blue; the picture has {picture.bands} bands")
        with clock("gray"):
            pixels = to_gray(pixels)[..., np.newaxis]
    if pixels.dtype.name in _computable():
        return pixels
    if pixels.dtype.itemsize == 8 and (pixels.max() > EXACT or pixels.min() < -EXACT):
        raise Failure(
            f"the picture's {pixels.dtype} samples go beyond 2^53, where float64 holds no whole numbers any more; "
            "scale them down first"
        )
    with clock("convert"):
        return pixels.astype(np.float64)


def _sums_dtype(stack: Array, order: _Order) -> np.dtype[Any]:
    """The type that the sums of this picture and kernel are taken in, whichever method takes them."""
    plan, _, _ = _plan(stack, None, replace(order, method="direct_naive"))  # it takes everything, and plans at once
    name: str = plan.problem.acc_dtype
    return np.dtype(name)


# What the user wrote, checked before anything is read.


def _one_of(word: str, known: Sequence[str], option: str) -> str:
    if word in known:
        return word
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"{option} {word!r} is unknown{hint} Choose one of {', '.join(known)}")


def _known_method(method: str, device: str) -> str:
    from convforge.algorithms import find
    from convforge.execution import runtime_of

    backend = runtime_of(device).facts.backend
    return method if method == "auto" else find("conv2d", backend, method).name


def _stride(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,9})(?:x([0-9]{1,9}))?", text.strip())
    steps = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if min(steps) < 1:
        raise ValueError(f"--stride {text!r} must be a whole number of at least 1, or two as HxW, such as 2 or 2x1")
    return steps


def _cval(value: float | None, border: str) -> float:
    if value is None:
        return 0.0
    if border != "constant":
        raise ValueError(f"--cval {value:g} goes with --border constant; the border is {border}")
    return _finite(value, "--cval")


def _finite(value: float, option: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{option} {value} must be a finite number")
    return value


def _computable() -> tuple[str, ...]:
    """The sample types that methods read and write; the others go through float64."""
    from convforge.problem import DTYPES

    return tuple(name for name in DTYPES.values() if name != "bfloat16")


# Files. A file that cannot be read or written is a failure; a result that its format has no place for is bad use.


def _load_decoders(*paths: Path) -> None:
    for path in paths:
        for name in _DECODERS.get(path.suffix.lower(), ()):
            importlib.import_module(name)


def _check_place(target: Path) -> None:
    from convforge.cli.app import Failure
    from convforge.images.files import WRITABLE_SUFFIXES, PictureError, check_writable

    try:
        check_writable(target, np.uint8)
    except PictureError as error:
        if target.suffix.lower() not in WRITABLE_SUFFIXES:
            raise
        raise Failure(str(error)) from error


def _check_holds(target: Path, picture: Picture, order: _Order) -> None:
    from convforge.images.files import check_writable

    dtype = order.out_dtype or picture.pixels.dtype
    check_writable(target, dtype, bands=order.bands(picture), pages=picture.pages, alpha=picture.alpha is not None)


def _read(source: Path, max_pixels: int) -> Picture:
    from convforge.cli.app import Failure
    from convforge.images.files import PictureError, read_picture

    if max_pixels < 1:
        raise ValueError(f"--max-pixels {max_pixels} must be at least 1")
    try:
        return read_picture(source, max_pixels=max_pixels)
    except PictureError as error:
        raise Failure(str(error)) from error


def _write(target: Path, picture: Picture) -> None:
    from convforge.cli.app import Failure
    from convforge.images.files import PictureError, write_picture

    try:
        write_picture(target, picture)
    except PictureError as error:
        raise Failure(str(error)) from error


# What is said.


def _report(source: Path, target: Path, picture: Picture, order: _Order, done: _Done, clock: _Clock) -> Iterator[str]:
    """One line a fact, under the names in the first column."""
    plan, kernel = done.plan, order.kernel
    rows, columns = kernel.shape
    steps = f", stride {order.stride[0]}x{order.stride[1]}" if order.stride != (1, 1) else ""
    value = f" {order.cval:g}" if order.border == "constant" else ""
    bands = "bands summed" if order.channels == "sum" else "each band by itself"
    note = f"; {done.note}" if done.note else ""
    config = str(plan.config)
    yield f"in          {source}: {_size(picture)}"
    yield f"out         {target}: {_size(done.picture)}"
    yield f"kernel      {kernel.name}, {rows}x{columns}, {bands}, border {order.border}{value}{steps}"
    yield f"method      {plan.algorithm.name}{f' [{config}]' if config else ''}: {done.why}{note}"
    yield f"arithmetic  {plan.problem.x_dtype} times {plan.problem.w_dtype}, summed in {plan.problem.acc_dtype}"
    yield f"workspace   {plan.workspace_bytes} bytes"
    for name, what in _STRETCHES.items():
        if name in clock.seconds:
            yield f"{name:<11} {_time(clock.seconds[name])}{what}"


# Stretches of the clock in the order they are told, and what each holds.
_STRETCHES = {
    "read": "",
    "gray": "",
    "plan": "",
    "first call": " (kernels compiled or read from the cache; in no other time)",
    "filter": "",
    "convert": "",
    "write": "",
}


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _size(picture: Picture) -> str:
    bands = f"{picture.bands} band{'s' if picture.bands > 1 else ''}"
    alpha = " and alpha" if picture.alpha is not None else ""
    pages = f", {picture.page_count} pages" if picture.pages else ""
    return f"{picture.width} x {picture.height} pixels, {bands}{alpha}{pages}, {picture.pixels.dtype}"
