"""Borders: the six modes against scipy.ndimage, pads larger than the picture and even filters included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from convforge.problem import PADDING_MODES, Conv2dProblem, border_indices, padding_mode_of
from convforge.verify import make_inputs, truth

SCIPY = {
    "zeros": "constant",
    "constant": "constant",
    "reflect": "mirror",
    "symmetric": "reflect",
    "replicate": "nearest",
    "circular": "grid-wrap",
}


@pytest.mark.parametrize("mode", PADDING_MODES)
def test_the_table_says_what_happens(mode):
    assert PADDING_MODES[mode][0].split(",")[0] in (SCIPY[mode], SCIPY[mode].removeprefix("grid-"))
    before, picture, after = PADDING_MODES[mode][1].split(" | ")
    names = picture.split()
    expected = [*before.split(), *names, *after.split()]
    got = [names[i] if i >= 0 else expected[0] for i in border_indices(4, 3, 3, mode)]
    assert got == expected


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 25), st.integers(0, 25), st.sampled_from(list(PADDING_MODES)))
def test_indices_are_those_of_numpy_pad(size, before, after, mode):
    names = {"reflect": "reflect", "symmetric": "symmetric", "replicate": "edge", "circular": "wrap"}
    got = border_indices(size, before, after, mode)
    if mode in names:
        expected = np.pad(np.arange(size), (before, after), names[mode])
    else:
        expected = np.pad(np.arange(size), (before, after), constant_values=-1)
    assert got.tolist() == expected.tolist()
    assert not got.flags.writeable


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", [(9, 11), (4, 3), (1, 1), (2, 7)])
@pytest.mark.parametrize("filter_shape", [(3, 3), (5, 1), (2, 4), (7, 6), (11, 13)])
@pytest.mark.parametrize("mode", PADDING_MODES)
@pytest.mark.parametrize("flip", [False, True])
def test_filters_agree_with_scipy_ndimage(shape, filter_shape, mode, flip):
    """SciPy's anchor is pixel R // 2 of a filter, and of a flipped one pixel (R - 1) // 2."""
    R, S = filter_shape
    anchor = [(R - 1) // 2, (S - 1) // 2] if flip else [R // 2, S // 2]
    padding = (anchor[0], R - 1 - anchor[0], anchor[1], S - 1 - anchor[1])
    problem = Conv2dProblem(n=1, c=1, h=shape[0], w=shape[1], k=1, r=R, s=S, padding=padding, padding_mode=mode,
                            padding_value=2.5 if mode == "constant" else 0.0, x_dtype="float64",
                            mode="convolution" if flip else "cross-correlation")  # fmt: skip
    inputs = make_inputs(problem)
    run = ndimage.convolve if flip else ndimage.correlate
    expected = run(inputs.x[0, 0], inputs.w[0, 0], mode=SCIPY[mode], cval=problem.padding_value)
    np.testing.assert_allclose(truth(problem, inputs).value[0, 0], expected, rtol=1e-12, atol=1e-12)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="padding_mode='mirror' is unknown; choose one of zeros, constant, reflect"):
        border_indices(4, 1, 1, "mirror")


@pytest.mark.parametrize(
    ("word", "near"),
    [("Mirror", "mirror"), ("REFLECT", "reflect"), ("nearst", "nearest"), ("edge ", "edge"),
     ("border_wrap", "BORDER_WRAP"), ("cv2.BORDER_REFLECT", "BORDER_REFLECT"), ("reflect-101", "reflect101")],
)  # fmt: skip
def test_an_unknown_word_is_answered_with_the_nearest(word: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"border='{word}' is unknown; did you mean '{near}'\\? Choose one of zeros"):
        padding_mode_of(word, "border")
    with pytest.raises(ValueError, match="border='linear_ramp' is unknown; choose one of zeros"):
        padding_mode_of("linear_ramp", "border")
