"""A GPU's runtime whose memory is the host's, and NVIDIA's libraries played by NumPy: what the GPU peers are told.

Every argument goes through the same ctypes signatures and the same addresses as on a GPU; only the arithmetic is
NumPy's.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from convforge.algorithms import find
from convforge.backends.cpu import cpu_facts
from convforge.backends.cuda.arrays import DeviceArray
from convforge.peers import PEERS
from convforge.peers import contract as peer_contract
from convforge.peers import cublas as cublas_peer
from convforge.peers import npp as npp_peer
from convforge.problem import parse_problem
from convforge.verify import Judge, check_plan, make_inputs

FACTS = dataclasses.replace(cpu_facts(), backend="cuda", name="a GPU played by the host")
STREAM = 7


class HostRuntime:
    """A runtime for plans; its arrays are of the GPU's kind, at addresses of the host."""

    facts = FACTS
    device = 0

    def empty(self, shape: tuple[int, ...], dtype: Any, stream: Any = None) -> DeviceArray:
        return DeviceArray(np.empty(shape, dtype), None)

    def allocate(self, nbytes: int, stream: Any = None) -> DeviceArray:
        return self.empty((nbytes,), np.uint8)

    def upload(self, array: Any) -> DeviceArray:
        return DeviceArray(np.array(array, order="C", copy=True), None)

    def download(self, array: DeviceArray, *, room: Any = None) -> Any:
        if room is None:
            return array.described.copy()
        copied = room(array.nbytes).view(array.dtype).reshape(array.shape)
        copied[...] = array.described
        return copied

    def fill(self, array: DeviceArray, byte: int) -> None:
        ctypes.memset(array.address, byte, array.nbytes)

    def writable(self, out: Any) -> Any:
        return out

    def synchronize(self, stream: Any = None) -> None:
        pass

    def is_capturing(self, stream: Any = None) -> bool:
        return False

    def stream_handle(self, stream: Any) -> int:
        return STREAM if stream is None else int(stream)

    def time(self, run: Any, repeats: int) -> float:
        for _ in range(repeats):
            run()
        return 1e-3 * repeats  # a sample's worth each


def memory(address: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """The host's memory at an address."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * count).from_address(address), dtype).reshape(shape)


def column_major_gemm(
    ta: int, tb: int, m: int, n: int, k: int, a: Any, lda: int, b: Any, ldb: int, ldc: int
) -> tuple[Any, Any, Any]:
    """Indices of the BLAS: where op(A)[i, p], op(B)[p, j] and C[i, j] lie in flat memory, column by column."""
    i, p, j = np.arange(m), np.arange(k), np.arange(n)
    at_a = i[:, None] * lda + p[None, :] if ta else i[:, None] + p[None, :] * lda
    at_b = p[:, None] * ldb + j[None, :] if tb else p[:, None] + j[None, :] * ldb
    return at_a, at_b, i[:, None] + j[None, :] * ldc


def cublas(said: list[Any]) -> SimpleNamespace:
    """cuBLAS: what was set is appended to `said`; a workspace that is older than the stream is lost, as in cuBLAS."""

    def create(handle: Any) -> int:
        handle._obj.value = 11
        return 0

    def of(name: str, keep: int) -> Any:
        def call(*arguments: Any) -> int:
            said.append((name, *(getattr(a, "value", a) for a in arguments[1 : 1 + keep])))
            return 0

        return call

    def gemm(dtype: Any, result: Any = None) -> Any:
        out = dtype if result is None else result

        def call(
            handle: Any, ta: int, tb: int, m: int, n: int, k: int, alpha: Any, a: int, lda: int, b: int, ldb: int,
            beta: Any, c: int, ldc: int,
        ) -> int:  # fmt: skip
            rows_a, rows_b = (m if ta else k), (k if tb else n)
            if lda < (k if ta else m) or ldb < (n if tb else k) or ldc < m:
                return 7
            x = np.frombuffer((ctypes.c_char * _bytes(lda, rows_a, k if ta else m, dtype)).from_address(a), dtype)
            y = np.frombuffer((ctypes.c_char * _bytes(ldb, rows_b, n if tb else k, dtype)).from_address(b), dtype)
            z = np.frombuffer((ctypes.c_char * _bytes(ldc, n, m, out)).from_address(c), out)
            at_a, at_b, at_c = column_major_gemm(ta, tb, m, n, k, x, lda, y, ldb, ldc)
            assert (alpha._obj.value, beta._obj.value) == (1, 0)
            z[at_c] = (x[at_a].astype(np.float64) @ y[at_b].astype(np.float64)).astype(out)
            said.append(("gemm", np.dtype(dtype).name))
            return 0

        return call

    def gemm_ex(
        handle: Any, ta: int, tb: int, m: int, n: int, k: int, alpha: Any, a: int, a_type: int, lda: int, b: int,
        b_type: int, ldb: int, beta: Any, c: int, c_type: int, ldc: int, compute: int, method: int,
    ) -> int:  # fmt: skip
        assert (compute, method) == (72 if a_type == 3 else 68, -1), "sums of int32 or float32, by cuBLAS's own choice"
        assert a_type == b_type
        assert c_type == (10 if a_type == 3 else a_type)
        types = {2: (np.float16,), 14: (np.dtype("bfloat16"),), 3: (np.int8, np.int32)}[a_type]
        return gemm(*types)(handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)

    def ask(which: int, into: Any) -> int:
        into._obj.value = (13, 1, 0)[which]
        return 0

    return SimpleNamespace(
        cublasCreate_v2=create, cublasGetStatusString=lambda status: b"CUBLAS_STATUS_INVALID_VALUE",
        cublasSetStream_v2=of("stream", 1), cublasSetWorkspace_v2=of("workspace", 2), cublasSetMathMode=of("math", 1),
        cublasSgemm_v2=gemm(np.float32), cublasDgemm_v2=gemm(np.float64), cublasGetProperty=ask,
        cublasGemmEx=gemm_ex,
    )  # fmt: skip


def _bytes(ld: int, columns: int, rows: int, dtype: Any) -> int:
    return ((columns - 1) * ld + rows) * np.dtype(dtype).itemsize


def correlated(
    source: Any, weights: Any, shape: tuple[int, ...], stride: Any, dilation: Any, groups: int
) -> Any:  # fmt: skip
    """A convolution of padded pictures, N, C, H, W, by NumPy."""
    _, k, p, q = shape
    per, total = k // groups, np.zeros(shape)
    for r in range(weights.shape[2]):
        for s in range(weights.shape[3]):
            seen = source[:, :, r * dilation[0] :, s * dilation[1] :][:, :, :: stride[0], :: stride[1]][:, :, :p, :q]
            for g in range(groups):
                c = seen.shape[1] // groups
                total[:, g * per : (g + 1) * per] += np.einsum(
                    "nchw,kc->nkhw", seen[:, g * c : (g + 1) * c], weights[g * per : (g + 1) * per, :, r, s]
                )
    return total


def cupy() -> dict[str, Any]:
    """CuPy by NumPy, its ndimage by SciPy's: modules by name."""
    from scipy import ndimage

    def asarray(array: Any) -> Any:
        return array.described if isinstance(array, DeviceArray) else np.asarray(array)

    @contextlib.contextmanager
    def from_external(stream: Any) -> Iterator[None]:
        assert stream.__cuda_stream__() == (0, STREAM)
        yield

    names = ("pad", "empty", "zeros", "rint", "clip", "where", "isnan", "ascontiguousarray")
    module = SimpleNamespace(asarray=asarray, **{name: getattr(np, name) for name in names})
    module.cuda = SimpleNamespace(Stream=SimpleNamespace(from_external=from_external))
    scipy = SimpleNamespace(ndimage=ndimage)
    return {"cupy": module, "cupyx": SimpleNamespace(scipy=scipy), "cupyx.scipy": scipy}


class Npp:
    """NPP: what was called is appended to `called`; filters are turned round about their anchor, as NPP's are.

    Parameters
    ----------
    status : int
        What every filter gives back.
    """

    KINDS: ClassVar[dict[str, tuple[Any, Any, int]]] = {
        "_32f": (np.float32, np.float32, 0), "32f_16f": (np.float16, np.float32, 0), "_8u": (np.uint8, np.int32, 1),
        "_16u": (np.uint16, np.int32, 1), "_16s": (np.int16, np.int32, 1),
    }  # fmt: skip

    def __init__(self, status: int = 0) -> None:
        self.called: list[str] = []
        for kind, (pixels, taps, divisors) in self.KINDS.items():
            for beside in (1, 3, 4):
                name = f"nppiFilterBorder{kind}_C{beside}R_Ctx"
                setattr(
                    self, name, lambda *a, of=(name, pixels, taps, divisors, beside): self._filter(*of, a) or status
                )

    def _filter(self, name: str, pixels: Any, taps: Any, divisors: int, beside: int, arguments: Any) -> int:
        self.called.append(name)
        x, x_step, size, offset, out, out_step, region, w, kernel, anchor, *divisor, border, context = arguments
        assert ([1] * divisors, 2, STREAM) == (divisor, border, context.hStream)
        assert (offset.x, offset.y) == (0, 0)
        assert x_step == size.width * beside * np.dtype(pixels).itemsize
        assert out_step == region.width * beside * np.dtype(pixels).itemsize
        picture = memory(x, (size.height, size.width, beside), pixels).astype(np.float64)
        target = memory(out, (region.height, region.width, beside), pixels)
        weights = memory(w, (kernel.height, kernel.width), taps).astype(np.float64)
        total = np.zeros(target.shape)
        for j in range(kernel.height):
            for i in range(kernel.width):
                rows = np.clip(np.arange(region.height) + anchor.y - j, 0, size.height - 1)
                columns = np.clip(np.arange(region.width) + anchor.x - i, 0, size.width - 1)
                total += weights[j, i] * picture[rows][:, columns]
        if divisors:
            total = np.clip(total, np.iinfo(pixels).min, np.iinfo(pixels).max)
        target[...] = total.astype(pixels)
        return 0


class PackingRuntime(HostRuntime):
    """The same, which runs our own kernels on the emulator."""

    def __init__(self) -> None:
        from convforge.backends.emulator import EmulatorRuntime

        self._emulator = EmulatorRuntime()
        self.compile, self.launch = self._emulator.compile, self._emulator.launch


# What tests of GPU peers share.

TEXTS = {"conv2d": "n1c3h9w8_k2r3s3_p1_f32_nchw", "gemm": "m4n5k6_f32", "relu": "relu4_f32",
         "max_pool2d": "max_n1c1h4w4_r2s2_f32_nchw"}  # fmt: skip


def asked(text: str, peer: Any) -> Any:
    """The problem as it reads when it allows the peer's arithmetic."""
    problem = parse_problem(text)
    if peer.precision == "strict" or not problem.multiplies:
        return problem
    return dataclasses.replace(problem, precision=peer.precision)


def peer_of(operation: str, name: str) -> Any:
    return find(operation, "cuda", name, PEERS)


def checked(peer: Any, problem: Any, config: Any = None, kind: str = "normal", runtime: Any = None) -> None:
    runtime = HostRuntime() if runtime is None else runtime
    config = peer.configs(problem, FACTS)[0] if config is None else config
    plan = peer.plan(problem, config, runtime)
    verdict = check_plan(plan, Judge(problem, make_inputs(problem, kind)))
    assert verdict.ok, verdict.message


def open_library(monkeypatch: Any, name: str, library: Any) -> None:
    """Let `library` be the one that is installed."""

    def shared(asked: str) -> Any:
        return library if asked == name else None

    for module in (peer_contract, cublas_peer, npp_peer):
        monkeypatch.setattr(module, "shared_library", shared)
