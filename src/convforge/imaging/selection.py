"""The part of an image that is wanted of a filter's result: a region of its pixels, and channels, depths and times."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from convforge.imaging.image import ImageError

Pick = int | slice


class SelectionError(ImageError):
    """A selection that the image does not have; the message says what it has."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of the result of a filter of a whole image.

    Channels, depths and times are picked before the filter. The region is a part of the result: at its edge the filter
    reads the image's pixels outside of the region, and the border mode applies only at the edge of the image.

    Parameters
    ----------
    region : (slice, slice), optional
        Rows and columns of the image, without a step. With a stride, the result has those pixels whose centre lies in
        the region.
    channel : int, slice or str, optional
        As in NumPy, an index removes the axis and a slice keeps it. A text is a name that the file gives to a channel,
        else an index or a slice.
    z, time : int or slice, optional
        Of the axes Z and T.

    Examples
    --------
    >>> some = Selection.of(region="100:200,:50", z="3")
    >>> some.rows_columns(512, 512), some.picks({"Z": 9, "Y": 512, "X": 512})
    ((slice(100, 200, None), slice(0, 50, None)), {'Z': 3})
    >>> str(some)
    '--region 100:200,:50 --z 3'
    """

    region: tuple[slice, slice] | None = None
    channel: int | slice | str | None = None
    z: Pick | None = None
    time: Pick | None = None

    @classmethod
    def of(
        cls,
        *,
        region: str | Sequence[slice] | None = None,
        channel: str | SupportsIndex | slice | None = None,
        z: str | SupportsIndex | slice | None = None,
        time: str | SupportsIndex | slice | None = None,
    ) -> Selection | None:
        """Return the selection that texts or values describe, or None without any; ``ValueError`` for nonsense."""
        if region is None and channel is None and z is None and time is None:
            return None
        wanted: int | slice | str | None = None
        if isinstance(channel, str):
            wanted = channel.strip()
            if not wanted:
                raise ValueError("--channel '' names no channel; write an index, a slice such as 0:2, or a name")
            if _number_or_slice(wanted, "--channel") is None and re.fullmatch(r"[\d:\s+-]+", wanted):
                raise ValueError(f"--channel {wanted!r} is no index and no slice; write it like 2, -1 or 0:2")
        elif channel is not None:
            wanted = _pick(channel, "--channel")
        return cls(
            None if region is None else _region(region),
            wanted,
            None if z is None else _pick(z, "--z"),
            None if time is None else _pick(time, "--time"),
        )

    @property
    def has_planes(self) -> bool:
        """True if it picks channels, depths or times."""
        return any(pick is not None for pick in (self.channel, self.z, self.time))

    def rows_columns(self, height: int, width: int) -> tuple[slice, slice]:
        """Return the region's rows and columns as slices with start and stop; ``SelectionError`` if it is empty."""
        if self.region is None:
            return slice(0, height), slice(0, width)
        rows, columns = (range(size)[part] for size, part in zip((height, width), self.region, strict=True))
        if not rows or not columns:
            raise SelectionError(f"{self._said('region')} holds no pixel of the {width} x {height} (rows 0:{height}, "
                                 f"columns 0:{width})")  # fmt: skip
        return slice(rows.start, rows.stop), slice(columns.start, columns.stop)

    def in_result(self, height: int, width: int, stride: tuple[int, int]) -> tuple[slice, slice]:
        """Return the rows and columns of the whole image's result that lie in the region.

        The pixel p of the result has its centre at p * stride.

        Examples
        --------
        >>> Selection.of(region="3:9,:").in_result(12, 7, (2, 1))
        (slice(2, 5, None), slice(0, 7, None))
        """
        parts = self.rows_columns(height, width)
        rows, columns = (slice(-(-p.start // s), -(-p.stop // s)) for p, s in zip(parts, stride, strict=True))
        if rows.start == rows.stop or columns.start == columns.stop:
            raise SelectionError(
                f"{self._said('region')} holds no pixel of the result, which has every {stride[0]}th row and every "
                f"{stride[1]}th column; take a larger region"
            )
        return rows, columns

    def picks(self, sizes: Mapping[str, int], channels: Sequence[str] = ()) -> dict[str, int | range]:
        """Return the indices that it picks, by the letter of the axis: one, or a range that keeps the axis.

        `sizes` are those of the axes by their letters, `channels` names of the channels. Channels are those of C, else
        of S; without such an axis there is one channel. ``SelectionError`` if the image has no such axis or index.
        """
        found: dict[str, int | range] = {}
        for letter, name, pick in (("Z", "z", self.z), ("T", "time", self.time)):
            if pick is None:
                continue
            if letter not in sizes:
                raise SelectionError(
                    f"{self._said(name)} picks from an axis {letter}, and the axes are {''.join(sizes)}; name the axes "
                    "with --axes (axes= in Python)"
                )
            found[letter] = _resolved(pick, sizes[letter], self._said(name), f"along {letter}")
        if self.channel is not None:
            letter = "C" if "C" in sizes else "S"
            channel = self._channel(sizes.get(letter, 1), channels)
            if letter in sizes:
                found[letter] = channel
        return found

    def _channel(self, size: int, names: Sequence[str]) -> int | range:
        said, pick = self._said("channel"), self.channel
        if not isinstance(pick, str):
            assert pick is not None
            return _resolved(pick, size, said, "channels")
        named = [at for at, name in enumerate(names[:size]) if name == pick]
        number = None if named else _number_or_slice(pick, "--channel")
        if number is not None:
            return _resolved(number, size, said, "channels" + (f" ({', '.join(names)})" if names else ""))
        named = named or [at for at, name in enumerate(names[:size]) if name.casefold() == pick.casefold()]
        if len(named) != 1:
            if named:
                raise SelectionError(f"{said} names {len(named)} channels; give the index of one: {named}")
            known = f"the channels are {', '.join(names)}" if names else "the file names no channels"
            raise SelectionError(f"{said} is no channel; {known}, with indices 0 to {size - 1}")
        return named[0]

    def _said(self, name: str) -> str:
        value = getattr(self, name)
        return f"--{name} {','.join(map(_text, value)) if name == 'region' else _text(value)}"

    def __str__(self) -> str:
        given = [name for name in ("region", "channel", "z", "time") if getattr(self, name) is not None]
        return " ".join(map(self._said, given))


def _region(value: str | Sequence[slice]) -> tuple[slice, slice]:
    how = "write rows and columns as slices, like 0:512,1024:2048 or :,-100:"
    parts: list[Any] = (
        [_number_or_slice(part, "--region") for part in value.split(",")] if isinstance(value, str) else list(value)
    )
    if len(parts) != 2 or not all(isinstance(part, slice) for part in parts):
        raise ValueError(f"--region {value!r} is no region; {how}")
    if any(part.step not in (None, 1) for part in parts):
        raise ValueError(f"--region {value!r} has a step; --stride leaves out rows and columns")
    return parts[0], parts[1]


def _pick(value: Any, option: str) -> Pick:
    """Return an index or a slice; ``ValueError`` for another text, ``TypeError`` for another value."""
    if isinstance(value, str):
        pick = _number_or_slice(value, option)
        if pick is None:
            raise ValueError(f"{option} {value!r} is no index and no slice; write it like 3, -1, 2:8 or ::10")
        return pick
    if isinstance(value, slice):
        return _checked(value, option)
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{option.removeprefix('--')}={value!r} must be an integer, a slice or a text") from None


def _number_or_slice(text: str, option: str) -> Pick | None:
    number = r"\s*([+-]?\d{1,18})?\s*"
    match = re.fullmatch(rf"{number}(?:(:){number}(?:(:){number})?)?", text)
    if match is None or not text.strip():
        return None
    start, colon, stop, _, step = match.groups()
    if colon is None:
        return int(start)
    return _checked(slice(*(None if part is None else int(part) for part in (start, stop, step))), option)


def _checked(part: slice, option: str) -> slice:
    if part.step is not None and part.step < 1:
        raise ValueError(f"{option} {_text(part)} has the step {part.step}; a step is at least 1")
    return part


def _resolved(pick: Pick, size: int, said: str, what: str) -> int | range:
    known = f"there are {size} {what}, with indices 0 to {size - 1}"
    if size == 1:
        known = f"there is one {what.replace('channels', 'channel')}, with index 0"
    if isinstance(pick, slice):
        if not (found := range(size)[pick]):
            raise SelectionError(f"{said} is empty; {known}")
        return found
    if not -size <= pick < size:
        raise SelectionError(f"{said} is out of range; {known}")
    return pick % size


def _text(value: Any) -> str:
    if not isinstance(value, slice):
        return str(value)
    parts = [value.start, value.stop] + ([] if value.step is None else [value.step])
    return ":".join("" if part is None else str(part) for part in parts)
