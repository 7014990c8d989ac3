"""Bounds on time worked out by hand, and rejected layouts; plan_expected.yaml has the rest of the arithmetic."""

import pytest

from ropeswitch.deploy.plan.costs import Workload, bounds, prefill_flops
from ropeswitch.deploy.plan.gpus import load
from ropeswitch.deploy.plan.layouts import Layout, broken_rule
from ropeswitch.deploy.plan.model_shape import shape_from_config
from tests.deploy.configs import ALL, LLAMA2_7B, MISTRAL_7B, PHI4_MINI, QWEN3_30B_A3B, REFUSED, Config

TWO_MILLION = 2_097_152
KIB = 1024
A100 = load()["A100-80GB"]
H100 = load()["H100-80GB"]
LLAMA = shape_from_config("llama", LLAMA2_7B)
MISTRAL = shape_from_config("mistral", MISTRAL_7B)
PHI = shape_from_config("phi", PHI4_MINI)


def _load(tokens: int, kv_bytes: int = 2) -> Workload:
    return Workload(tokens, kv_bytes, memory_utilization=0.9, reserve_gib=3.0)


def test_bound_of_the_links() -> None:
    # On L40S, without NVLink, 131,072 tokens by TP 8: 32 layers x 2 all-reduces x 131,072 x 3,072 x 2 bytes, of which a GPU
    # must receive 7/8 at 32e9 bytes a second: 1.41 s. Compute: 4.3e15 operations at 8 x 362e12 are 1.47 s.
    l40s = load()["L40S"]
    received = 32 * 2 * 131_072 * 3072 * 2 * 7 / 8
    compute = prefill_flops(PHI, 131_072) / (8 * 362e12)
    expected = max(received / 32e9, compute)
    assert bounds(PHI, Layout(8), l40s, _load(131_072)).first_token == pytest.approx(expected)
    # At 8,192 tokens the links take longer than the arithmetic.
    received = 32 * 2 * 8192 * 3072 * 2 * 7 / 8
    assert bounds(PHI, Layout(8), l40s, _load(8192)).first_token == pytest.approx(received / 32e9)


def test_a_token_reads_only_its_active_experts() -> None:
    # 8 of 128 experts: 3.35e9 weights are read for a token, not 30.5e9.
    shape = shape_from_config("qwen", QWEN3_30B_A3B)
    per_layer = 2 * 2048 * 4096 + 2 * 2048 * 512 + 8 * 3 * 2048 * 768 + 2048 * 128 + 2 * 2048 + 2 * 128
    read = 2 * (48 * per_layer + 151_936 * 2048) + 48 * 2 * 4 * 128 * 2 * 1000
    assert bounds(shape, Layout(1), H100, _load(1000)).next_token == pytest.approx(read / 3.35e12)


def test_eight_bit_arithmetic_keeps_a_lower_bound() -> None:
    """KV of 8 bits may be multiplied at the 8-bit peak of an H100, which is twice the other; an A100 has none."""
    sixteen, eight = (bounds(LLAMA, Layout(8), H100, _load(TWO_MILLION, b)).first_token for b in (2, 1))
    assert sixteen == pytest.approx(2 * eight)
    a100 = {bounds(LLAMA, Layout(8), A100, _load(TWO_MILLION, b)).first_token for b in (2, 1)}
    assert len(a100) == 1


@pytest.mark.parametrize(("name", "change", "layout", "rule"), REFUSED["layouts"])
def test_a_rejected_layout_names_the_rule_and_its_numbers(
    name: str, change: Config, layout: list[int], rule: str | None
) -> None:
    found = broken_rule(shape_from_config("c", ALL[name] | change), Layout(*layout))
    assert (found is None) if rule is None else (found or "").startswith(rule)
