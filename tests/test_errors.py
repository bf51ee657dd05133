"""Reasons and the exception that carries them: texts for its readers, forms and values for pages and rows."""

from __future__ import annotations

import copy
import pickle

from convforge.errors import Reason, UnsupportedProblem

SMALL = Reason("the filter is {own}, not {wanted}", own="5x5", wanted="1x1")


def test_a_refusal_reads_as_text_and_gives_its_reasons_as_data() -> None:
    fault = UnsupportedProblem("a problem", {"gemm_1x1": SMALL, "fft": Reason("it runs on {backend}", backend="cpu")})
    assert fault.reasons == {"gemm_1x1": "the filter is 5x5, not 1x1", "fft": "it runs on cpu"}
    assert str(fault) == (
        "nothing that was allowed can compute a problem:\n  gemm_1x1: the filter is 5x5, not 1x1\n  fft: it runs on cpu"
    )
    assert fault.reason_of("gemm_1x1") is SMALL
    assert str(fault.reason_of("im2col")) == str(fault)


def test_reasons_are_values() -> None:
    assert {SMALL, Reason(SMALL.form, **dict(SMALL.values))} == {SMALL}
    assert Reason(SMALL.form, own="3x3", wanted="1x1") != SMALL
    assert pickle.loads(pickle.dumps(SMALL)) == copy.deepcopy(SMALL) == SMALL
    fault = pickle.loads(pickle.dumps(UnsupportedProblem("a problem", {"gemm_1x1": SMALL})))
    assert (fault.problem, fault.reason_of("gemm_1x1")) == ("a problem", SMALL)


def test_a_text_that_is_quoted_may_hold_braces() -> None:
    assert str(Reason.quoted("a {set} of {}")) == "a {set} of {}"
    assert str(Reason("it says: {said}", said="{0}")) == "it says: {0}"
