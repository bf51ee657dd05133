"""A process that forks while its threads call for the first time: its children compute, and so do its threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from convforge.backends import forks

pytestmark = pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="Windows has no fork")

# Children are forked, one after the other, until the threads have ended. A child that hangs is ended by its alarm.
PROGRAM = """
import os, signal, sys, threading, warnings
import numpy as np
import convforge

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
x = np.random.default_rng(0).integers(-8, 8, (2, 3, 40, 40)).astype("f4")
w = np.random.default_rng(1).integers(-8, 8, (4, 3, 5, 5)).astype("f4")
methods, rounds = sys.argv[1].split(), int(sys.argv[2])
failures, sums = [], []

def call(method):
    try:
        for _ in range(rounds):
            sums.append(int(np.rint(convforge.conv2d(x, w, algorithm=method)).astype("i8").sum()))
    except BaseException as failure:
        failures.append(f"{method}: {type(failure).__name__}: {failure}")

threads = [threading.Thread(target=call, args=(method,)) for method in methods]
for thread in threads:
    thread.start()
children = 0
while any(thread.is_alive() for thread in threads) or not children:
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        result = convforge.conv2d(x, w, algorithm=methods[0])
        os._exit(0 if np.isfinite(result).all() else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        failures.append(f"child {children} ended with {status}")
        break
    children += 1
for thread in threads:
    thread.join()
assert not failures, failures
assert len(set(sums)) == 1, set(sums)
assert len(sums) == rounds * len(methods)
"""


def ran(cache: Path, methods: str, rounds: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, methods, str(rounds)], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"CONVFORGE_CACHE_DIR": str(cache), "CONVFORGE_THREADS": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_children_of_a_process_whose_threads_call_for_the_first_time(tmp_path: Path) -> None:
    ran(tmp_path, "direct_naive direct_naive fft", rounds=1)  # compiled
    ran(tmp_path, "direct_naive direct_naive fft", rounds=1)  # taken from the disk


IMPORTS = """
import builtins
import numpy as np
import convforge

plain, asked = builtins.__import__, []

def noted(name, globals=None, locals=None, fromlist=(), level=0):
    if name.split(".")[0] == "scipy" and "convforge" in str((globals or {}).get("__name__")):
        asked.append((name, tuple(fromlist or ())))
    return plain(name, globals, locals, fromlist, level)

builtins.__import__ = noted
x, w = np.ones((1, 1, 20, 20), "f4"), np.ones((1, 1, 3, 3), "f4")
convforge.conv2d(x, w, algorithm="fft")
assert asked[0] == ("scipy", ()), asked
assert any(fromlist for _, fromlist in asked), "parts of it follow"
"""


def test_a_library_is_imported_whole_before_parts_of_it() -> None:
    """While another thread ends to import it, a part of it would find no module around it."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_transforms_go_on_while_the_process_forks(tmp_path: Path) -> None:
    """SciPy ends its threads before a fork, and refuses work until it is over."""
    ran(tmp_path, "fft fft", rounds=200)


def test_a_fork_waits_for_what_it_must_not_cut() -> None:
    inside, go, seen = threading.Event(), threading.Event(), []

    def work() -> None:
        with forks.no_fork(), forks.no_fork():
            inside.set()
            go.wait(10)
            seen.append("ended")

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(10)
    threading.Timer(0.2, go.set).start()
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(0 if seen == ["ended"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert time.monotonic() - begin >= 0.15
    thread.join()


WAITING = """
import os, threading, time, warnings
from convforge.backends.forks import no_fork

warnings.simplefilter("ignore", DeprecationWarning)
lock, holds, inside = threading.Lock(), threading.Event(), threading.Event()

def outer():
    with lock:  # as of a module's import
        holds.set()
        inside.wait()
        time.sleep(0.1)
        with no_fork():
            pass

def inner():
    holds.wait()
    with no_fork():
        inside.set()
        with lock:
            pass

threads = [threading.Thread(target=work) for work in (outer, inner)]
for thread in threads:
    thread.start()
inside.wait()
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
for thread in threads:
    thread.join()
"""


def test_a_fork_lets_in_whom_others_inside_wait_for() -> None:
    """The thread that holds the lock wants to enter; the one inside waits for the lock; the fork waits for that one."""
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("needed", ["logging.getLogger('a')", "ThreadPoolExecutor(1).submit(int)"])
def test_a_fork_takes_no_lock_that_a_thread_inside_needs(needed: str) -> None:
    """What is imported later takes its lock before a fork too, and first of all."""
    program = f"""
import os, threading, time, warnings
from convforge.backends.forks import no_fork
import logging
from concurrent.futures import ThreadPoolExecutor

warnings.simplefilter("ignore", DeprecationWarning)
inside = threading.Event()

def work():
    with no_fork():
        inside.set()
        time.sleep(0.2)  # the fork waits now
        {needed}

thread = threading.Thread(target=work)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_thread_may_fork_inside() -> None:
    with forks.no_fork():
        child = os.fork()
        if child == 0:
            with forks.no_fork():
                os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with forks.no_fork():
        pass


def test_the_blas_of_a_child_has_its_threads_back() -> None:
    """Another thread had taken them when the process forked, and is not there to give them back."""
    from threadpoolctl import threadpool_info

    from convforge.backends.cpu import pool

    inside, go = threading.Event(), threading.Event()

    def work() -> None:
        with pool.one_thread_each():
            inside.set()
            go.wait(10)

    before = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(10)
    child = os.fork()
    if child == 0:
        now = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
        os._exit(0 if now == before and not pool._users else 1)
    go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
