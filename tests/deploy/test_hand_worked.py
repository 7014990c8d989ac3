"""Published configurations worked out by hand: the arithmetic is in the comments, the planner must agree."""

from typing import Any

import pytest

from ropeswitch.deploy.plan.costs import GIB, Workload, bounds, memory, prefill_flops
from ropeswitch.deploy.plan.gpus import load
from ropeswitch.deploy.plan.layouts import Layout, Placement, broken_rule, place
from ropeswitch.deploy.plan.model_shape import shape_from_config
from ropeswitch.deploy.plan.planner import Cluster, make_plan
from ropeswitch.deploy.plan.weights import parameter_count
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


@pytest.mark.parametrize(
    ("config", "layout", "kib_per_token", "gib_per_sequence"),
    [
        # LLaMA2-7B: 32 layers x 2 (K and V) x 32 heads x 128 values x 2 bytes = 512 KiB; x 2 Mi tokens = 1 TiB.
        (LLAMA2_7B, Layout(1), 512, 1024),
        # 16 ranks with 2 heads each: 32 x 2 x 2 x 128 x 2 = 32 KiB, 64 GiB.
        (LLAMA2_7B, Layout(16), 32, 64),
        # The same by 8 ranks with 4 heads and two stages of 16 layers.
        (LLAMA2_7B, Layout(8, 1, 2), 32, 64),
        # Three stages have 11, 11 and 10 layers; the fullest one: 11 x 2 x 4 x 128 x 2 = 22 KiB, 44 GiB.
        (LLAMA2_7B, Layout(8, 1, 3), 22, 44),
        # Mistral-7B: 32 x 2 x 8 x 128 x 2 = 128 KiB, 256 GiB.
        (MISTRAL_7B, Layout(1), 128, 256),
        # One head a rank: 16 KiB, 32 GiB.
        (MISTRAL_7B, Layout(8), 16, 32),
        # 16 ranks hold each head twice: nothing is gained ...
        (MISTRAL_7B, Layout(16), 16, 32),
        # ... until the two copies share the tokens.
        (MISTRAL_7B, Layout(16, 2), 8, 16),
        (MISTRAL_7B, Layout(32, 4), 4, 8),
    ],
)
def test_kv_bytes_of_a_token_and_a_sequence_at_2048k(
    config: Config, layout: Layout, kib_per_token: float, gib_per_sequence: float
) -> None:
    held = memory(shape_from_config("c", config), layout, A100, _load(TWO_MILLION))
    assert held.kv_per_token == kib_per_token * KIB
    assert held.kv_per_sequence == gib_per_sequence * GIB


def test_phi_4_mini_at_128k() -> None:
    # 32 layers x 2 x 8 heads x 128 values x 2 bytes = 128 KiB; x 131,072 tokens = 16 GiB, and a block of 16 tokens more
    # (2 MiB), as the config has a sliding window (of 262,144 tokens, which no sequence reaches).
    held = memory(PHI, Layout(1), A100, _load(131_072))
    assert held.kv_per_token == 128 * KIB
    assert held.kv_per_sequence == 16 * GIB + 2 * KIB * KIB
    # Embedding, which is the head too: 200,064 x 3,072. A layer: q and o 2 x 3,072 x 3,072, k and v 2 x 3,072 x 1,024, MLP
    # 3 x 3,072 x 8,192, two norms. The final norm.
    layer = 2 * 3072 * 3072 + 2 * 3072 * 1024 + 3 * 3072 * 8192 + 2 * 3072
    assert parameter_count(PHI) == 200_064 * 3072 + 32 * layer + 3072 == 3_836_021_760
    assert held.weights == 2 * 3_836_021_760  # 200,064 = 3,126 x 64 needs no padding
    # 0.9 x 79.2 = 71.28 GiB, less 3 and 7.145 of weights: 61.135 GiB, or 31,301 blocks of 2 MiB, of which one is never
    # used. 31,300 // 8,193 = 3.
    assert held.kv_available // (2 * KIB * KIB) == 31_301
    assert held.sequences == 3


def test_llama_fills_sixteen_a100s_at_2048k() -> None:
    # Per GPU of TP 16: 71.28 - 3 - 0.784 of weights = 67.496 GiB for 64 GiB.
    held = memory(LLAMA, Layout(16), A100, _load(TWO_MILLION))
    # A sixteenth of 32 x (4 x 4,096^2 + 3 x 4,096 x 11,008) + 2 x 32,000 x 4,096, and 65 norms of 4,096 whole.
    assert held.weights == 2 * ((32 * (4 * 4096**2 + 3 * 4096 * 11008) + 2 * 32000 * 4096) // 16 + 65 * 4096)
    assert held.sequences == 1
    # 8-bit KV: 32 GiB, two of them.
    assert memory(LLAMA, Layout(16), A100, _load(TWO_MILLION, kv_bytes=1)).sequences == 2
    # TP 8: 128 GiB do not fit.
    assert memory(LLAMA, Layout(8), A100, _load(TWO_MILLION)).sequences == 0


def test_bounds_of_llama_at_2048k() -> None:
    n = TWO_MILLION
    # Linear: 2 operations for each of 6,476,005,376 weights in the layers and each token. Attention: 32 layers x 32 heads x
    # 128 values x 4 operations x n(n + 1)/2 pairs. One row of the output head.
    linear = 2 * 32 * (4 * 4096**2 + 3 * 4096 * 11008) * n
    attention = 32 * 32 * 128 * 4 * n * (n + 1) // 2
    assert prefill_flops(LLAMA, n) == linear + attention + 2 * 4096 * 32000
    assert attention / (linear + attention) == pytest.approx(0.977, abs=1e-3)
    # 1.18e18 operations on 16 x 312e12 a second: 236 s, by TP or PP alike.
    for layout in (Layout(16), Layout(8, 1, 2), Layout(1, 1, 16)):
        assert bounds(LLAMA, layout, A100, _load(n)).first_token == pytest.approx(236.4, abs=0.1)
    # 64 GiB of KV and 0.77 GiB of weights at 2,039e9 bytes a second: 34.1 ms by TP 16.
    assert bounds(LLAMA, Layout(16), A100, _load(n)).next_token == pytest.approx(0.0341, abs=1e-4)
    # By TP 8 and PP 2 the two stages wait for each other: twice that.
    assert bounds(LLAMA, Layout(8, 1, 2), A100, _load(n)).next_token == pytest.approx(0.0682, abs=1e-4)


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


@pytest.mark.parametrize(
    ("layout", "gpus", "placement"),
    [
        (Layout(8), 16, Placement(1, 8, 2)),
        (Layout(8, 1, 2), 16, Placement(2, 8, 1)),
        (Layout(2), 12, Placement(1, 2, 6)),
        (Layout(4, 1, 3), 12, "hold no replica"),  # nodes of 8 and 4 GPUs cannot give 6 each
        (Layout(4, 1, 3), 16, Placement(2, 6, 1)),
        (Layout(9), 16, "cannot be divided evenly"),
    ],
)
def test_replicas_are_placed_evenly_on_nodes(layout: Layout, gpus: int, placement: Placement | str) -> None:
    found = place(layout, gpus, 8)
    assert placement in found if isinstance(found, str) else found == placement  # type: ignore[operator]


@pytest.mark.parametrize(
    ("shape", "node", "target", "layout", "fewest"),
    [
        # Tensor parallel stays inside a node; on one big node it makes the next token faster.
        (LLAMA, 8, 1, Layout(8, 1, 2), 16),
        (LLAMA, 16, 1, Layout(16), 16),
        # Copies of a head share the tokens, so that 4 sequences fit where 2 would.
        (MISTRAL, 16, 4, Layout(16, 2), 16),
        (MISTRAL, 16, 1, Layout(16, 2), 4),
    ],
)
def test_the_best_layout_is_recommended(shape: Any, node: int, target: int, layout: Layout, fewest: int) -> None:
    plan = make_plan(shape, Cluster(A100, 16, node, target), _load(TWO_MILLION))
    assert plan.recommended is not None and plan.recommended.layout == layout and plan.fewest_gpus == fewest
    assert plan.recommended.sequences >= target
    if target == 4:
        [copies] = [each for each in plan.candidates if each.layout == Layout(16)]
        assert copies.verdict == "holds 2 of the 4 target sequences"
