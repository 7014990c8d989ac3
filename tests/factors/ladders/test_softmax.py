"""The softmax scale of each set of DeepSeek's YaRN, against transformers' own function."""

from typing import Any

import pytest
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.factors.file import LadderFile, parse, to_text
from ropeswitch.factors.ladders.choice import parse as parse_choice
from ropeswitch.factors.ladders.choose import choose

# DeepSeek V3: https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json
YARN: dict[str, Any] = {
    "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
    "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "max_position_embeddings": 163840, "hidden_size": 7168, "num_attention_heads": 128,
    "rope_theta": 10000, "qk_rope_head_dim": 64, "kv_lora_rank": 512, "rope_scaling": YARN,
}  # fmt: skip


def upstream(factor: float, slope: float) -> float:
    return yarn_apply_mscale({"rope_type": "yarn", "factor": factor, "mscale_all_dim": slope}, 1.0)


@pytest.mark.parametrize("slope", [1.0, 0.707])
def test_a_trained_yarn_and_longer_sets(slope: float) -> None:
    values = DEEPSEEK | {"rope_scaling": YARN | {"mscale": slope, "mscale_all_dim": slope}}
    made = choose(parse_choice("auto"), values, 655360)
    assert [each.max_length for each in made.ladder.sets] == [163840, 262144, 524288, 655360]
    assert all(len(each.factors) == 32 and each.scale == 1.0 for each in made.ladder.sets)
    for each in made.ladder.sets:
        assert each.softmax_scale == pytest.approx(upstream(each.max_length / 4096, slope), rel=1e-12)


def test_other_ladders_of_the_same_config() -> None:
    (only,) = choose(parse_choice("none"), DEEPSEEK).ladder.sets
    assert only.softmax_scale == pytest.approx(upstream(40, 1.0), rel=1e-12)
    # A family of which nothing is known: its window unscaled, with the plain softmax scale.
    unknown = DEEPSEEK | {"model_type": "other"}
    sets = choose(parse_choice("yarn"), unknown, 16384).ladder.sets
    expected = [1.0, upstream(2, 1.0), upstream(4, 1.0)]
    assert [each.softmax_scale for each in sets] == pytest.approx(expected, rel=1e-12)
    # Another rule than the config's has no softmax scale.
    assert [each.softmax_scale for each in choose(parse_choice("pi"), unknown, 16384).ladder.sets] == [1.0] * 3


def test_models_that_do_not_scale_their_softmax() -> None:
    for values in (
        DEEPSEEK | {"kv_lora_rank": None},
        DEEPSEEK | {"rope_scaling": None},
        DEEPSEEK | {"rope_scaling": YARN | {"mscale": None, "mscale_all_dim": None}},
    ):
        assert {each.softmax_scale for each in choose(parse_choice("auto"), values, 327680).ladder.sets} == {None}


def test_a_factor_file_keeps_it() -> None:
    ladder = choose(parse_choice("auto"), DEEPSEEK, 655360).ladder
    assert parse(to_text(LadderFile(ladder))).ladder == ladder
    assert FactorLadder.checked(ladder.to_json()) == ladder
    plain = choose(parse_choice("auto"), DEEPSEEK | {"rope_scaling": None}, 327680).ladder
    assert "softmax_scale" not in plain.to_json()[0]
