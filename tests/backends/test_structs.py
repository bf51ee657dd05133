"""Structs that kernels are handed, and maps of arrays in them: where they stand, what no GPU takes."""

from __future__ import annotations

import ctypes
import dataclasses
import struct
from typing import Any

import pytest
from tests.backends.im2col_maps import im2col_of

from convforge.backends.architecture import Architecture
from convforge.backends.cuda.driver import without_fault
from convforge.backends.maps import MAP_BYTES, AnyMap, Im2colMap, TiledMap
from convforge.backends.structs import MapField, Template, address_places, struct_with_maps

TILED = TiledMap(1 << 20, "f16", (64, 56, 56, 32), (128, 7168, 401408), (64, 56, 2, 1), swizzle=128)
IM2COL = im2col_of(
    1 << 20, "f16", (64, 56, 54, 32), padding=((1, 2), (3, 1)), taps=(3, 2), channels=64, pixels=128, stride=(2, 1),
    dilation=(1, 2), swizzle=128,
)  # fmt: skip


@pytest.mark.parametrize("text", ["sm_61", "sm_90", "sm_90a", "sm_100f", "sm_120"])
def test_an_architecture_is_its_text(text: str) -> None:
    assert str(Architecture.parse(text)) == text
    assert Architecture.parse(text).number == int(text[3:].rstrip("af"))


@pytest.mark.parametrize("text", ["x86_64", "sm_", "sm_90b", "compute_90", "sm_90 "])
def test_what_is_no_architecture_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must read like sm_90 or sm_90a"):
        Architecture.parse(text)


def test_maps_stand_where_the_accelerator_finds_them() -> None:
    fields = [("count", ctypes.c_int), ("x", MapField), ("w", MapField), ("out", ctypes.c_void_p)]
    kind: Any = struct_with_maps("Several", fields)
    assert (kind.x.offset, kind.w.offset, kind.out.offset, ctypes.sizeof(kind)) == (64, 192, 320, 384)
    assert address_places(kind) == (320,)
    args = kind()
    other = dataclasses.replace(TILED, address=1 << 21)
    args.put_map("x", TILED, b"x" * MAP_BYTES)
    args.put_map("w", other, b"w" * MAP_BYTES)
    assert args.maps == {64: TILED, 192: other}
    assert bytes(args)[64:320] == b"x" * MAP_BYTES + b"w" * MAP_BYTES
    assert not hasattr(kind(), "seen"), "another call's struct has maps of its own"


def test_addresses_of_inner_structs_and_arrays_are_declared_too() -> None:
    inner = type("Inner", (ctypes.Structure,), {"_fields_": [("n", ctypes.c_longlong), ("w", ctypes.c_void_p)]})
    fields = [("first", inner), ("several", ctypes.c_void_p * 2), ("numbers", ctypes.c_longlong * 3), ("last", inner)]
    outer = type("Outer", (ctypes.Structure,), {"_fields_": fields})
    assert address_places(outer) == (8, 16, 24, 64)


def test_an_im2col_map_has_the_corners_of_the_window() -> None:
    """W before H: lower is minus the padding before, upper the padding behind less what the filter reaches further."""
    assert (IM2COL.lower, IM2COL.upper, IM2COL.steps) == ((-1, -3), (0, -1), (1, 2, 1, 1))
    assert IM2COL.strides == (128, 128 * 56, 128 * 56 * 54)
    assert IM2COL.span == 2 * 64 * 56 * 54 * 32
    assert IM2COL.refusal() is None
    assert TILED.refusal() is None


@pytest.mark.parametrize(
    ("seen", "change", "message"),
    [
        (TILED, {"sizes": (1,) * 6}, "an array has one to five axes; got 6"),
        (TILED, {"strides": (128, 7168)}, "strides are one fewer than axes, 3; got 2"),
        (TILED, {"box": (64, 56)}, "a box has as many axes as its array, 4; got 2"),
        (TILED, {"box": (64, 257, 1, 1)}, "a box has 1 to 256 elements along axis 1; got 257"),
        (TILED, {"box": (128, 1, 1, 1)}, "a row of a box has at most the 128 bytes of its swizzle; got 256"),
        (TILED, {"swizzle": 96}, "swizzle=96 must be one of 0, 32, 64, 128"),
        (TILED, {"steps": (1, 9, 1, 1)}, "steps are one number from 1 to 8 for each axis; got 1, 9, 1, 1"),
        (TILED, {"element": "i8"}, "element='i8' is unknown; choose one of u8"),
        (IM2COL, {"sizes": (64, 56), "strides": (128,)}, "an image has three to five axes in im2col mode; got 2"),
        (IM2COL, {"lower": (-1,)}, "lower has one number for each axis of pixels, 2; got 1"),
        (IM2COL, {"upper": (0, -129)}, "upper = 0, -129: a corner lies from -128 to 127"),
        (IM2COL, {"channels": 300}, "a copy brings 1 to 256 channels; got 300"),
        (IM2COL, {"channels": 4}, "a row of a box is a multiple of 16 bytes; got 8"),
        (IM2COL, {"pixels": 1025}, "a copy brings 1 to 1024 pixels; got 1025"),
        (IM2COL, {"address": 24}, "the address 0x18 is no multiple of 16"),
        (IM2COL, {"steps": (1, 2, 1)}, "steps are one number from 1 to 8 for each axis"),
    ],
)
def test_what_no_gpu_takes_is_refused_in_words(seen: AnyMap, change: dict[str, Any], message: str) -> None:
    changed: Any = dataclasses.replace(seen, **change)
    assert (changed.refusal() or "").startswith(message)


def test_three_axes_of_pixels_have_narrower_corners() -> None:
    sizes, padding, taps = (16, 8, 8, 8, 2), ((1, 1),) * 3, (3, 3, 3)
    seen = im2col_of(1 << 20, "f32", sizes, padding=padding, taps=taps, channels=16, pixels=64)
    assert isinstance(seen, Im2colMap)
    assert seen.refusal() is None
    assert (
        dataclasses.replace(seen, lower=(-17, -1, -1)).refusal() == "lower = -17, -1, -1: a corner lies from -16 to 15"
    )


def test_the_fault_of_older_drivers_is_taken_out_of_small_maps_alone() -> None:
    content = struct.pack("<16Q", *(2**64 - 1 for _ in range(16)))
    mended = without_fault(content, 4096, 13000)
    assert [i for i in range(16) if struct.unpack("<16Q", mended)[i] != 2**64 - 1] == [1]
    assert struct.unpack("<16Q", mended)[1] == 2**64 - 1 - 2**21
    assert without_fault(content, 128 << 10, 13000) == content
    assert without_fault(content, 4096, 13020) == content


class Four(ctypes.Structure):
    """Addresses with numbers between them."""

    _fields_ = (("x", ctypes.c_void_p), ("w", ctypes.c_void_p), ("count", ctypes.c_int), ("step", ctypes.c_float),
                ("out", ctypes.c_void_p * 2))  # fmt: skip


@pytest.mark.parametrize(
    "pointers",
    [
        [],
        [(8, 1, 0)],
        [(0, 0, 0), (8, 1, 0)],
        [(32, 0, -16), (0, 1, 0)],
        [(0, 1, 4), (8, 0, 0), (24, 2, 1 << 40), (32, 1, 4)],
    ],
)
def test_a_template_writes_addresses_alone(pointers: list[tuple[int, int, int]]) -> None:
    args = Four(1, 2, 3, 4.5, (5, 6))
    template, places = Template(args, 3, pointers), [1 << 44, 2 << 44, 3 << 44]
    expected = bytearray(bytes(args))
    for at, which, delta in pointers:
        struct.pack_into("P", expected, at, places[which] + delta)
    for _ in range(2):
        copy = template.copy()
        template.write(copy, places)
        assert bytes(copy) == bytes(expected)
    assert bytes(args) == bytes(Four(1, 2, 3, 4.5, (5, 6)))
