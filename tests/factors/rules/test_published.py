"""Rules against numbers that papers, model cards and configs print."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeswitch.factors.rules.catalogue import RULES, rule
from ropeswitch.factors.rules.formulas import Options, equivalent_base, scaled_theta
from ropeswitch.factors.rules.make import make, targets_for
from ropeswitch.factors.rules.rope import Rope

LLAMA_2 = Rope(128, 10000.0, 4096)
LLAMA_3 = Rope(128, 500000.0, 8192)


def factors(name: str, rope: Rope, length: int, **options: object) -> tuple[float, ...]:
    [made] = make(rule(name), rope, targets_for(rope, [length]), Options(**options)).ladder.sets  # type: ignore[arg-type]
    return made.factors


@pytest.mark.parametrize(
    ("rope", "published"),
    [
        (LLAMA_2, 92),  # arXiv:2310.05209
        (Rope(96, 10000.0, 2048), 62),  # Phi3-mini in arXiv:2502.20082, section 2.1
        (LLAMA_3, 70),  # 35 pairs in arXiv:2502.20082, section 3.2
    ],
)
def test_critical_dimensions(rope: Rope, published: int) -> None:
    assert rope.critical_dimension == published


@pytest.mark.parametrize(
    ("length", "published"),
    # rope_theta in the configs of Gradient AI's Llama-3-8B models for 262k, 1048k and 4194k tokens.
    [(262144, 283461213), (1048576, 3580165449), (4194304, 45218125210)],
)
def test_theta_scaling_gives_the_thetas_of_published_configs(length: int, published: int) -> None:
    assert scaled_theta(LLAMA_3, length) == pytest.approx(published, abs=0.6)
    assert equivalent_base(LLAMA_3.theta, factors("theta", LLAMA_3, length)) == pytest.approx(published, abs=1)


@pytest.mark.parametrize(
    ("rope", "length", "critical", "above", "published"),
    [
        # LLaMA3-8B (microsoft/LongRoPE, examples/longrope2) and Phi-4-mini-instruct: pair to factor.
        (LLAMA_3, 131072, 33, 21.81, {1: 1.097906416, 2: 1.205398499, 8: 2.111166985, 16: 4.457026037, 32: 19.8650811}),
        (Rope(96, 10000.0, 4096), 131072, 31, 32.03, {1: 1.118320672, 15: 5.351743533, 30: 28.64115884}),
    ],
)
def test_longrope2_below_the_critical_pair(
    rope: Rope, length: int, critical: int, above: float, published: dict[int, float]
) -> None:
    made = factors("longrope2", rope, length, critical_index=critical, above=(above,))
    assert [made[pair] for pair in published] == pytest.approx(list(published.values()), rel=2e-9)
    assert made[critical:] == (above,) * (rope.pairs - critical)


def test_attention_scales_by_name() -> None:
    def scale(name: str, attention: str = "published") -> float:
        [made] = make(rule(name), LLAMA_2, targets_for(LLAMA_2, [131072], 40.0), attention=attention).ladder.sets
        return made.scale

    assert scale("yarn") == pytest.approx(0.1 * math.log(40) + 1, rel=1e-15)
    # arXiv:2405.04434: sqrt(t) = 0.0707 ln s + 1 with s = 40.
    assert scale("deepseek-v2") == pytest.approx(1.2608, abs=5e-5)
    assert scale("pi") == scale("yarn", "none") == 1.0
    assert scale("pi", "1.5") == 1.5


@settings(max_examples=25, deadline=None)
@given(pairs=st.integers(2, 128), theta=st.floats(50, 1e7), window=st.integers(16, 65536), s=st.floats(1, 64))
def test_every_rule_rises_from_1_and_does_nothing_within_the_window(
    pairs: int, theta: float, window: int, s: float
) -> None:
    rope = Rope(2 * pairs, theta, window)
    for each in RULES:
        [unscaled, scaled] = (each.factors(rope, *targets_for(rope, [n]), Options()) for n in (window, int(window * s)))
        assert unscaled == pytest.approx((1.0,) * pairs, rel=1e-12), each.name
        assert len(scaled) == pairs
        assert scaled[0] >= 1 - 1e-12, each.name
        assert all(before <= after * (1 + 1e-12) for before, after in pairwise(scaled)), each.name
