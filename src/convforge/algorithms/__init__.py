"""The registry of our own methods, one line each; :mod:`convforge.peers` adds the methods of other libraries."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable
from typing import Any

from convforge.algorithms.contract import Algorithm, Config, precision_refusal
from convforge.algorithms.depthwise import Depthwise
from convforge.algorithms.depthwise import device as depthwise
from convforge.algorithms.depthwise.int8 import DepthwiseInt8
from convforge.algorithms.direct import DirectNaive, DirectRows
from convforge.algorithms.direct import device as direct
from convforge.algorithms.elementwise import Relu
from convforge.algorithms.elementwise import device as elementwise
from convforge.algorithms.fft import Fft, fused
from convforge.algorithms.fft import device as fft
from convforge.algorithms.gemm import Gemm1x1, GemmBlas, GemmBlocked, GemmLoops
from convforge.algorithms.gemm import device as gemm
from convforge.algorithms.gemm.by_convolution import GemmSplit, GemmSplitMma, GemmTf32, GemmTf32Mma
from convforge.algorithms.gemm.mma import GemmMma
from convforge.algorithms.gemm.wgmma import GemmWgmma
from convforge.algorithms.im2col import Im2col
from convforge.algorithms.im2col import device as im2col
from convforge.algorithms.implicit_gemm import ImplicitGemm
from convforge.algorithms.implicit_gemm import device as implicit_gemm
from convforge.algorithms.implicit_gemm.dp4a import ImplicitGemmDp4a
from convforge.algorithms.implicit_gemm.few_channels import ImplicitGemmFewChannels
from convforge.algorithms.implicit_gemm.few_outputs import ImplicitGemmFewOutputs
from convforge.algorithms.implicit_gemm.int8 import ImplicitGemmInt8 as ImplicitGemmInt8OnCpu
from convforge.algorithms.implicit_gemm.mma import ImplicitGemmMma, ImplicitGemmTf32Mma
from convforge.algorithms.implicit_gemm.mma_bytes import ImplicitGemmFp8Mma, ImplicitGemmInt8Mma
from convforge.algorithms.implicit_gemm.split import ImplicitGemmSplit
from convforge.algorithms.implicit_gemm.split_few_channels import ImplicitGemmSplitFewChannels
from convforge.algorithms.implicit_gemm.split_mma import ImplicitGemmSplitMma
from convforge.algorithms.implicit_gemm.wgmma import ImplicitGemmTf32, ImplicitGemmWgmma
from convforge.algorithms.implicit_gemm.wgmma_bytes import ImplicitGemmFp8, ImplicitGemmFp8Fast, ImplicitGemmInt8
from convforge.algorithms.pool import MaxPoolRows
from convforge.algorithms.pool import device as pool
from convforge.algorithms.separable import Separable
from convforge.algorithms.separable import device as separable
from convforge.algorithms.traits import Way
from convforge.algorithms.winograd import WinogradF2, WinogradF4
from convforge.backends.facts import DeviceFacts
from convforge.errors import Reason
from convforge.problem import Problem
from convforge.problem.types import FP8

AnyAlgorithm = Algorithm[Any, Any]

# In ladder order.
OURS: tuple[AnyAlgorithm, ...] = (
    *(DirectNaive(), DirectRows(), Depthwise(), DepthwiseInt8()),
    *(GemmLoops(), GemmBlocked(), GemmBlas(), Gemm1x1()),
    *(Im2col(), ImplicitGemm(), ImplicitGemmInt8OnCpu(), WinogradF2(), WinogradF4(), Fft(), Separable()),
    *(MaxPoolRows(), Relu()),
)

# The same methods on GPUs, in CUDA C++; the emulator runs the same files on the CPU.
_ON_DEVICE: tuple[Callable[[str], AnyAlgorithm], ...] = (
    *(direct.DirectNaive, direct.DirectConstant, direct.DirectShared, direct.DirectTiled, direct.DirectBoxes),
    *(direct.DirectSmall, direct.DirectMma, direct.DirectDp4a),
    *(depthwise.DepthwiseChannels, depthwise.DepthwisePlanes, depthwise.DepthwiseRows, depthwise.DepthwiseMma),
    *(depthwise.DepthwiseBatch, depthwise.DepthwiseDp4a),
    *(fft.Fft, fused.FftFused, separable.Separable),
    *gemm.LADDER.values(),
    *(GemmMma, GemmWgmma, GemmTf32, GemmSplit, GemmTf32Mma, GemmSplitMma),
    *(im2col.Im2col, im2col.Im2colTf32),
    *(implicit_gemm.ImplicitGemm, ImplicitGemmMma, ImplicitGemmFewChannels, ImplicitGemmFewOutputs),
    *(ImplicitGemmWgmma, ImplicitGemmInt8, ImplicitGemmFp8Fast, ImplicitGemmFp8),
    *(ImplicitGemmTf32, ImplicitGemmSplit, ImplicitGemmTf32Mma, ImplicitGemmSplitMma, ImplicitGemmSplitFewChannels),
    *(ImplicitGemmInt8Mma, ImplicitGemmFp8Mma, ImplicitGemmDp4a),
    *(pool.MaxPool, elementwise.Relu),
)
ON_DEVICE: tuple[AnyAlgorithm, ...] = tuple(new(backend) for backend in ("cuda", "emulator") for new in _ON_DEVICE)


def algorithms() -> tuple[AnyAlgorithm, ...]:
    """Our methods of all operations and backends, in ladder order."""
    return (*OURS, *ON_DEVICE)


def find(operation: str, backend: str, name: str, among: Iterable[AnyAlgorithm] | None = None) -> AnyAlgorithm:
    """Find a method by its registry key, by default among our own; ValueError names the closest match if none fits."""
    methods = algorithms() if among is None else among
    known = {a.name: a for a in methods if a.operation == operation and a.backend == backend}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"{operation} has no algorithm {name!r} on {backend}{hint} It has: {', '.join(known)}")


def refusal(algorithm: AnyAlgorithm, problem: Problem, facts: DeviceFacts) -> Reason | None:
    """Return why a method cannot compute a problem on a device, or None."""
    if algorithm.operation != problem.operation:
        return Reason("it computes {operation}", operation=algorithm.operation)
    if algorithm.backend != facts.backend:
        return Reason("it runs on {backend}", backend=algorithm.backend)
    stored = FP8.intersection(array.dtype for array in (*problem.operands, *problem.results))
    if stored and not algorithm.takes_fp8:
        return Reason("it does not take {dtype}; cast to float16, bfloat16 or float32", dtype=min(stored))
    if len(problem.results) > 1 and not algorithm.takes_amax:
        return Reason("it does not compute amax, the largest absolute value of the results")
    reason = algorithm.refuses(problem, facts)
    return reason if reason is not None else precision_refusal(algorithm, problem.precision)


def default_ways(algorithm: AnyAlgorithm, problem: Problem, facts: DeviceFacts) -> tuple[Way, ...]:
    """Ways of a method's default config for a problem that the method supports; compiles nothing."""
    if type(algorithm).ways is Algorithm.ways:
        return ()
    return algorithm.ways(problem, algorithm.configs(problem, facts)[0])


def import_libraries(algorithm: AnyAlgorithm) -> None:
    """Import the libraries that a method of ours uses, before it imports their submodules.

    CPython removes a module from ``sys.modules`` for a moment just after it loads it; a thread that imports a
    submodule during that moment raises KeyError.
    """
    if algorithm.ours:
        algorithm.versions()


def make_config(method: AnyAlgorithm, problem: Any, facts: DeviceFacts, config: Config | str) -> Config:
    """Parse a config from its text, ``field=value`` joined by commas; other fields keep the default's value.

    Raises ValueError for an unknown field (and names the closest match), and for a value of the wrong type.
    """
    default: Config = method.configs(problem, facts)[0]
    if isinstance(config, Config):
        if type(config) is not type(default):
            raise ValueError(f"{method.name} takes a {type(default).__name__}; got a {type(config).__name__}")
        for f in dataclasses.fields(config):
            value, least = getattr(config, f.name), _least(f)
            if type(getattr(default, f.name)) is int and (not isinstance(value, int) or value < least):
                raise ValueError(f"{f.name}={value!r} must be a whole number of at least {least}")
        return config
    fields = {f.name: f for f in dataclasses.fields(default)}
    changes: dict[str, Any] = {}
    for part in filter(None, config.replace(" ", "").split(",")):
        name, _, text = part.partition("=")
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"{method.name} has no config field {name!r}{hint} It has: {', '.join(fields) or 'none'}")
        changes[name] = _value(fields[name], text, getattr(default, name))
    return dataclasses.replace(default, **changes)


def _value(field: dataclasses.Field[Any], text: str, default: Any) -> Any:
    """Parse the value of a config field as the type of its default."""
    if isinstance(default, bool):
        if text not in ("True", "False"):
            raise ValueError(f"{field.name}={text!r} must be True or False")
        return text == "True"
    if not isinstance(default, int):
        return type(default)(text)
    if not (text.isascii() and text.isdigit()) or int(text) < _least(field):
        raise ValueError(f"{field.name}={text!r} must be a whole number of at least {_least(field)}")
    return int(text)


def _least(field: dataclasses.Field[Any]) -> int:
    """Smallest value of a numeric config field: 1, unless the field's metadata give another."""
    return int(field.metadata.get("least", 1))
