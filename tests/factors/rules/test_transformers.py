"""Every rule against transformers' own implementation, where it has one."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2.modeling_deepseek_v2 import yarn_apply_mscale

from ropeswitch.factors.rules.catalogue import rule
from ropeswitch.factors.rules.formulas import Options
from ropeswitch.factors.rules.make import make, targets_for
from ropeswitch.factors.rules.rope import Rope

LLAMA_2 = Rope(128, 10000.0, 4096)
LLAMA_3 = Rope(128, 500000.0, 8192)
ROPES = [LLAMA_2, LLAMA_3, Rope(96, 10000.0, 2048), Rope(64, 1e6, 32768), Rope(32, 10000.0, 256)]
# transformers works in float32.
FLOAT32 = 3e-6


def theirs(kind: str, rope: Rope, length: int, **values: Any) -> tuple[list[float], float]:
    """Factors, from transformers' inverse frequencies, and the attention factor."""
    parameters = {"rope_type": kind, "rope_theta": rope.theta, **values}
    if kind in ("yarn", "longrope", "llama3"):
        parameters["original_max_position_embeddings"] = rope.original_length
    maximum = rope.original_length if kind == "dynamic" else length
    config = LlamaConfig(
        hidden_size=rope.rotary_dim * 4,
        num_attention_heads=4,
        max_position_embeddings=maximum,
        rope_parameters=parameters,
    )
    inverse, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    unscaled = [rope.theta ** (-2 * pair / rope.rotary_dim) for pair in range(rope.pairs)]
    return [plain / float(made) for plain, made in zip(unscaled, inverse, strict=True)], scale


def ours(name: str, rope: Rope, length: int, **options: Any) -> tuple[tuple[float, ...], float]:
    [made] = make(rule(name), rope, targets_for(rope, [length]), Options(**options)).ladder.sets
    return made.factors, made.scale


@pytest.mark.parametrize("rope", ROPES, ids=str)
@pytest.mark.parametrize("s", [1, 2, 8, 40])
def test_rules_of_the_scale(rope: Rope, s: int) -> None:
    length = s * rope.original_length
    for name, kind, options, values in [
        ("pi", "linear", {}, {}),
        ("yarn", "yarn", {}, {}),
        ("yarn", "yarn", {"alpha": 2.0, "beta": 16.0}, {"beta_slow": 2.0, "beta_fast": 16.0}),
        ("yarn", "yarn", {"truncate": False}, {"truncate": False}),
        ("llama3", "llama3", {}, {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ]:
        factors, scale = ours(name, rope, length, **options)
        expected, expected_scale = theirs(kind, rope, length, factor=float(s), **values)
        assert factors == pytest.approx(expected, rel=FLOAT32), name
        assert scale == pytest.approx(expected_scale, rel=1e-15)


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_dynamic_ntk_at_every_length(factor: float) -> None:
    for length in (4096, 5000, 16384, 131072):
        expected, _ = theirs("dynamic", LLAMA_2, length, factor=factor)
        assert ours("dynamic-ntk", LLAMA_2, length, dynamic_factor=factor)[0] == pytest.approx(expected, rel=FLOAT32)
    # One set for each length; with the factor 1 the ratio is s.
    assert ours("dynamic-ntk", LLAMA_2, 65536)[0] == ours("ntk", LLAMA_2, 65536)[0]


def test_longrope_attention_scale_and_factors_pass_through() -> None:
    factors, scale = ours("longrope2", LLAMA_3, 131072, critical_index=33, above=(21.81,))
    lists = {"short_factor": [1.0] * 64, "long_factor": list(factors)}
    expected, expected_scale = theirs("longrope", LLAMA_3, 131072, **lists)
    assert factors == pytest.approx(expected, rel=FLOAT32)
    assert scale == pytest.approx(expected_scale, rel=1e-15)
    assert scale == pytest.approx(math.sqrt(1 + math.log(16) / math.log(8192)), rel=1e-15)


def test_deepseek_v2_scales_logits_as_its_model_does() -> None:
    """Its 128k config: the factors of yarn, cos and sin times 1, and the softmax scale times mscale squared."""
    rope = Rope(64, 10000.0, 4096)
    values = {"mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1, "factor": 40.0}
    expected, scale = theirs("yarn", rope, 131072, **values)
    [made] = make(rule("deepseek-v2"), rope, targets_for(rope, [131072], 40.0)).ladder.sets
    assert made.factors == pytest.approx(expected, rel=FLOAT32)
    assert scale == 1.0
    assert made.scale**2 == pytest.approx(yarn_apply_mscale(values | {"rope_type": "yarn"}, 1.0), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(pairs=st.integers(2, 96), theta=st.floats(100, 1e8), window=st.integers(64, 1 << 17), s=st.floats(1, 512))
def test_yarn_of_any_model(pairs: int, theta: float, window: int, s: float) -> None:
    rope = Rope(2 * pairs, theta, window)
    expected, scale = theirs("yarn", rope, int(s * window), factor=s)
    [made] = make(rule("yarn"), rope, targets_for(rope, [window], s)).ladder.sets
    # A float32 ramp just below 1 leaves little of the unscaled frequency, times s.
    assert made.factors == pytest.approx(expected, rel=1e-4)
    assert made.scale == pytest.approx(scale, rel=1e-12)
