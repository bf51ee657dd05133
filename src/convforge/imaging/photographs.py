"""Photographs that scikit-image installs: RGB, at least 512 x 512 pixels, without a download."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt

from convforge.imaging.image import ImageError

PHOTOGRAPHS = {
    "astronaut": "astronaut.png",
    "hubble": "hubble_deep_field.jpg",
    "immunohistochemistry": "ihc.png",
    "retina": "retina.jpg",
}
"""Names that `photograph` knows, and their files: 512x512, 872x1000, 512x512 and 1411x1411 pixels (H x W)."""


def photograph(name: str = "astronaut") -> npt.NDArray[np.uint8]:
    """Return one of scikit-image's photographs, uint8 of shape (H, W, 3), H and W at least 512.

    ``ImageError`` if the name is not in `PHOTOGRAPHS`, or scikit-image is not installed.

    Examples
    --------
    >>> photograph().shape
    (512, 512, 3)
    """
    from convforge.imaging.files import read_image

    if name not in PHOTOGRAPHS:
        near = difflib.get_close_matches(name, PHOTOGRAPHS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ImageError(f"no photograph is called {name!r}; {hint}there are {', '.join(PHOTOGRAPHS)}")
    spec = importlib.util.find_spec("skimage")  # finds the folder without importing the library
    if spec is None or spec.origin is None:
        raise ImageError(
            f"the photograph {name!r} comes with scikit-image, which is not installed; "
            "get it with: python -m pip install scikit-image"
        )
    path = Path(spec.origin).parent / "data" / PHOTOGRAPHS[name]
    return read_image(path).pixels
