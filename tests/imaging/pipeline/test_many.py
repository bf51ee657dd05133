"""filter_many: bit for bit what filter gives, in order, few images at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convforge
from convforge.algorithms.contract import Plan
from convforge.backends.emulator import why_absent
from convforge.imaging.files import Image, ImageError, read_image, write_image

RANDOM = np.random.default_rng(31)
DEVICES = [
    "cpu",
    pytest.param("emulator", marks=pytest.mark.skipif(why_absent() is not None, reason=str(why_absent()))),
]


def made_images() -> list[Any]:
    """Arrays of several sizes, types and numbers of axes; some alike."""
    pixels = RANDOM.integers(0, 256, (30, 41, 3), dtype=np.uint8)
    return [
        pixels,
        pixels[::-1],
        pixels[:17, ::2],
        RANDOM.random((25, 19)).astype(np.float32),
        np.stack([pixels, pixels // 2]),
        RANDOM.integers(0, 2**16, (12, 33, 1), dtype=np.uint16),
        pixels // 3,
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "kernel, options",
    [
        ("laplacian", {"algorithm": "direct_naive"}),
        ("gaussian:7:1.5", {"border": "circular", "stride": (2, 3), "algorithm": "direct_naive"}),
        (
            "sobel-x",
            {
                "channels": "sum",
                "out_dtype": np.float32,
                "border": "constant",
                "cval": 3.0,
                "algorithm": "direct_naive",
            },
        ),
    ],
)
def test_each_is_what_filter_gives_for_it_alone(device: str, kernel: str, options: dict[str, Any]) -> None:
    images = made_images()
    found = list(convforge.filter_many(iter(images), kernel, device=device, workers=3, **options))
    assert len(found) == len(images)
    for image, result in zip(images, found, strict=True):
        expected = convforge.filter(image, kernel, device=device, **options)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected, strict=True)


@pytest.mark.parametrize("device", DEVICES)
def test_files_and_arrays_may_be_mixed(tmp_path: Path, device: str) -> None:
    image, pages = made_images()[0], made_images()[4][..., 0]
    write_image(tmp_path / "a.png", Image(image, alpha=image[..., 0]))
    write_image(tmp_path / "b.tif", Image(pages, pages=True))
    several = [tmp_path / "a.png", image, str(tmp_path / "b.tif")]
    found = list(convforge.filter_many(several, "sharpen", device=device, algorithm="direct_naive"))
    expected = convforge.filter(image, "sharpen", device=device, algorithm="direct_naive")
    np.testing.assert_array_equal(found[0], expected, strict=True)
    np.testing.assert_array_equal(found[1], expected, strict=True)
    gray = convforge.filter(pages[..., None], "sharpen", device=device, algorithm="direct_naive")[..., 0]
    np.testing.assert_array_equal(found[2], gray, strict=True)
    assert found[2].shape == read_image(tmp_path / "b.tif").pixels.shape
    summed = list(
        convforge.filter_many([tmp_path / "b.tif"], "sharpen", device=device, channels="sum", algorithm="direct_naive")
    )
    np.testing.assert_array_equal(summed[0], gray, strict=True)


@pytest.mark.parametrize("device", DEVICES)
def test_images_of_a_kind_share_one_prepared_filter(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    prepare = Plan.prepare

    def watched(self: Plan, *words: Any) -> Any:
        made.append(str(self.problem))
        return prepare(self, *words)

    monkeypatch.setattr(Plan, "prepare", watched)
    images = [RANDOM.random((20, 20 + 10 * (i % 2))).astype(np.float32) for i in range(10)]
    list(convforge.filter_many(images, "laplacian", device=device))
    assert sorted(set(made)) == sorted(made), "one kind was prepared twice"
    assert len(made) == 2


def test_images_are_drawn_as_results_are_taken() -> None:
    drawn = 0

    def endless() -> Iterator[Any]:
        nonlocal drawn
        while True:
            drawn += 1
            yield np.full((6, 7), drawn, np.int32)

    results = convforge.filter_many(endless(), "identity", workers=2, algorithm="direct_naive")
    assert drawn == 0, "nothing begins before the first result is asked for"
    for turn in range(1, 20):
        assert int(next(results).max()) == turn
        assert drawn - turn <= 2 * 2 + 3
    results.close()  # type: ignore[attr-defined]


def test_a_failure_is_raised_in_its_place_or_given_there(tmp_path: Path) -> None:
    image = made_images()[0]
    (tmp_path / "bad.png").write_bytes(b"")
    several: list[Any] = [image, tmp_path / "bad.png", image.astype(np.uint64), image]
    results = convforge.filter_many(several, "box:3", algorithm="direct_naive")
    assert next(results).shape == image.shape
    with pytest.raises(ImageError, match="0 bytes"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    found = list(convforge.filter_many(several, "box:3", return_exceptions=True, algorithm="direct_naive"))
    assert isinstance(found[1], ImageError)
    assert isinstance(found[2], TypeError)
    assert "uint64" in str(found[2])
    np.testing.assert_array_equal(found[3], convforge.filter(image, "box:3", algorithm="direct_naive"))


def test_an_iterable_that_fails_is_heard() -> None:
    def frames() -> Iterator[Any]:
        yield np.ones((4, 5))
        raise RuntimeError("the camera is gone")

    with pytest.raises(RuntimeError, match="camera"):
        list(convforge.filter_many(frames(), "box:3", return_exceptions=True, algorithm="direct_naive"))


@pytest.mark.parametrize(
    "options, error, says",
    [
        ({"kernel": "lapacian"}, ValueError, "did you mean 'laplacian'"),
        ({"channels": "all"}, ValueError, "'all'"),
        ({"border": "mirrorr"}, ValueError, "'mirrorr'"),
        ({"anchor": (0, 0)}, TypeError, "filter_many has no argument 'anchor'"),
        ({"cval": 2.0}, ValueError, "cval=2.0"),
        ({"stride": 0}, ValueError, "stride"),
        ({"out_dtype": "complex64"}, TypeError, "complex64"),
        ({"algorithm": "direct_row"}, ValueError, "direct_rows"),
        ({"device": "tpu"}, ValueError, "tpu"),
        ({"workers": 0}, ValueError, "workers=0"),
        ({"workers": 1.5}, TypeError, "workers=1.5"),
        ({"images": "photo.png"}, TypeError, "['photo.png']"),
    ],
)
def test_bad_use_is_refused_before_anything_begins(options: dict[str, Any], error: type[Exception], says: str) -> None:
    words: dict[str, Any] = {"images": [np.ones((4, 5))], "kernel": "box:3", **options}
    with pytest.raises(error, match=says.replace("[", r"\[").replace("]", r"\]")):
        convforge.filter_many(**words)


def test_no_images_give_no_results() -> None:
    assert list(convforge.filter_many([], "box:3")) == []
