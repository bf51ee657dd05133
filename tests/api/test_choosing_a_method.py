"""Methods by name, their configs, the workspace limit, and algorithms()."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.api.definition import RANDOM, Array, W, X, convolved, whole

import convforge
from convforge import UnsupportedProblem, algorithms, conv2d


@pytest.mark.parametrize("name", [a.name for a in algorithms() if a.operation == "conv2d" and a.backend == "cpu"])
def test_every_method_by_name(name: str) -> None:
    """Normal numbers, an asymmetric 3x3 filter: right, or refused in a sentence."""
    x, w = RANDOM.normal(size=(1, 3, 20, 22)).astype(np.float32), RANDOM.normal(size=(5, 3, 3, 3)).astype(np.float32)
    reasons: dict[str, str] = {}
    result = None
    try:
        result = conv2d(x, w, padding=1, algorithm=name)
    except UnsupportedProblem as refusal:
        reasons = refusal.reasons
    if result is None:
        assert list(reasons) == [name]
        assert len(reasons[name].split()) > 3, "a sentence, not a code"
    else:
        np.testing.assert_allclose(result, convolved(x, w, pads=(1, 1, 1, 1)), atol=2e-4)


def test_a_workspace_limit_passes_over_what_needs_more() -> None:
    with pytest.raises(UnsupportedProblem) as caught:
        conv2d(X, W, algorithm="im2col", workspace_limit=0)
    assert "workspace of at least" in caught.value.reasons["im2col"]
    assert "the limit is 0" in str(caught.value)
    for name in ("direct_rows", "direct_naive", "auto"):
        np.testing.assert_array_equal(conv2d(X, W, algorithm=name, workspace_limit=0), convolved(X, W))
    wide = whole(32, 16, 3, 3)
    x = whole(1, 16, 20, 20)
    assert _chosen(x, wide, precision="winograd") == "winograd_f4", "or this test shows nothing"
    result = conv2d(x, wide, precision="winograd", workspace_limit=0)  # so strictly, without a workspace
    np.testing.assert_array_equal(result, convolved(x, wide))
    with pytest.raises(UnsupportedProblem, match="limit is 10"):
        conv2d(X, W, algorithm="im2col", config="tile_p=2", workspace_limit=10)
    with pytest.raises(ValueError, match="workspace_limit=-1"):
        conv2d(X, W, workspace_limit=-1)


def _chosen(x: Array, w: Array, **options: Any) -> str:
    from convforge.call.arguments import conv2d_problem
    from convforge.call.dispatch import find_plan

    return find_plan(conv2d_problem(x, w, **options), "auto", None, None, None).algorithm.name


@pytest.mark.parametrize(
    "config", ["tile_p=2", "tile_p=2,tile_k=3", "tile_p=100,tile_c=100,tile_k=100", {"tile_p": 1, "tile_c": 2}]
)
def test_a_config_by_text_and_by_mapping(config: Any) -> None:
    np.testing.assert_array_equal(conv2d(X, W, algorithm="direct_rows", config=config), convolved(X, W))


@pytest.mark.parametrize(
    "algorithm, config, says",
    [
        ("direct_rows", "tile_q=2", ("'tile_q'", "did you mean", "tile_p, tile_c, tile_k")),
        ("direct_rows", "tile_p=0", ("tile_p='0'", "at least 1")),
        ("direct_rows", "tile_p=-3", ("tile_p='-3'", "at least 1")),
        ("direct_rows", "tile_p=2.5", ("tile_p='2.5'", "whole")),
        ("direct_rows", "tile_p", ("tile_p=''", "whole")),
        ("direct_rows", {"tile_p": "many"}, ("tile_p='many'", "whole")),
        ("direct_rows", {"tile": 3}, ("'tile'", "tile_p")),
        ("direct_naive", "tile_p=2", ("direct_naive", "'tile_p'")),
        ("im2col", "gemm=gemm_blass", ("gemm_blass", "gemm_blas")),
        ("auto", "tile_p=2", ("tile_p=2", "auto", "by name")),
    ],
)
def test_a_config_that_is_none(algorithm: str, config: Any, says: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        conv2d(X, W, algorithm=algorithm, config=config)
    for word in says:
        assert word in str(caught.value)


def test_a_config_object_goes_with_its_own_method() -> None:
    from convforge.algorithms.contract import Config
    from convforge.algorithms.direct.direct import RowsConfig

    np.testing.assert_array_equal(conv2d(X, W, algorithm="direct_rows", config=RowsConfig(3, 2, 2)), convolved(X, W))
    with pytest.raises(ValueError, match="takes a RowsConfig; got a Config"):
        conv2d(X, W, algorithm="direct_rows", config=Config())


@pytest.mark.parametrize("field", ["tile_p", "tile_c", "tile_k"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_config_object_with_an_impossible_tile(field: str, value: int) -> None:
    from convforge.algorithms.direct.direct import RowsConfig

    with pytest.raises(ValueError, match=field):
        conv2d(X, W, algorithm="direct_rows", config=RowsConfig(**{field: value}))


def test_algorithms_lists_every_method_with_its_reason() -> None:
    everything = algorithms()
    keys = [(a.operation, a.backend, a.name) for a in everything]
    assert len(set(keys)) == len(keys)
    assert all(a.refusal is None for a in everything), "no problem, no refusal"
    assert {a.operation for a in everything} == {"conv2d", "gemm", "max_pool2d", "relu"}
    assert all(a.summary and a.summary[-1] != "." for a in everything if a.ours)
    listed = {a.name: a.refusal for a in algorithms("n1c3h32w32_k4r3s3_p1_f32_nchw")}
    assert listed["direct_rows"] is None
    assert "3x3" in str(listed["gemm_1x1"])
    problem = convforge.parse_problem("n1c3h32w32_k4r3s3_p1_f32_nchw")
    assert algorithms(problem) == algorithms("n1c3h32w32_k4r3s3_p1_f32_nchw")
    assert {a.operation for a in algorithms(problem)} == {"conv2d"}
    with pytest.raises(ValueError, match="not a problem"):
        algorithms("n1c3")
    with pytest.raises(ValueError, match="tpu"):
        algorithms(device="tpu")


def test_unsupported_problems_say_every_reason() -> None:
    with pytest.raises(UnsupportedProblem) as caught:
        conv2d(X, W, algorithm="gemm_1x1")
    assert isinstance(caught.value, ValueError)
    assert caught.value.problem == "n2c6h9w11_k4r3s3_st1_p0_f32_nchw"
    assert "3x3" in caught.value.reasons["gemm_1x1"]
    assert caught.value.problem in str(caught.value)
    assert caught.value.reasons["gemm_1x1"] in str(caught.value)
