"""What is said about the machine, and the ceilings: that they are measured and that a change is noticed."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convforge.backends.cpu.facts import cpu_facts
from convforge.backends.cpu.runtime import CpuRuntime, cpu_runtime
from convforge.backends.facts import DeviceFacts
from convforge.timing.ceilings import Ceilings, copy_bandwidth, fma_peak, moved
from convforge.timing.machine import device_slug, machine_table, repository, versions


@pytest.mark.parametrize(
    "name, slug",
    [
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763-2c"),
        ("Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", "intel-core-i7-8700k-2c"),
        ("", "x86-64-2c"),
    ],
)
def test_slugs(name: str, slug: str) -> None:
    facts = dataclasses.replace(cpu_facts(), name=name, cores=2, architecture="x86_64")
    assert device_slug(facts) == slug


def test_the_table_is_json_and_gives_the_facts_back() -> None:
    table = json.loads(json.dumps(machine_table(cpu_facts()), allow_nan=False))
    assert DeviceFacts.from_table(table["facts"]) == cpu_facts()
    assert table["python"].startswith("3.")


def test_versions_name_what_computes() -> None:
    assert versions()["numpy"] == np.__version__
    assert {"numba", "scipy", "blas"} <= set(versions())


def test_the_repository_is_the_packages_own(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert repository(package) == (None, False)
    git("init", "-q")
    assert repository(package) == (None, False)  # inside a repository, but not of it
    git("add", ".")
    git("commit", "-qm", "first")
    assert repository(package) == (git("rev-parse", "HEAD"), False)
    (package / "__init__.py").write_text("changed = True\n")
    assert repository(package) == (git("rev-parse", "HEAD"), True)


def test_ceilings_that_move_are_noticed() -> None:
    assert moved(Ceilings(10e9, 100e9), Ceilings(10.9e9, 95e9)) is None
    assert "copy bandwidth" in str(moved(Ceilings(10e9, 100e9), Ceilings(20e9, 100e9)))
    slower = moved(Ceilings(10e9, 190e9), Ceilings(10e9, 100e9))
    assert str(slower) == "the FMA peak moved by -47 % (190.0 to 100.0 GFLOP/s)"


def test_ceilings_are_work_over_time() -> None:
    class Half(CpuRuntime):
        def time(self, run: Callable[[], None], repeats: int) -> float:
            run()
            return 0.5

    runtime = Half(dataclasses.replace(cpu_runtime().facts, l3_bytes=1 << 20))
    assert copy_bandwidth(runtime, repeats=2) == 2 * (64 << 20) / 0.5
    assert fma_peak(runtime, repeats=1) == 2 * (4 * runtime.facts.cores * 12 * 8) * 500_000 / 0.5


def test_the_fma_loop_does_its_multiply_adds() -> None:
    from convforge.timing import cpu

    values = np.arange(3 * cpu.FMA_VECTORS * 8, dtype=np.float32)
    expected = values.astype(np.float64)
    factors = np.array([0.999, 0.001], np.float32)
    cpu.multiply_add(values, factors, 16, 1, 3)
    for _ in range(16):
        expected[cpu.FMA_VECTORS * 8 :] = expected[cpu.FMA_VECTORS * 8 :] * factors[0] + factors[1]
    np.testing.assert_allclose(values, expected, rtol=1e-6)
