"""convforge.torch.conv2d under PyTorch's transformations: batched gradients, torch.func, forward mode over both."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kinds import module

import convforge

torch = module("torch")
F, func = torch.nn.functional, torch.func
conv2d = convforge.torch.conv2d

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own

# Stride, padding, dilation, groups.
GEOMETRIES = [(1, 1, 1, 1), (1, (2, 0), (1, 2), 2), (2, 1, 1, 2), (1, 3, 1, 1)]


def tensors(groups: int, dtype: Any = torch.float64) -> tuple[Any, Any, Any]:
    make = torch.Generator().manual_seed(7)
    shapes = (2, 4, 5, 4), (6, 4 // groups, 3, 2), (6,)
    x, w, b = (torch.randn(shape, generator=make).to(dtype) for shape in shapes)
    return x, w, b


def both(geometry: Any, activation: str | None = None) -> tuple[Any, Any]:
    """The convolution by convforge and by PyTorch."""
    end = getattr(F, activation) if activation else lambda y: y
    return lambda *t: conv2d(*t, *geometry, activation=activation), lambda *t: end(F.conv2d(*t, *geometry))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("activation", [None, "relu", "relu6"])
def test_batched_gradients(geometry: Any, activation: str | None) -> None:
    found, expected = [], []
    for results, call in zip((found, expected), both(geometry, activation), strict=True):
        given = [t.requires_grad_() for t in tensors(geometry[3])]
        y = call(*given)
        along = torch.linspace(-1, 1, 4 * y.numel(), dtype=y.dtype).reshape(4, *y.shape)
        results += torch.autograd.grad(y, given, along, is_grads_batched=True)
        few = (given[0].detach()[:1, :, :4, :3], *(t.detach() for t in given[1:]))
        jacobian = torch.autograd.functional.jacobian(call, few, vectorize=True)
        hessian = torch.autograd.functional.hessian(lambda *t, f=call: f(*t).square().sum(), few, vectorize=True)
        results += [*jacobian, *(part for row in hessian for part in row)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_batched_gradients_of_every_type(dtype: Any, stride: int) -> None:
    found, expected = [], []
    for results, call in zip((found, expected), both((stride, 1, 1, 1)), strict=True):
        given = [t.requires_grad_() for t in tensors(1, dtype)]
        y = call(*given)
        along = torch.ones(3, *y.shape, dtype=dtype)
        results += torch.autograd.grad(y, given, along, is_grads_batched=True)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        loose = {} if dtype == torch.float32 else {"atol": 0.1, "rtol": 0.02}
        torch.testing.assert_close(ours, theirs, **loose)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_gradcheck_of_batches_and_forward_mode(geometry: Any) -> None:
    for activation in (None, "relu"):
        given = tuple(t.requires_grad_() for t in tensors(geometry[3]))
        call, _ = both(geometry, activation)
        check = torch.autograd.gradcheck
        assert check(call, given, check_batched_grad=True, check_forward_ad=True, fast_mode=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("activation", [None, "relu"])
def test_torch_func(geometry: Any, activation: str | None) -> None:
    """grad, jacrev, jacfwd and vmap of each argument, in both orders of grad and vmap."""
    given = tensors(geometry[3])
    ours, theirs = both(geometry, activation)
    loss = lambda call: lambda *t: call(*t).square().sum()  # noqa: E731
    for at in range(3):
        batch = [torch.stack([t, 2 * t, t - 1], dim=1) if i == at else t for i, t in enumerate(given)]
        dims = tuple(1 if i == at else None for i in range(3))
        for ask, tensors_ in (
            (lambda call: func.grad(loss(call), at), given),  # noqa: B023
            (lambda call: func.jacrev(call, at), given),  # noqa: B023
            (lambda call: func.jacfwd(call, at), given),  # noqa: B023
            (lambda call: func.vmap(call, dims), batch),  # noqa: B023
            (lambda call: func.vmap(func.grad(loss(call), (0, 1, 2)), dims), batch),  # noqa: B023
            (lambda call: func.grad(loss(func.vmap(call, dims)), (0, 1, 2)), batch),  # noqa: B023
        ):
            torch.testing.assert_close(ask(ours)(*tensors_), ask(theirs)(*tensors_))


def test_the_hessian_of_torch_func() -> None:
    x, w, b = tensors(1)
    ours, theirs = (func.hessian(lambda x, f=call: f(x, w, b).pow(3).sum())(x) for call in both((1, 1, 1, 1)))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.thorough
def test_weights_of_integer_pictures() -> None:
    x, w, _ = tensors(1, torch.float32)
    images, w = (3 * x).abs().to(torch.uint8), (2 * w).round()  # all sums are whole numbers, and exact
    found = func.grad(lambda w: conv2d(images, w, padding=1).square().sum())(w)
    torch.testing.assert_close(found, func.grad(lambda w: F.conv2d(images.float(), w, padding=1).square().sum())(w))
