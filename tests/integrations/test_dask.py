"""convforge.dask: each result is that of the call on the whole array, and nothing is computed before it is needed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.kinds import module

import convforge
from convforge.problem import PADDING_MODES, Quantization
from convforge.verify import Judge, make_inputs

dask = module("dask")

import dask.array as da  # noqa: E402

import convforge.dask as lazy  # noqa: E402

RNG = np.random.default_rng(5)
PHOTO = RNG.integers(0, 256, (23, 31), np.uint8)
NOISE = RNG.standard_normal((23, 31)).astype(np.float32)
UNEVEN = ((1, 9, 0, 2, 11), (3, 1, 1, 26))
DIAGONAL = np.array([[0, 1, 0, 0], [2, 5, 2, 1], [0, 1, -3, 0]])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return (RNG.standard_normal(shape) * 9).astype(dtype)
    return RNG.integers(np.iinfo(dtype).min // 2, np.iinfo(dtype).max // 2, shape, dtype)


def check_filter(image: np.ndarray, chunks: Any, kernel: Any, **options: Any) -> None:
    same(lazy.filter(da.from_array(image, chunks=chunks), kernel, **options),
         convforge.filter(image, kernel, **options))  # fmt: skip


def check_conv2d(x: np.ndarray, chunks: Any, *operands: Any, **options: Any) -> None:
    same(lazy.conv2d(da.from_array(x, chunks=chunks), *operands, **options), convforge.conv2d(x, *operands, **options))


def same(found: da.Array, expected: np.ndarray) -> None:
    """Fail unless a dask array announces and computes this array, bit for bit."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert type(found._meta) is np.ndarray
    computed = found.compute()
    for index in np.ndindex(found.numblocks):
        sizes = tuple(sizes[i] for sizes, i in zip(found.chunks, index, strict=True))
        assert all(sizes) or 0 in found.shape
    np.testing.assert_array_equal(computed, expected, strict=True)
    assert computed.tobytes() == expected.tobytes()


# The bits of the call on the whole array.


@pytest.mark.parametrize("border", PADDING_MODES)
@pytest.mark.parametrize("kernel", ["laplacian", "gaussian:9:2", DIAGONAL], ids=["direct", "separable", "asymmetric"])
def test_filter_has_the_bits_of_the_whole_image(border: str, kernel: Any) -> None:
    cval = {"cval": 7} if border == "constant" else {}
    check_filter(PHOTO, UNEVEN, kernel, border=border, **cval)
    check_filter(NOISE, (4, 31), kernel, border=border, stride=(2, 3), **cval)


@pytest.mark.parametrize("chunks", [1, (1, -1), (23, 30), -1], ids=str)
@pytest.mark.parametrize("border", ["symmetric", "circular"])
def test_chunks_may_be_smaller_than_the_halo(border: str, chunks: Any) -> None:
    check_filter(NOISE[:7, :9], chunks, "gaussian:9:2", border=border)
    check_filter(NOISE[:7, :9], chunks, "gaussian:13:3", border=border, stride=4)  # wider than the image


@pytest.mark.parametrize("algorithm", ["auto", "direct_naive", "direct_rows", "separable", "depthwise"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int8", "uint16", "int16", "int32", "float16", "float64"])
@pytest.mark.thorough
def test_filter_has_the_bits_for_every_type_and_method(algorithm: str, dtype: str) -> None:
    image = numbers((2, 13, 17, 3), dtype)
    for border in PADDING_MODES:
        for kernel in ("box:3", "gaussian:5:1", "gaussian:9:2", DIAGONAL):
            options: dict[str, Any] = {"border": border, "algorithm": algorithm}
            try:
                convforge.filter(image, kernel, **options)
            except convforge.UnsupportedProblem:
                continue
            check_filter(image, ((1, 1), (1, 7, 5), (2, 15), (1, 2)), kernel, **options)
            check_filter(image, (2, 4, 4, 3), kernel, stride=(1, 2), out_dtype="float32", **options)


@pytest.mark.parametrize(
    ("axes", "shape", "chunks"),
    [
        (None, (12, 11, 3), (5, 4, 2)),
        (None, (3, 12, 11, 2), (2, 5, 11, 1)),
        ("ZYX", (3, 12, 11), (1, 5, 4)),
        ("TCYX", (2, 3, 12, 11), (1, 2, 5, 4)),
        ("CZYX", (3, 2, 12, 11), (2, 1, 5, 4)),
    ],
)
@pytest.mark.parametrize("channels", ["each", "sum"])
def test_axes_are_those_of_filter(axes: str | None, shape: tuple[int, ...], chunks: Any, channels: str) -> None:
    options = {"axes": axes, "channels": channels, "out_dtype": "int16", "algorithm": "direct_naive"}
    check_filter(numbers(shape, "uint8"), chunks, "laplacian", **options)


def test_an_empty_stack_gives_an_empty_stack() -> None:
    check_filter(PHOTO[None, :, :, None][:0], (1, 9, 9, 1), "box:3")
    check_filter(np.zeros((4, 8, 9, 1), np.uint8), ((0, 3, 0, 1), 8, 9, 1), "box:3")


@pytest.mark.parametrize("border", PADDING_MODES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_conv2d_has_the_bits_of_the_whole_array(border: str, layout: str) -> None:
    x, w, bias = numbers((2, 3, 15, 16), "float32"), numbers((4, 3, 3, 2), "float32"), numbers((4,), "float32")
    chunks: tuple[Any, ...] = (1, (1, 2), (1, 6, 8), (3, 2, 11))
    if layout == "NHWC":
        x, chunks = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), (chunks[0], *chunks[2:], chunks[1])
    options: dict[str, Any] = {"padding_mode": border, "layout": layout}
    check_conv2d(x, chunks, w, bias, padding=((2, 0), (1, 3)), activation="relu", **options)
    check_conv2d(x, chunks, w, stride=(2, 3), dilation=(3, 2), padding=((9, 4), (0, 8)), mode="convolution", **options)


def test_a_dense_layer_has_the_bits_of_the_whole_array() -> None:
    x, w = numbers((1, 40, 13, 21), "float32"), numbers((20, 40, 3, 3), "float32")
    check_conv2d(x, (1, (7, 33), (6, 1, 6), 8), w, padding=1)
    check_conv2d(x, (1, 40, 4, 5), w, padding=1, stride=2, algorithm="implicit_gemm")


def test_conv2d_takes_images_without_a_batch_and_without_channels() -> None:
    w = numbers((4, 3, 3, 3), "float32")
    check_conv2d(numbers((3, 9, 8), "float32"), (2, 5, 4), w, padding="same", layout="CHW")
    check_conv2d(numbers((2, 0, 9, 8), "float32"), (1, -1, 5, 4), w[:, :0], w[:, 0, 0, 0].copy(), padding=1)
    check_conv2d(numbers((0, 3, 9, 8), "float32"), (1, 2, 5, 4), w, padding=1)


@pytest.mark.parametrize("algorithm", ["direct_naive", "direct_rows", "separable", "depthwise"])
def test_padding_may_be_wider_than_the_image(algorithm: str) -> None:
    x, w = numbers((1, 2, 5, 6), "float32"), numbers((2, 1, 3, 3), "float32")
    for border in PADDING_MODES:
        check_conv2d(x, (1, 1, 2, (1, 5)), w, padding=((17, 1), (0, 14)), groups=2, padding_mode=border,
                     algorithm=algorithm)  # fmt: skip


def test_channels_whose_chunks_are_groups_are_computed_alone() -> None:
    x, w, bias = numbers((1, 6, 9, 8), "float32"), numbers((6, 2, 3, 3), "float32"), numbers((6,), "float32")
    array = da.from_array(x, chunks=(1, (2, 4), 5, 8))
    y = lazy.conv2d(array, w, bias, groups=3, padding=1)
    assert y.chunks == ((1,), (2, 4), (5, 4), (8,))
    needed = y.__dask_graph__().cull({(y.name, 0, 1, 0, 0)}).to_dict()
    assert {key[2] for key in needed if key[0] == array.name} == {1}
    same(y, convforge.conv2d(x, w, bias, groups=3, padding=1))
    across = lazy.conv2d(da.from_array(x, chunks=(1, 3, 5, 8)), w, bias, groups=3, padding=1)
    assert across.chunks[1] == (6,)
    same(across, convforge.conv2d(x, w, bias, groups=3, padding=1))


def test_conv2d_takes_lazy_weights_and_a_residual() -> None:
    x, w, bias = numbers((2, 3, 9, 8), "float32"), numbers((4, 3, 3, 3), "float32"), numbers((4,), "float32")
    residual = numbers((2, 4, 9, 8), "float32")
    expected = convforge.conv2d(x, w, bias, padding=1, residual=residual)
    found = lazy.conv2d(
        da.from_array(x, chunks=(1, 2, 4, 8)), da.from_array(w, chunks=2), da.from_array(bias, chunks=1), padding=1,
        residual=da.from_array(residual, chunks=3),
    )  # fmt: skip
    same(found, expected)


@pytest.mark.parametrize("output", [None, (0.5, 3)], ids=str)
def test_conv2d_is_quantised(output: Any) -> None:
    x, w = numbers((1, 3, 9, 8), "uint8"), numbers((4, 3, 3, 3), "int8")
    q = Quantization(x=(0.5, 128), w=(np.linspace(0.1, 0.4, 4), 0), output=output)
    bias = np.arange(4, dtype=np.int32)
    for border in ("zeros", "reflect"):
        options = {"quantization": q, "padding_mode": border, "algorithm": "direct_naive"}
        check_conv2d(x, (1, 2, 4, 3), w, bias, padding=((4, 1), (2, 1)), **options)
        # The last chunk has one output, whose window is outside the image.
        check_conv2d(x, (1, 2, (4, 4, 1), 3), w, bias, stride=(6, 1), padding=((2, 9), (0, 1)), **options)


@pytest.mark.parametrize("algorithm", ["fft", "im2col", "winograd_f4"])
def test_other_methods_keep_their_error_bound(algorithm: str) -> None:
    problem = convforge.parse_problem("n1c2h40w33_k3r3s3_p1_f32_nchw")
    inputs = make_inputs(problem, "normal")
    y = lazy.conv2d(da.from_array(inputs.x, chunks=(1, 2, 11, 9)), inputs.w, padding=1, algorithm=algorithm)
    precision = next(a.precision for a in convforge.algorithms(problem) if a.name == algorithm)
    verdict = Judge(problem, inputs).verdict(precision, y.compute())
    assert verdict.ok, verdict.message


def test_kernels_of_gpus_give_the_bits_of_the_whole_image() -> None:
    check_filter(PHOTO[:9, :9], (4, 5), "laplacian", device="emulator", algorithm="direct_naive", border="circular")


# What a call does, and does not do.


def test_a_call_computes_nothing_and_a_chunk_only_what_it_needs() -> None:
    computed = []

    def block(block_id: tuple[int, int]) -> np.ndarray:
        computed.append(block_id)
        return np.full((10, 10), block_id[0] * 5 + block_id[1], np.float32)

    image = da.map_blocks(block, chunks=((10,) * 5, (10,) * 5), dtype=np.float32, meta=np.empty((0, 0), np.float32))
    y = lazy.filter(image, "box:3", border="circular")
    assert computed == []
    assert y.dtype == np.float32
    assert computed == []
    y.blocks[2, 0].compute()
    assert sorted(computed) == [(i, j) for i in (1, 2, 3) for j in (0, 1, 4)]


def test_there_is_one_task_for_each_output_chunk() -> None:
    image = da.from_array(PHOTO, chunks=(5, 7))
    y = lazy.filter(image, "gaussian:9:2")
    layers = y.__dask_graph__().layers
    added = {key for name, layer in layers.items() if name not in image.__dask_graph__().layers for key in layer}
    assert sum(isinstance(key, tuple) for key in added) == image.npartitions == y.npartitions
    assert len(added) == y.npartitions + 1, "and the kernel once"


def test_equal_calls_have_equal_names_and_others_do_not() -> None:
    image = da.from_array(PHOTO, chunks=(5, 7))
    names = {
        lazy.filter(image, "box:3").name, lazy.filter(image, "box:5").name,
        lazy.filter(image, "box:3", border="zeros").name, lazy.filter(image, "box:3", algorithm="direct_naive").name,
        lazy.filter(image.rechunk(9), "box:3").name, lazy.filter(image + 1, "box:3").name,
    }  # fmt: skip
    assert len(names) == 6
    assert lazy.filter(image, "box:3").name in names
    x, w = da.ones((1, 2, 8, 8), chunks=4), np.ones((1, 2, 3, 3))
    assert lazy.conv2d(x, w).name == lazy.conv2d(x, w.copy()).name != lazy.conv2d(x, w + 1).name


def test_the_caller_may_change_the_kernel_afterwards() -> None:
    kernel, w = np.ones((3, 3), np.float32), np.ones((1, 1, 3, 3), np.float32)
    y = lazy.filter(da.from_array(NOISE, chunks=9), kernel)
    z = lazy.conv2d(da.from_array(NOISE[None, None], chunks=9), w)
    kernel[:] = w[:] = 5
    same(y, convforge.filter(NOISE, np.ones((3, 3), np.float32)))
    same(z, convforge.conv2d(NOISE[None, None], np.ones((1, 1, 3, 3), np.float32)))


def test_a_graph_pickles() -> None:
    y = lazy.filter(da.from_array(PHOTO, chunks=(5, 7)), "laplacian", out_dtype="int16")
    z = lazy.conv2d(da.from_array(NOISE[None, None], chunks=9), np.ones((2, 1, 3, 3), np.float32), activation="relu")
    for one in (y, z):
        same(pickle.loads(pickle.dumps(one)), one.compute())


def test_the_method_is_that_of_the_whole_image(monkeypatch: pytest.MonkeyPatch) -> None:
    x = da.from_array(numbers((1, 2, 12, 12), "float32"), chunks=(1, 1, 5, 5))
    w = numbers((2, 1, 3, 3), "float32")
    used = set()
    original = lazy.convolve

    def watched(*arrays: Any, **options: Any) -> Any:
        used.add((options["algorithm"], options["config"]))
        return original(*arrays, **options)

    monkeypatch.setattr(lazy, "convolve", watched)
    lazy.conv2d(x, w, groups=2).compute()
    assert len(used) == 1
    assert next(iter(used))[0] == "depthwise"
    used.clear()
    lazy.conv2d(x, w, groups=2, algorithm="direct_rows", config="tile_p=3").compute()
    assert used == {("direct_rows", "tile_p=3,tile_c=1,tile_k=1")}


def test_a_chunk_too_small_for_the_config_uses_the_default() -> None:
    x, w = numbers((1, 40, 40, 3), "float32"), numbers((3, 1, 3, 3), "float32")
    options: dict[str, Any] = {"layout": "NHWC", "groups": 3, "padding": 1, "algorithm": "depthwise"}
    y = lazy.conv2d(da.from_array(x, chunks=(1, 40, (39, 1), 3)), w, config="along=pixels", **options)
    same(y, convforge.conv2d(x, w, config="along=pixels", **options))


# Mistakes, reported at the call.

IMAGE = da.zeros((20, 30), chunks=10, dtype=np.uint8)
X, W = da.zeros((1, 3, 20, 30), chunks=(1, 1, 10, 10), dtype=np.float32), np.zeros((4, 3, 3, 3), np.float32)

SCALES = Quantization((1.0, 0), (1.0, 0))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: lazy.filter(PHOTO, "box:3"), TypeError, "image must be a dask array; got ndarray: call convforge"),
        (lambda: lazy.filter(IMAGE, "bax:3"), ValueError, "bax"),
        (lambda: lazy.filter(IMAGE, np.ones(3)), ValueError, r"the kernel has shape \(3,\)"),
        (lambda: lazy.filter(IMAGE[0], "box:3"), ValueError, r"image has 1 axes, shape \(30,\)"),
        (lambda: lazy.filter(IMAGE, "box:3", axes="ZYX"), ValueError, "axes 'ZYX' name 3 axes, and the array has 2"),
        (lambda: lazy.filter(IMAGE, "box:3", border="wrop"), ValueError, "border='wrop' is unknown; did you mean"),
        (lambda: lazy.filter(IMAGE, "box:3", depth=3), TypeError, "dask.filter has no argument 'depth': a chunk reads"),
        (lambda: lazy.filter(IMAGE, "box:3", sigma=3), TypeError, "dask.filter has no argument 'sigma': the kernel"),
        (lambda: lazy.filter(IMAGE, "box:3", algorithm="direkt"), ValueError, "conv2d has no algorithm 'direkt'"),
        (lambda: lazy.filter(IMAGE, "box:3", algorithm="winograd_f4", stride=2), ValueError, "winograd_f4: "),
        (lambda: lazy.filter(IMAGE, "box:3", device="gpu"), ValueError, "device='gpu' is unknown"),
        (lambda: lazy.filter(IMAGE.astype("int64"), "box:3"), TypeError, "image has dtype int64"),
        (lambda: lazy.filter(IMAGE[IMAGE[:, 0] > 1], "box:3"), ValueError, r"call image.compute_chunk_sizes\(\) first"),
        (lambda: lazy.filter(da.ma.masked_equal(IMAGE, 1), "box:3"), TypeError, "image is a masked array"),
        (lambda: lazy.conv2d(W, W), TypeError, "x must be a dask array; got ndarray"),
        (lambda: lazy.conv2d(X, W[:, :2]), ValueError, r"w has 2 channels \(shape \(4, 2, 3, 3\).*x has 3 channels"),
        (lambda: lazy.conv2d(X, W[0]), ValueError, r"w has 3 axes, shape \(3, 3, 3\)"),
        (lambda: lazy.conv2d(X, da.zeros((4, 3, 3))), ValueError, r"w has 3 axes, shape \(4, 3, 3\)"),
        (lambda: lazy.conv2d(X, W, W[0, 0, 0]), ValueError, r"bias has shape \(3,\); there are 4 output channels"),
        (lambda: lazy.conv2d(X, W.astype("f8")), ValueError, "w is float64 and x is float32; cast one of them"),
        (lambda: lazy.conv2d(X, W, residual=W), TypeError, "residual must be a dask array; got ndarray"),
        (lambda: lazy.conv2d(X, W, residual=X), ValueError, r"residual has shape \(1, 3, 20, 30\); the result has"),
        (lambda: lazy.conv2d(X, W, out=W), TypeError, "dask.conv2d has no argument 'out': the result is a new dask"),
        (lambda: lazy.conv2d(X, W, tune=True), TypeError, "dask.conv2d has no argument 'tune': nothing is measured"),
        (lambda: lazy.conv2d(X, W, algorithm="depthwise"), ValueError, "depthwise: "),
        (lambda: lazy.conv2d(X, W, config="tile_p=2"), ValueError, "config=tile_p=2 goes with an algorithm asked for"),
        (lambda: lazy.conv2d(X[:, :, :0], W, padding=3), ValueError, "h=0"),
        (lambda: lazy.conv2d(X[:0, :, :0], W, padding=3), ValueError, "h=0 and w=30: each must be at least 1"),
        (lambda: lazy.conv2d(X.astype("u1"), da.zeros((4, 3, 3, 3), dtype="i1"), quantization=SCALES), TypeError,
         r"w is a dask array, and quantization reads its values: pass w.compute\(\)"),
    ],
)  # fmt: skip
def test_a_mistake_is_explained_at_the_call(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_a_method_that_refuses_a_chunk_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.algorithms.direct import DirectRows
    from convforge.errors import Reason

    def refuses(self: Any, problem: Any, facts: Any) -> Reason | None:
        return Reason("it takes no single column") if problem.w == 1 else None

    monkeypatch.setattr(DirectRows, "refuses", refuses)
    image = da.from_array(NOISE[:8], chunks=((8,), (30, 1)))
    box = np.full((1, 1), 3.0)
    same(lazy.filter(image, box), convforge.filter(NOISE[:8], box))
    with pytest.raises(convforge.UnsupportedProblem, match=r"the chunk n1c1h8w1_k1r1s1.*\n.*it takes no single column"):
        lazy.filter(image, box, algorithm="direct_rows")


def test_without_dask_the_module_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['dask'] = None; import convforge; convforge.conv2d; convforge.dask"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: convforge.dask needs dask, which is not installed. Install it with: "
        "python -m pip install 'convforge[dask]'"
    )
