"""Tests depend on no machine: nothing is measured unasked, and the user's stored choices are not used.

The garbage collector runs rarely.
"""

from __future__ import annotations

import gc
import re
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest

from convforge.tuning import CHOICES

# Objects made before a collection of the youngest, and collections before one of the next generation: by default 700,
# 10 and 10. Numba makes millions of objects for a kernel, nearly all of which live until it is compiled.
THRESHOLDS = (100_000, 20, 50)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--part 2/3``: of what is thorough, what belongs to the second of three parts."""
    parser.addoption("--part", metavar="I/N", help="run the I-th of N parts of the thorough tests")


@pytest.hookimpl(tryfirst=True)  # before `-m thorough` is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test that is marked ``one_in(n)`` all but every n-th set of parameters are thorough; keep one part."""
    seen: Counter[str] = Counter()
    for item in items:
        if (mark := item.get_closest_marker("one_in")) is not None:
            test = item.nodeid.partition("[")[0]
            if seen[test] % mark.args[0]:
                item.add_marker("thorough")
            seen[test] += 1
    if (part := config.getoption("part")) is not None:
        keep_part(config, items, part)


def keep_part(config: pytest.Config, items: list[pytest.Item], part: str) -> None:
    """Deselect the thorough tests of other parts, to which the digests of their names send them."""
    if (form := re.fullmatch(r"(\d+)/(\d+)", part)) is None or not 1 <= int(form[1]) <= int(form[2]):
        raise pytest.UsageError(f"--part {part} must be I/N with I from 1 to N, such as 2/3")
    which, parts = int(form[1]) - 1, int(form[2])
    kept, others = [], []
    for item in items:
        later = item.get_closest_marker("thorough") is not None
        mine = not later or zlib.crc32(item.nodeid.encode()) % parts == which
        (kept if mine else others).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=others)


def pytest_collection_finish() -> None:
    """Tests by the thousand live until the end: what is there now is looked at once, and never again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


@pytest.fixture(scope="session", autouse=True)
def untuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No tuned choices but those of the session's own, and no tuning on a GPU unless a test asks for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CHOICES, "folder", tmp_path_factory.mktemp("tuned"))
        patch.setenv("CONVFORGE_TUNE", "0")
        for name in ("CONVFORGE_TUNED", "CONVFORGE_PEERS"):
            patch.delenv(name, raising=False)
        CHOICES.forget()
        yield
    CHOICES.forget()
