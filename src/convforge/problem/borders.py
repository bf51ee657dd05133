"""Border modes: the rules for pixels outside the image, as a table of image indices for each padded axis."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Mode -> (name in scipy.ndimage, example: three pixels of padding on each side of `a b c d`).
PADDING_MODES: dict[str, tuple[str, str]] = {
    "zeros": ("constant, cval=0", "0 0 0 | a b c d | 0 0 0"),
    "constant": ("constant", "v v v | a b c d | v v v"),
    "reflect": ("mirror", "d c b | a b c d | c b a"),
    "symmetric": ("reflect", "c b a | a b c d | d c b"),
    "replicate": ("nearest", "a a a | a b c d | d d d"),
    "circular": ("wrap", "b c d | a b c d | a b c"),
}

# Unambiguous names of the modes in other libraries; docs/borders.md lists them by library. "reflect" has its meaning in
# NumPy and PyTorch; SciPy and OpenCV use this name for "symmetric".
PADDING_ALIASES: dict[str, str] = {
    "mirror": "reflect",
    "grid-mirror": "symmetric",
    "nearest": "replicate",
    "wrap": "circular",
    "grid-wrap": "circular",
    "grid-constant": "constant",
    "edge": "replicate",
    "reflect101": "reflect",
    "reflect_101": "reflect",
    "BORDER_CONSTANT": "constant",
    "BORDER_REPLICATE": "replicate",
    "BORDER_REFLECT": "symmetric",
    "BORDER_WRAP": "circular",
    "BORDER_REFLECT_101": "reflect",
    "BORDER_REFLECT101": "reflect",
    "BORDER_DEFAULT": "reflect",
}


def padding_mode_of(word: Any, name: str) -> str:
    """Return the border mode for a name: a key of :data:`PADDING_MODES`, or another library's name for one.

    Raises ``TypeError`` or ``ValueError`` for any other value; the message contains `name`, the argument's name.
    """
    if not isinstance(word, str):
        hint = "; of OpenCV's numbers write the names, such as 'BORDER_REFLECT_101'" if isinstance(word, int) else ""
        raise TypeError(f"{name}={word!r} must be a string{hint}")
    mode = PADDING_ALIASES.get(word, word)
    if mode not in PADDING_MODES:
        near = near_padding_mode(word)
        hint = f"did you mean {near!r}? Choose" if near else "choose"
        raise ValueError(f"{name}={word!r} is unknown; {hint} one of {', '.join(PADDING_MODES)}")
    return mode


def near_padding_mode(word: str) -> str:
    """Return the known mode name that is most similar to an unknown word, or an empty string.

    Examples
    --------
    >>> near_padding_mode("Mirror"), near_padding_mode("cv2.BORDER_REFLECT"), near_padding_mode("linear_ramp")
    ('mirror', 'BORDER_REFLECT', '')
    """
    import difflib

    known = {name.lower(): name for name in (*PADDING_MODES, *PADDING_ALIASES)}
    near = difflib.get_close_matches(word.strip().lower().removeprefix("cv2."), known, n=1, cutoff=0.6)
    return known[near[0]] if near else ""


@lru_cache(maxsize=256)
def border_indices(size: int, before: int, after: int, mode: str) -> NDArray[np.int64]:
    """Return the image index that each position of one padded axis reads; -1 means the padding value.

    `size` is the axis's number of pixels, at least 1. `before` and `after` are numbers of padding pixels; beyond `size`
    the pattern repeats. Returns a read-only int64 array of shape (before + size + after,).

    Examples
    --------
    >>> border_indices(4, 3, 3, "reflect").tolist()
    [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]
    """
    i = indices_between(size, -before, size + after, mode)
    i.flags.writeable = False
    return i


def indices_between(size: int, first: int, last: int, mode: str) -> NDArray[np.int64]:
    """Return the image indices that positions from `first` to before `last` of an axis read; 0 is its first pixel.

    Examples
    --------
    >>> indices_between(4, 2, 6, "symmetric").tolist()
    [2, 3, 3, 2]
    """
    i = np.arange(first, last, dtype=np.int64)
    if mode in ("zeros", "constant"):
        i[(i < 0) | (i >= size)] = -1
    elif mode == "replicate":
        i = np.clip(i, 0, size - 1)
    elif mode == "circular":
        i %= size
    elif mode == "symmetric":
        i %= 2 * size
        i = np.where(i >= size, 2 * size - 1 - i, i)
    elif mode == "reflect":
        period = max(2 * size - 2, 1)
        i %= period
        i = np.where(i >= size, period - i, i)
    else:
        raise ValueError(f"padding_mode={mode!r} is unknown; choose one of {', '.join(PADDING_MODES)}")
    return i
