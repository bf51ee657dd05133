"""Changes of intact files: bytes anywhere, and values of the metadata of each format."""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

NUMBERS = (0, 1, 2, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, -1)
VALUES: tuple[Any, ...] = (
    *NUMBERS, 1.5, 1e308, "", "x", "../..", "/etc", None, True, [], {}, [[1]], {"a": 1}, "NaN", [2**40] * 2,
)  # fmt: skip
# Texts in the place of a value of XML or of a header.
WORDS = ("0", "-1", "1", "2", "7", "99999", "4294967296", "1e999", "nan", "", "x", "../../etc/passwd", "&#0;", "µm",
         "9" * 400, "-9223372036854775808", "&e9;")  # fmt: skip


# Entities that become a gigabyte, and one that names a file.
ENTITIES = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
BOMBS = (f'<!DOCTYPE x [<!ENTITY e0 "lol">{ENTITIES}]>', '<!DOCTYPE x [<!ENTITY e9 SYSTEM "file:///etc/passwd">]>')


def mutate(seed: Path, place: Path, chance: random.Random) -> None:
    """Write a changed copy of a file or folder."""
    if seed.is_dir():
        _mutate_folder(seed, place, chance)
        return
    data = seed.read_bytes()
    kinds: dict[str, Callable[[bytes, random.Random], bytes]] = {".png": changed_png, ".npy": changed_npy}
    kind = kinds.get(seed.suffix, changed_tiff)
    place.write_bytes((kind if chance.random() < 0.75 else changed_bytes)(data, chance))


def _mutate_folder(seed: Path, place: Path, chance: random.Random) -> None:
    shutil.copytree(seed, place)
    files = sorted(path for path in place.rglob("*") if path.is_file())
    texts = [path for path in files if path.suffix == ".json" or path.name.startswith(".z")]
    for _ in range(chance.choice((1, 1, 2, 3))):
        path = chance.choice(texts if texts and chance.random() < 0.7 else files)
        if not path.exists():
            continue
        if not texts and chance.random() < 0.9:  # a folder of slices
            mutate(seed / path.relative_to(place), path, chance)
            continue
        if path in texts and chance.random() < 0.9:
            try:
                path.write_text(json.dumps(changed_json(json.loads(path.read_text()), chance)), encoding="utf-8")
            except ValueError:
                path.write_bytes(changed_bytes(path.read_bytes(), chance))
        elif chance.random() < 0.1:
            path.unlink()
        else:
            change = chance.choice((changed_bytes, changed_index))
            path.write_bytes(change(path.read_bytes(), chance))


def changed_index(data: bytes, chance: random.Random) -> bytes:
    """Change a position or a size in the index of a shard, which is at its end, or in the header of a blosc chunk."""
    out, last = bytearray(data), len(data) // 8
    if not last:
        return data
    at, form = len(data) - 8 * chance.randrange(1, min(last, 9) + 1), "<Q"
    if chance.random() < 0.3:
        at, form = chance.choice((4, 8, 12)), "<I"
    size = struct.calcsize(form)
    if at + size <= len(out):
        (old,) = struct.unpack_from(form, out, at)
        new = chance.choice((old + 1, 2 * old, len(data), chance.randrange(len(data)), *NUMBERS))
        struct.pack_into(form, out, at, new % 2 ** (8 * size))
    return bytes(out)


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """Change bytes, most of them in the first part of a file, where its header is."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        if not out:
            break
        at = chance.randrange(min(len(out), chance.choice((16, 128, 1024, len(out)))))
        kind = chance.randrange(6)
        if kind == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            out[at] = chance.randrange(256)
        elif kind == 2:
            form = chance.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
            size = struct.calcsize(form)
            out[at : at + size] = struct.pack(form, chance.choice(NUMBERS) % 2 ** (8 * size))
        elif kind == 3:
            del out[at : at + chance.choice((1, 4, 64, len(out)))]
        elif kind == 4:
            out[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 64))))
        else:
            other = chance.randrange(len(out))
            out[at : at + 12] = out[other : other + 12]
    return bytes(out)


def changed_png(data: bytes, chance: random.Random) -> bytes:
    """Change bytes of a PNG, or its pixels before they are packed; the check sums are made true again."""
    if chance.random() < 0.7:
        return with_sums(changed_bytes(data, chance))
    at = data.index(b"IDAT")
    (size,) = struct.unpack_from(">I", data, at - 4)
    rows = zlib.compress(changed_bytes(zlib.decompress(data[at + 4 : at + 4 + size]), chance))
    return with_sums(data[: at - 4] + struct.pack(">I", len(rows)) + b"IDAT" + rows + data[at + 4 + size :])


def with_sums(data: bytes) -> bytes:
    """Return a PNG whose chunks have true check sums, so that the decoder reads what was changed."""
    out, at = bytearray(data), 8
    while at + 12 <= len(out):
        size = struct.unpack_from(">I", out, at)[0]
        end = at + 8 + size
        if end + 4 > len(out):
            break
        struct.pack_into(">I", out, end, zlib.crc32(out[at + 4 : end]))
        at = end + 4
    return bytes(out)


def changed_npy(data: bytes, chance: random.Random) -> bytes:
    """Change a value of the header of a `.npy` file, whose length stays true."""
    (size,) = struct.unpack_from("<H", data, 8)
    header = data[10 : 10 + size].decode("latin-1")
    values = [*re.finditer(r"\d+|True|False|'[^']*'", header)]
    for found in sorted(chance.sample(values, chance.choice((1, 1, 2))), key=lambda found: -found.start()):
        new = chance.choice((*WORDS, "'<f8'", "'>u2'", "'|O'", "True", "(1,)", str(chance.randrange(200))))
        header = header[: found.start()] + new + header[found.end() :]
    raw = header.encode("utf-8")[: 2**16 - 1]
    return data[:8] + struct.pack("<H", len(raw)) + raw + data[10 + size :]


def changed_tiff(data: bytes, chance: random.Random) -> bytes:
    """Change a TIFF's entries of directories, the values that they point to, or its description."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        order = "<" if out[:2] == b"II" else ">"
        big = struct.unpack_from(f"{order}H", out, 2)[0] == 43
        found = list(_entries(bytes(out), order, big=big))
        if not found:
            return changed_bytes(bytes(out), chance)
        at, code, kind, count = chance.choice(found)
        number, wide = f"{order}{'Q' if big else 'I'}", 8 if big else 4
        inline = _SIZES.get(kind, 1) * count <= wide
        texts = [entry for entry in found if entry[1] == 270 and entry[3] > wide]
        choice = chance.randrange(7)
        if choice == 0 and texts:  # a new description behind the end
            at, _, _, count = chance.choice(texts)
            (where,) = struct.unpack_from(number, out, at + 4 + wide)
            text = changed_text(out[where : where + count].rstrip(b"\0").decode("utf-8", "replace"), chance).encode()
            struct.pack_into(number, out, at + 4, len(text) + 1)
            struct.pack_into(number, out, at + 4 + wide, len(out))
            out += text + b"\0"
        elif choice == 1:  # another tag, or another field type
            struct.pack_into(
                f"{order}H", out, at + chance.choice((0, 2)), chance.choice((chance.randrange(20), code + 1))
            )
        elif choice == 2:
            new = chance.choice((0, 1, count + 1, max(count - 1, 0), 2 * count, *NUMBERS))
            struct.pack_into(number, out, at + 4, new % 2 ** (8 * wide))
        elif choice == 3 and not inline:  # a value elsewhere in the file
            (where,) = struct.unpack_from(number, out, at + 4 + wide)
            _put(out, where + _SIZES.get(kind, 1) * chance.randrange(count), kind, order, chance)
        elif choice == 4 and not inline:  # the place of the values
            new = chance.choice((len(out), chance.randrange(len(out)), *NUMBERS))
            struct.pack_into(number, out, at + 4 + wide, new % 2 ** (8 * wide))
        else:
            _put(out, at + 4 + wide, kind if inline else 16 if big else 4, order, chance)
    return bytes(out)


_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_FORMS = {1: "B", 2: "B", 3: "H", 4: "I", 16: "Q", 18: "Q"}


def _put(out: bytearray, at: int, kind: int, order: str, chance: random.Random) -> None:
    form = f"{order}{_FORMS.get(kind, 'I')}"
    size = struct.calcsize(form)
    if at + size > len(out):
        return
    (old,) = struct.unpack_from(form, out, at)
    new = chance.choice((old + 1, old - 1, 2 * old, old // 2, -old, chance.randrange(70000), *NUMBERS))
    struct.pack_into(form, out, at, new % 2 ** (8 * size))


def _entries(data: bytes, order: str, *, big: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield position, tag, field type and number of values of the entries of all directories, SubIFDs included."""
    count, number, wide = (f"{order}Q", f"{order}Q", 8) if big else (f"{order}H", f"{order}I", 4)
    left, seen = [struct.unpack_from(number, data, wide if wide == 8 else 4)[0]], set[int]()
    while left:
        at = left.pop()
        if not 8 <= at < len(data) - 8 or at in seen:
            continue
        seen.add(at)
        (entries,) = struct.unpack_from(count, data, at)
        first, step = at + struct.calcsize(count), 4 + 2 * wide
        if entries > 100 or first + entries * step + wide > len(data):
            continue
        for place in range(first, first + entries * step, step):
            code, kind = struct.unpack_from(f"{order}HH", data, place)
            (values,) = struct.unpack_from(number, data, place + 4)
            yield place, code, kind, values
            if code == 330 and values == 1:
                left.append(struct.unpack_from(number, data, place + 4 + wide)[0])
        left.append(struct.unpack_from(number, data, first + entries * step)[0])


def changed_text(text: str, chance: random.Random) -> str:
    """Change a description: a value of JSON, of an attribute of XML, of a line, or any part of it."""
    if chance.random() < 0.15:
        return changed_bytes(text.encode(), chance).decode("utf-8", "replace")
    if text.startswith("<") and chance.random() < 0.1:  # entities in the place of a value
        head = re.match(r"<\?xml[^>]*\?>\s*", text)
        at = head.end() if head else 0
        return text[:at] + chance.choice(BOMBS) + re.sub(r'(?<=")[^"<>]+(?="/?>)', "&e9;", text[at:], count=1)
    if text.startswith("{"):
        with suppress(ValueError):  # it was changed before
            return json.dumps(changed_json(json.loads(text), chance))
    values = [*re.finditer(r'(?<=")[^"<>]*(?=")|(?<==)[^"\n]+', text)]
    if not values:
        return changed_bytes(text.encode(), chance).decode("utf-8", "replace")
    found = chance.choice(values)
    if chance.random() < 0.15:  # an attribute or a line is lost
        return text[: found.start()] + text[found.end() :]
    if chance.random() < 0.1:  # an element occurs again
        elements = [*re.finditer(r"<(\w+)[^<>]*/>", text)]
        if elements:
            again = chance.choice(elements)
            return text[: again.end()] + again.group() * chance.choice((1, 3)) + text[again.end() :]
    return text[: found.start()] + chance.choice((*WORDS, str(chance.randrange(200)))) + text[found.end() :]


def changed_json(value: Any, chance: random.Random) -> Any:
    """Replace, remove or repeat a part of a value; numbers are often replaced by near ones."""
    places = list(_places(value))
    if not places:
        return chance.choice(VALUES)
    holder, key = chance.choice(places)
    kind, old = chance.randrange(6), holder[key]
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.append(old)
    elif kind in (2, 3) and isinstance(old, int | float) and not isinstance(old, bool):
        holder[key] = chance.choice((old + 1, old - 1, 2 * old, -old, old / 2, old // 2, chance.randrange(200)))
    elif kind == 4 and isinstance(old, str):
        others = [found[name] for found, name in places if isinstance(found[name], str)]
        holder[key] = chance.choice((*others, old[:-1], old.upper(), "0", "uint16", "float64", "y", "t"))
    else:
        holder[key] = chance.choice(VALUES)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield value, key
        yield from _places(part)
