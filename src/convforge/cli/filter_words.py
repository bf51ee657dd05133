"""What `convforge filter` says of a file and of a folder in the same words."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from convforge.errors import UnsupportedProblem
    from convforge.imaging.kernels import Kernel
    from convforge.imaging.pipeline.recipe import Recipe

# Decoders of the file types, so that loading them is not taken for reading. imagecodecs loads each when it is named.
_DECODERS = {
    ".png": ("imagecodecs:png_decode",),
    ".jpg": ("PIL.JpegImagePlugin",),
    ".jpeg": ("PIL.JpegImagePlugin",),
    ".tif": ("imagecodecs", "tifffile"),
    ".tiff": ("imagecodecs", "tifffile"),
}


# Of the two borders whose names libraries exchange.
_EDGE = {"reflect": " (edge pixel not repeated)", "symmetric": " (edge pixel repeated)"}


def load_decoders(*paths: Path) -> None:
    """Import what these files need."""
    for path in paths:
        for name in _DECODERS.get(path.suffix.lower(), ()):
            pkgutil.resolve_name(name)


def kernel_text(kernel: Kernel, recipe: Recipe) -> str:
    """The kernel and how it is laid over the image."""
    rows, columns = kernel.shape
    steps = f", stride {recipe.stride[0]}x{recipe.stride[1]}" if recipe.stride != (1, 1) else ""
    value = f" {recipe.cval:g}" if recipe.border == "constant" else ""
    bands = "bands summed" if recipe.channels == "sum" else "each band by itself"
    border = f"{recipe.border}{_EDGE.get(recipe.border, value)}"
    return f"{kernel.name}, {rows}x{columns}, {bands}, border {border}{steps}"


def refusal_text(recipe: Recipe, error: UnsupportedProblem) -> str:
    """Why the method that was asked for cannot filter an image, in one line."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in error.reasons.items())
    return f"--method {recipe.algorithm} cannot filter this image ({reasons})"
