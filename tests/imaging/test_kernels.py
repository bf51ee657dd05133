"""Kernels by name, from files and as typed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import ndimage

from convforge.imaging.kernels import KERNEL_NAMES, Kernel, KernelError, load_kernel, named_kernel


def refused(text: Any, *words: str) -> str:
    with pytest.raises(KernelError) as caught:
        load_kernel(text)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def test_laplacian_in_every_spelling(tmp_path: Path) -> None:
    want = [[1, 1, 1], [1, -8, 1], [1, 1, 1]]
    np.save(tmp_path / "k.npy", np.array(want, np.int8))
    (tmp_path / "k.txt").write_text("# the 8-neighbour Laplacian\n1 1 1\n1, -8, 1  # centre\n\n1\t1 1\n")
    (tmp_path / "k.csv").write_text("1,1,1\r\n1,-8,1\r\n1,1,1\r\n", encoding="utf-8-sig")
    spellings = ["laplacian", "Laplacian", "1 1 1; 1 -8 1; 1 1 1", "1,1,1;1,-8,1;1,1,1;", "[1 1 1; 1 -8 1; 1 1 1]"]
    spellings += ["[[1, 1, 1], [1, -8, 1], [1, 1, 1]]", "1 1 1\n1 -8 1\n1 1 1", str(np.array(want))]
    for text in [*spellings, tmp_path / "k.npy", str(tmp_path / "k.txt"), str(tmp_path / "k.csv")]:
        kernel = load_kernel(text)
        np.testing.assert_array_equal(kernel.values, want)
        assert kernel.values.dtype == np.float64


def test_every_name_loads_and_is_frozen() -> None:
    for name in KERNEL_NAMES:
        kernel = load_kernel(name.replace("SIZE", "5").replace("SIGMA", "1.5"))
        assert not kernel.values.flags.writeable
        assert kernel.shape in ((3, 3), (5, 5), (13, 13))  # 1.5px reaches four sigma


def test_signs_under_correlation() -> None:
    right, down = np.tile(np.arange(9.0), (9, 1)), np.tile(np.arange(9.0), (9, 1)).T
    for pair in ("sobel", "scharr"):
        x, y = named_kernel(f"{pair}-x").values, named_kernel(f"{pair}_y").values
        assert ndimage.correlate(right, x)[4, 4] > 0
        assert ndimage.correlate(down, x)[4, 4] == 0
        assert ndimage.correlate(down, y)[4, 4] > 0
        np.testing.assert_array_equal(x.T, y)
    np.testing.assert_array_equal(
        ndimage.sobel(right, axis=1), ndimage.correlate(right, named_kernel("sobel-x").values)
    )


def test_gaussian_and_box() -> None:
    kernel = named_kernel("gaussian:7:1.2").values
    impulse = np.zeros((7, 7))
    impulse[3, 3] = 1
    np.testing.assert_allclose(kernel, ndimage.gaussian_filter(impulse, 1.2, radius=3), atol=1e-15)
    assert kernel.sum() == pytest.approx(1)
    assert named_kernel("gaussian:5:1e-300").values[2, 2] == 1
    assert named_kernel("box:3").values.sum() == pytest.approx(1)
    assert named_kernel("box:1").values == 1
    even = named_kernel("box:4")
    image = np.random.default_rng(0).normal(size=(9, 9))
    got = ndimage.correlate(image, even.values, mode="constant")[5, 5]
    assert got == pytest.approx(image[3:7, 3:7].mean())


@pytest.mark.parametrize("sigma", [1.0, 1.4, 2.5])
def test_the_laplacian_of_a_gaussian(sigma: float) -> None:
    kernel = load_kernel(f"log:{2 * round(5 * sigma) + 1}:{sigma}").values
    assert abs(kernel.sum()) < 1e-12
    assert kernel.argmin() == kernel.size // 2, "negative in the middle, as `laplacian` is"
    np.testing.assert_array_equal(kernel, kernel.T)
    y, x = (np.arange(len(kernel)) - len(kernel) // 2 for _ in range(2))
    bowl = (y[:, None] ** 2 + x**2) / 2
    np.testing.assert_allclose((kernel * bowl).sum(), 2, rtol=2e-3)  # its Laplacian is 2 everywhere
    impulse = np.zeros((41, 41))
    impulse[20, 20] = 1
    theirs = ndimage.gaussian_laplace(impulse, sigma, truncate=8)
    reach = len(kernel) // 2
    np.testing.assert_allclose(
        kernel, theirs[20 - reach : 21 + reach, 20 - reach : 21 + reach], atol=0.02 * -kernel.min()
    )


def test_fractions_and_integers() -> None:
    kernel = load_kernel("1/9 1 / 3; -1/2, +.5e1")
    np.testing.assert_array_equal(kernel.values, [[1 / 9, 1 / 3], [-0.5, 5]])
    assert load_kernel("3000000000").values == 3e9
    assert load_kernel("1 2 3").shape == (1, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("laplacien", ["did you mean 'laplacian'"]),
        ("gausian:5:1", ["did you mean 'gaussian:SIZE:SIGMA'"]),
        ("sobel", ["'sobel-x' and 'sobel-y'"]),
        ("Scharr:3", ["'scharr-x' and 'scharr-y'"]),
        ("mean", ["box:SIZE"]),
        ("median:3", ["no convolution"]),
        ("log", ["log:SIZE:SIGMA"]),
        ("log:1.4", ["'log:13:1.4'"]),
        ("log:5", ["log:SIZE:SIGMA"]),
        ("log:4:1", ["odd"]),
        ("log:5:0", ["SIGMA"]),
        ("log:5:1e-300", ["finite"]),
        ("gaussian:1.4", ["'gaussian:13:1.4'"]),
        ("qqq", ["unknown kernel 'qqq'; known are laplacian", "sobel-x", "box:SIZE"]),
        ("", ["empty"]),
        (" ; ", ["empty"]),
        ("[]", ["empty"]),
        ("1 2 3; 4 5", ["ragged", "row 1 has 3", "row 2 has 2"]),
        ("1 nan; 2 3", ["nan", "row 1, column 2", "finite"]),
        ("1 2; inf 3", ["inf", "row 2, column 1"]),
        ("1 2; 3 1e999", ["inf", "row 2, column 2"]),
        ("1 1/0", ["1/0", "division by zero"]),
        ("1 1/2/3", ["1/2/3"]),
        ("1,,2", ["row 1, column 2"]),
        ("1 2; 3 x", ["row 2, column 2", "'x'"]),
        ("1 2j; 3 4", ["2j", "complex"]),
        ("1 2-; 3 4", ["2-"]),
        ("gaussian", ["gaussian:SIZE:SIGMA"]),
        ("gaussian:5", ["gaussian:SIZE:SIGMA"]),
        ("gaussian:5:0", ["SIGMA", "'0'", "above 0"]),
        ("gaussian:5:-1", ["SIGMA"]),
        ("gaussian:5:nan", ["SIGMA"]),
        ("gaussian:5:x", ["SIGMA", "'x'"]),
        ("gaussian:4:1", ["odd"]),
        ("gaussian:x:1", ["SIZE", "'x'"]),
        ("box", ["box:SIZE"]),
        ("box:0", ["SIZE", "'0'"]),
        ("box:-3", ["SIZE", "'-3'"]),
        ("box:3.5", ["SIZE"]),
        ("box:99999", ["4095"]),
        ("box:3:3", ["box:SIZE"]),
        ("sobel-x:3", ["no arguments"]),
        ("missing/kernel.npy", ["does not exist"]),
        ("kernel.txt", ["does not exist"]),
    ],
)
def test_refusals(text: str, words: list[str]) -> None:
    refused(text, *words)


def test_refused_files(tmp_path: Path) -> None:
    path = tmp_path / "k.npy"
    refused(path, "does not exist")
    refused(str(tmp_path), "folder")
    for array, words in (
        (np.zeros((3, 3), complex), ["complex"]),
        (np.zeros(3), ["shape (3,)"]),
        (np.zeros((3, 3, 3)), ["shape (3, 3, 3)"]),
        (np.zeros((0, 3)), ["empty"]),
        (np.array([[1, np.nan]]), ["nan", "column 2"]),
        (np.array([["a"]]), ["<U1"]),
        (np.zeros((1, 5000)), ["4095"]),
    ):
        np.save(path, array)
        refused(path, *words)
    np.save(path, np.eye(3))
    path.write_bytes(path.read_bytes()[:-8])
    refused(path, "truncated")
    np.save(path, np.array([[object()]]), allow_pickle=True)
    refused(path, "damaged")
    path.write_bytes(b"")
    refused(path, "0 bytes")
    path.write_bytes(b"\xff\xd8\xff\xe0 an image")
    refused(path, "neither .npy nor text")
    path.write_text("1 2\n3 four\n")
    refused(path, "row 2, column 2", "'four'")
    path.write_text("1 2\n3\n")
    refused(path, "ragged")


def test_a_kernel_owns_its_values() -> None:
    values = np.eye(3)
    kernel = Kernel("mine", values)
    values[:] = 7
    np.testing.assert_array_equal(kernel.values, np.eye(3))
    with pytest.raises(KernelError, match=re.escape("shape (3,)")):
        Kernel("mine", np.zeros(3))


matrices = arrays.arrays(
    np.float64,
    arrays.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.floats(allow_nan=False, allow_infinity=False),
)


@settings(deadline=None)
@given(matrices, st.sampled_from([" ", ",", ", ", "  ", "\t"]), st.sampled_from([";", "; ", "\n", " ;\n"]))
def test_matrix_text_round_trip(values: np.ndarray[Any, Any], between: str, row_end: str) -> None:
    text = row_end.join(between.join(repr(float(v)) for v in row) for row in values)
    np.testing.assert_array_equal(load_kernel(text).values, values)
    np.testing.assert_array_equal(load_kernel(str(values.tolist())).values, values)


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_a_kernel_or_a_kernel_error(text: str) -> None:
    try:
        kernel = load_kernel(text)
    except KernelError:
        return
    assert np.isfinite(kernel.values).all()
