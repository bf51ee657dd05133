"""What is particular to NumPy, PyTorch, CuPy and JAX: where an array lies, its stream, its library's memory.

No library is imported here: an array of one is only ever met once its library has been.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convforge.backends.cuda.arrays import DeviceArray
from convforge.backends.streams import CallerStream
from convforge.problem.types import ADDED, SHORT_NAMES, numpy_dtype


class Library(Protocol):
    """A library's arrays.

    Attributes
    ----------
    kind : str
        What messages call one, with its article.
    arrays : tuple of type
        Its classes of arrays.
    """

    kind: str
    arrays: tuple[type, ...]

    def device(self, array: Any, name: str) -> str:
        """Where it lies: "cpu" or "cuda:0"; ValueError for another kind of device."""
        ...

    def check(self, array: Any, name: str) -> None:
        """Refuse an array whose elements cannot be read as they lie, in a sentence."""
        ...

    def dtype(self, array: Any) -> str:
        """Its element type; for those that convforge takes, by our name."""
        ...

    def seen(self, array: Any, written: bool = False) -> Any:
        """The same memory as plans see it; to be written to, where that is said."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        """A new array of the library, not yet written."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        """A new array of zeros."""
        ...

    def empty_like(self, array: Any) -> Any:
        """The same as :meth:`empty` of an array's shape and type, whose axes lie in memory in the same order."""
        ...

    def cast(self, array: Any, dtype: str) -> Any:
        """A contiguous copy in a type of ours."""
        ...

    def copy(self, target: Any, source: Any) -> None:
        """Copy the elements of one array to another of the same shape."""
        ...

    def stream(self, device: str) -> CallerStream:
        """The caller's current stream on a GPU."""
        ...

    def signed(self, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        """All that a plan looks at, and the addresses of a GPU's arrays; None where a call goes the whole way.

        So it does where one of them is not the library's.
        A plan looks at an address's remainder of 256. On the host it is shape and type alone: there a plan looks at the
        rest anew on every call.
        """
        ...

    def alike(self, arrays: Sequence[Any]) -> Callable[..., list[int] | None] | None:
        """What gives the addresses of arrays that have the signature of these, a GPU's, and None for others.

        None where the library has nothing quicker than :meth:`signed`.
        """
        ...

    def address(self, array: Any) -> int:
        """Where an array of a GPU lies."""
        ...

    def maker(self, shape: tuple[int, ...], dtype: str, device: str) -> Callable[[], Any]:
        """A function that makes such arrays as :meth:`empty` does. When it is called, their GPU is the thread's own."""
        ...

    def handles(self, device: str) -> Callable[[], int]:
        """A function that gives the driver's handle of the caller's current stream."""
        ...

    def take(self, nbytes: int, device: str) -> tuple[int, Any]:
        """Memory of the library for work on the current stream: its address, and what keeps it."""
        ...

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        """An array of :meth:`empty` as the caller gets it, once work on the stream writes it."""
        ...


class _Plain:
    """What a library without more to say of it says."""

    def signed(self: Any, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        return None

    def alike(self: Any, arrays: Sequence[Any]) -> Callable[..., list[int] | None] | None:
        return None

    def address(self: Any, array: Any) -> int:
        return int(self.seen(array).__array_interface__["data"][0])

    def maker(self: Any, shape: tuple[int, ...], dtype: str, device: str) -> Callable[[], Any]:
        return partial(self.empty, shape, dtype, device)

    def handles(self: Any, device: str) -> Callable[[], int]:
        return lambda: int(self.stream(device).handle)

    def take(self: Any, nbytes: int, device: str) -> tuple[int, Any]:
        block = self.empty((nbytes,), "uint8", device)
        return self.address(block), block


def is_masked(array: Any) -> bool:
    """Tell a masked array of NumPy's, whose module NumPy imports when it is first asked for it."""
    return isinstance(array, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


class _Numpy(_Plain):
    kind = "a NumPy array"
    arrays: tuple[type, ...] = (np.ndarray,)

    def device(self, array: Any, name: str) -> str:
        return "cpu"

    def check(self, array: Any, name: str) -> None:
        if is_masked(array):
            raise TypeError(
                f"{name} is a masked array, whose mask would be lost; fill it first, as in {name}.filled(0)"
            )

    def dtype(self, array: Any) -> str:
        return _numpy_name(array.dtype)

    def seen(self, array: Any, written: bool = False) -> NDArray[Any]:
        plain = np.asarray(array)
        if written or plain.dtype.isnative:
            return plain
        return plain.astype(plain.dtype.newbyteorder("="))

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> NDArray[Any]:
        return np.empty(shape, numpy_dtype(dtype))

    def zeros(self, shape: tuple[int, ...], dtype: str, device: str) -> NDArray[Any]:
        return np.zeros(shape, numpy_dtype(dtype))

    def empty_like(self, array: Any) -> NDArray[Any]:
        plain = np.asarray(array)
        return np.empty_like(plain, plain.dtype.newbyteorder("="))

    def cast(self, array: Any, dtype: str) -> NDArray[Any]:
        return np.array(array, numpy_dtype(dtype), order="C", copy=True)

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source

    def stream(self, device: str) -> CallerStream:
        raise ValueError("NumPy has no streams")

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        return array

    def signed(self, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        found: list[Any] = []
        for array in arrays:
            if type(array) is not np.ndarray or not array.dtype.isnative:
                return None
            found += (array.shape, array.dtype)
        return found, []


@lru_cache(maxsize=64)
def _numpy_name(dtype: np.dtype[Any]) -> str:
    return str(dtype if dtype.isnative else dtype.newbyteorder("="))


class _Torch:
    kind = "a PyTorch tensor"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.arrays: tuple[type, ...] = (torch.Tensor,)
        self._types = {name: getattr(torch, name) for name in SHORT_NAMES if hasattr(torch, name)}
        self._names = {dtype: name for name, dtype in self._types.items()}
        self._bits = {1: torch.uint8, 2: torch.int16}
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self.address: Callable[[Any], int] = torch.Tensor.data_ptr
        self._wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        # What torch.compile's own code asks, as it is quick.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        guards = getattr(torch._C._dynamo, "guards", None)
        self._quick_empty = getattr(guards, "_empty_strided_cuda", None)
        self._guards = getattr(guards, "TensorGuards", None)
        self._devices: dict[str, Any] = {}

    def device(self, array: Any, name: str) -> str:
        return _torch_device(array.device, name)

    def check(self, array: Any, name: str) -> None:
        torch = self._torch
        if array.layout is not torch.strided:
            raise TypeError(f"{name} is a tensor of layout {array.layout}; call to_dense() first")
        if hasattr(array, "fake_mode"):
            raise TypeError(f"{name} is a fake tensor, as torch.compile traces with: call convforge.torch.conv2d there")
        if self._wrapped(array):
            raise TypeError(
                f"{name} is a tensor inside of torch.func's vmap or grad, which gives no numbers to compute with: call "
                "convforge outside"
            )
        if name == "out" and array.is_neg():
            raise ValueError("out has a lazy minus sign, as the imaginary part of a conjugate has; give a plain tensor")
        if array.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name} requires a gradient, which is not recorded here: call convforge.torch.conv2d, which records "
                f"it, or give {name}.detach()"
            )

    def dtype(self, array: Any) -> str:
        return self._names.get(array.dtype) or str(array.dtype).removeprefix("torch.")

    def seen(self, array: Any, written: bool = False) -> Any:
        if array.requires_grad:
            array = array.detach()
        if not written and array.is_neg():
            array = array.resolve_neg()
        if array.is_cpu:
            name = self._names.get(array.dtype)
            if name in ADDED:  # PyTorch hands NumPy its bits alone
                return array.view(self._bits[array.element_size()]).numpy().view(numpy_dtype(name))
            return array.numpy()
        name = self.dtype(array)
        dtype = numpy_dtype(name) if name in SHORT_NAMES else np.dtype(f"V{array.element_size()}")
        size = dtype.itemsize
        steps = tuple([step * size for step in array.stride()])
        return DeviceArray.over(array.data_ptr(), tuple(array.shape), steps, dtype, array)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        if (place := self._devices.get(device)) is None:  # to read the text takes as long as to find the memory
            place = self._devices[device] = self._torch.device(device)
        if self._quick_empty is not None and place.type == "cuda" and place.index == self._torch._C._cuda_getDevice():
            return self._quick_empty(shape, _dense(shape), self._types[dtype])
        return self._torch.empty(shape, dtype=self._types[dtype], device=place)

    def zeros(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        return self._torch.zeros(shape, dtype=self._types[dtype], device=device)

    def cast(self, array: Any, dtype: str) -> Any:
        torch = self._torch
        return array.detach().to(self._types[dtype], memory_format=torch.contiguous_format, copy=True)

    def empty_like(self, array: Any) -> Any:
        return self._torch.empty_like(array.detach())

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def stream(self, device: str) -> CallerStream:
        with self._torch.cuda.device(device):
            capturing = self._torch.cuda.is_current_stream_capturing()
        return CallerStream(self.handles(device)(), partial(self.take, device=device), capturing)

    def take(self, nbytes: int, device: str) -> tuple[int, Any]:
        block = self.empty((nbytes,), "uint8", device)
        return block.data_ptr(), block

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        return array

    def signed(self, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        plain, found, places = self._plain, list[Any](), list[int]()
        for array in arrays:
            if type(array) not in plain:
                return None
            try:
                place = array.data_ptr()
            except RuntimeError:  # no memory of its own: sparse, or a tensor inside of torch.func's transforms
                return None
            if not place or array.is_neg() or (array.requires_grad and self._torch.is_grad_enabled()):
                return None
            if array.is_cuda:
                found += (array.shape, array.stride(), array.dtype, array.get_device(), place % 256)
                places.append(place)
            elif array.is_cpu:
                found += (array.shape, array.dtype)
            else:
                return None
        return found, places

    def alike(self, arrays: Sequence[Any]) -> Callable[..., list[int] | None] | None:
        if self._guards is None:
            return None
        check = self._guards(
            *arrays, dynamic_dims_sizes=[list(array.shape) for array in arrays],
            dynamic_dims_strides=[list(array.stride()) for array in arrays],
        ).check  # fmt: skip
        address, remainder = self.address, (255).__and__
        remainders = [remainder(address(array)) for array in arrays]
        learned = any(array.requires_grad for array in arrays)
        is_learning = self._torch.is_grad_enabled

        def places(*others: Any) -> list[int] | None:
            if not check(*others) or (learned and is_learning()):
                return None
            found = list(map(address, others))
            return None if 0 in found or list(map(remainder, found)) != remainders else found

        return places

    def maker(self, shape: tuple[int, ...], dtype: str, device: str) -> Callable[[], Any]:
        steps = _dense(shape)
        if self._quick_empty is not None and device != "cpu":
            return partial(self._quick_empty, shape, steps, self._types[dtype])
        place = self._torch.device(device)
        return partial(self._torch.empty_strided, shape, steps, dtype=self._types[dtype], device=place)

    def handles(self, device: str) -> Callable[[], int]:
        if self._raw_stream is not None:
            return partial(self._raw_stream, int(device[5:]))
        return lambda: int(self._torch.cuda.current_stream(device).cuda_stream)


@lru_cache(maxsize=1024)
def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an array without gaps, in elements.

    Examples
    --------
    >>> _dense((2, 3, 4)), _dense((2, 0, 4)), _dense(())
    ((12, 4, 1), (4, 4, 1), ())
    """
    return tuple([math.prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape))])


@lru_cache(maxsize=64)
def _torch_device(device: Any, name: str) -> str:
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {device}; convforge computes on the CPU and on NVIDIA GPUs: move it there")
    return str(device)


class _Cupy:
    kind = "a CuPy array"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.arrays: tuple[type, ...] = (cupy.ndarray,)

    def device(self, array: Any, name: str) -> str:
        return f"cuda:{array.device.id}"

    def check(self, array: Any, name: str) -> None:
        if not array.dtype.isnative:
            raise TypeError(f"{name} has bytes in foreign order; cast it with {name}.astype({array.dtype.name!r})")

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

    def seen(self, array: Any, written: bool = False) -> DeviceArray:
        return DeviceArray.over(array.data.ptr, array.shape, array.strides, array.dtype, array)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        with self._cupy.cuda.Device(int(device[5:])):
            return self._cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        with self._cupy.cuda.Device(int(device[5:])):
            return self._cupy.zeros(shape, dtype)

    def cast(self, array: Any, dtype: str) -> Any:
        with array.device:
            return array.astype(dtype, order="C", copy=True)

    def empty_like(self, array: Any) -> Any:
        with array.device:
            return self._cupy.empty_like(array)

    def copy(self, target: Any, source: Any) -> None:
        with target.device:
            target[...] = source

    def stream(self, device: str) -> CallerStream:
        current = self._cupy.cuda.get_current_stream(int(device[5:]))
        capturing = bool(current.ptr and current.is_capturing())
        return CallerStream(int(current.ptr), partial(self.take, device=device), capturing)

    def take(self, nbytes: int, device: str) -> tuple[int, Any]:
        with self._cupy.cuda.Device(int(device[5:])):
            block = self._cupy.cuda.alloc(nbytes)
        return int(block.ptr), block

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        return array

    def signed(self, arrays: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
        found: list[Any] = []
        places: list[int] = []
        for array in arrays:
            if type(array) is not self._cupy.ndarray:
                return None
            place = int(array.data.ptr)
            found += (array.shape, array.strides, array.dtype, array.data.device_id, place % 256)
            places.append(place)
        return found, places

    def alike(self, arrays: Sequence[Any]) -> Callable[..., list[int] | None] | None:
        return None

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def maker(self, shape: tuple[int, ...], dtype: str, device: str) -> Callable[[], Any]:
        return partial(self.empty, shape, dtype, device)

    def handles(self, device: str) -> Callable[[], int]:
        return lambda: int(self._cupy.cuda.get_current_stream(int(device[5:])).ptr)


class _Jax(_Plain):
    """JAX shows its streams to nobody, so work on a GPU goes to a stream of ours; DLPack orders one behind the other.

    An array comes in through ``__dlpack__(stream=ours)``, which has our stream wait until it is computed. A result is
    memory of JAX's that we write to, and goes back through a capsule, which has JAX's stream wait for ours.
    """

    kind = "a JAX array"

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self.arrays: tuple[type, ...] = (jax.Array, jax.core.Tracer)

    def device(self, array: Any, name: str) -> str:
        if isinstance(array, self._jax.core.Tracer):
            raise TypeError(
                f"{name} is traced by JAX (jit, grad or vmap), which gives no numbers to compute with: call convforge "
                "outside, on arrays"
            )
        devices = array.devices()
        if len(devices) > 1:
            raise ValueError(f"{name} is spread over {len(devices)} devices; gather it on one first")
        (device,) = devices
        if device.platform not in ("cpu", "gpu", "cuda"):
            raise ValueError(f"{name} is on {device.platform}; convforge computes on the CPU and on NVIDIA GPUs")
        return "cpu" if device.platform == "cpu" else f"cuda:{device.local_hardware_id}"

    def check(self, array: Any, name: str) -> None:
        if name == "out":
            raise TypeError("out is a JAX array, which cannot be written to; leave out= away and take the result")

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

    def seen(self, array: Any, written: bool = False) -> Any:
        """On the CPU the array's own memory; JAX waits for its numbers."""
        if isinstance(array, np.ndarray):  # of `empty`
            return array
        (device,) = array.devices()
        dtype = numpy_dtype(str(array.dtype))
        if device.platform == "cpu":
            return np.asarray(array).view(dtype)
        from cuda.core.utils import StridedMemoryView

        there = StridedMemoryView.from_dlpack(array, stream_ptr=self.stream(f"cuda:{device.local_hardware_id}").handle)
        return DeviceArray.over(there.ptr, array.shape, None, dtype, there)

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        if device == "cpu":
            return np.empty(shape, numpy_dtype(dtype))
        with self._wide(dtype):
            return self._jax.numpy.empty(shape, dtype, device=self._gpu(device))

    def zeros(self, shape: tuple[int, ...], dtype: str, device: str) -> Any:
        if device == "cpu":
            return np.zeros(shape, numpy_dtype(dtype))
        with self._wide(dtype):
            return self._jax.numpy.zeros(shape, dtype, device=self._gpu(device))

    def _gpu(self, device: str) -> Any:
        return next(d for d in self._jax.local_devices(backend="gpu") if d.local_hardware_id == int(device[5:]))

    def cast(self, array: Any, dtype: str) -> Any:
        with self._wide(dtype):
            return array.astype(dtype)  # never changed, so it need not be a copy

    def empty_like(self, array: Any) -> Any:
        return self.empty(array.shape, str(array.dtype), self.device(array, "x"))

    def copy(self, target: Any, source: Any) -> None:
        raise TypeError("a JAX array cannot be written to")

    def stream(self, device: str) -> CallerStream:
        from convforge.backends.cuda.runtime import cuda_runtime

        return CallerStream(cuda_runtime(int(device[5:])).stream_handle(None))

    def give(self, array: Any, stream: CallerStream | None) -> Any:
        with self._wide(str(array.dtype)):
            if stream is None:
                return self._jax.numpy.asarray(array)
            return self._jax.dlpack.from_dlpack(_Written(array, stream.handle))

    def _wide(self, dtype: str) -> AbstractContextManager[Any]:
        """Where JAX makes arrays of float64: unless it is told to, it makes them of float32, whatever it is asked for.

        Arrays of float64 come from where it was told so, and their results are float64 everywhere.
        """
        if dtype != "float64":
            return nullcontext()
        room = self._jax if hasattr(self._jax, "enable_x64") else importlib.import_module("jax.experimental")
        wide: AbstractContextManager[Any] = room.enable_x64(True)
        return wide


class _Written:
    """A JAX array that work on a stream of ours writes to: who takes it over waits for that."""

    def __init__(self, array: Any, stream: int) -> None:
        self._array, self._stream = array, stream

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        from convforge.backends.cuda.driver import wait_for

        if stream is not None:
            wait_for(stream, self._stream)
        return self._array.__dlpack__(**options)


@lru_cache(maxsize=256)
def replaying(kind: Any) -> Library | None:
    """The library of a type of arrays whose calls can be made again; None where it has no such."""
    make = _maker(kind, tuple([module in sys.modules for module, _ in _OTHERS]))
    library = None if make is None else make()
    return None if isinstance(library, _Jax) else library


def library_of(value: Any, name: str) -> Library:
    """The library of an argument.

    Raises
    ------
    TypeError
        It is no array of a library that convforge knows.
    """
    kind: Any = type(value)
    make = _maker(kind, tuple([module in sys.modules for module, _ in _OTHERS]))
    if make is None:
        raise TypeError(
            f"{name} must be a NumPy array, a PyTorch tensor, or an array of CuPy or JAX; got {kind.__name__}: "
            "convert it with numpy.asarray"
        )
    return make()


@lru_cache(maxsize=256)
def _maker(kind: Any, loaded: tuple[bool, ...]) -> Callable[[], Library] | None:
    if issubclass(kind, np.ndarray):
        return _numpy
    for (_, make), here in zip(_OTHERS, loaded, strict=True):
        if here and issubclass(kind, make().arrays):
            return make
    return None


@cache
def _numpy() -> Library:
    return _Numpy()


@cache
def _torch() -> Library:
    return _Torch(sys.modules["torch"])


@cache
def _cupy() -> Library:
    return _Cupy(sys.modules["cupy"])


@cache
def _jax() -> Library:
    return _Jax(sys.modules["jax"])


# Modules, and what makes the Library of each.
_OTHERS: tuple[tuple[str, Callable[[], Library]], ...] = (("torch", _torch), ("cupy", _cupy), ("jax", _jax))
