"""The text of a config, which results, remembered choices and users name it by, gives that config again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.algorithms.compiled_problems import EVERYWHERE, H200, OWN
from tests.judged import allowed, named

from convforge.algorithms import algorithms, find, make_config, refusal
from convforge.backends.cpu.facts import cpu_facts
from convforge.backends.emulator.facts import emulator_facts
from convforge.problem import parse_problem

FACTS = {"cpu": cpu_facts(), "emulator": emulator_facts(), "cuda": H200}


@pytest.mark.one_in(16)
@pytest.mark.parametrize("method", algorithms(), ids=named)
def test_the_text_of_every_config_gives_it_again(method: Any) -> None:
    facts, compared = FACTS[method.backend], set[Any]()
    texts = (
        "n32c64h56w56_k64r1s1_f32_nhwc",
        *EVERYWHERE[method.operation],
        *(text for first, _ in OWN.values() for text in first),
    )
    for text in texts:
        problem = parse_problem(text)
        if problem.operation != method.operation:
            continue
        problem = allowed(problem, method)
        if refusal(method, problem, facts) is None:
            # A text is read as any other of its kind, whatever the problem; the first and the last are read for each.
            configs = list(method.configs(problem, facts))
            for config in (configs[0], *(set(configs) - compared), configs[-1]):
                assert make_config(method, problem, facts, str(config)) == config
                assert make_config(method, problem, facts, config) is config
                compared.add(config)
    assert compared


def test_a_flag_is_true_or_false() -> None:
    method, problem = find("conv2d", "cuda", "implicit_gemm_wgmma"), parse_problem("n32c64h56w56_k64r3s3_p1_f16_nhwc")
    assert make_config(method, problem, H200, "patch=False") != make_config(method, problem, H200, "patch=True")
    with pytest.raises(ValueError, match="patch='no' must be True or False"):
        make_config(method, problem, H200, "patch=no")
