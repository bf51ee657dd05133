"""Settings of all tests: no tuning unless a test requests it, no stored choices of the user, rare garbage collection.

``--part`` selects a part of the thorough tests, for machines that share them.
"""

from __future__ import annotations

import gc
import re
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest

from convforge.tuning import CHOICES

# Arguments of gc.set_threshold, by default 700, 10 and 10. Numba makes millions of objects to compile a kernel, and
# nearly all of them live until the end of the compilation, so frequent collections only cost time.
THRESHOLDS = (100_000, 20, 50)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--part``: ``--part 2/3`` runs the second of three parts of the thorough tests."""
    parser.addoption("--part", metavar="I/N", help="run the I-th of N parts of the thorough tests")


@pytest.hookimpl(tryfirst=True)  # before pytest applies `-m thorough`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark all but every n-th parameter set of a test marked ``one_in(n)`` as thorough; then select ``--part``."""
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
    """Deselect the thorough tests of other parts; the CRC-32 of a test's name determines its part."""
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
    """Exclude the collected tests, thousands of objects that live until the end, from later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


@pytest.fixture(scope="session", autouse=True)
def untuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use an empty folder for tuned choices, and disable tuning on a GPU unless a test enables it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CHOICES, "folder", tmp_path_factory.mktemp("tuned"))
        patch.setenv("CONVFORGE_TUNE", "0")
        for name in ("CONVFORGE_TUNED", "CONVFORGE_PEERS"):
            patch.delenv(name, raising=False)
        CHOICES.forget()
        yield
    CHOICES.forget()
