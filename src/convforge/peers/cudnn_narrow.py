"""cuDNN for 8-bit factors: int8 summed in int32, and 8-bit floats summed in float32, with the epilogue in the graph.

As in NVIDIA's samples int8_fprop.cpp, ConvScaleBiasAct_int8 and fp8_fprop.cpp (NVIDIA/cudnn-frontend): the sums are a
virtual tensor of int32 or float32; the scale, the bias and relu are pointwise nodes that compute in float32; the last
node stores the result in its type. The scale of a problem of 8-bit floats is the product of cuDNN's usual three: those
of x, of w and of the result. Plans of other types do not compute with this module, so that their digests stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from convforge.algorithms.contract import Buffers, Plan
from convforge.algorithms.host.conv import address
from convforge.algorithms.traits import Mark
from convforge.backends.facts import DeviceFacts
from convforge.backends.runtime import Runtime
from convforge.errors import Reason, UnsupportedProblem
from convforge.peers.contract import PeerPlan, absence, packed_address
from convforge.peers.cudnn import (
    Cudnn,
    CudnnConfig,
    CudnnFilter,
    LibraryFault,
    ShortList,
    _faults,
    _Graph,
    _strides,
    short_list,
)
from convforge.problem import Conv2dProblem, Epilogue
from convforge.problem.types import FP8, is_integer

# Element type -> cuDNN's name.
_TYPES = {
    "float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16", "float8_e4m3fn": "FP8_E4M3",
    "float8_e5m2": "FP8_E5M2", "int32": "INT32", "int8": "INT8", "uint8": "UINT8",
}  # fmt: skip

# Module, name and package of the frontend.
FRONTEND = ("cudnn", "cuDNN's frontend", "nvidia-cudnn-frontend==1.18.0")


class CudnnInt8(Cudnn):
    """cuDNN's int8 convolution: exact sums in int32, then scale, bias and relu in float32.

    Ours compute the epilogue in float64, so that results may differ where they are rounded.
    """

    name = "cudnn_int8"
    summary = "cuDNN's graph API, the fastest of its plans of int8 with int32 sums and an epilogue in float32"
    precision = "epilogue32"
    look = Mark("cudnn", "diamond", (2, 3))

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if frontend := absence(*FRONTEND):
            return frontend
        factors, results = (problem.x_dtype, problem.w_dtype), ("int8", "uint8", "int32", "float16", "float32")
        if factors not in (("int8", "int8"), ("uint8", "int8")) or problem.acc_dtype != "int32":
            return Reason("cuDNN is asked for x of int8 or uint8 and w of int8 alone, with sums in int32")
        if problem.out_dtype not in results:
            return Reason("cuDNN is asked for results of {types} alone", types=", ".join(results))
        return _refusal(problem)

    def configs(self, problem: Conv2dProblem, facts: DeviceFacts) -> Sequence[CudnnConfig]:
        count = narrow_graph(problem).count
        return [CudnnConfig(), *(CudnnConfig(str(number)) for number in range(count))]

    def plan(self, problem: Conv2dProblem, config: CudnnConfig, runtime: Runtime) -> Plan:
        """Make a plan; raises UnsupportedProblem, with cuDNN's message, if cuDNN refuses this plan or all plans."""
        graph = narrow_graph(problem)
        found = graph.best(problem, runtime) if config.plan == "best" else None
        if found is not None and found.best is None:
            raise UnsupportedProblem(
                str(problem), {self.name: Reason("none of cuDNN's plans can be run: {words}", words=found.words)}
            )
        number = int(config.plan) if found is None or found.best is None else found.best
        try:
            name, workspace_bytes = graph.build(number)
        except LibraryFault as fault:
            raise UnsupportedProblem(str(problem), {self.name: Reason.quoted(str(fault))}) from fault

        def compute(buffers: Buffers, stream: Any) -> Any:
            graph.execute(number, buffers, runtime, stream)
            return buffers["out"]

        kernel = f"{number}: {name}"
        note = Reason.joined([Reason("plan {name}", name=kernel), *([found.words] if found else [])])
        prepare = CudnnFilter(problem, runtime, note)
        plan = CudnnNarrowPlan(self, problem, config, runtime, compute=compute, prepare=prepare, kernel=kernel,
                               workspace_bytes=workspace_bytes)  # fmt: skip
        plan.takes_gaps = False
        if found is not None:
            plan.choice, plan.ways = found.words, found.table()
        return plan


class CudnnFp8(CudnnInt8):
    """cuDNN's convolution of 8-bit floats, with scale, bias and relu in float32.

    The sums are asked for in float32, not in the type FAST_FLOAT_FOR_FP8, which leaves them in the tensor cores' short
    accumulators.
    """

    name = "cudnn_fp8"
    summary = "cuDNN's graph API, the fastest of its plans of 8-bit floats"
    precision = "fp8"
    takes_fp8 = True
    look = Mark("cudnn", "cross", (2, 3))

    def refuses(self, problem: Conv2dProblem, facts: DeviceFacts) -> Reason | None:
        if frontend := absence(*FRONTEND):
            return frontend
        results = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32")
        if not {problem.x_dtype, problem.w_dtype} <= FP8 or problem.acc_dtype != "float32":
            return Reason("cuDNN is asked for x and w of 8-bit floats alone, with sums in float32")
        if problem.out_dtype not in results:
            return Reason("cuDNN is asked for results of {types} alone", types=", ".join(results))
        return _refusal(problem)


def _refusal(problem: Conv2dProblem) -> Reason | None:
    """Return why cuDNN does not compute a problem of accepted types, or None."""
    ends = problem.epilogue
    activation = "relu" if ends.activation == "relu" else "identity"
    if problem.padding_mode != "zeros" or ends != Epilogue(scale=ends.scale, bias=ends.bias, activation=activation):
        return Reason("cuDNN pads with zeros, and is asked for a scale, a bias and ReLU alone")
    if problem.x_layout != problem.out_layout:
        return Reason("x is {x_layout} and the output {out_layout}; cuDNN is asked for one layout",
                      x_layout=problem.x_layout, out_layout=problem.out_layout)  # fmt: skip
    if not problem.n * problem.p * problem.q:
        return Reason("cuDNN takes no empty batch")
    try:
        narrow_graph(problem)
    except LibraryFault as fault:
        return Reason("cuDNN has no plan for it: {fault}", fault=str(fault))
    return None


class CudnnNarrowPlan(PeerPlan):
    """Plan that reads the epilogue's operands as float32; a call with float64 operands copies them over the host."""

    def lay_operands(self, operands: Buffers) -> Buffers:
        return {name: _as_float32(array, self.runtime) for name, array in operands.items()}


@lru_cache(maxsize=64)
def narrow_graph(problem: Conv2dProblem) -> _NarrowGraph:
    return _NarrowGraph(problem.replace(precision="strict"))


class _NarrowGraph(_Graph):
    """cuDNN's graph of a convolution of 8-bit factors and its epilogue; builds each plan on first use."""

    def __init__(self, problem: Conv2dProblem) -> None:
        self._operands: dict[str, Any] = {}  # name -> the graph's tensor
        super().__init__(problem, problem.precision)

    def _described(self, problem: Conv2dProblem, precision: str) -> Any:
        """Describe the graph. Without an epilogue: with an identity after the sums, else the convolution alone."""
        import cudnn

        if not problem.epilogue.is_identity:
            return self._supported(problem, identity=False)
        try:
            # The engines that fuse epilogues support more types than those for a convolution alone.
            return self._supported(problem, identity=True)
        except (RuntimeError, cudnn.cudnnGraphNotSupportedError):
            return self._supported(problem, identity=False)

    def _supported(self, problem: Conv2dProblem, *, identity: bool) -> Any:
        import cudnn

        x_type, w_type, out_type = (_type(name) for name in (problem.x_dtype, problem.w_dtype, problem.out_dtype))
        sums_type = _type("int32" if is_integer(problem.acc_dtype) else "float32")
        graph = cudnn.pygraph(io_data_type=x_type, intermediate_data_type=cudnn.data_type.FLOAT,
                              compute_data_type=cudnn.data_type.FLOAT, handle=self._handle)  # fmt: skip
        x_shape = (problem.n, problem.c, problem.h, problem.w)
        out_shape, last = (problem.n, problem.k, problem.p, problem.q), problem.x_layout == "NHWC"
        w_strides, out_strides = _strides(problem.w_shape, last), _strides(out_shape, last)
        self._x = graph.tensor(name="x", dim=list(x_shape), stride=_strides(x_shape, last), data_type=x_type)
        self._w = graph.tensor(name="w", dim=list(problem.w_shape), stride=w_strides, data_type=w_type)
        top, bottom, left, right = problem.padding
        modes = cudnn._pybind_module.convolution_mode  # not exported
        sums = graph.conv_fprop(
            image=self._x, weight=self._w, pre_padding=[top, left], post_padding=[bottom, right],
            stride=list(problem.stride), dilation=list(problem.dilation), compute_data_type=sums_type,
            convolution_mode=modes.CONVOLUTION if problem.mode == "convolution" else modes.CROSS_CORRELATION,
        )  # fmt: skip
        sums.set_data_type(sums_type).set_dim(list(out_shape)).set_stride(out_strides)
        self._out = self._ended(graph, sums, problem.epilogue, problem.k)
        if identity:
            self._out = graph.identity(input=sums, compute_data_type=sums_type)
        self._out.set_output(True).set_data_type(out_type).set_dim(list(out_shape)).set_stride(out_strides)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        return graph

    def _ended(self, graph: Any, sums: Any, ends: Epilogue, channels: int) -> Any:
        """Add the epilogue's nodes, in float32, and their operands: one number, or one for each output channel."""
        value, single = sums, _type("float32")
        for name, node, given in (("scale", graph.mul, ends.scale != "none"), ("bias", graph.add, ends.bias)):
            if not given:
                continue
            k = 1 if name == "scale" and ends.scale == "tensor" else channels
            operand = graph.tensor(name=name, dim=[1, k, 1, 1], stride=[k, 1, k, k], data_type=single)
            value, self._operands[name] = node(a=value, b=operand, compute_data_type=single), operand
        return graph.relu(input=value, compute_data_type=single) if ends.activation == "relu" else value

    def execute(self, number: int, buffers: Buffers, runtime: Any, stream: Any) -> None:
        """Run a plan on a stream; raises LibraryFault if cuDNN refuses it."""
        import cudnn

        held = {name: _as_float32(buffers[name], runtime) for name in self._operands}
        arrays = [(self._x, buffers["x"]), (self._w, buffers["w"].tensors["w"]), (self._out, buffers["out"])]
        arrays += [(tensor, held[name]) for name, tensor in self._operands.items()]
        places = {tensor: packed_address(array, "cuDNN") for tensor, array in arrays}
        room = buffers.get("workspace")
        with self._lock:
            cudnn.set_stream(handle=self._handle, stream=runtime.stream_handle(stream))
            with _faults():
                self._graph.execute_plan_at_index(places, 0 if room is None else address(room), number, self._handle)
        if any(held[name] is not buffers[name] for name in held):
            runtime.synchronize(stream)  # before the copies are freed

    def best(self, problem: Conv2dProblem, runtime: Runtime) -> ShortList:
        if self._found is None:
            operands = operands_for_timing(problem, runtime)
            self._found = short_list(
                problem, runtime, [f"{number}: {self.name(number)}" for number in range(self.count)],
                build=lambda number: self.build(number)[1],
                execute=lambda number, buffers: self.execute(number, {**buffers, **operands}, runtime, None),
                noun="plans",
            )  # fmt: skip
        return self._found


def operands_for_timing(problem: Conv2dProblem, runtime: Runtime) -> dict[str, Any]:
    """Make the epilogue's operands, in float32; the scale brings sums of random bytes into the range of a byte."""
    # The standard deviation of uniform bytes is 74, so that of a sum of products of two is 74^2 sqrt(taps).
    spread = 74.0**2 * math.sqrt(problem.taps) / 32 if is_integer(problem.acc_dtype) else 1.0
    rng, made = np.random.default_rng(0), dict[str, Any]()
    for operand in problem.operands:
        if operand.role == "epilogue":
            values = rng.uniform(0.5, 1.5, operand.shape) / (spread if operand.name == "scale" else 1.0)
            made[operand.name] = runtime.upload(np.asarray(values, np.float32))
    return made


def _type(dtype: str) -> Any:
    """cuDNN's name of an element type."""
    import cudnn

    return getattr(cudnn.data_type, _TYPES[dtype])


def _as_float32(array: Any, runtime: Any) -> Any:
    """Copy an operand of the epilogue as float32, over the host; one that is float32 is returned unchanged."""
    if array.dtype == np.float32:
        return array
    if runtime.is_capturing():
        raise ValueError(f"cuDNN reads float32 operands, and a graph cannot copy one of {array.dtype}: cast it before")
    copy = runtime.upload(runtime.download(array).astype(np.float32))
    runtime.synchronize()
    return copy
