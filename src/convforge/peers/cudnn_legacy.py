"""cuDNN's older interface: a convolution by one of eight algorithms that the caller names.

It is deprecated in favour of the graph API, and is not in cuDNN's Python package; it is called in the library itself.
Tables of earlier years are of these algorithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from convforge.algorithms.contract import Algorithm, Buffers, Config
from convforge.algorithms.traits import Mark
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason, UnsupportedProblem
from convforge.peers.contract import PeerPlan
from convforge.peers.cudnn_filter import CudnnFilter
from convforge.peers.cudnn_library import (
    FUNCTIONS,
    CudnnStatus,
    LegacyConvolution,
    cudnn_version,
    legacy_convolution,
)
from convforge.peers.libraries import missing_library
from convforge.problem import Conv2dProblem

CALL = "cudnnConvolutionForward"


@dataclass(frozen=True, slots=True)
class LegacyConfig(Config):
    """One of cuDNN's algorithms.

    Attributes
    ----------
    algorithm : str
        A key of :data:`convforge.peers.cudnn_library.ALGORITHMS`, or "best": the fastest of those of its class of
        arithmetic that take the problem.
    """

    algorithm: str = "best"


class CudnnLegacy(Algorithm[Conv2dProblem, LegacyConfig]):
    """``cudnnConvolutionForward`` in the picture's own layout, by the algorithms that sum products as they are.

    float32 is multiplied and added as it is (``CUDNN_FMA_MATH``). cuDNN takes packed arrays, zeros as padding, the same
    on opposite sides; a flipped filter is its convolution mode. Which algorithm takes which problem, cuDNN says: its
    status is the refusal.
    """

    name = "cudnn_legacy"
    summary = "cuDNN's named algorithms: implicit GEMM, precomputed indices, explicit GEMM, direct"
    operation = "conv2d"
    backend = "cuda"
    ours = False
    algorithms: ClassVar[tuple[str, ...]] = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT")
    types: ClassVar[tuple[str, ...]] = ("float32", "float64", "float16")
    math: ClassVar[str] = "FMA"
    look = Mark("cudnn", "triangle-up", (3, 3))

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        """See :class:`Algorithm`."""
        if reason := self._mismatch(problem) or missing_library("cudnn", *FUNCTIONS):
            return reason
        try:
            convolution = self._convolution(problem)
        except CudnnStatus as fault:
            return Reason.quoted(str(fault))
        if not convolution.supported(self.algorithms):
            said = "; ".join(f"{name}: {convolution.status(name)}" for name in self.algorithms)
            return Reason("cuDNN {version} takes it by none of these: {said}", version=cudnn_version(), said=said)
        return None

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[LegacyConfig]:
        """See :class:`Algorithm`. The best, then each that cuDNN says it can."""
        names = self._convolution(problem).supported(self.algorithms)
        return [LegacyConfig(), *(LegacyConfig(name) for name in names)]

    def plan(self, problem: Conv2dProblem, config: LegacyConfig, runtime: Runtime) -> PeerPlan:
        """See :class:`Algorithm`.

        Raises
        ------
        UnsupportedProblem
            cuDNN refuses the algorithm for this problem; the text is its status.
        """
        convolution = self._convolution(problem)
        try:
            found = convolution.best(self.algorithms, runtime) if config.algorithm == "best" else None
            if found is not None and found.best is None:
                raise CudnnStatus(str(found.words))
            name = config.algorithm if found is None or found.best is None else self.algorithms[found.best]
            if name not in self.algorithms:
                raise ValueError(
                    f"algorithm={name!r} is not of {self.name}; choose one of {', '.join(self.algorithms)}"
                )
            if found is None:
                convolution.ensure(name, runtime)
        except CudnnStatus as fault:
            raise UnsupportedProblem(str(problem), {self.name: Reason.quoted(str(fault))}) from fault

        def compute(buffers: Buffers, stream: Any) -> Any:
            out = runtime.empty(problem.out_shape, problem.out_dtype) if buffers["out"] is None else buffers["out"]
            convolution.forward(name, {**buffers, "out": out}, runtime, stream)
            return out

        own = Reason.quoted(name)
        note = Reason.joined([own, found.words] if found else [own])
        prepare = CudnnFilter(problem, runtime, note)
        plan = PeerPlan(self, problem, config, runtime, compute=compute, prepare=prepare, kernel=name,
                        workspace_bytes=convolution.workspace_bytes(name))  # fmt: skip
        plan.takes_gaps = False
        if found is not None:
            plan.choice, plan.ways = found.words, found.table()
        return plan

    def versions(self) -> dict[str, str]:
        """cuDNN's version."""
        return {"cudnn": cudnn_version()}

    def _convolution(self, problem: Conv2dProblem) -> LegacyConvolution:
        math = "TENSOR_OP" if problem.x_dtype == "float16" else self.math
        return legacy_convolution(problem.replace(precision="strict"), math)

    def _mismatch(self, problem: Conv2dProblem) -> Reason | None:
        """What the interface has no words for."""
        if {problem.w_dtype, problem.out_dtype} != {problem.x_dtype} or problem.x_dtype not in self.types:
            return Reason(
                "{name} takes {types}, the same for x, w and the output",
                name=self.name,
                types=", ".join(self.types),
            )
        if problem.acc_dtype != ("float64" if problem.x_dtype == "float64" else "float32"):
            return Reason(
                "cuDNN sums {pixels} in a type of its own choice, not in {sums}",
                pixels=problem.x_dtype,
                sums=problem.acc_dtype,
            )
        top, bottom, left, right = problem.padding
        zeros = problem.padding_mode in ("zeros", "constant") and problem.padding_value == 0
        if any(problem.padding) and not (zeros and top == bottom and left == right):
            return Reason("{call} pads with zeros, as many on one side as on the other", call=CALL)
        if not problem.epilogue.is_plain:
            return Reason("{call} has no epilogue {epilogue}", call=CALL, epilogue=str(problem.epilogue))
        if problem.x_layout != problem.out_layout:
            return Reason(
                "x is {x_layout} and the output {out_layout}; cuDNN is asked for one layout",
                x_layout=problem.x_layout,
                out_layout=problem.out_layout,
            )
        return None if problem.n else Reason("cuDNN takes no empty batch")


class CudnnLegacyTf32(CudnnLegacy):
    """The same with tensor cores allowed: float32 factors may be rounded to TF32."""

    name = "cudnn_legacy_tf32"
    summary = "cuDNN's named algorithms on tensor cores"
    since = "cudnn_legacy"
    precision = "tf32"
    types = ("float32",)
    math = "DEFAULT"
    look = Mark("cudnn", "cross", (3, 3))


class CudnnLegacyWinograd(CudnnLegacy):
    """Winograd's algorithms, in one kernel and in several."""

    name = "cudnn_legacy_winograd"
    summary = "cuDNN's named Winograd algorithms"
    since = "cudnn_legacy"
    precision = "winograd"
    nan_spread = "tile"
    algorithms = ("WINOGRAD", "WINOGRAD_NONFUSED")
    types = ("float32",)
    look = Mark("cudnn", "diamond", (6, 2, 2, 2))


class CudnnLegacyFft(CudnnLegacy):
    """Products of Fourier transforms, of the whole picture and of tiles of it."""

    name = "cudnn_legacy_fft"
    summary = "cuDNN's named FFT algorithms"
    since = "cudnn_legacy"
    precision = "fft"
    nan_spread = "picture"
    algorithms = ("FFT", "FFT_TILING")
    types = ("float32",)
    look = Mark("cudnn", "triangle-down", (2, 2))
