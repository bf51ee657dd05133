"""The pool of GPU memory, over a driver that counts: what is used again, what goes back to the driver, and when."""

from __future__ import annotations

from typing import Any

import pytest

driver: Any = pytest.importorskip("cuda.bindings.driver")

from convforge.backends.cuda.memory import GRAIN, Pool  # noqa: E402 - behind the skip

OK, FULL = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY


class Memory:
    """A GPU of so many bytes."""

    def __init__(self, nbytes: int) -> None:
        self.left, self.used, self.next = nbytes, dict[int, int](), GRAIN

    def take(self, nbytes: int) -> tuple[Any, int]:
        if nbytes > self.left:
            return FULL, 0
        self.left -= nbytes
        self.next += nbytes
        self.used[self.next] = nbytes
        return OK, self.next

    def free(self, address: int) -> tuple[Any]:
        self.left += self.used.pop(address)
        return (OK,)


@pytest.fixture
def memory(monkeypatch: Any) -> Memory:
    made = Memory(16 * GRAIN)
    monkeypatch.setattr(driver, "cuMemAlloc", made.take)
    monkeypatch.setattr(driver, "cuMemFree", made.free)
    return made


def test_what_came_back_is_used_again_on_its_stream(memory: Memory) -> None:
    pool = Pool(8 * GRAIN)
    block = pool.take(100, 1)
    address = block.address
    del block
    assert pool.take(GRAIN, 1).address == address
    other = pool.take(GRAIN, 2)
    assert other.address != address
    assert len(memory.used) == 2


def test_beyond_the_limit_the_driver_has_it_back(memory: Memory) -> None:
    pool = Pool(GRAIN)
    blocks = [pool.take(GRAIN, 1) for _ in range(3)]
    del blocks
    assert len(memory.used) == 1
    pool.clear()
    assert not memory.used


def test_what_a_graph_uses_is_kept_until_it_is_gone(memory: Memory) -> None:
    """Beyond the limit, and where the GPU has no memory left, too."""
    pool = Pool(0)
    with pool.holding():
        first = pool.take(4 * GRAIN, 1)
        address = first.address
        del first
        assert address in memory.used
        with pool.holding():
            again = pool.take(4 * GRAIN, 1)
            assert again.address == address
            del again
        assert address in memory.used
        other = pool.take(12 * GRAIN, 1)
        with pytest.raises(MemoryError, match="the GPU has no 512 bytes left"):
            pool.take(1, 2)
        assert address in memory.used
        del other
    assert not memory.used


def test_free_memory_makes_room_where_none_is_left(memory: Memory) -> None:
    pool = Pool(16 * GRAIN)
    blocks = [pool.take(8 * GRAIN, 1) for _ in range(2)]
    del blocks
    assert pool.take(16 * GRAIN, 1).nbytes == 16 * GRAIN
