"""A fixed look for each method, different from all others; ticks of logarithmic axes."""

from __future__ import annotations

import pytest
from tests.course.report import runs

from convforge.course.pages.charts import log_ticks
from convforge.course.pages.looks import INKS, Ink, looks
from convforge.peers import every_algorithm


def test_a_method_looks_the_same_whoever_stands_beside_it() -> None:
    alone = looks([("fft", True)])["fft"]
    among = looks([(name, ours) for name, (ours, *_) in runs.METHODS.items()])
    assert among["fft"] == alone
    assert looks([("torch_conv2d", False)])["torch_conv2d"] == among["torch_conv2d"]
    signs = [(look.light, look.shape, look.dash) for look in among.values()]
    assert len(set(signs)) == len(signs)


def test_every_method_of_the_list_has_a_look_of_its_own_per_operation() -> None:
    for operation in {a.operation for a in every_algorithm()}:
        found = looks([(a.name, a.ours) for a in every_algorithm() if a.operation == operation])
        signs = [(look.light, look.shape, look.dash) for look in found.values()]
        assert len(set(signs)) == len(signs), operation
        assert all(bool(look.dash) is not look.ours for look in found.values())


def _luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_colour_stands_out_from_its_page() -> None:
    names = [(a.name, a.ours) for a in every_algorithm()]
    names += [(f"new_{i}", ours) for i in range(4) for ours in (True, False)]
    for name, look in looks(names).items():
        for colour, paper in zip((look.light, look.dark), INKS["paper"], strict=True):
            high, low = sorted((_luminance(colour), _luminance(paper)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 3, (name, colour)


@pytest.mark.parametrize("domain", [(0.004, 700.0), (0.8, 3.3), (0.98, 1.3), (1e-9, 1e3), (2.1, 2.9), (5e-8, 9e-8)])
def test_ticks_are_few_round_and_inside(domain: tuple[float, float]) -> None:
    ticks = log_ticks(domain)
    assert 2 <= len(ticks) <= 8
    assert all(domain[0] <= tick <= domain[1] for tick in ticks)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_no_two_methods_of_a_device_look_the_same(backend: str) -> None:
    """Products and convolutions stand in one roofline and in one chart of errors."""
    found = looks([(a.name, a.ours) for a in every_algorithm() if a.backend == backend])
    assert len(set(found.values())) == len(found)


def test_every_method_states_its_look_and_the_same_one_on_every_backend() -> None:
    assert [a.key for a in every_algorithm() if a.look is None] == []
    stated = {(a.name, a.look) for a in every_algorithm()}
    assert len(stated) == len({a.name for a in every_algorithm()})
    assert all(bool(a.look and a.look.dash) is not a.ours for a in every_algorithm())


def test_however_many_new_methods_there_are_none_looks_like_another() -> None:
    known = [(name, True) for name in ("direct_naive", "gemm_naive", "fft")]
    found = looks([*known, *((f"new_{i}_{ours}", ours) for i in range(200) for ours in (True, False))])
    assert len(set(found.values())) == len(found)
    assert found["fft"] == looks([("fft", True)])["fft"]


def test_what_a_chart_tells_apart_differs_in_colour_and_shape_and_dash() -> None:
    ink = Ink("light", {})
    ink.add(f"clock {i}" for i in range(8))
    found = ink.methods.values()
    for sign in ("light", "dark", "shape", "dash"):
        assert len({getattr(look, sign) for look in found}) == 8, sign
