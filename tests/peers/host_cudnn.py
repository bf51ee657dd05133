"""cuDNN's frontend played on the host: a graph whose plans the test makes up, computed by NumPy."""

from __future__ import annotations

import importlib.machinery
import time
import types
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.peers.host_gpu import STREAM, correlated

from convforge.problem.types import numpy_dtype

# The frontend's names of element types, and NumPy's.
TYPES = {
    "FLOAT": np.dtype("float32"), "HALF": np.dtype("float16"), "BFLOAT16": numpy_dtype("bfloat16"),
    "FP8_E4M3": numpy_dtype("float8_e4m3fn"), "FP8_E5M2": numpy_dtype("float8_e5m2"), "INT32": np.dtype("int32"),
    "INT8": np.dtype("int8"), "UINT8": np.dtype("uint8"),
}  # fmt: skip

DESELECTED = "Deselecting execution plan"


class GraphNotSupported(Exception):
    """cudnnGraphNotSupportedError: what the frontend raises where a plan or a graph is not supported."""


@dataclass(frozen=True)
class PlayedPlan:
    """A plan.

    Attributes
    ----------
    name : str
    workspace_bytes : int
    notes : tuple of str
        Numerical notes, such as "TENSOR_CORE".
    unbuilt, unrun : str
        What the frontend says when it is built or run; empty where that goes well.
    slow_s : float
        Seconds that it sleeps.
    """

    name: str
    workspace_bytes: int = 0
    notes: tuple[str, ...] = ()
    unbuilt: str = ""
    unrun: str = ""
    slow_s: float = 0.0


class PlayedTensor:
    """A tensor of a graph: memory of the caller, or the result of a node."""

    def __init__(self, dim: Any = None, stride: Any = None, kind: str = "", node: Any = None) -> None:
        self.dim, self.stride, self.kind, self.is_output = dim, stride, kind, False
        self.node = node  # computes its values from the memory of the call

    def set_output(self, flag: bool) -> PlayedTensor:
        self.is_output = flag
        return self

    def set_data_type(self, kind: str) -> PlayedTensor:
        self.kind = kind
        return self

    def set_dim(self, dim: Any) -> PlayedTensor:
        self.dim = dim
        return self

    def set_stride(self, stride: Any) -> PlayedTensor:
        self.stride = stride
        return self

    def at(self, address: int) -> Any:
        """The host's memory that it describes, as N, C, H, W."""
        import ctypes

        dtype, last = TYPES[self.kind], sum((n - 1) * step for n, step in zip(self.dim, self.stride, strict=True))
        room = (ctypes.c_char * ((last + 1) * dtype.itemsize)).from_address(address)
        return np.ndarray(tuple(self.dim), dtype, room, strides=tuple(step * dtype.itemsize for step in self.stride))

    def values(self, places: dict[Any, int]) -> Any:
        """Its numbers in a call, as float64; those of a virtual tensor too are rounded to its type."""
        if self.node is None:
            return self.at(places[self]).astype(np.float64)
        return stored(self.node(places), TYPES[self.kind or "FLOAT"]).astype(np.float64)


def stored(values: Any, dtype: np.dtype[Any]) -> Any:
    """Numbers as a type; integers round to even and saturate."""
    if dtype.kind not in "iu":
        return values.astype(dtype)
    return np.clip(np.rint(values), np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)


class PlayedGraph:
    """pygraph: one convolution, and pointwise nodes after it."""

    def __init__(self, cudnn: PlayedFrontend, kind: str) -> None:
        self.cudnn, self.kind = cudnn, kind
        self.barred: set[str] = set()
        self.built: set[int] = set()
        self.nodes: list[tuple[str, str]] = []  # each node and the type that it computes in

    def tensor(self, name: str, dim: Any, stride: Any, data_type: str) -> PlayedTensor:
        return PlayedTensor(dim, stride, data_type)

    def conv_fprop(
        self, image: PlayedTensor, weight: PlayedTensor, compute_data_type: str = "FLOAT", **more: Any
    ) -> PlayedTensor:
        self.image, self.weight, self.more = image, weight, more
        return self._node("conv", compute_data_type, self._convolve)

    def mul(self, a: PlayedTensor, b: PlayedTensor, compute_data_type: str) -> PlayedTensor:
        return self._node("mul", compute_data_type, lambda places: a.values(places) * b.values(places))

    def add(self, a: PlayedTensor, b: PlayedTensor, compute_data_type: str) -> PlayedTensor:
        return self._node("add", compute_data_type, lambda places: a.values(places) + b.values(places))

    def relu(self, input: PlayedTensor, compute_data_type: str) -> PlayedTensor:  # noqa: A002  the frontend's name
        return self._node("relu", compute_data_type, lambda places: np.maximum(input.values(places), 0))

    def identity(self, input: PlayedTensor, compute_data_type: str) -> PlayedTensor:  # noqa: A002
        return self._node("identity", compute_data_type, input.values)

    def _node(self, name: str, kind: str, node: Any) -> PlayedTensor:
        self.nodes.append((name, kind))
        self.out = PlayedTensor(node=node)
        return self.out

    def _convolve(self, places: dict[Any, int]) -> Any:
        source, weights = self.image.values(places), self.weight.values(places)
        weights = weights[:, :, ::-1, ::-1] if self.more["convolution_mode"] == "CONVOLUTION" else weights
        (top, left), (bottom, right) = self.more["pre_padding"], self.more["post_padding"]
        source = np.pad(source, ((0, 0), (0, 0), (top, bottom), (left, right)))
        groups, shape = source.shape[1] // weights.shape[1], tuple(self.out.dim)
        return correlated(source, weights, shape, self.more["stride"], self.more["dilation"], groups)

    def validate(self) -> None:
        pass

    def build_operation_graph(self) -> None:
        pass

    def create_execution_plans(self, modes: Any) -> None:
        assert modes == ["A", "B", "FALLBACK"]

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        self.barred |= set(notes)

    def check_support(self) -> None:
        assert self.out.is_output
        if self.cudnn.barred_node in dict(self.nodes):
            raise GraphNotSupported(f"No execution plans support {self.cudnn.barred_node}.")
        self.cudnn.graphs.append(self)
        if all(self.is_barred(number) for number in range(len(self.cudnn.plans))):
            raise GraphNotSupported("No execution plans support the graph.")

    def is_barred(self, number: int) -> bool:
        return bool(self.barred & set(self.cudnn.plans[number].notes))

    def get_execution_plan_count(self) -> int:
        return len(self.cudnn.plans)

    def get_plan_name_at_index(self, number: int) -> str:
        return self.cudnn.plans[number].name

    def get_workspace_size_plan_at_index(self, number: int) -> int:
        assert number in self.built
        return self.cudnn.plans[number].workspace_bytes

    def build_plan_at_index(self, number: int) -> None:
        if self.is_barred(number):
            raise GraphNotSupported(DESELECTED)
        if words := self.cudnn.plans[number].unbuilt:
            raise GraphNotSupported(words)
        self.built.add(number)

    def execute_plan_at_index(self, places: dict[Any, int], workspace: int, number: int, handle: Any) -> None:
        plan = self.cudnn.plans[number]
        assert (workspace != 0) == (plan.workspace_bytes > 0)
        if plan.unrun:
            raise RuntimeError(plan.unrun)
        x = self.image.at(places[self.image])
        self.cudnn.seen.append((number, places[self.image], x.ravel()[:64].copy()))
        time.sleep(plan.slow_s)
        self.out.at(places[self.out])[...] = stored(self.out.node(places), TYPES[self.out.kind])


class PlayedFrontend(types.ModuleType):
    """The module `cudnn`; each call of a plan is noted in `seen`: number, address of x, first numbers of x."""

    def __init__(self, *plans: PlayedPlan) -> None:
        super().__init__("cudnn")
        self.__spec__ = importlib.machinery.ModuleSpec("cudnn", None)
        self.plans, self.seen = plans, list[tuple[int, int, Any]]()
        self.graphs, self.barred_node = list[PlayedGraph](), ""
        self.data_type = SimpleNamespace(**{kind: kind for kind in TYPES})
        self.heur_mode = SimpleNamespace(A="A", B="B", FALLBACK="FALLBACK")
        self.numerical_note = SimpleNamespace(TENSOR_CORE="TENSOR_CORE", WINOGRAD="WINOGRAD", FFT="FFT")
        modes = SimpleNamespace(CONVOLUTION="CONVOLUTION", CROSS_CORRELATION="CROSS_CORRELATION")
        self._pybind_module = SimpleNamespace(convolution_mode=modes)
        self.cudnnGraphNotSupportedError = GraphNotSupported

    def create_handle(self) -> int:
        return 5

    def set_stream(self, handle: int, stream: int) -> None:
        assert (handle, stream) == (5, STREAM)

    def backend_version(self) -> int:
        return 91900

    def pygraph(self, io_data_type: str, **more: Any) -> PlayedGraph:
        return PlayedGraph(self, io_data_type)
