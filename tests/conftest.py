"""What tests choose hangs on no machine: nothing is measured unasked, and no choice of the user's is remembered.

And the garbage collector looks seldom.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from convforge.tuning import CHOICES

# Objects made before a collection of the youngest, and collections before one of the next generation: by default 700,
# 10 and 10. Numba makes millions of objects for a kernel, nearly all of which live until it is compiled.
THRESHOLDS = (100_000, 20, 50)


@pytest.hookimpl(tryfirst=True)  # before `-m thorough` is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test that is marked ``one_in(n)`` all but every n-th set of parameters are thorough."""
    seen: Counter[str] = Counter()
    for item in items:
        if (mark := item.get_closest_marker("one_in")) is not None:
            test = item.nodeid.partition("[")[0]
            if seen[test] % mark.args[0]:
                item.add_marker("thorough")
            seen[test] += 1


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
