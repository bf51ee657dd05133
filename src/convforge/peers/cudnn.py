"""cuDNN: every execution plan of its graph API, each by number, and the fastest of them by default."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from convforge.algorithms.contract import Algorithm, Config, Frame, Operands, Plan, PreparedFilter
from convforge.algorithms.include.conv import WeightPacker, address
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.peers.contract import PeerPlan, absence, packed_address, version
from convforge.problem import Conv2dProblem

# Samples by which the fastest plan is found, each of so many calls.
SHORT_LIST_SAMPLES = 3
SHORT_LIST_CALLS = 4
WORKSPACE_LIMIT = 4 << 30
_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}


@dataclass(frozen=True, slots=True)
class CudnnConfig(Config):
    """One of cuDNN's plans.

    Attributes
    ----------
    plan : str
        Its number, or "best": the fastest of all.
    """

    plan: str = "best"


class Cudnn(Algorithm[Conv2dProblem, CudnnConfig]):
    """cuDNN's convolution in the picture's own layout.

    Strict: plans that use tensor cores, Winograd's transforms or the FFT are left out, for their errors are larger than
    the class allows.
    """

    name = "cudnn"
    summary = "cuDNN's graph API, the fastest of its plans of plain float32 arithmetic"
    operation = "conv2d"
    backend = "cuda"
    ours = False
    sources = ("peers/cudnn.py", "peers/contract.py")

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> str | None:
        """See :class:`Algorithm`."""
        if reason := absence("cudnn", "cuDNN's frontend", "nvidia-cudnn-frontend==1.18.0"):
            return reason
        if {problem.x_dtype, problem.w_dtype, problem.out_dtype} != {problem.x_dtype} or problem.x_dtype not in _TYPES:
            return "cuDNN is asked for float32, float16 and bfloat16 alone, the same for x, w and the output"
        if problem.padding_mode != "zeros" or not problem.epilogue.is_plain:
            return "cuDNN pads with zeros, and is measured without an epilogue"
        if problem.x_layout != problem.out_layout:
            return f"x is {problem.x_layout} and the output {problem.out_layout}; cuDNN is asked for one layout"
        if not problem.n * problem.p * problem.q:
            return "cuDNN takes no empty batch"
        return None

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[CudnnConfig]:
        """See :class:`Algorithm`. The best plan, then each by its number."""
        count = _graph(problem, self.precision).count
        return [CudnnConfig(), *(CudnnConfig(str(number)) for number in range(count))]

    def plan(self, problem: Conv2dProblem, config: CudnnConfig, runtime: Runtime) -> Plan:
        """See :class:`Algorithm`."""
        graph = _graph(problem, self.precision)
        number = graph.best(problem, runtime) if config.plan == "best" else int(config.plan)
        name, workspace_bytes = graph.build(number)

        def compute(frame: Frame) -> Any:
            graph.execute(number, frame, runtime)
            return frame.out

        packer = None
        if problem.x_layout == "NHWC":  # where cuDNN wants the filter's channels last too
            packer = WeightPacker(problem.replace(mode="cross-correlation"), runtime, "KRSC", problem.w_dtype)

        def prepare(w: Any, stream: Any = None) -> PreparedFilter:
            packed = w if packer is None else packer(w, stream).tensors["w"]
            return PreparedFilter({"w": packed}, packed.nbytes, f"plan {number}: {name}")

        plan = PeerPlan(self, problem, config, runtime, compute=compute, prepare=prepare, kernel=f"{number}: {name}",
                        workspace_bytes=workspace_bytes)  # fmt: skip
        plan.takes_gaps = False
        return plan

    def versions(self) -> dict[str, str]:
        """Versions of cuDNN and of its frontend."""
        import cudnn

        return {"cudnn": str(cudnn.backend_version()), "cudnn-frontend": version("nvidia-cudnn-frontend")}


class CudnnTf32(Cudnn):
    """The same with tensor cores allowed: float32 factors may be rounded to TF32."""

    name = "cudnn_tf32"
    summary = "cuDNN's graph API, the fastest of all its plans"
    precision = "tf32"

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> str | None:
        """See :class:`Algorithm`."""
        return "TF32 is about float32" if problem.x_dtype != "float32" else super().refuses(problem, facts)


class _Graph:
    """A convolution as cuDNN's graph, its plans built when first asked for."""

    def __init__(self, problem: Conv2dProblem, precision: str) -> None:
        import cudnn

        self._handle = cudnn.create_handle()
        self._lock = threading.Lock()
        kind = getattr(cudnn.data_type, _TYPES[problem.x_dtype])
        graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=cudnn.data_type.FLOAT,
                              compute_data_type=cudnn.data_type.FLOAT, handle=self._handle)  # fmt: skip
        x_shape = (problem.n, problem.c, problem.h, problem.w)
        w_shape = (problem.k, problem.c_per_group, problem.r, problem.s)
        last = problem.x_layout == "NHWC"
        self._x = graph.tensor(name="x", dim=list(x_shape), stride=_strides(x_shape, last), data_type=kind)
        self._w = graph.tensor(name="w", dim=list(w_shape), stride=_strides(w_shape, last), data_type=kind)
        top, bottom, left, right = problem.padding
        modes = cudnn._pybind_module.convolution_mode  # not exported
        self._out = graph.conv_fprop(
            image=self._x, weight=self._w, pre_padding=[top, left], post_padding=[bottom, right],
            stride=list(problem.stride), dilation=list(problem.dilation),
            convolution_mode=modes.CONVOLUTION if problem.mode == "convolution" else modes.CROSS_CORRELATION,
        )  # fmt: skip
        out_shape = (problem.n, problem.k, problem.p, problem.q)
        self._out.set_output(True).set_data_type(kind).set_dim(list(out_shape)).set_stride(_strides(out_shape, last))
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK])
        if precision == "strict" and problem.x_dtype == "float32":
            notes = cudnn.numerical_note
            graph.deselect_numeric_notes([notes.TENSOR_CORE, notes.WINOGRAD, notes.FFT])
        graph.check_support()
        self._graph = graph
        self.count = int(graph.get_execution_plan_count())
        self._built: dict[int, tuple[str, int]] = {}
        self._best: int | None = None

    def build(self, number: int) -> tuple[str, int]:
        """Build a plan; its name, and the bytes of its workspace."""
        with self._lock:
            if number not in self._built:
                self._graph.build_plan_at_index(number)
                name = str(self._graph.get_plan_name_at_index(number))
                self._built[number] = name, int(self._graph.get_workspace_size_plan_at_index(number))
            return self._built[number]

    def execute(self, number: int, frame: Frame, runtime: Any) -> None:
        """Run a plan on the frame's stream."""
        import cudnn

        with self._lock:
            cudnn.set_stream(handle=self._handle, stream=runtime.stream_handle(frame.stream))
            w = packed_address(frame.prepared.tensors["w"], "cuDNN")
            places = {self._x: packed_address(frame.x, "cuDNN"), self._w: w,
                      self._out: packed_address(frame.out, "cuDNN")}  # fmt: skip
            workspace = 0 if frame.workspace is None else address(frame.workspace)
            self._graph.execute_plan_at_index(places, workspace, number, self._handle)

    def best(self, problem: Conv2dProblem, runtime: Runtime) -> int:
        """The fastest plan by a few samples, found once; plans that fail or want too much workspace are passed over."""
        if self._best is not None:
            return self._best
        found: list[tuple[float, int]] = []
        w_shape = (problem.k, problem.c_per_group, problem.r, problem.s)
        x, w = runtime.empty(problem.x_shape, problem.x_dtype), runtime.empty(w_shape, problem.w_dtype)
        out = runtime.empty(problem.out_shape, problem.out_dtype)
        for array in (x, w):
            runtime.fill(array, 0x3C)  # some number, the same everywhere
        for number in range(self.count):
            try:
                _, workspace_bytes = self.build(number)
                if workspace_bytes > WORKSPACE_LIMIT:
                    continue
                workspace = runtime.allocate(workspace_bytes) if workspace_bytes else None
                frame = Frame(x, PreparedFilter({"w": w}, 0), Operands(), out, workspace, None)
                self.execute(number, frame, runtime)
                runtime.synchronize()
                call = lambda number=number, frame=frame: self.execute(number, frame, runtime)  # noqa: E731
                taken = min(runtime.time(call, SHORT_LIST_CALLS) for _ in range(SHORT_LIST_SAMPLES))
            except Exception:  # a plan that cannot be built or run here is none to choose from
                continue
            found.append((taken, number))
        if not found:
            raise RuntimeError(f"none of cuDNN's {self.count} plans for {problem} can be run")
        self._best = min(found)[1]
        return self._best


@lru_cache(maxsize=64)
def _graph(problem: Conv2dProblem, precision: str) -> _Graph:
    return _Graph(problem.replace(precision="strict"), precision)


def _strides(shape: tuple[int, ...], channels_last: bool) -> list[int]:
    """Strides of a packed tensor, given in the order of `shape`."""
    _, c, h, w = shape
    return [c * h * w, 1, w * c, c] if channels_last else [c * h * w, h * w, w, 1]
