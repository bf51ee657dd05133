"""convforge.torch.replace: which layers are swapped, what is folded into them, what is said, how it is undone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kinds import module

import convforge

torch = module("torch")
nn = torch.nn
replace, Conv2d = convforge.torch.replace, convforge.torch.Conv2d


def settled(model: Any) -> Any:
    """A model in eval mode whose normalisations are not the identity."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for values in (layer.running_mean, layer.weight.data, layer.bias.data):
                values.uniform_(-1, 1)
            layer.running_var.uniform_(0.5, 2)
    return model.eval()


class Block(nn.Module):  # type: ignore[misc]
    """A residual block whose one ReLU is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu = nn.ReLU()

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + x)


class Untraceable(nn.Module):  # type: ignore[misc]
    """A module whose branches depend on numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1))
        self.other = nn.Conv2d(4, 4, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        return self.norm(self.other(y)) if y.sum() > 0 else y


def chain(*names: str) -> Any:
    makers = {
        "conv": lambda: nn.Conv2d(4, 4, 3, padding=1),
        "bn": lambda: nn.BatchNorm2d(4),
        "relu": nn.ReLU,
        "relu6": nn.ReLU6,
    }
    return nn.Sequential(*(makers[name]() for name in names))


X = torch.randn(2, 4, 8, 9, generator=torch.Generator().manual_seed(1))


def state_of(model: Any) -> list[tuple[str, int]]:
    """Every module, parameter and buffer, by identity."""
    parts = [*model.named_modules(remove_duplicate=False), *model.named_parameters(), *model.named_buffers()]
    return [(name, id(part)) for name, part in parts]


@pytest.mark.parametrize(
    "model, folded",
    [
        (chain("conv", "bn", "relu"), [("1", "2")]),
        (chain("conv", "bn", "relu6"), [("1", "2")]),
        (chain("conv", "bn", "conv", "relu"), [("1",), ()]),
        (chain("conv", "relu", "bn"), [()]),
        (Block(), [("bn1",), ("bn2",)]),
        (nn.Sequential(Block(), chain("conv", "bn", "relu")), [("0.bn1",), ("0.bn2",), ("1.1", "1.2")]),
        (Untraceable(), [(), (), ()]),
    ],
    ids=["all", "relu6", "relu behind conv", "relu between", "block", "nested", "untraceable"],
)
def test_what_is_folded(model: Any, folded: list[tuple[str, ...]]) -> None:
    model = settled(model)
    before, expected = state_of(model), model(X)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    report = replace(model)
    assert [layer.folded for layer in report.layers] == folded
    assert {layer.by for layer in report.layers} == {"convforge"}
    assert all(type(layer) is not nn.Conv2d for layer in model.modules())
    assert state_of(model) == before
    torch.testing.assert_close(model(X), expected, atol=1e-5, rtol=1e-4)

    report.undo()
    assert state_of(model) == before
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(X), expected)


def test_what_cannot_be_traced_is_said() -> None:
    report = replace(settled(Untraceable()))
    assert "cannot be traced" in str(report)
    assert "not measured" in str(report)


def test_nothing_is_folded_in_training() -> None:
    model = chain("conv", "bn", "relu").train()
    report = replace(model)
    assert report.layers[0].folded == ()
    assert "training mode" in str(report)
    assert type(model[1]) is nn.BatchNorm2d
    model(X).sum().backward()
    assert model[0].weight.grad is not None


def test_a_layer_with_a_hook_is_not_folded_away() -> None:
    model, seen = settled(chain("conv", "bn", "relu")), []
    model[1].register_forward_hook(lambda *_: seen.append(1))
    assert replace(model).layers[0].folded == ()
    model(X)
    assert seen == [1]


class Tied(nn.Module):  # type: ignore[misc]
    """Its weights go both ways, and it notes what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.seen: Any = None

    def forward(self, x: Any) -> Any:
        self.seen = self.norm(self.conv(input=x))
        return nn.functional.conv_transpose2d(torch.relu(self.seen), self.conv.weight)


def test_weights_that_are_read_elsewhere_stay_as_they_are() -> None:
    model = settled(Tied())
    expected = model(X)
    report = replace(model)
    assert (report.layers[0].by, report.layers[0].folded) == ("convforge", ())
    assert model.seen.shape == (2, 4, 6, 7), "what the model notes is of a call, not of the trace"
    torch.testing.assert_close(model(X), expected, atol=1e-5, rtol=1e-4)
    assert replace(settled(Tied()), X).layers[0].ours_s is not None, "the input may come by its name"


def test_nothing_is_folded_across_the_end_of_a_container_with_a_hook() -> None:
    model, seen = settled(nn.Sequential(chain("conv"), nn.BatchNorm2d(4), chain("conv", "bn"))), []
    expected = model[0](X)
    model[0].register_forward_hook(lambda _layer, _given, y: seen.append(y))
    model[2].register_forward_hook(lambda _layer, _given, y: seen.append(y))
    assert [layer.folded for layer in replace(model).layers] == [(), ("2.1",)]
    assert seen == [], "the trace calls no hooks"
    y = model(X)
    torch.testing.assert_close(seen[0], expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(seen[1], y)


def test_statistics_in_training_are_left_as_they_were() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    replace(model, X + 5)
    assert model[1].num_batches_tracked == 0
    assert not model[1].running_mean.any()


def test_what_raises_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.integrations import torch_replace

    model = chain("conv", "bn", "conv", "bn")
    before = state_of(settled(model))
    asked = []
    monkeypatch.setattr(torch_replace, "fold_of", lambda *given: asked.append(given) or 1 / (len(asked) < 2))
    with pytest.raises((ZeroDivisionError, AttributeError)):
        replace(model)
    assert state_of(model) == before
    assert [type(layer) for layer in model] == [nn.Conv2d, nn.BatchNorm2d] * 2


def test_what_convforge_does_not_take_is_left_to_pytorch() -> None:
    x, layer = X.to(torch.complex64), nn.Conv2d(4, 4, 3, dtype=torch.complex64)
    for example in ((), (x,)):
        (found,) = replace(nn.Sequential(layer), *example).layers
        assert (found.by, found.why) == ("PyTorch", "convforge takes no torch.complex64")


def test_a_layer_in_two_places_stays() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1)
    model = nn.Sequential(layer, nn.ReLU(), layer).eval()
    report = replace(model)
    assert [(found.by, found.why) for found in report.layers] == [("PyTorch", "it is in several places of the model")]
    assert model[0] is layer


def timed(monkeypatch: pytest.MonkeyPatch, layers: Any, whole: Any = ((9, 0), (9, 0), (9, 0), (5, 0))) -> list[bool]:
    """Let these be the times of rivals, in microseconds: pairs of a median and a spread; the last of them stays.

    The whole model is timed by PyTorch as it was, folded, in channels_last, and by convforge. Returned is a list that
    tells afterwards of every comparison whether CUDA graphs were asked for.
    """
    from convforge.integrations import torch_replace, torch_timing
    from convforge.timing import Timing

    asked: list[bool] = []

    def of(pairs: Any) -> Any:
        def compared(calls: Any, device: Any, *, cuda_graph: bool) -> list[Timing]:
            asked.append(cuda_graph)
            for call in calls:
                call()
            every = [*pairs, *[pairs[-1]] * (len(calls) - len(pairs))][: len(calls)]
            return [Timing(tuple((m + at * half) * 1e-6 for at in (-1, -1, 0, 1, 1))) for m, half in every]

        return compared

    monkeypatch.setattr(torch_replace, "compared", of(layers))
    monkeypatch.setattr(torch_timing, "compared", of(whole))
    return asked


@pytest.mark.parametrize(
    "ours, theirs, by, says",
    [
        ((1, 0), (2, 0), "convforge", "convforge takes 1 us ± 0 %, PyTorch 2 us ± 0 %: convforge is faster"),
        ((2, 0), (1, 0), "PyTorch", "convforge takes 2 us ± 0 %, PyTorch 1 us ± 0 %: PyTorch is faster"),
        ((2, 0.02), (2.01, 0.02), "PyTorch", "as fast as each other, so PyTorch keeps it"),
        ((1, 1), (2, 0.5), "PyTorch", "but the times vary too much to tell which is faster, so PyTorch keeps it"),
    ],
)
def test_a_layer_is_ours_only_where_ours_is_faster(
    monkeypatch: pytest.MonkeyPatch, ours: Any, theirs: Any, by: str, says: str
) -> None:
    kept = (5, 0) if by == "convforge" else (9, 0)
    timed(monkeypatch, [ours, theirs], [(9, 0), (8, 0), (9, 0), kept])
    model = settled(chain("conv", "bn", "relu"))
    expected = model(X)
    report = replace(model, X)
    (layer,) = report.layers
    assert (layer.by, layer.ours_s, layer.torch_s) == (
        by,
        pytest.approx(ours[0] * 1e-6),
        pytest.approx(theirs[0] * 1e-6),
    )
    assert layer.folded == (("1", "2") if by == "convforge" else ("1",))
    assert says in layer.why
    torch.testing.assert_close(model(X), expected, atol=1e-5, rtol=1e-4)
    assert "The whole model: PyTorch as it was 9 us ± 0 %" in report.notes[-1]
    assert report.notes[-1].endswith("convforge is the fastest." if by == "convforge" else "folded in.")


@pytest.mark.parametrize(
    "times, kept, says",
    [
        (
            [(3, 0), (3, 0), (3, 0), (4, 0)],
            "PyTorch",
            "left to PyTorch as it was, for PyTorch as it was is faster than",
        ),
        ([(894, 0), (894, 0), (894, 0), (880, 400)], "PyTorch", "vary too much to tell whether convforge is faster"),
        ([(9, 0), (3, 0), (9, 0), (4, 0)], "folded", "left to PyTorch with BatchNorm2d folded in, for PyTorch with"),
        ([(9, 0), (8, 0), (3, 0), (4, 0)], "folded", "after model.to(memory_format=torch.channels_last)"),
        ([(9, 0), (4, 0), (9, 0), (4, 0)], "folded", "is as fast as convforge"),
    ],
)
def test_a_whole_model_is_left_in_its_fastest_form(
    monkeypatch: pytest.MonkeyPatch, times: Any, kept: str, says: str
) -> None:
    timed(monkeypatch, [(1, 0), (2, 0)], times)
    model = settled(chain("conv", "bn", "relu"))
    expected, weights = model(X), [(p.data_ptr(), p.stride()) for p in model.parameters()]
    report = replace(model, X)
    changed = [type(layer) not in (nn.Conv2d, nn.BatchNorm2d, nn.ReLU) for layer in model]
    assert changed == ([True, True, False] if kept == "folded" else [False] * 3)
    assert (report.layers[0].by, report.layers[0].folded) == ("PyTorch", ("1",) if kept == "folded" else ())
    assert says in report.notes[-1]
    torch.testing.assert_close(model(X), expected, atol=1e-5, rtol=1e-4)
    assert [(p.data_ptr(), p.stride()) for p in model.parameters()] == weights
    report.undo()
    assert [type(layer) for layer in model] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    assert torch.equal(model(X), expected)


def test_a_fold_by_pytorch_is_listed_as_such_when_replaced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, [(2, 0), (1, 0)], [(9, 0), (5, 0)])
    model = settled(chain("conv", "bn", "relu"))
    assert replace(model, X).layers[0].by == "PyTorch"
    (again,) = replace(model).layers
    assert (again.by, again.why) == ("PyTorch", "replaced before, with what is folded into it")


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_layers_and_model_are_timed_in_cuda_graphs_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, cuda_graph: bool
) -> None:
    asked = timed(monkeypatch, [(1, 0), (2, 0)])
    report = replace(settled(chain("conv", "bn", "conv")), X, cuda_graph=cuda_graph)
    assert asked == [cuda_graph] * 3
    assert not any("replays" in note for note in report.notes), "there are none on the CPU"


def test_rivals_are_timed_in_turns() -> None:
    from convforge.integrations.torch_timing import ROUNDS, compared, time_text
    from convforge.timing import Timing

    order: list[int] = []
    calls = [lambda: order.append(0), lambda: order.append(1)]
    first, second = compared(calls, torch.device("cpu"), cuda_graph=True)  # nothing is captured on the CPU
    runs = [at for at, before in zip(order, [None, *order], strict=False) if at != before]
    assert len(runs) >= ROUNDS
    assert min(first.median_s, second.median_s) > 0
    assert [time_text(Timing((s,))) for s in (2.0, 0.99999, 4.56e-5)] == ["2 s ± 0 %", "1 s ± 0 %", "45.6 us ± 0 %"]


def test_layers_are_measured_on_what_reaches_them() -> None:
    model = settled(nn.Sequential(chain("conv", "bn"), nn.MaxPool2d(2), chain("conv", "relu")))
    report = replace(model, X)
    assert len(report.layers) == 2
    assert all(layer.ours_s and layer.torch_s for layer in report.layers)
    assert any("The whole model: PyTorch as it was" in note for note in report.notes)


@pytest.mark.parametrize("last", [False, True])
def test_what_is_compiled_ahead_for_a_layer_is_what_it_computes(monkeypatch: pytest.MonkeyPatch, last: bool) -> None:
    from convforge import api
    from convforge.integrations.torch_functional import arguments_of

    found, compiled = [], []
    honest = api.find_plan

    def noting(problem: Any, *given: Any, **words: Any) -> Any:
        found.append(problem)
        return honest(problem, *given, **words)

    monkeypatch.setattr(api, "find_plan", noting)
    monkeypatch.setattr(api, "may_measure", lambda *words: True)
    monkeypatch.setattr(api, "compile_for", lambda problems, *words: compiled.extend(problems))
    layer = Conv2d(4, 6, 3, stride=2, padding=(1, 2), dilation=(1, 2), groups=2, activation="relu6")
    x = torch.randn(2, 4, 11, 13)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    with torch.no_grad():
        layer(x)
        calls = [arguments_of(layer, x), arguments_of(layer, x), arguments_of(Conv2d(3, 6, 3), x)]
        api.compile_ahead(calls, 1.0)
    assert compiled == found, "once, and nothing for a layer that refuses its input"
    (asked,) = found
    assert (asked.x_layout, asked.stride) == ("NHWC" if last else "NCHW", (2, 2))


def test_equal_layers_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, [(1, 0), (2, 0)])
    layers = replace(settled(chain("conv", "bn", "conv", "bn")), X).layers
    assert [(layer.name, layer.by, layer.folded) for layer in layers] == [
        ("0", "convforge", ("1",)),
        ("2", "convforge", ("3",)),
    ]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is a terminal for Rich."""
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.usefixtures("terminal")
def test_a_terminal_shows_which_layer_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed(monkeypatch, [(1, 0), (2, 0)])
    model = nn.Sequential(chain("conv", "bn"), nn.Sequential(nn.Conv2d(4, 5, 1)))
    replace(settled(model), X)
    out, err = capsys.readouterr()
    assert out == ""
    places = [err.find(text) for text in ("0/3", "0.0", "1/3", "1.0", "2/3", "the whole model")]
    assert places == sorted(places), err
    assert places[0] >= 0, err


@pytest.mark.usefixtures("terminal")
def test_nothing_is_shown_that_is_not_measured_or_not_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed(monkeypatch, [(1, 0), (2, 0)])
    replace(settled(chain("conv", "bn")))
    replace(settled(chain("conv", "bn")), X, progress=False)
    replace(nn.ReLU(), X)
    assert capsys.readouterr() == ("", "")


def test_nothing_is_shown_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    timed(monkeypatch, [(1, 0), (2, 0)])
    replace(settled(chain("conv", "bn")), X)
    assert capsys.readouterr() == ("", "")


def test_layers_for_which_no_time_is_left_stay_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    from convforge.integrations import torch_replace

    now, verdict = [0.0], torch_replace._verdict

    def slow(*given: Any) -> Any:
        now[0] += 7
        return verdict(*given)

    timed(monkeypatch, [(1, 0), (2, 0)])
    monkeypatch.setattr(torch_replace, "_verdict", slow)
    monkeypatch.setattr(torch_replace.time, "monotonic", lambda: now[0])
    # The third is like the first, whose time is known by then.
    model = nn.Sequential(chain("conv", "bn"), nn.Conv2d(4, 4, 1), chain("conv", "bn"), nn.Conv2d(4, 4, 5, padding=2))
    expected = settled(model)(X)
    report = replace(model, X, budget_s=10)
    assert [layer.by for layer in report.layers] == ["convforge", "convforge", "convforge", "PyTorch"]
    assert report.layers[-1].why == "not measured: the time for measuring was spent before"
    assert "1 of 4 layers were not measured in 10 s: try a larger budget_s." in report.notes
    assert now == [14], "two kinds of layers"
    torch.testing.assert_close(model(X), expected, atol=1e-5, rtol=1e-4)

    for budget, count in ((0, 0), (None, 3)):
        now[0] = 0
        report = replace(settled(chain("conv", "bn", "conv", "relu", "conv")), X, budget_s=budget)
        assert now == [7 * min(count, 2)]
        assert sum(layer.ours_s is not None for layer in report.layers) == count


@pytest.mark.parametrize("budget", [-1, float("nan")])
def test_a_budget_is_a_number_of_seconds(budget: float) -> None:
    with pytest.raises(ValueError, match=f"budget_s={budget!r} must be a number of seconds, at least 0, or None"):
        replace(chain("conv"), X, budget_s=budget)
