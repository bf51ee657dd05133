"""Finds English words in a text that should have none."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What Chinese texts on computing write in Latin letters too.
NAMES = frozenset((
    "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB", "s", "ms", "us", "ns", "MHz", "GHz", "FLOP",
    "FLOPs", "GFLOP", "TFLOP", "CPU", "GPU", "FMA", "FFT", "RGB", "RMS", "NaN", "Inf", "UTC", "BLAS", "NCHW",
    "NHWC", "NPP", "TF", "RTX", "GTX", "NumPy", "PyTorch", "OpenCV", "SciPy", "CuPy", "cuDNN", "cuBLAS", "oneDNN",
    "A", "B", "C", "F", "K", "M", "N", "GEMM", "SVD", "TMA",
    "Python", "JavaScript", "Winograd", "Kendall", "ReLU", "CUDA", "NVIDIA",
    "convforge", "ncu", "matmul", "wgmma", "x", "w",
))  # fmt: skip
_CODE = re.compile(r"<code>.*?</code>|<[^>]*>|pip install \S+|\bgit\b|\w+=")
_FIELD = re.compile(r"\{[^{}]*\}|%\([a-z_]+\)[sd]")
_WORD = re.compile(r"(?<![A-Za-z0-9_])[A-Za-zµ](?:[\w+.\[\]=*-]*\w)?")


def english(text: str, names: Iterable[str] = ()) -> set[str]:
    """The words in Latin letters that are no name: neither of the list above nor of `names`.

    What holds a digit or an underscore is the name of a case, a method, a problem or a type. Fields and code are
    passed over.
    """
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = text.replace(name, " ")
    found = _WORD.findall(_FIELD.sub(" ", _CODE.sub(" ", text)))
    return {word for word in found if word not in NAMES and not re.search(r"[\d_]", word)}
