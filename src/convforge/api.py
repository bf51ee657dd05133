"""The functions that users call: conv2d, max_pool2d, relu, gemm, Filter, algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from convforge.algorithms import default_ways, refusal
from convforge.algorithms.contract import Config, Plan, PreparedFilter
from convforge.call.arguments import Activation, IntPair, Padding, check_word, conv2d_problem, pool2d_problem
from convforge.call.arrays import Home, dtype_name, flat, home_of, is_transposed
from convforge.call.cache import Calls, kinds
from convforge.call.dispatch import at_home, execute, find_plan, prepared_plan, run, runtime_of
from convforge.call.quantized import QuantizedWeights, quantized_weights
from convforge.peers import every_algorithm
from convforge.problem import Conv2dProblem, ElementwiseProblem, GemmProblem, Problem, parse_problem
from convforge.problem.gemm import BYTES as GEMM_BYTES
from convforge.problem.gemm import DTYPES as GEMM_DTYPES
from convforge.problem.quantization import Quantization
from convforge.tuning import CHOICES, compile_for, key_of, may_measure

Array = Any  # of NumPy, PyTorch, CuPy or JAX
_CALLS = Calls(CHOICES.generation)
AnyConfig = Config | Mapping[str, Any] | str | None


def conv2d(
    x: Array,
    w: Array,
    bias: Array | None = None,
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
    quantization: Quantization | None = None,
    residual: Array | None = None,
    amax: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Convolve a batch of images in 2D: cross-correlation, as in neural networks.

    The positional arguments and their defaults are those of ``torch.nn.functional.conv2d``.

    Parameters
    ----------
    x : array of shape (N, C, H, W) or (C, H, W); with layout "NHWC", (N, H, W, C) or (H, W, C)
        Array of NumPy, PyTorch, CuPy or JAX, with any strides; all arrays of a call are of one library and on one
        device. Its dtype is float32, float64, float16 or bfloat16 (summed in float32; in NumPy bfloat16 is from
        ml_dtypes), int32, or an integer type of 8 or 16 bits. N and C may be 0: a sum over no channels is 0.
    w : array of shape (K, C / groups, R, S), for every layout
        Has x's dtype; for integer x, any integer type (summed in int32) or float type (summed in float32 or float64).
    bias : array of shape (K,), optional
    stride, dilation : int or pair of int
        One number for both axes, or (vertical, horizontal).
    padding : int, pair of int, "valid", "same" or ((top, bottom), (left, right))
        "same" gives ceil(H / stride) by ceil(W / stride) outputs; if the padding is odd, bottom and right get one more.
    groups : int
        Divides C and K; groups = C is a depthwise convolution.
    layout : {"NCHW", "NHWC"}
        Order of the axes of x and of the result; "CHW" and "HWC" are accepted too.
    padding_mode : {"zeros", "reflect", "symmetric", "replicate", "circular"}
        A key of :data:`convforge.problem.PADDING_MODES` or of :data:`convforge.problem.PADDING_ALIASES`.
    mode : {"cross-correlation", "convolution"}
        "convolution" flips the filter.
    activation : str or (str, float), optional
        A key of :data:`convforge.problem.ACTIVATIONS`, with its parameter if it has one: ``("leaky_relu", 0.2)``.
    precision : str
        Arithmetic that "auto" may use, a key of :data:`convforge.problem.PRECISIONS`; named methods use their own.
    algorithm : str
        "auto" uses the method that was fastest in a measurement; on a GPU it measures once for all similar problems.
        "max" measures all methods and configs. "heuristic" chooses by rule. Or a name listed by :func:`algorithms`.
    config : Config, mapping or str, optional
        Config of the named algorithm, such as ``"tile_p=8"``; other fields keep their defaults.
    device : {None, "cpu", "cuda", "cuda:1", "emulator"}
        Device for arrays on the host: None is the CPU, "cuda" the first GPU, "emulator" runs GPU kernels on the CPU.
        Arrays on a GPU are computed on that GPU, on the caller's current stream; the call returns without waiting.
    deterministic : bool
        Choose by rule and ignore measurements, so that every run uses the same method. Each method adds in the same
        order on every call.
    tune : bool, optional
        Allow measurements if none of similar problems is stored: by default True on a GPU, and on the CPU with "max"
        only. False uses a stored measurement, else the rules.
    workspace_limit : int, optional
        Limit in bytes; methods and configs that need more workspace are not used.
    quantization : Quantization, optional
        Scales and zero points of 8-bit x and w, of which `bias` is then int32. Each call prepares the weights and the
        epilogue again, and reads a bias on a GPU back; a :class:`Filter` prepares them once.
    residual : array of the result's shape and dtype, optional
        Added before the activation; with `quantization` by the scale and zero point that it names for it.
    amax : array of one float32, optional
        For x of 8-bit floats: the call sets it to the largest absolute value of the result, before that is divided by
        the output's scale and rounded to its type; NaN if a value is NaN. JAX arrays cannot be written to.
    out : array, optional
        Array of x's library that receives the result; it may overlap x and `residual`. JAX arrays cannot be written to.

    Returns
    -------
    array of x's library, of shape (N, K, P, Q) or (K, P, Q), with the axes in the order of `layout`
        Has x's dtype if that is a float type; for integer x, the type of the sums, or that of `quantization`.

    Raises
    ------
    ValueError, TypeError
        A shape, number, name or dtype is invalid; the text names the value, the rule and what to do.
    UnsupportedProblem
        No method, or not the named one, can compute the problem; the text has each method's reason.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    >>> w = np.arange(1, 25, dtype=np.float32).reshape(2, 2, 2, 3)
    >>> conv2d(x, w)[0, 0].tolist()
    [[962.0, 1040.0], [1274.0, 1352.0]]
    >>> conv2d(x, w, padding=1, stride=2, algorithm="im2col")[0, 1].tolist()
    [[606.0, 1072.0], [2070.0, 3368.0]]
    """
    plain = type(stride) is type(padding) is type(dilation) is type(groups) is int and (
        deterministic is False and tune is None and workspace_limit is None and activation is None
    )  # most calls: `kinds` is unnecessary
    options = (
        "conv2d",
        *(stride, padding, dilation, groups, deterministic, tune, workspace_limit),
        None if plain else kinds(stride, padding, dilation, groups, deterministic, tune, workspace_limit, activation),
        *(layout, padding_mode, mode, activation, precision, algorithm, config, device),
    )
    once = quantization is not None or residual is not None or amax is not None
    result, key = (None, None) if once else _CALLS.again((x, w, bias), options, out)
    if result is not None:
        return result
    return convolved(
        _CALLS, key, x, w, bias, out, quantization=quantization, residual=residual, amax=amax, stride=stride,
        padding=padding, dilation=dilation, groups=groups, layout=layout, padding_mode=padding_mode, mode=mode,
        activation=activation, precision=precision, algorithm=algorithm, config=config, device=device,
        deterministic=deterministic, tune=tune, workspace_limit=workspace_limit,
    )  # fmt: skip


# Options of conv2d that choose a plan, with their defaults; and options that describe a problem.
_PLAN_OPTIONS: dict[str, Any] = {
    "algorithm": "auto", "config": None, "device": None, "workspace_limit": None, "tune": None, "deterministic": False,
}  # fmt: skip
_PROBLEM_OPTIONS = {
    *("stride", "padding", "dilation", "groups", "layout", "padding_mode", "mode", "activation", "precision"),
    "quantization",
}


def convolved(
    calls: Calls, key: Any, x: Array, w: Array, bias: Array | None, out: Array | None = None, *,
    prepare: Callable[[Plan, Any, Any], PreparedFilter] | None = None,
    quantization: Quantization | QuantizedWeights | None = None, residual: Array | None = None,
    amax: Array | None = None, **options: Any,
) -> Array:  # fmt: skip
    """Compute :func:`conv2d` without the call cache, and store the call in `calls` under `key`.

    `options` are those of conv2d; `prepare` returns the prepared weights for a plan and a stream.
    """
    choice = {name: options.pop(name, default) for name, default in _PLAN_OPTIONS.items()}
    others = {"residual": residual, "amax": amax, "out": out}
    options["amax"] = amax is not None
    home = home_of(x=x, w=w, bias=bias, **others) if prepare is None else home_of(w=w, x=x, **others)
    addend = None if residual is None else home.read(residual, "residual", (3, 4))
    if quantization is None:
        problem, view, weights, vector = _conv2d_problem(home, x, w, bias, {**options, "residual": addend})
        added = None if vector is None else home.operand(vector, bias, problem.operand_dtype)
        operands = {} if added is None else {"bias": added}
    else:
        problem, view, weights, operands = _quantized_problem(home, x, w, bias, addend, quantization, options)
        vector = added = None
    if addend is not None:
        operands = {**operands, "residual": addend}
    if amax is not None:
        target = None if out is None else home.library.view(out, written=True)
        operands = {**operands, "amax": home.number(amax, "amax", (view, weights, addend, target))}
    stream = home.stream()
    x_filled, w_filled = home.filled(view, problem.x_shape), home.filled(weights, problem.w_shape)
    as_given = x_filled is view and (prepare is not None or (added is vector and w_filled is weights))
    keep = calls.keeper(key, as_given, stream, key_of(problem))
    choice["device"] = home.runs_on(choice["device"])
    with at_home(choice["device"]):
        plan = find_plan(problem, **choice, stream=stream)
        if prepare is None:
            return run(plan, home, x_filled, w_filled, operands, out, None, stream, keep)
        return run(plan, home, x_filled, None, operands, out, prepare(plan, w_filled, stream), stream, keep)


def _conv2d_problem(
    home: Home, x: Array, w: Array, bias: Array | None, options: Mapping[str, Any]
) -> tuple[Conv2dProblem, Any, Any, Any]:
    """Return the problem of these arrays, and the views of x, w and bias."""
    view, weights = home.read(x, "x", (3, 4)), home.read(w, "w", (4,))
    vector = None if bias is None else home.read(bias, "bias", (1,))
    return conv2d_problem(view, weights, vector, **options), view, weights, vector


def _quantized_problem(
    home: Home, x: Array, w: Array, bias: Array | None, residual: Any, quantization: Quantization | QuantizedWeights,
    options: Mapping[str, Any],
) -> tuple[Conv2dProblem, Any, Any, dict[str, Any]]:  # fmt: skip
    """Return the problem of a quantised convolution, the views of x and w, and the operands of the epilogue."""
    held = quantization
    if not isinstance(held, QuantizedWeights):
        held = quantized_weights(held, home, w, bias, options.get("activation"))
    held.quantization.check_residual(residual is not None)
    view, weights = home.read(x, "x", (3, 4)), held.w
    fields = held.fields(dtype_name(view), options.get("padding_mode", "zeros"))
    if options["amax"]:
        fields["amax_scale"] = held.amax_scale
    problem = conv2d_problem(view, weights, residual=residual, **{**options, **fields})
    return problem, view, weights, held.operands


def compile_ahead(calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]], budget_s: float | None = None) -> None:
    """Compile, in parallel, the kernels that these calls of :func:`conv2d` will measure on a GPU.

    Each call is a tuple (x, w, bias) and the keyword arguments that describe its problem. Invalid calls are skipped.
    `budget_s` is in seconds; see :func:`convforge.tuning.compile_for`.
    """
    found: dict[str | None, dict[Problem, None]] = {}
    for (x, w, bias), options in calls:
        with suppress(TypeError, ValueError):
            home = home_of(x=x, w=w, bias=bias)
            problem = _conv2d_problem(home, x, w, bias, options)[0]
            found.setdefault(home.runs_on(None), {})[problem] = None
    for device, problems in found.items():
        runtime = runtime_of(device)
        if may_measure(None, "auto", runtime):
            compile_for(problems, runtime, budget_s)


class Filter:
    """A convolution with fixed weights, which it prepares once: flips, casts, transforms or factors them.

    A call returns the same as :func:`conv2d` with the same arguments. The first image of each shape and dtype prepares
    the weights; they are kept for up to 16 shapes and dtypes. Thread-safe.

    Parameters
    ----------
    w, bias
        As in :func:`conv2d`. The filter keeps copies.
    **options
        The other arguments of :func:`conv2d`, except `residual`, `amax` and `out`, which belong to a call.

    Examples
    --------
    >>> import numpy as np
    >>> blur = Filter(np.full((1, 1, 3, 3), 1 / 9, np.float32), padding="same", algorithm="separable")
    >>> blur(np.ones((1, 1, 4, 4), np.float32)).shape
    (1, 1, 4, 4)
    >>> blur.note.split(",")[0]
    'rank 1'
    """

    def __init__(self, w: Array, bias: Array | None = None, **options: Any) -> None:
        home = home_of(w=w, bias=bias)
        self.w = home.kept(w, "w", (4,))
        self.bias: Array = None if bias is None else home.kept(bias, "bias", (1,))
        unknown = set(options) - _PROBLEM_OPTIONS - _PLAN_OPTIONS.keys()
        if unknown:
            raise TypeError(f"Filter takes no option {', '.join(sorted(unknown))}; it takes conv2d's, except out, "
                            "residual and amax, which a call takes")  # fmt: skip
        quantization = options.get("quantization")
        self._held = {} if quantization is None else {
            "quantization": quantized_weights(
                quantization, home, self.w, self.bias, options.get("activation"), kept=True
            )
        }  # fmt: skip
        self._options = options
        self._kept: dict[Any, PreparedFilter] = {}
        self._last: PreparedFilter | None = None
        self._calls = Calls(CHOICES.generation)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the arguments only: a copy prepares its weights again."""
        return partial(type(self), **self._options), (self.w, self.bias)

    @property
    def note(self) -> str:
        """Properties of the prepared weights of the last call, such as their rank; empty before the first call."""
        note = None if self._last is None else self._last.note
        return "" if note is None else str(note)

    def __call__(
        self, x: Array, out: Array | None = None, *, residual: Array | None = None, amax: Array | None = None
    ) -> Array:
        """Convolve; see :func:`conv2d` for shapes, dtypes, `residual`, `amax` and errors."""
        if amax is None:
            result, key = self._calls.again((x, residual), (), out, has_weights=False)
        else:
            arrays = (x, amax) if residual is None else (x, residual, amax)
            result, key = self._calls.again(arrays, ("amax",), out, has_weights=False)
        if result is not None:
            return result
        options = {**self._options, **self._held, "residual": residual, "amax": amax}
        return convolved(self._calls, key, x, self.w, self.bias, out, prepare=self._prepare, **options)

    def _prepare(self, plan: Plan, w: Any, stream: Any) -> PreparedFilter:
        self._last = prepared_plan(plan, w, self._kept, stream)
        return self._last


def max_pool2d(
    x: Array,
    kernel_size: IntPair,
    stride: IntPair | None = None,
    padding: Padding = 0,
    dilation: IntPair = 1,
    ceil_mode: bool = False,
    *,
    layout: str = "NCHW",
    device: str | None = None,
    out: Array | None = None,
) -> Array:
    """Return the largest value of each window: NaN if the window has one; padding is ignored.

    Parameters
    ----------
    x : array of shape (N, C, H, W) or (C, H, W), with the axes in the order of `layout`
        Any dtype that :func:`conv2d` accepts.
    kernel_size : int or pair of int
        Height and width of the window.
    stride : int or pair of int, optional
        By default `kernel_size`.
    padding
        In the forms of :func:`conv2d`; smaller than the window on every side.
    dilation : int or pair of int
    ceil_mode : bool
        Round the output's size up.
    layout, device, out
        As in :func:`conv2d`. Errors are those of :func:`conv2d` too.

    Returns
    -------
    array of x's dtype, of shape (N, C, P, Q) or (C, P, Q), with the axes in the order of `layout`

    Examples
    --------
    >>> import numpy as np
    >>> max_pool2d(np.arange(16, dtype=np.float32).reshape(1, 4, 4), 2).tolist()
    [[[5.0, 7.0], [13.0, 15.0]]]
    """
    options = (
        *("max_pool2d", kernel_size, stride, padding, dilation, kinds(kernel_size, stride, padding, dilation)),
        *(ceil_mode, layout, device),
    )
    result, key = _CALLS.again((x,), options, out)
    if result is not None:
        return result
    home = home_of(x=x, out=out)
    view = home.read(x, "x", (3, 4))
    problem = pool2d_problem(view, kernel_size, stride, padding, dilation, ceil_mode, layout)
    return _computed(key, home, problem, view, None, device, out)


def _computed(
    key: Any, home: Home, problem: Problem, x: Any, w: Any, device: str | None, out: Array | None,
    algorithm: str = "auto", config: AnyConfig = None,
) -> Array:  # fmt: skip
    """Compute a problem, and cache the call under the key."""
    stream = home.stream()
    keep = _CALLS.keeper(key, True, stream, key_of(problem))
    device = home.runs_on(device)
    with at_home(device):
        plan = find_plan(problem, algorithm, config, device, None, stream=stream)
        return run(plan, home, x, w, {}, out, None, stream, keep)


def relu(x: Array, *, device: str | None = None, out: Array | None = None) -> Array:
    """Return max(x, 0) of each element; NaN stays NaN.

    Parameters
    ----------
    x : array of any shape
        Any dtype that :func:`conv2d` accepts.
    device, out
        As in :func:`conv2d`; `out` may be x.

    Examples
    --------
    >>> import numpy as np
    >>> relu(np.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    home = home_of(x=x, out=out)
    view = home.read(x, "x")
    problem = ElementwiseProblem(size=view.size, dtype=dtype_name(view))
    stream = home.stream()
    device = home.runs_on(device)
    with at_home(device):
        plan = find_plan(problem, device=device, stream=stream)
        x, view = home.dense(x, view)
        output = home.output_like(out, x, view)
        execute(plan, flat(view), None, {}, flat(output.view), None, stream)
        return output.finish(stream)


def gemm(
    a: Array,
    b: Array,
    *,
    precision: str = "strict",
    algorithm: str = "auto",
    config: AnyConfig = None,
    device: str | None = None,
    out: Array | None = None,
) -> Array:
    """Return the matrix product of `a` and `b`.

    Parameters
    ----------
    a : array of shape (M, K)
        float32, float64, float16 or bfloat16 (summed in float32), int8 or uint8 (summed in int32); with any strides.
    b : array of shape (K, N)
        Has a's dtype, or one is int8 and the other uint8.
    precision, algorithm, config, device, out
        As in :func:`conv2d`. Besides "strict", only the precision "tf32" allows further methods.

    Returns
    -------
    array of shape (M, N)
        Has a's dtype; int32 for integers.

    Raises
    ------
    ValueError, TypeError
        As :func:`conv2d`; ValueError also if K is so large that a sum of integers may overflow int32.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> gemm(a, a.T, algorithm="gemm_blocked").tolist()
    [[5.0, 14.0], [14.0, 50.0]]
    """
    result, key = _CALLS.again((a, b), ("gemm", precision, algorithm, config, device), out)
    if result is not None:
        return result
    home = home_of(a=a, b=b, out=out)
    left, right = home.read(a, "a", (2,), GEMM_DTYPES), home.read(b, "b", (2,), GEMM_DTYPES)
    if left.shape[1] != right.shape[0]:
        raise ValueError(f"a has {left.shape[1]} columns and b has {right.shape[0]} rows; they must be equal")
    if left.dtype != right.dtype and not {dtype_name(left), dtype_name(right)} <= set(GEMM_BYTES):
        raise ValueError(f"a is {dtype_name(left)} and b is {dtype_name(right)}; cast one of them")
    check_word(precision, "precision")
    (m, k), n = left.shape, right.shape[1]
    # On a GPU, a transposed view is replaced by the stored matrix, with transpose_a or transpose_b set.
    as_stored = not home.on_host and left.itemsize < 8
    transpose_a, transpose_b = (as_stored and is_transposed(view) for view in (left, right))
    left = left.transpose(1, 0) if transpose_a else left
    right = right.transpose(1, 0) if transpose_b else right
    problem = GemmProblem(
        m=m, n=n, k=k, transpose_a=transpose_a, transpose_b=transpose_b, dtype=dtype_name(left),
        b_dtype=dtype_name(right), precision=precision,
    )  # fmt: skip
    return _computed(key, home, problem, left, right, device, out, algorithm, config)


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """Description of an algorithm, as listed by :func:`algorithms`.

    Attributes
    ----------
    name, operation, backend, summary, precision : str
    ours : bool
        False for a method of another library.
    refusal : str or None
        Reason why it cannot compute the given problem, if it cannot.
    ways : tuple of (str, str)
        Name and condition of each variant that a call in the default config may use.
    """

    name: str
    operation: str
    backend: str
    summary: str
    precision: str
    ours: bool
    refusal: str | None
    ways: tuple[tuple[str, str], ...] = ()


def algorithms(problem: Problem | str | None = None, device: str | None = None) -> list[AlgorithmInfo]:
    """List the methods of a device; for a problem, those of its operation, with their refusals or ways.

    Parameters
    ----------
    problem : Problem or str, optional
        A problem or its text form.
    device : {None, "cpu", "cuda", "emulator"}
        None is the CPU.

    Examples
    --------
    >>> [a.name for a in algorithms("m64n64k64_f32") if a.ours]
    ['gemm_loops', 'gemm_blocked', 'gemm_blas']
    """
    if isinstance(problem, str):
        problem = parse_problem(problem)
    if problem is not None and not isinstance(problem, Problem):
        raise TypeError(f"problem must be a problem or its text form; got {type(problem).__name__}")
    facts = runtime_of(device).facts
    found = []
    for a in every_algorithm():
        if a.backend != facts.backend or (problem is not None and a.operation != problem.operation):
            continue
        reason = None if problem is None else refusal(a, problem, facts)
        ways = () if problem is None or reason is not None else default_ways(a, problem, facts)
        listed = tuple((way.name, str(way.words)) for way in ways)
        why = None if reason is None else str(reason)
        found.append(AlgorithmInfo(a.name, a.operation, a.backend, a.summary, a.precision, a.ours, why, listed))
    return found
