"""A draft model's rotary module: angles of true positions in each request's set, and which layers have it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ropeswitch.factors.factor_set import FactorLadder, FactorSet, LayerFactors
from ropeswitch.kernels.angles import Frequencies
from ropeswitch.kernels.reference import apply_rows_reference, fill_rows_reference
from ropeswitch.model_patches.switch.config.settings import RopeSettings, UnsupportedError
from ropeswitch.model_patches.switch.drafts.draft_rotary import DraftRotaryEmbedding, building_a_draft, draft_rotary
from ropeswitch.model_patches.switch.drafts.draft_sets import DraftSets, check_tables

HEAD, PAIRS, BASE = 16, 8, 10000.0
PLAIN = FactorSet("short", 64, (1.0,) * PAIRS)
LONG = FactorSet("long", 512, tuple(1.0 + i for i in range(PAIRS)), 1.2, layers=(LayerFactors((7.0,) * PAIRS),) * 2)
SETTINGS = RopeSettings(FactorLadder((PLAIN, LONG)), BASE)
SCALED = RopeSettings(FactorLadder((FactorSet("short", 64, (1.5,) * PAIRS), LONG)), BASE)
LONGROPE = {"rope_type": "longrope", "rope_theta": BASE, "short_factor": (1.5,) * PAIRS, "long_factor": LONG.factors}


def key(head: int = HEAD, **rope: Any) -> tuple[Any, ...]:
    return head, head, 64, True, tuple(rope.items()), None, torch.float32, 4


def module(
    rope: tuple[Any, ...], settings: RopeSettings = SETTINGS, method: str = "eagle"
) -> DraftRotaryEmbedding | None:
    with building_a_draft():
        made = draft_rotary(rope, settings, method)
        # Layers of one model share a module.
        assert draft_rotary(rope, settings, method) is made
    return made


def test_each_token_rotates_by_its_position_in_its_requests_set() -> None:
    rotary = module(key(rope_type="default", rope_theta=BASE))
    assert rotary is not None
    sets = DraftSets(4, torch.device("cpu"))
    sets.bind(nn.ModuleList([rotary]))
    frequencies = tuple(Frequencies(each.factors, each.scale, each.start_tokens) for each in (PLAIN, LONG))
    # Prompts of three tokens and one, then one token each, and tokens of padding behind them.
    for starts, request_sets, positions in (
        ([0, 3, 4], [1, 0], [5, 6, 300, 7, 0, 0]),
        ([0, 1, 2, 3], [0, 1, 1], [8, 301, 511, 0]),
    ):
        sets.put(np.array(request_sets))
        sets.lay_out(torch.tensor(starts, dtype=torch.int32))
        tokens = len(positions)
        query, cached = torch.randn(tokens, 2 * HEAD), torch.randn(tokens, HEAD)
        found = rotary(torch.tensor(positions), query, cached)
        counts = torch.tensor(starts).diff()
        by_token = torch.tensor(request_sets).repeat_interleave(counts)
        real = int(counts.sum())
        rows = fill_rows_reference(np.array(positions[:real]), by_token.numpy(), BASE, HEAD, frequencies)
        for values, rotated in zip((query, cached), found, strict=True):
            expected = apply_rows_reference(rows, values[:real], HEAD, True)
            torch.testing.assert_close(rotated[:real], expected.to(rotated.dtype), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("rope", "settings", "on_ladder"),
    [
        (key(rope_type="default", rope_theta=BASE), SETTINGS, True),
        (key(), SETTINGS, True),
        (key(rope_type="default", rope_theta=5e5), SETTINGS, False),
        (key(32, rope_type="default", rope_theta=BASE), SETTINGS, False),
        (key(**LONGROPE), SCALED, True),
        # An MTP layer reads the target's config, as the ladder wrote it.
        (key(rope_type="default", rope_theta=BASE, ropeswitch="ladder"), SCALED, True),
        (key(rope_type="default", rope_theta=BASE, ropeswitch="trained"), SETTINGS, False),
        # Trained on other angles than the target.
        (key(rope_type="default", rope_theta=BASE), SCALED, False),
    ],
)
def test_layers_on_the_ladder(rope: tuple[Any, ...], settings: RopeSettings, on_ladder: bool) -> None:
    assert (module(rope, settings) is not None) == on_ladder
    # These read upstream's table by themselves.
    assert module(rope, settings, "dflash") is None


def test_a_table_that_ends_early() -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    with set_current_vllm_config(VllmConfig()):
        model = nn.Sequential(RotaryEmbedding(HEAD, HEAD, 64, BASE, True, torch.float32))
    check_tables(model, 64)
    with pytest.raises(UnsupportedError, match=r"speculative_config\.model: .* 64 positions"):
        check_tables(model, 65)
