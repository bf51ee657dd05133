"""Choice files that were damaged in any way, and processes that fork: the result is right, or one sentence says why."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convforge
from convforge.tuning import CHOICES, load

X, W = np.ones((1, 1, 20, 20), np.float32), np.ones((1, 1, 3, 3), np.float32)
ODD: list[Any] = [
    *(None, True, -1, 0, 1e308, 10**30, "", "x", [], {}, [1], {"a": 1}, "tile_p=999999999", "direct_rows"),
    *(float("nan"), float("inf"), -0.0, "\udcff"),
]
JUNK = [b"", b"{", b"null", b"[]", b'{"schema": 1}', b'{"schema": 1, "tuned": 5}', b"\xff\xfe\x00", b"[" * 10**5]


def damaged(good: bytes, rng: random.Random) -> bytes:
    """A choice's file with something odd in it."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(JUNK)
    if kind == 1:
        return good[: rng.randrange(len(good))]
    if kind == 2:
        changed = bytearray(good)
        changed[rng.randrange(len(good))] = rng.randrange(256)
        return bytes(changed)
    table = node = json.loads(good)
    while True:
        at = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[at], dict | list) or not node[at] or rng.random() < 0.1:
            node[at] = rng.choice(ODD)
            return json.dumps(table).encode()
        node = node[at]


def tuned_file(folder: Path) -> Path:
    convforge.conv2d(X, W, tune=True)
    (path,) = folder.rglob("n1c1h*.json")
    return path


def test_a_damaged_file_never_changes_a_result(folder: Path) -> None:
    path, rng = tuned_file(folder), random.Random(7)
    good = path.read_bytes()
    for _ in range(150):
        path.write_bytes(damaged(good, rng))
        for more in ({}, {"workspace_limit": 10**6}, {"algorithm": "max"}):
            CHOICES.forget()
            assert (convforge.conv2d(X, W, tune=False, **more) == 9).all()
        path.write_bytes(damaged(good, rng))
        with contextlib.suppress(ValueError):
            load(path)
        assert (convforge.conv2d(X, W, tune=False) == 9).all()


def test_files_that_are_damaged_while_threads_tune_and_forget(folder: Path) -> None:
    wrong: list[Any] = []
    done = threading.Event()

    def vandal() -> None:
        rng = random.Random(3)
        while not done.is_set():
            for path in list(folder.rglob("*.json")):
                with contextlib.suppress(OSError, ValueError, TypeError):  # what is damaged already has no form
                    if rng.random() < 0.3:
                        path.unlink()
                    else:
                        path.write_bytes(damaged(path.read_bytes() or b"{}", rng))
            CHOICES.forget()
            time.sleep(0.005)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(6):
            size = rng.randrange(5, 40)
            x = np.ones((1, 1, size, size), np.float32)
            try:
                if not (convforge.conv2d(x, W, tune=rng.choice([None, False, True])) == 9).all():
                    wrong.append(seed)
            except Exception as fault:  # told below
                wrong.append((seed, repr(fault)[:300]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    other = threading.Thread(target=vandal)
    for thread in (other, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    other.join()
    assert wrong == []


FORKS = """
import os, sys, threading, time
import numpy as np
import convforge
from convforge.tuning import CHOICES, tuner

x, w = np.ones((2, 8, 40, 40), "f4"), np.ones((8, 8, 3, 3), "f4")
blur = convforge.Filter(w)
convforge.conv2d(x, w), blur(x)
held, ended = threading.Event(), threading.Event()

def search():
    with tuner._SEARCHING, CHOICES._lock:
        held.set()
        ended.wait()

threading.Thread(target=search).start()
held.wait()
pid = os.fork()
if pid == 0:
    y = [convforge.conv2d(x, w), blur(x), convforge.conv2d(x[:, :, :20], w, tune=True)]
    os._exit(0 if all((a == 72).all() for a in y) else 3)
begin, found = time.monotonic(), (0, 0)
while found[0] == 0 and time.monotonic() - begin < 60:
    found = os.waitpid(pid, os.WNOHANG)
    time.sleep(0.02)
if found[0] == 0:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
ended.set()
print("hangs" if found[0] == 0 else os.waitstatus_to_exitcode(found[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_that_forks_while_another_thread_searches(folder: Path) -> None:
    """The child has its parent's locks, and none of the threads that would let go of them."""
    folder.mkdir(parents=True)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0", done.stderr
