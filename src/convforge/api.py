"""What users call: conv2d, max_pool2d, relu, gemm, Filter, algorithms. Arrays in, arrays of the same kind out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convforge.algorithms import algorithms as every_algorithm
from convforge.algorithms import refusal
from convforge.algorithms.contract import Config, Operands, PreparedFilter
from convforge.arguments import Activation, IntPair, Padding, conv2d_problem, pool2d_problem
from convforge.arrays import as_array, output_array
from convforge.execution import execute, find_plan, prepared_plan
from convforge.problem import ElementwiseProblem, GemmProblem, Problem

AnyConfig = Config | Mapping[str, Any] | str | None


def conv2d(
    x: NDArray[Any],
    w: NDArray[Any],
    bias: NDArray[Any] | None = None,
    stride: IntPair = 1,
    padding: Padding = 0,
    dilation: IntPair = 1,
    groups: int = 1,
    *,
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    mode: str = "cross-correlation",
    activation: Activation = None,
    precision: str = "strict",
    algorithm: str = "auto",
    config: AnyConfig = None,
    device: str | None = None,
    deterministic: bool = False,
    tune: bool | None = None,
    workspace_limit: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """2D convolution of a batch of pictures: cross-correlation, as neural networks have it.

    The positional arguments and their defaults agree with ``torch.nn.functional.conv2d``.

    Parameters
    ----------
    x : array of shape (N, C, H, W) or (C, H, W); with layout "NHWC", (N, H, W, C) or (H, W, C)
        float32, float64, float16 (summed in float32), or an integer type of 8 or 16 bits or int32. Any strides.
    w : array of shape (K, C / groups, R, S), whatever the layout
        x's dtype; for integer x any integer type (summed in int32) or any float type (summed in float32 or float64).
    bias : array of shape (K,), optional
    stride, dilation : int or pair of int
        Per axis (vertical, horizontal).
    padding : int, pair of int, "valid", "same" or ((top, bottom), (left, right))
        "same" gives ceil(H / stride) by ceil(W / stride) outputs; an odd pixel of padding goes to the bottom and right.
    groups : int
        Divides C and K; groups = C is a depthwise convolution.
    layout : {"NCHW", "NHWC"}
        Order of x's and the result's axes; "CHW" and "HWC" are understood too.
    padding_mode : {"zeros", "reflect", "symmetric", "replicate", "circular"}
        See :data:`convforge.problem.PADDING_MODES`.
    mode : {"cross-correlation", "convolution"}
        "convolution" flips the filter.
    activation : str or (str, float), optional
        A key of :data:`convforge.problem.ACTIVATIONS`, with its parameter where it has one: ``("leaky_relu", 0.2)``.
    precision : str
        The arithmetic that "auto" may choose: a key of :data:`convforge.problem.PRECISIONS`. An algorithm asked for by
        name brings its own.
    algorithm : str
        "auto" or a name that :func:`algorithms` lists.
    config : Config, mapping or str, optional
        Of that algorithm, such as ``"tile_p=8"``; what it does not name keeps its default.
    device : {None, "cpu", "cuda", "cuda:1", "emulator"}
        Where to run; None is the CPU. "cuda" is the first GPU, "emulator" runs the GPU's kernels on the CPU.
    deterministic : bool
        Every method here takes its sums in the same order on every call, so the promise always holds.
    tune : bool, optional
        "auto" chooses by rule and measures nothing, so False, which forbids measuring, changes nothing.
    workspace_limit : int, optional
        Bytes; methods and configs that need more are passed over.
    out : array, optional
        Where to put the result; it may overlap x.

    Returns
    -------
    array of shape (N, K, P, Q), or (K, P, Q), or as `layout` says
        x's dtype where that is a float type; for integer x the type that it was summed in.

    Raises
    ------
    ValueError
        A shape, size or word breaks a rule; the text names the value, the rule and what to do.
    TypeError
        An argument is no array, or of a dtype that is not taken.
    UnsupportedProblem
        No method, or not the one asked for, can do it; with every method's reason.

    Examples
    --------
    >>> x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    >>> w = np.arange(1, 25, dtype=np.float32).reshape(2, 2, 2, 3)
    >>> conv2d(x, w)[0, 0].tolist()
    [[962.0, 1040.0], [1274.0, 1352.0]]
    >>> conv2d(x, w, padding=1, stride=2, algorithm="im2col")[0, 1].tolist()
    [[606.0, 1072.0], [2070.0, 3368.0]]
    """
    x = as_array(x, "x", (3, 4))
    w = as_array(w, "w", (4,))
    problem, batched, operands = conv2d_problem(
        x, w, bias, stride, padding, dilation, groups, layout=layout, padding_mode=padding_mode, mode=mode,
        activation=activation, precision=precision,
    )  # fmt: skip
    plan = find_plan(problem, algorithm, config, device, workspace_limit)
    inputs = (x, w) if operands.bias is None else (x, w, operands.bias)
    target, overlaps = output_array(out, problem.out_shape[not batched :], problem.out_dtype, inputs)
    whole = target if batched else target[None]
    return execute(plan, x if batched else x[None], w, operands, whole, overlaps, target)


class Filter:
    """A convolution whose weights are prepared once: flipped, cast, transformed, factored, and kept.

    Calling it gives what :func:`conv2d` gives with the same arguments. Preparation happens at the first picture of each
    shape and dtype, and is kept for the next, for up to 16 of them. Safe to call from many threads.

    Parameters
    ----------
    w, bias
        As in :func:`conv2d`; copied.
    **options
        The other arguments of :func:`conv2d`, except `out`.

    Examples
    --------
    >>> blur = Filter(np.full((1, 1, 3, 3), 1 / 9, np.float32), padding="same", algorithm="separable")
    >>> blur(np.ones((1, 1, 4, 4), np.float32)).shape
    (1, 1, 4, 4)
    >>> blur.note.split(",")[0]
    'rank 1'
    """

    def __init__(self, w: NDArray[Any], bias: NDArray[Any] | None = None, **options: Any) -> None:
        self.w = as_array(w, "w", (4,)).copy()
        self.bias = None if bias is None else as_array(bias, "bias", (1,)).copy()
        self._choice = {name: options.pop(name) for name in _PLAN_OPTIONS if name in options}
        for name in ("deterministic", "tune"):
            options.pop(name, None)
        unknown = set(options) - _PROBLEM_OPTIONS
        if unknown:
            raise TypeError(f"Filter takes no option {', '.join(sorted(unknown))}; it takes conv2d's, except out")
        self._options = options
        self._kept: dict[Any, PreparedFilter] = {}
        self._last: PreparedFilter | None = None

    @property
    def note(self) -> str:
        """What the weights turned out to be when they were last used, such as a rank; empty before the first call."""
        return "" if self._last is None else self._last.note

    def __call__(self, x: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Convolve; see :func:`conv2d` for shapes, dtypes and errors."""
        x = as_array(x, "x", (3, 4))
        problem, batched, operands = conv2d_problem(x, self.w, self.bias, **self._options)
        plan = find_plan(problem, **_plan_arguments(self._choice))
        prepared = prepared_plan(plan, self.w, self._kept)
        self._last = prepared
        target, overlaps = output_array(out, problem.out_shape[not batched :], problem.out_dtype, (x,))
        whole = target if batched else target[None]
        return execute(plan, x if batched else x[None], None, operands, whole, overlaps, target, prepared)


_PLAN_OPTIONS = ("algorithm", "config", "device", "workspace_limit")
_PROBLEM_OPTIONS = {
    *("stride", "padding", "dilation", "groups", "layout", "padding_mode", "mode", "activation", "precision"),
}


def _plan_arguments(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {"algorithm": "auto", "config": None, "device": None, "workspace_limit": None, **choice}


def max_pool2d(
    x: NDArray[Any],
    kernel_size: IntPair,
    stride: IntPair | None = None,
    padding: Padding = 0,
    dilation: IntPair = 1,
    ceil_mode: bool = False,
    *,
    layout: str = "NCHW",
    device: str | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """The largest value of each window; NaN wins over all, padding never wins.

    Parameters
    ----------
    x : array of shape (N, C, H, W) or (C, H, W), or as `layout` says
        Any dtype that :func:`conv2d` takes.
    kernel_size : int or pair of int
        Height and width of the window.
    stride : int or pair of int, optional
        By default the window's size.
    padding
        In :func:`conv2d`'s forms; less than the window on every side.
    dilation : int or pair of int
    ceil_mode : bool
        Round the output's size up.
    layout, device, out
        As in :func:`conv2d`.

    Returns
    -------
    array of x's dtype, of shape (N, C, P, Q), or (C, P, Q), or as `layout` says

    Raises
    ------
    ValueError, TypeError
        As :func:`conv2d`.

    Examples
    --------
    >>> max_pool2d(np.arange(16, dtype=np.float32).reshape(1, 4, 4), 2).tolist()
    [[[5.0, 7.0], [13.0, 15.0]]]
    """
    x = as_array(x, "x", (3, 4))
    problem, batched = pool2d_problem(x, kernel_size, stride, padding, dilation, ceil_mode, layout)
    plan = find_plan(problem, "auto", None, device, None)
    target, overlaps = output_array(out, problem.out_shape[not batched :], problem.dtype, (x,))
    whole = target if batched else target[None]
    return execute(plan, x if batched else x[None], None, Operands(), whole, overlaps, target)


def relu(x: NDArray[Any], *, device: str | None = None, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """max(x, 0), element by element; NaN stays NaN.

    Parameters
    ----------
    x : array of any shape
        Any dtype that :func:`conv2d` takes.
    device, out
        As in :func:`conv2d`; `out` may be x.

    Examples
    --------
    >>> relu(np.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    x = as_array(x, "x")
    problem = ElementwiseProblem(size=x.size, dtype=x.dtype.name)
    plan = find_plan(problem, "auto", None, device, None)
    target, overlaps = output_array(out, x.shape, problem.dtype, (x,))
    flat = target if target.flags.c_contiguous and not overlaps else np.empty(x.shape, x.dtype)
    execute(plan, np.ascontiguousarray(x).reshape(-1), None, Operands(), flat.reshape(-1), False, flat)
    if flat is not target:
        target[...] = flat
    return target


def gemm(
    a: NDArray[Any],
    b: NDArray[Any],
    *,
    algorithm: str = "auto",
    config: AnyConfig = None,
    device: str | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """The matrix product of `a` and `b`, by any rung of the ladder.

    Parameters
    ----------
    a : array of shape (M, K)
        float32 or float64, any strides.
    b : array of shape (K, N)
        a's dtype.
    algorithm, config, device, out
        As in :func:`conv2d`.

    Returns
    -------
    array of shape (M, N)

    Raises
    ------
    ValueError, TypeError
        As :func:`conv2d`.

    Examples
    --------
    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> gemm(a, a.T, algorithm="gemm_blocked").tolist()
    [[5.0, 14.0], [14.0, 50.0]]
    """
    a, b = as_array(a, "a", (2,)), as_array(b, "b", (2,))
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a has {a.shape[1]} columns and b has {b.shape[0]} rows; they must be equal")
    if a.dtype != b.dtype:
        raise ValueError(f"a is {a.dtype} and b is {b.dtype}; cast one of them")
    problem = GemmProblem(m=a.shape[0], n=b.shape[1], k=a.shape[1], dtype=a.dtype.name)
    plan = find_plan(problem, algorithm, config, device, None)
    target, overlaps = output_array(out, (problem.m, problem.n), problem.dtype, (a, b))
    return execute(plan, a, b, Operands(), target, overlaps, target)


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """A method as :func:`algorithms` lists it.

    Attributes
    ----------
    name, operation, backend, summary, precision : str
    ours : bool
        False for another library's.
    refusal : str or None
        Why it cannot do the problem that was asked about.
    """

    name: str
    operation: str
    backend: str
    summary: str
    precision: str
    ours: bool
    refusal: str | None


def algorithms(problem: Problem | str | None = None, device: str | None = None) -> list[AlgorithmInfo]:
    """Every method, or those of a problem's operation, each with the reason for which it refuses the problem.

    Parameters
    ----------
    problem : Problem or str, optional
        A problem or its text form.
    device : {None, "cpu", "cuda", "emulator"}
        Whose methods; None is the CPU.

    Examples
    --------
    >>> [a.name for a in algorithms("m64n64k64_f32") if a.ours]
    ['gemm_loops', 'gemm_blocked', 'gemm_blas']
    """
    from convforge.execution import runtime_of
    from convforge.problem import parse_problem

    if isinstance(problem, str):
        problem = parse_problem(problem)
    if problem is not None and not isinstance(problem, Problem):
        raise TypeError(f"problem must be a problem or its text form; got {type(problem).__name__}")
    facts = runtime_of(device).facts
    return [
        AlgorithmInfo(
            a.name,
            a.operation,
            a.backend,
            a.summary,
            a.precision,
            a.ours,
            None if problem is None else refusal(a, problem, facts),
        )
        for a in every_algorithm()
        if a.backend == facts.backend and (problem is None or a.operation == problem.operation)
    ]
