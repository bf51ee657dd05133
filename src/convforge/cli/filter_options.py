"""Options of `convforge filter`, which are checked before any file is read."""

from __future__ import annotations

import re

import numpy as np

from convforge.cli.values import finite, one_of

SAMPLE_TYPES = tuple(
    np.dtype(kind + size).name for kind, sizes in (("u", "1248"), ("i", "1248"), ("f", "248")) for size in sizes
)


def border_of(word: str) -> str:
    from convforge.problem import PADDING_ALIASES, PADDING_MODES, near_padding_mode

    return one_of(PADDING_ALIASES.get(word, word), PADDING_MODES, "--border", near_padding_mode(word))


def known_method(method: str, device: str) -> str:
    """Return the method's whole name; ``ValueError`` if it or the device is unknown, or if the device has no such."""
    from convforge.algorithms import find
    from convforge.call.dispatch import devices_of, runtime_of
    from convforge.peers import every_algorithm

    backend = runtime_of(devices_of(device)[0]).facts.backend
    return method if method == "auto" else find("conv2d", backend, method, every_algorithm()).name


def refuse_several(device: str, why: str) -> None:
    """Raise ``ValueError`` if several GPUs are named for work that one GPU does."""
    if "," in device:
        raise ValueError(f"--device {device}: several GPUs go with one image in units, and {why}; name one of them")


def stride_of(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,9})(?:x([0-9]{1,9}))?", text.strip())
    steps = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if min(steps) < 1:
        raise ValueError(f"--stride {text!r} must be a whole number of at least 1, or two as HxW, such as 2 or 2x1")
    return steps


def cval_of(value: float | None, border: str) -> float:
    if value is None:
        return 0.0
    if border != "constant":
        raise ValueError(f"--cval {value:g} goes with --border constant; the border is {border}")
    return finite(value, "--cval")


def spacing_of(text: str | None) -> dict[str, float] | None:
    """Return the distance of the samples in micrometres by the letter of the axis."""
    from convforge.imaging.sigmas import SigmasError, spacing_from

    try:
        return None if text is None else spacing_from(text)
    except SigmasError as error:
        raise ValueError(f"--spacing {error}") from error


def suffix_of(word: str | None) -> str | None:
    from convforge.imaging.files import WRITABLE_SUFFIXES

    if word is None:
        return None
    known = [suffix.removeprefix(".") for suffix in WRITABLE_SUFFIXES]
    return f".{one_of(word.lower().removeprefix('.'), known, '--format')}"
