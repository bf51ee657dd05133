"""Folded models stay the models that they were: hooks, modes, types, copies, checkpoints, traces, flags."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from tests.kinds import module

import convforge

torch = module("torch")
nn = torch.nn
replace = convforge.torch.replace

X = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))


def model_of(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    model[1].running_var.fill_(9.0)
    model[1].running_mean.fill_(0.3)
    return model


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


HOOKS = {
    "forward": lambda m, see: m.register_forward_hook(lambda _m, x, y: see(x[0], y)),
    "forward pre": lambda m, see: m.register_forward_pre_hook(lambda _m, x: see(x[0])),
    "backward": lambda m, see: m.register_full_backward_hook(lambda _m, gi, go: see(*gi, *go)),
    "backward pre": lambda m, see: m.register_full_backward_pre_hook(lambda _m, go: see(*go)),
}


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", ["0", "1", "2", "inner"])
@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_see_the_same(kind: str, at: str, late: bool) -> None:
    seen: list[list[Any]] = []
    for ours in (False, True):
        parts = model_of()
        inner = nn.Sequential(parts[0])
        model = nn.Sequential(inner, parts[1], parts[2]).eval() if at == "inner" else parts
        target, values = inner if at == "inner" else parts[int(at)], []
        see = lambda *given, to=values: to.extend(g.detach().clone() for g in given if g is not None)  # noqa: E731
        if late and ours:
            replace(model)
        HOOKS[kind](target, see)
        if not late and ours:
            report = replace(model)
            assert "1" not in report.layers[0].folded or at == "2"
            assert "has a hook" in str(report)
        model(X.clone().requires_grad_()).sum().backward()
        seen.append(values)
    assert len(seen[0]) == len(seen[1]) > 0
    close(seen[1], seen[0])


def test_gradients_of_parameters_are_the_models() -> None:
    found = []
    for ours in (False, True):
        model = model_of()
        if ours:
            assert replace(model).layers[0].folded == ("1", "2")
        model(X).square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(found[1], found[0], atol=1e-3, rtol=1e-3)


def test_train_computes_and_undo_keeps_the_mode() -> None:
    model, other = model_of(), model_of().train()
    report = replace(model)
    close(model.train()(X), other(X))
    close(model.eval()(X), other.eval()(X))
    model.train()
    model[0].weight.requires_grad_(False)
    model[0].note = "kept"
    report.undo()
    model(X)
    assert (model.training, model[1].training, int(model[1].num_batches_tracked)) == (True, True, 2)
    assert (model[0].weight.requires_grad, model[0].note, type(model[0])) == (False, "kept", nn.Conv2d)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.thorough)]
)
def test_a_change_of_type_is_a_change_of_all(dtype: Any) -> None:
    model = model_of()
    report = replace(model)
    expected = model_of().to(dtype)(X.to(dtype))
    loose = {"atol": 0.1, "rtol": 0.1} if dtype != torch.float64 else {}
    torch.testing.assert_close(model.to(dtype)(X.to(dtype)), expected, **loose)
    report.undo()
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert torch.equal(model(X.to(dtype)), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("statistics", [torch.float32, None])
def test_a_bias_of_a_half_model_stays_as_kernels_add_it(dtype: Any, statistics: Any) -> None:
    """In float32, so that no call casts it; and weights are folded in float32, whatever the statistics' type is."""
    model = nn.Sequential(nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4)).eval().to(dtype)
    for values in (model[1].running_mean, model[1].running_var, model[1].weight.data, model[1].bias.data):
        values.uniform_(0.5, 2)
    model[1].to(statistics or dtype)
    layer, norm = copy.deepcopy(model).double()
    factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    expected = layer.weight * factor[:, None, None, None], norm.bias - norm.running_mean * factor
    from convforge.integrations.torch_folding import fold_of

    for by_pytorch in (False, True):
        weight, bias = fold_of(model, ["0", "1"], by_pytorch).weights()
        assert (weight.dtype, bias.dtype) == (dtype, dtype if by_pytorch else torch.float32)
        exactly = {"rtol": torch.finfo(bias.dtype).eps, "atol": 1e-6}
        torch.testing.assert_close(bias.double(), expected[1], **exactly)
        torch.testing.assert_close(weight.double(), expected[0], rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_an_old_checkpoint_loads() -> None:
    model, other = model_of(), model_of(3)
    replace(model)
    with torch.no_grad():
        model(X)  # what is folded is kept from here on
        assert model.load_state_dict(other.state_dict()) is not None
        close(model(X), other(X))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_of_a_folded_model(again: Any) -> None:
    model = model_of()
    replace(model)
    other = again(model)
    with torch.no_grad():
        assert torch.equal(other(X), model(X))
        other[0].weight.zero_()
        close(model(X), model_of()(X))
        assert not torch.equal(other(X), model(X))


def test_a_folded_model_is_traced_and_replaced_again() -> None:
    model = model_of()
    report = replace(model)
    close(torch.fx.symbolic_trace(model)(X), model_of()(X))
    (second,) = replace(model).layers
    assert (second.by, second.why) == ("convforge", "replaced before, with what is folded into it")
    report.undo()
    assert replace(model).layers[0].folded == ("1", "2")
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    replace(plain)
    assert replace(plain.eval()).layers[0].folded == ("1",), "what was ours already is folded as well"


class Flagged(nn.Module):  # type: ignore[misc]
    """A normalisation that may be skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, _ = model_of()
        self.normed = True

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        return self.norm(y) if self.normed else y


def test_a_flag_that_is_flipped_and_a_module_that_is_exchanged() -> None:
    model, other = Flagged().eval(), Flagged().eval()
    assert replace(model).layers[0].folded == ("norm",)
    close(model(X), other(X))
    model.normed = other.normed = False
    close(model(X), other(X))
    model.normed = other.normed = True
    model.norm = other.norm = nn.Identity()
    close(model(X), other(X))


def test_what_is_left_is_in_the_report() -> None:
    class Own(nn.Conv2d):  # type: ignore[misc]
        pass

    parametrized = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1))
    model = nn.Sequential(Own(3, 3, 1), parametrized, nn.ConvTranspose2d(3, 3, 1), nn.LazyConv2d(3, 1))
    layers = replace(model, fold=False).layers
    assert [layer.by for layer in layers] == ["PyTorch"] * 4
    for layer, word in zip(layers, ("Own is a subclass", "parametrized", "no transposed", "lazy"), strict=True):
        assert word in layer.why


def test_plain_answers() -> None:
    layer = nn.Conv2d(3, 4, 3)
    expected = layer(X)
    report = replace(layer)
    assert (report.layers[0].by, type(layer)) == ("convforge", convforge.torch.Conv2d)
    close(layer(X), expected)
    assert replace(nn.Linear(2, 2)).notes == ["Nothing was done: the model has no two-dimensional convolution."]
    with pytest.raises(TypeError, match=r"replace takes a torch.nn.Module, such as a model; got function"):
        replace(lambda x: x)


def test_hooks_of_parameters_see_the_same_gradients() -> None:
    found = []
    for ours in (False, True):
        model, seen = model_of(), []
        if ours:
            assert replace(model).layers[0].folded == ("1", "2")
        for late in range(2):  # some before the first call, some after it
            for p in model.parameters():
                p.register_hook(lambda grad, seen=seen: seen.append(grad.clone()))
                p.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(p.grad.clone()))
            model(X).square().sum().backward()
            assert len(seen) > late
        found.append(sorted(seen, key=lambda grad: (grad.dim(), grad.sum().item())))
    assert len(found[0]) == len(found[1]) == 6 * len(list(model_of().parameters()))
    for mine, right in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, right, atol=1e-2, rtol=1e-3)


def test_hooks_of_state_dicts_are_called_as_before() -> None:
    model, calls = model_of(), []
    replace(model)
    for layer in model[:2]:
        layer.register_state_dict_pre_hook(lambda *_: calls.append("pre"))
        layer.register_state_dict_post_hook(lambda *_: calls.append("post"))
        layer.register_load_state_dict_pre_hook(lambda *_: calls.append("load"))
        layer.register_load_state_dict_post_hook(lambda *_: calls.append("loaded"))
    state = model.state_dict()
    assert list(state) == list(model_of().state_dict())
    model.load_state_dict(model_of(3).state_dict())
    assert sorted(calls) == sorted(["pre", "post", "load", "loaded"] * 2)
    close(model(X), model_of(3)(X))


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_hooks_of_all_modules_let_folds_rest(kind: str) -> None:
    from torch.nn.modules import module

    model, seen = model_of(), []
    replace(model)
    hook = getattr(module, f"register_module_{kind}")(lambda m, *_: seen.append(type(m).__mro__[1].__name__))
    try:
        x = X.clone().requires_grad_()
        model(x).sum().backward()
        assert len(seen) == len(list(model.modules()))
        report = replace(model_of())
        assert any("hooks are registered for all modules" in note for note in report.notes)
    finally:
        hook.remove()
    close(model(X), model_of()(X))


def test_an_activation_of_the_layer_itself_is_not_folded_over() -> None:
    model = nn.Sequential(convforge.torch.Conv2d(3, 4, 3, activation="relu"), *model_of()[1:]).eval()
    expected = model(X)
    assert replace(model).layers[0].folded == ()
    close(model(X), expected)
