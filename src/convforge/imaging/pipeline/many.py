"""`filter_many`: filter many arrays or files with one kernel, in parallel."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, Never

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms import find
from convforge.call.arguments import IntPair, check_word, refuse_others, whole_number
from convforge.call.dispatch import runtime_of
from convforge.imaging.axes import Axes
from convforge.imaging.filtering import ELSEWHERE, FilterOptions, filter_problem, result_shape
from convforge.imaging.pipeline.flow import Size, flow
from convforge.imaging.pipeline.lanes import Clock, Convolver, Lane, lanes_of, memory_share
from convforge.imaging.weights import kernel_array
from convforge.peers import every_algorithm
from convforge.problem.types import itemsize

Source = NDArray[Any] | str | os.PathLike[str]


def filter_many(
    images: Iterable[Source],
    kernel: NDArray[Any] | str | os.PathLike[str],
    *,
    channels: str = "each",
    border: str = "reflect",
    cval: float = 0.0,
    stride: IntPair = 1,
    out_dtype: Any = None,
    device: str | None = None,
    algorithm: str = "auto",
    axes: str | None = None,
    workers: int | None = None,
    return_exceptions: bool = False,
    **others: Never,
) -> Iterator[Any]:
    """Filter many images with one kernel, while others are read and copied.

    Each result is bit for bit that of :func:`convforge.filter`. Results are yielded in the order of the images, and
    `images` is iterated as results are consumed: at most 2 * `workers` + 3 images are in memory, and fewer if they
    would fill a quarter of it. On a GPU, upload, kernel and download of different images overlap, and pinned buffers
    are reused.

    Parameters
    ----------
    images : iterable of arrays or paths
        Arrays as for :func:`convforge.filter`, of any sizes and types; do not change one before you have its result.
        Files (PNG, JPEG, TIFF, .npy) are read as by :func:`convforge.imaging.files.read_image`.
    kernel, channels, border, cval, stride, out_dtype, device, algorithm, axes
        As in :func:`convforge.filter`; for files `axes` is as in :func:`convforge.imaging.files.read_image`.
    workers : int, optional
        Threads that read files; by default the number of cores.
    return_exceptions : bool
        Yield the exception of an image that fails as its result, and continue; by default raise it.

    Yields
    ------
    array
        Result of each image, of the same shape as from :func:`convforge.filter`.

    Raises
    ------
    ValueError, TypeError
        As :func:`convforge.filter`; also if a file cannot be read.

    Examples
    --------
    >>> frames = (np.full((4, 6), 10 * i, np.uint8) for i in range(3))
    >>> [int(frame.max()) for frame in filter_many(frames, "box:3")]
    [0, 10, 20]
    >>> results = list(filter_many([np.ones((4, 6)), "none.png"], "box:3", return_exceptions=True))
    >>> print(results[1])
    none.png: no such file; check the name and the folder
    """
    refuse_others("filter_many", others, ELSEWHERE)
    if isinstance(images, str | os.PathLike):
        raise TypeError(f"images={images!r} must be images, not one; for one file, write [{os.fspath(images)!r}]")
    runtime, taps = runtime_of(device), kernel_array(kernel)
    options = FilterOptions(
        channels=channels, border=border, cval=cval, stride=stride, out_dtype=out_dtype, algorithm=algorithm
    )
    # Raise errors of invalid arguments before any work begins.
    check_word(algorithm, "algorithm")
    if algorithm != "auto":
        find("conv2d", runtime.facts.backend, algorithm, every_algorithm())
    checked, _, _ = filter_problem(np.zeros((1, 1), np.uint8), taps, **options)
    if axes is not None:
        check_word(axes, "axes")
        Axes(axes.upper())
    count = runtime_of("cpu").facts.cores if workers is None else whole_number(workers, "workers")
    if count < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    convolver = Convolver(taps, Clock(), device, **options)
    result_itemsize = None if out_dtype is None else itemsize(checked.out_dtype)
    pins = runtime.facts.backend != "cpu"

    def size(source: Source) -> Size:
        """Return the memory of an image and its result; of a file, with its decoder's, as far as its header tells."""
        if isinstance(source, str | os.PathLike):
            from convforge.imaging.files import declared_of

            try:
                nbytes, element = (found := declared_of(source, axes=axes)).nbytes, found.dtype.itemsize
                read = 2 * os.path.getsize(source) + 3 * nbytes
            except (ValueError, OSError):  # reported when the file is read
                return Size()
        else:  # other objects raise an error when they are filtered
            nbytes, element, read = getattr(source, "nbytes", 0), getattr(source, "itemsize", 1), 0
        both = nbytes + nbytes // element * (result_itemsize or element)
        return Size(max(read, both), both if pins else 0)

    def load(source: Source) -> tuple[NDArray[Any], str | None, bool]:
        """Return the pixels, their axes if the user named them, and True if gray pages got a band axis."""
        if not isinstance(source, str | os.PathLike):
            return source, axes, False
        from convforge.imaging.files import read_image

        image = read_image(source, axes=axes)
        is_gray_stack = image.pages and image.pixels.ndim == 3
        return image.pixels[..., np.newaxis] if is_gray_stack else image.pixels, None, is_gray_stack

    def compute(lane: Lane, loaded: tuple[NDArray[Any], str | None, bool]) -> NDArray[Any]:
        image, named, is_gray_stack = loaded
        sums = convolver(lane, image, axes=named).sums
        out = sums.reshape(result_shape(np.shape(image), sums.shape, channels, named))
        return out[..., 0] if is_gray_stack and channels == "each" else out

    def results() -> Iterator[Any]:
        done = flow(
            images, load, compute, lambda out: out, workers=count, lanes=lanes_of(runtime), size=size,
            nbytes=memory_share(),
        )  # fmt: skip
        with closing(done):
            for _, future in done:
                error = future.exception()
                if error is not None and not (return_exceptions and isinstance(error, Exception)):
                    raise error
                yield future.result() if error is None else error

    return results()
