"""Warnings of tifffile: in the notes of a file that is read in windows, and not on standard error."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import tifffile

from convforge.imaging.windowed import open_windows
from convforge.imaging.windowed.tiff import source_notes

PIXELS = np.arange(40 * 56, dtype=np.uint16).reshape(40, 56)

READ = """
import sys
from pathlib import Path
from convforge.imaging.files import declared_of, header_of, read_image
from convforge.imaging.windowed import open_windows
path = Path(sys.argv[1])
print(header_of(path), declared_of(path), read_image(path).pixels.shape)
print(open_windows(path).warnings)
"""


def strange(path: Path) -> Path:
    """A TIFF with a private tag of an unknown field type, which tifffile leaves out with a warning."""
    tifffile.imwrite(path, PIXELS, metadata=None, software=False, extratags=[(65123, 3, 1, 7, True)])
    with tifffile.TiffFile(path) as file:
        at = file.pages.first.tags[65123].offset
    with path.open("r+b") as raw:
        raw.seek(at + 2)
        raw.write(struct.pack("<H", 99))
    return path


def test_warnings_of_tifffile_are_reported(tmp_path: Path) -> None:
    path = strange(tmp_path / "a.tif")
    reader = open_windows(path)
    (note,) = source_notes(reader)
    assert note.startswith(f"{path}: tifffile says: ")
    np.testing.assert_array_equal(reader.read((slice(0, 40), slice(0, 56))), PIXELS)


def test_nothing_reaches_standard_error(tmp_path: Path) -> None:
    path = strange(tmp_path / "a.tif")
    ran = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert "99" in ran.stdout.splitlines()[-1]
