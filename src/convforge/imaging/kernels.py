"""Filter kernels from a name, a file, or the text of a matrix.

Kernels are applied as **cross-correlation**: they are not flipped. So `sobel-x` is positive where brightness increases
to the right, `sobel-y` where it increases downwards. Element (R // 2, S // 2), counted from 0, is at the output pixel:
the centre for odd sizes, the element right of and below the centre for even sizes, as in scipy.ndimage.correlate with
origin 0.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convforge.imaging.sigmas import PIXELS, Sigmas, SigmasError

LARGEST_SIDE = 4095
LARGEST_FILE = 2**27  # bytes of the largest kernel in float64

_FIXED: dict[str, tuple[tuple[int, ...], ...]] = {
    "laplacian": ((1, 1, 1), (1, -8, 1), (1, 1, 1)),
    "sobel-x": ((-1, 0, 1), (-2, 0, 2), (-1, 0, 1)),
    "sobel-y": ((-1, -2, -1), (0, 0, 0), (1, 2, 1)),
    "scharr-x": ((-3, 0, 3), (-10, 0, 10), (-3, 0, 3)),
    "scharr-y": ((-3, -10, -3), (0, 0, 0), (3, 10, 3)),
    "sharpen": ((0, -1, 0), (-1, 5, -1), (0, -1, 0)),
    "emboss": ((-2, -1, 0), (-1, 1, 1), (0, 1, 2)),
    "identity": ((0, 0, 0), (0, 1, 0), (0, 0, 0)),
}
_HEADS = (*_FIXED, "gaussian", "log", "box")

KERNEL_NAMES = (*_FIXED, "gaussian:SIZE:SIGMA", "gaussian:SIGMApx", "log:SIZE:SIGMA", "box:SIZE")
"""Names that `named_kernel` takes; SIZE in pixels, SIGMA in pixels and more than 0, or for each axis as in 2,1,1um."""


# Names from other libraries, and the hint in the error message.
_ELSEWHERE = {
    "sobel": "'sobel-x' and 'sobel-y' are the two directions",
    "scharr": "'scharr-x' and 'scharr-y' are the two directions",
    **dict.fromkeys(("mean", "average", "uniform", "blur"), "the mean is 'box:SIZE'"),
    **dict.fromkeys(("gauss", "gaussian-laplace"), "there are 'gaussian:SIZE:SIGMA' and 'log:SIZE:SIGMA'"),
    "prewitt": "'-1 0 1; -1 0 1; -1 0 1' is one direction, and 'sobel-x' is near",
    "roberts": "'1 0; 0 -1' is one direction",
    "median": "a median is no convolution, 'box:SIZE' is the mean",
}


class KernelError(ValueError):
    """An invalid kernel; the message names the value, the rule and the solution."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A two-dimensional filter kernel (R, S) for cross-correlation, or one (D, R, S) of planes and along Z."""

    name: str  # as the user gave it: a name, a path, or "matrix"
    values: npt.NDArray[np.float64]  # (R, S), finite, read-only
    depth: npt.NDArray[np.float64] | None = None  # (D,), the taps along Z of a kernel of volumes

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64, order="C")
        if values.ndim != 2:
            raise KernelError(f"kernel {self.name!r} has shape {values.shape}; a kernel is a matrix (rows, columns)")
        if values.size == 0:
            raise KernelError(f"kernel {self.name!r} is empty, shape {values.shape}; give at least one number")
        if max(values.shape) > LARGEST_SIDE:
            raise KernelError(f"kernel {self.name!r} has shape {values.shape}; the largest side is {LARGEST_SIDE}")
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            row, column = (int(i) for i in bad[0])
            raise KernelError(
                f"kernel {self.name!r} has {values[row, column]} in row {row + 1}, column {column + 1}; "
                "every value must be a finite number"
            )
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @property
    def shape(self) -> tuple[int, int]:
        return (int(self.values.shape[0]), int(self.values.shape[1]))


def load_kernel(text: str | os.PathLike[str], spacing: Mapping[str, float | None] | None = None) -> Kernel:
    """Return the kernel of a name, a file or the text of a matrix.

    Parameters
    ----------
    text : str or path-like
        Tried in this order: a name of `KERNEL_NAMES` (write ./NAME for a file of the same name); an existing .npy or
        text file (one row per line, comments after #); a matrix. Semicolons or line ends separate rows, spaces or
        commas separate values; fractions are allowed ("1/9 1/9 1/9; ...").
    spacing : mapping, optional
        Distance of the image's samples in micrometres by the letter of the axis, for sigma in a unit of length.

    Returns
    -------
    Kernel
        float64 values (R, S), and the taps along Z (D,) if the kernel reaches along Z.

    Raises
    ------
    KernelError
        An unknown name (the message proposes the most similar), a missing or unreadable file, rows of different
        lengths, a value that is not a finite real number, an empty kernel, not a matrix, an invalid SIZE or SIGMA.

    Examples
    --------
    >>> load_kernel("0 1/2; -1/2 0").values
    array([[ 0. ,  0.5],
           [-0.5,  0. ]])
    >>> load_kernel("lapacian")
    Traceback (most recent call last):
    ...
    convforge.imaging.kernels.KernelError: unknown kernel 'lapacian'; did you mean 'laplacian'? Known are laplacian, \
sobel-x, sobel-y, scharr-x, scharr-y, sharpen, emboss, identity, gaussian:SIZE:SIGMA, gaussian:SIGMApx, \
log:SIZE:SIGMA, box:SIZE; or give a .npy or text file, or a matrix as "1 1 1; 1 -8 1; 1 1 1"
    """
    if isinstance(text, os.PathLike):
        return _from_file(Path(text))
    text = text.strip()
    if not text:
        raise KernelError(f"the kernel is empty; give one of {', '.join(KERNEL_NAMES)}, a file, or a matrix")
    if _canonical(text).split(":")[0] in _HEADS:  # a name takes precedence over a file of the same name
        return named_kernel(text, spacing)
    if os.path.isfile(text):
        return _from_file(Path(text))
    if _looks_like_matrix(text):
        return Kernel("matrix", _parse(text, "the matrix"))
    if os.path.isdir(text):
        raise KernelError(f"kernel file {text!r} is a folder; name a .npy or text file in it")
    if re.search(r"[/\\]|\.\w{1,4}$", text):
        raise KernelError(f"kernel file {text!r} does not exist; check the name and the folder")
    return named_kernel(text, spacing)


def named_kernel(text: str, spacing: Mapping[str, float | None] | None = None) -> Kernel:
    """Return a kernel of `KERNEL_NAMES`; case is ignored, and underscores equal hyphens.

    gaussian:SIZE:SIGMA is the Gaussian at pixel centres, divided by its sum; SIZE is odd. log:SIZE:SIGMA is the
    Laplacian of that Gaussian: the Gaussian times (x^2 + y^2 - 2 SIGMA^2) / SIGMA^4, minus the mean, so that constant
    regions give 0; it has the sign of `laplacian`. box:SIZE is the mean over SIZE x SIZE pixels; for an even SIZE it
    reaches one pixel further up and left than down and right.

    gaussian:SIGMApx gives sigma along Y and X, or along Z, Y and X, in pixels (gaussian:2px, gaussian:1,2,2px) or in a
    unit of length (gaussian:0.5um, gaussian:2,0.5,0.5um; nm, um and mm), which needs the `spacing` of the image. It
    ends at four sigma.

    ``KernelError`` for an unknown name (the message proposes the most similar), a SIZE that is not a whole number from
    1 to 4095, an even SIZE or a SIGMA not above 0 for gaussian and log, and arguments of a kernel that takes none.

    Examples
    --------
    >>> named_kernel("sobel-x").values
    array([[-1.,  0.,  1.],
           [-2.,  0.,  2.],
           [-1.,  0.,  1.]])
    >>> named_kernel("box:2").values
    array([[0.25, 0.25],
           [0.25, 0.25]])
    """
    name = _canonical(text)
    head, *arguments = name.split(":")
    if head in _FIXED:
        if arguments:
            raise KernelError(f"kernel {text!r}: {head} takes no arguments; write {head!r}")
        return Kernel(name, np.array(_FIXED[head]))
    if head == "box":
        if len(arguments) != 1:
            raise KernelError(f"kernel {text!r}: box takes one argument, box:SIZE; write for example 'box:5'")
        size = _size(text, arguments[0])
        return Kernel(name, np.full((size, size), 1.0 / (size * size)))
    if head == "gaussian" and len(arguments) == 1 and (sigmas := _sigmas(text, arguments[0])) is not None:
        try:
            *depth, column, row = sigmas.lines(spacing or {})
        except SigmasError as error:
            raise KernelError(f"kernel {text!r}: {error}") from error
        return Kernel(name, np.outer(column, row), depth[0] if depth else None)
    if head in _HEADS:
        return Kernel(name, _gaussian(text, head, arguments))
    near = difflib.get_close_matches(head, _HEADS, n=1, cutoff=0.5)
    full = [known for known in KERNEL_NAMES if near and known.split(":")[0] == near[0]]
    hint = _ELSEWHERE.get(head) or (f"did you mean {full[0]!r}?" if full else "")
    known = f"{hint}{'' if hint.endswith('?') else '.'} Known" if hint else "known"
    raise KernelError(
        f"unknown kernel {text!r}; {known} are {', '.join(KERNEL_NAMES)}; or give a .npy or text file, "
        'or a matrix as "1 1 1; 1 -8 1; 1 1 1"'
    )


def lengths_along(text: str) -> str:
    """Return the letters of the axes whose sigma is given in a unit of length, so that their spacing is needed.

    ``KernelError`` for a sigma that makes no kernel, such as a negative one.

    Examples
    --------
    >>> lengths_along("gaussian:2,0.5,0.5um"), lengths_along("gaussian:2px"), lengths_along("sobel-x")
    ('ZYX', '', '')
    """
    head, _, argument = _canonical(text).partition(":")
    sigmas = _sigmas(text, argument) if head == "gaussian" else None
    if sigmas is None or sigmas.unit == PIXELS:
        return ""
    return "".join(letter for letter, value in zip(sigmas.letters, sigmas.values, strict=True) if value)


def _sigmas(text: str, argument: str) -> Sigmas | None:
    try:
        return Sigmas.of(argument)
    except SigmasError as error:
        raise KernelError(f"kernel {text!r}: {error}") from error


def _canonical(text: str) -> str:
    return text.strip().lower().replace("_", "-")


def _size(text: str, argument: str) -> int:
    try:
        size = int(argument)
    except ValueError:
        size = 0
    if not 1 <= size <= LARGEST_SIDE:
        raise KernelError(f"kernel {text!r}: SIZE is {argument!r}; it must be a whole number from 1 to {LARGEST_SIDE}")
    return size


def _gaussian(text: str, head: str, arguments: list[str]) -> npt.NDArray[np.float64]:
    if len(arguments) != 2:
        raise KernelError(f"kernel {text!r}: write {head}:SIZE:SIGMA, for example '{_example(head, arguments)}'")
    size = _size(text, arguments[0])
    if size % 2 == 0:
        raise KernelError(
            f"kernel {text!r}: SIZE is {size}; a Gaussian needs an odd one, or the image would shift by half a pixel"
        )
    try:
        sigma = float(arguments[1])
    except ValueError:
        sigma = float("nan")
    if not (0 < sigma < float("inf")):
        raise KernelError(f"kernel {text!r}: SIGMA is {arguments[1]!r}; it must be a number above 0, in pixels")
    steps = (np.arange(size) - size // 2) / sigma
    with np.errstate(over="ignore", under="ignore"):  # the tails of a narrow Gaussian underflow to zero
        line = np.exp(-0.5 * steps * steps)
    line /= line.sum()
    gaussian = np.outer(line, line)
    if head == "gaussian":
        return gaussian
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # a tiny SIGMA gives NaN, which Kernel refuses
        laplacian = gaussian * (np.add.outer(steps * steps, steps * steps) - 2) / (sigma * sigma)
        return np.asarray(laplacian - laplacian.mean())


def _example(head: str, arguments: list[str]) -> str:
    """Return a valid kernel name for an error message; a lone argument that is no SIZE is used as SIGMA."""
    with suppress(ValueError):
        sigma = float(arguments[0]) if len(arguments) == 1 else 0.0
        size = 2 * round(4 * sigma) + 1 if 0 < sigma < LARGEST_SIDE / 9 else 0
        if size > 1 and not arguments[0].isdigit():
            return f"{head}:{size}:{arguments[0]}"
    return f"{head}:5:1.2" if head == "gaussian" else f"{head}:9:1.2"


def _looks_like_matrix(text: str) -> bool:
    """True if a text has only numbers, or begins with a number and has rows; errors then name the row and column."""
    if ";" in text and re.match(r"[-+0-9.\[(]", text):
        return True
    numbers = r"(?:[-+0-9.e,;/\s\[\]()]|nan|inf(?:inity)?|[ij])+"
    return bool(re.fullmatch(numbers, text, re.I) and re.search(r"[0-9]|nan|inf|[;\[]", text, re.I))


def _parse(text: str, where: str) -> npt.NDArray[np.float64]:
    """Parse rows separated by ';' or line ends, or in Python's notation [[1, 2], [3, 4]]."""
    text = re.sub(r"\]\s*,?\s*\[", ";", text.strip())
    text = re.sub(r"^[\[(\s]+|[\])\s]+$", "", text)
    lines = [line.split("#")[0].strip() for line in re.split(r"[;\n]", text)]
    rows = []
    for number, line in enumerate((line for line in lines if line), start=1):
        parts = re.sub(r"\s*/\s*", "/", line).rstrip(",").split(",")
        tokens = [token for part in parts for token in (part.split() or [""])]
        rows.append([_value(token, f"{where}: row {number}, column {i}") for i, token in enumerate(tokens, start=1)])
    if not rows:
        raise KernelError(f'{where} is empty; give rows of numbers, for example "1 1 1; 1 -8 1; 1 1 1"')
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise KernelError(
                f"{where} is ragged: row 1 has {len(rows[0])} values, row {number} has {len(row)}; "
                "every row needs the same number"
            )
    return np.array(rows, dtype=np.float64)


def _value(token: str, place: str) -> float:
    top, slash, bottom = token.partition("/")
    place += f" is {token!r}"
    if re.fullmatch(r"[-+0-9.e]*[ij]", token, re.IGNORECASE):
        raise KernelError(f"{place}, a complex number; kernels are real")
    try:
        return float(top) / float(bottom) if slash else float(top)
    except ValueError as error:
        raise KernelError(f"{place}; give a number or a fraction such as 1/9") from error
    except ZeroDivisionError as error:
        raise KernelError(f"{place}, a division by zero") from error


def _from_file(path: Path) -> Kernel:
    where = f"kernel file {str(path)!r}"
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise KernelError(f"{where} has {path.stat().st_size} bytes, more than any kernel; is it an image?")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise KernelError(f"{where} does not exist; check the name and the folder") from error
    except OSError as error:
        raise KernelError(f"{where} cannot be read ({error.strerror}); name a .npy or text file") from error
    if not data:
        raise KernelError(f"{where} is empty (0 bytes); write rows of numbers into it")
    if data.startswith(b"\x93NUMPY"):
        return Kernel(str(path), _npy(path, where))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KernelError(f"{where} is neither .npy nor text; save a matrix with numpy.save or as rows") from error
    return Kernel(str(path), _parse(text, where))


def _npy(path: Path, where: str) -> npt.NDArray[np.float64]:
    try:
        values = np.load(path, allow_pickle=False)
    except Exception as error:  # the parser raises various errors for a damaged header
        reason = " ".join(str(error).split())[:200]
        raise KernelError(f"{where} is truncated or damaged ({reason}); save it again with numpy.save") from error
    if values.dtype.kind == "c":
        raise KernelError(f"{where} holds complex values ({values.dtype}); kernels are real, save its .real")
    if values.dtype.kind not in "uifb":
        raise KernelError(f"{where} holds {values.dtype}; save numbers")
    return np.asarray(values, dtype=np.float64)
