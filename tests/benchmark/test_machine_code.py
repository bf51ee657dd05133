"""Instructions in a cubin that a GPU runs."""

from __future__ import annotations

import pytest
from tests.algorithms.compiling import compiled

from convforge.benchmark.machine_code import running, sections

KERNEL = """
extern "C" __global__ void scale(float *out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = BODY;
}
"""


def cubin(head: str, body: str) -> bytes:
    from cuda.bindings import nvrtc

    text = (head + KERNEL.replace("BODY", body)).encode()
    fault, program = nvrtc.nvrtcCreateProgram(text, b"scale.cu", 0, [], [])
    assert fault == nvrtc.nvrtcResult.NVRTC_SUCCESS
    (fault,) = nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90"])
    assert fault == nvrtc.nvrtcResult.NVRTC_SUCCESS
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    code = b" " * size
    nvrtc.nvrtcGetCUBIN(program, code)
    return code


@compiled
def test_constants_that_nothing_reads_do_not_count() -> None:
    plain = cubin("", "out[i] * 3")
    more = cubin("__device__ int a_variable_more = 7; constexpr int three = 3;", "out[i] * three")
    assert plain != more
    assert running(plain) == running(more)
    assert len(running(plain)) < len(plain)


@compiled
@pytest.mark.parametrize("body", ["out[i] * 5", "out[i] * 3 + 1", "out[i] * n"])
def test_other_code_counts(body: str) -> None:
    assert running(cubin("", "out[i] * 3")) != running(cubin("", body))


@compiled
def test_values_in_constant_memory_count() -> None:
    first, second = (cubin(f"__constant__ float taps[2] = {{1, {n}}};", "taps[i & 1]") for n in (2, 3))
    assert running(first) != running(second)


@compiled
def test_all_counts_where_addresses_of_variables_are_looked_up() -> None:
    table = cubin("__device__ float table[4] = {1, 2, 3, 4};", "table[i & 3]")
    assert running(table) == table


@compiled
def test_sections_have_their_names_and_sizes() -> None:
    (code,) = (section for section in sections(cubin("", "out[i] * 3")) if section.name == ".text.scale")
    assert code.size == len(code.data) > 0


def test_what_is_no_elf_file_is_refused() -> None:
    with pytest.raises(ValueError, match="no ELF file of 64 bits"):
        running(b"PTX")
