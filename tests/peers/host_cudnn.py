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
TYPES = {"FLOAT": np.float32, "HALF": np.float16, "BFLOAT16": numpy_dtype("bfloat16")}

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
    """A tensor of a graph."""

    def __init__(self, dim: Any = None, stride: Any = None) -> None:
        self.dim, self.stride = dim, stride

    def set_output(self, flag: bool) -> PlayedTensor:
        assert flag
        return self

    def set_data_type(self, kind: str) -> PlayedTensor:
        return self

    def set_dim(self, dim: Any) -> PlayedTensor:
        self.dim = dim
        return self

    def set_stride(self, stride: Any) -> PlayedTensor:
        self.stride = stride
        return self

    def at(self, address: int, dtype: Any) -> Any:
        """The host's memory that it describes, as N, C, H, W."""
        import ctypes

        count = int(np.prod(self.dim))
        room = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
        flat = np.frombuffer(room, np.uint8).view(dtype)
        steps = tuple(step * flat.itemsize for step in self.stride)
        return np.lib.stride_tricks.as_strided(flat, tuple(self.dim), steps)


class PlayedGraph:
    """pygraph: one convolution."""

    def __init__(self, cudnn: PlayedFrontend, kind: str) -> None:
        self.cudnn, self.kind = cudnn, kind
        self.barred: set[str] = set()
        self.built: set[int] = set()

    def tensor(self, name: str, dim: Any, stride: Any, data_type: str) -> PlayedTensor:
        return PlayedTensor(dim, stride)

    def conv_fprop(self, image: PlayedTensor, weight: PlayedTensor, **more: Any) -> PlayedTensor:
        self.image, self.weight, self.more, self.out = image, weight, more, PlayedTensor()
        return self.out

    def validate(self) -> None:
        pass

    def build_operation_graph(self) -> None:
        pass

    def create_execution_plans(self, modes: Any) -> None:
        assert modes == ["A", "B", "FALLBACK"]

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        self.barred |= set(notes)

    def check_support(self) -> None:
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
        plan, dtype = self.cudnn.plans[number], TYPES[self.kind]
        assert (workspace != 0) == (plan.workspace_bytes > 0)
        if plan.unrun:
            raise RuntimeError(plan.unrun)
        self.cudnn.seen.append(
            (number, places[self.image], self.image.at(places[self.image], dtype).ravel()[:64].copy())
        )
        time.sleep(plan.slow_s)
        source, weights = (t.at(places[t], dtype).astype(np.float64) for t in (self.image, self.weight))
        weights = weights[:, :, ::-1, ::-1] if self.more["convolution_mode"] == "CONVOLUTION" else weights
        (top, left), (bottom, right) = self.more["pre_padding"], self.more["post_padding"]
        source = np.pad(source, ((0, 0), (0, 0), (top, bottom), (left, right)))
        groups = source.shape[1] // weights.shape[1]
        target = self.out.at(places[self.out], dtype)
        target[...] = correlated(
            source, weights, target.shape, self.more["stride"], self.more["dilation"], groups
        ).astype(dtype)


class PlayedFrontend(types.ModuleType):
    """The module `cudnn`; each call of a plan is noted in `seen`: number, address of x, first numbers of x."""

    def __init__(self, *plans: PlayedPlan) -> None:
        super().__init__("cudnn")
        self.__spec__ = importlib.machinery.ModuleSpec("cudnn", None)
        self.plans, self.seen = plans, list[tuple[int, int, Any]]()
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
