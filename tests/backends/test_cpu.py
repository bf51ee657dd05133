"""The CPU's runtime and facts: launches cover their grid once, from any number of threads at once."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convforge.algorithms import find
from convforge.backends.cpu import CpuRuntime, cpu_facts, cpu_runtime
from convforge.backends.cpu.facts import _cores
from convforge.backends.cpu.runtime import block_of_items
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import LaunchInfo
from convforge.errors import WorkspaceTooSmall
from convforge.problem import parse_problem
from convforge.verify import compare, make_inputs, truth


def with_cores(cores: int) -> CpuRuntime:
    return CpuRuntime(dataclasses.replace(cpu_facts(), cores=cores))


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(1, 60), st.sampled_from([1, 2, 3, 8]))
def test_a_launch_covers_every_item_once(items, block, cores):
    seen: list[tuple[int, int]] = []
    lock = threading.Lock()

    def kernel(tag, begin, end):
        assert tag == "argument"
        with lock:
            seen.append((begin, end))

    with_cores(cores).launch(kernel, LaunchInfo("kernel", (items,), (block,)), ("argument",))
    covered = sorted(i for begin, end in seen for i in range(begin, end))
    assert covered == list(range(items))
    assert all(begin < end for begin, end in seen)
    if cores > 1 and items > block:
        assert all(end - begin <= block and begin % block == 0 for begin, end in seen)


def test_one_block_stays_on_the_callers_thread():
    threads = []
    with_cores(8).launch(
        lambda begin, end: threads.append(threading.get_ident()), LaunchInfo("kernel", (10,), (10,)), ()
    )
    assert threads == [threading.get_ident()]


def test_blocks_run_side_by_side():
    """Two blocks that wait for each other end only if two threads run them."""
    meeting = threading.Barrier(2, timeout=20)
    with_cores(2).launch(lambda begin, end: meeting.wait(), LaunchInfo("kernel", (2,), (1,)), ())
    assert not meeting.broken


@pytest.mark.parametrize("cores", [1, 4])
def test_a_kernels_failure_reaches_the_caller(cores):
    def kernel(begin, end):
        if begin <= 7 < end:
            raise ArithmeticError("item 7")

    runtime = with_cores(cores)
    with pytest.raises(ArithmeticError, match="item 7"):
        runtime.launch(kernel, LaunchInfo("kernel", (20,), (1,)), ())
    runtime.launch(lambda begin, end: None, LaunchInfo("kernel", (20,), (1,)), ())  # and the pool still works


def test_threads_wake_when_they_slept_and_end_with_their_runtime():
    runtime = with_cores(5)
    seen: list[int] = []
    for pause in (0.0, 0.05, 0.0):  # while they watch, and after they fell asleep
        time.sleep(pause)
        meeting = threading.Barrier(5, timeout=20)

        def kernel(begin, end, meeting=meeting):
            meeting.wait()  # needs all five
            seen.append(begin)

        runtime.launch(kernel, LaunchInfo("kernel", (5,), (1,)), ())
    assert sorted(seen) == sorted(3 * list(range(5)))
    mine = runtime._threads().threads
    assert len(mine) == 4
    del runtime, kernel
    gc.collect()
    for thread in mine:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in mine)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_threads_of_its_own():
    runtime = with_cores(2)
    work = LaunchInfo("kernel", (2,), (1,))
    runtime.launch(lambda begin, end: None, work, ())
    child = os.fork()
    if child == 0:
        meeting = threading.Barrier(2, timeout=20)
        runtime.launch(lambda begin, end: meeting.wait(), work, ())
        os._exit(0 if not meeting.broken else 1)
    assert os.waitpid(child, 0)[1] == 0
    runtime.launch(lambda begin, end: None, work, ())


@pytest.mark.parametrize("name", ["direct_naive", "direct_rows", "im2col"])
def test_one_plan_from_many_threads_at_once(name):
    """Each call has its own buffers, so plans need no lock."""
    problem = parse_problem("n2c3h40w41_k8r3s3_p1_f32_nchw_+bias")
    algorithm = find("conv2d", "cpu", name)
    runtime = with_cores(4)
    plan = algorithm.plan(problem, algorithm.configs(problem, runtime.facts)[0], runtime)
    inputs = [make_inputs(problem, "normal", seed) for seed in range(6)]
    rights = [truth(problem, one) for one in inputs]
    start = threading.Barrier(6, timeout=60)

    def call(i):
        start.wait()
        for _ in range(5):
            out = np.full(problem.out_shape, np.nan, np.float32)
            plan({"x": inputs[i].x, "w": plan.prepare(inputs[i].w), **inputs[i].operands, "out": out})
            verdict = compare(problem, "strict", out, rights[i], inputs[i])
            assert verdict.ok, verdict.message

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(call, i) for i in range(6)]:
            done.result()


def test_results_do_not_depend_on_the_number_of_threads():
    problem = parse_problem("n2c5h70w71_k9r3s3_p1_f32_nchw")
    algorithm = find("conv2d", "cpu", "direct_rows")
    inputs = make_inputs(problem)
    config = algorithm.configs(problem, cpu_facts())[0]
    outs = []
    for cores in (1, 2, 7):
        plan = algorithm.plan(problem, config, with_cores(cores))
        outs.append(plan({"x": inputs.x, "w": plan.prepare(inputs.w), "out": np.empty(problem.out_shape, np.float32)}))
    assert np.array_equal(outs[0], outs[1])
    assert np.array_equal(outs[0], outs[2])


@settings(deadline=None)
@given(st.integers(1, 10_000))
def test_a_workspace_is_aligned_and_large_enough(nbytes):
    workspace = cpu_runtime().allocate(nbytes)
    assert workspace.nbytes == nbytes
    assert workspace.ctypes.data % 64 == 0


def test_a_small_workspace_is_refused():
    problem = parse_problem("n1c3h20w20_k4r3s3_p1_f32_nchw")
    algorithm = find("conv2d", "cpu", "im2col")
    plan = algorithm.plan(problem, algorithm.configs(problem, cpu_facts())[0], cpu_runtime())
    inputs = make_inputs(problem)
    assert plan.workspace_bytes > 0
    buffers = {"x": inputs.x, "w": plan.prepare(inputs.w), "out": np.empty(problem.out_shape, np.float32)}
    with pytest.raises(WorkspaceTooSmall, match=f"im2col needs {plan.workspace_bytes} bytes of workspace; got"):
        plan({**buffers, "workspace": np.empty(plan.workspace_bytes - 1, np.uint8)})


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 10**9), st.integers(1, 64))
def test_blocks_of_items(items, flops, cores):
    block = block_of_items(items, flops, dataclasses.replace(cpu_facts(), cores=cores))
    assert 1 <= block <= max(items, 1)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", " 2"])
def test_a_bad_number_of_threads_is_refused(monkeypatch, value):
    monkeypatch.setenv("CONVFORGE_THREADS", value)
    with pytest.raises(ValueError, match=f"CONVFORGE_THREADS={value!r} must be a whole number of at least 1"):
        _cores()


def test_the_number_of_threads_can_be_set(monkeypatch):
    monkeypatch.setenv("CONVFORGE_THREADS", "3")
    assert _cores() == 3
    monkeypatch.setenv("CONVFORGE_THREADS", "")
    assert _cores() >= 1


def test_facts_go_through_json_and_back():
    facts = cpu_facts()
    assert DeviceFacts.from_table(json.loads(json.dumps(facts.to_table()))) == facts
    assert facts.backend == "cpu"
    assert facts.cores >= 1
    assert facts.l1_bytes > 0
    assert facts.vector_bytes in (16, 32, 64)


def test_facts_that_are_not_whole_are_refused():
    table = cpu_facts().to_table()
    with pytest.raises(ValueError, match="device facts have no field clock"):
        DeviceFacts.from_table({**table, "clock": 3})
    del table["cores"]
    with pytest.raises(ValueError, match="device facts lack cores"):
        DeviceFacts.from_table(table)
