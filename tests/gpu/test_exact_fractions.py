"""Pictures of integers under kernels of fractions on a GPU: the exact quotient, rounded half to even."""

from __future__ import annotations

import numpy as np
import pytest
from tests.gpu.present import need_gpu
from tests.test_exact_fractions import KERNELS, NOT_OF_PICTURES, picture, quotients

import convforge
from convforge.algorithms import ON_DEVICE

need_gpu()

METHODS = [
    a.name
    for a in ON_DEVICE
    if (a.operation, a.backend) == ("conv2d", "cuda") and a.precision in ("strict", "separable")
]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32"])
def test_pixels_are_the_exact_quotient_rounded_half_to_even(dtype: str, name: str) -> None:
    whole, divisor = KERNELS[name]
    info = np.iinfo(dtype)
    for kind in ("ties", "all"):
        image = picture(dtype, kind, (67, 96))
        sums, rounded = quotients(image, whole, divisor)
        found = convforge.filter(image, whole / divisor, device="cuda")
        assert np.array_equal(found, np.clip(rounded, info.min, info.max))
        for result in ("float32", "float64"):
            found = convforge.filter(image, whole / divisor, device="cuda", out_dtype=result)
            assert np.array_equal(found, (sums / divisor).astype(result)), result


@pytest.mark.parametrize("algorithm", [name for name in METHODS if name not in NOT_OF_PICTURES])
def test_every_method_divides_once(algorithm: str) -> None:
    whole, divisor = KERNELS["mean of 6x6"]
    image = picture("uint8", "ties", (67, 96))
    _, rounded = quotients(image, whole, divisor)
    bands = 4 if "depthwise" in algorithm else 1
    pictures = np.repeat(image[..., None], bands, axis=-1)
    found = convforge.filter(pictures, whole / divisor, device="cuda", algorithm=algorithm)
    assert np.array_equal(found, np.repeat(rounded[..., None], bands, axis=-1))
