"""A config with both ``rope_parameters`` and ``rope_scaling``: the same rotation in both, or rejected."""

from typing import Any

import pytest

from ropeswitch.factors.errors import FactorError, UsageError
from ropeswitch.factors.hf_config import rope_parameters
from ropeswitch.factors.places import base_line, base_place, check_effect, check_places
from ropeswitch.server.start.model_folder import check_fields

KEPT = {"rope_type": "default", "rope_theta": 5e6}
ADDED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


TOP = {"rope_theta": 5e6, "original_max_position_embeddings": 256, "partial_rotary_factor": 0.5}
YARN = ADDED | {"rope_theta": 5e6}
NEOX = {"rope_theta": 10000, "partial_rotary_factor": 0.25}


BOTH = {"rope_parameters": KEPT, "rope_scaling": ADDED}
DIFFER = ("rope_parameters.rope_type: 'default'", "but", "rope_scaling.rope_type: 'yarn'", "Remove rope_scaling")


@pytest.mark.parametrize(
    ("config", "places"),
    [
        (BOTH, DIFFER),
        ({"text_config": BOTH}, ("text_config.rope_parameters.", "text_config.rope_scaling.", *DIFFER[:2])),
        ({"rope_parameters": KEPT, "rope_scaling": {"type": "default"}}, ("rope_scaling.rope_theta", DIFFER[3])),
        ({"rope_parameters": ADDED, "rope_scaling": ADDED | {"factor": 8.0}}, ("rope_scaling.factor: 8.0", DIFFER[3])),
        ({"rope_theta": 1e4, "rope_scaling": YARN}, ("rope_theta: 10000.0", "rope_scaling.rope_theta: 5000000.0")),
        ({"rope_theta": 1e4, "rope_parameters": KEPT | {"rope_theta": None}}, ("rope_parameters.rope_theta: missing",)),
        (
            {"original_max_position_embeddings": 512, "rope_parameters": YARN},
            ("original_max_position_embeddings: 512", "rope_parameters.original_max_position_embeddings: 256"),
        ),
        (
            {"partial_rotary_factor": 0.5, "rope_parameters": KEPT | {"partial_rotary_factor": 0.25}},
            ("partial_rotary_factor: 0.5", "rope_parameters.partial_rotary_factor: 0.25"),
        ),
        (
            {"rope_scaling": YARN | {"type": "linear"}},
            ("rope_scaling.rope_type: 'yarn'", "rope_scaling.type: 'linear'"),
        ),
        (
            {"rope_theta": 1e4, "text_config": {"rope_parameters": KEPT}},
            ("rope_theta: 10000.0", "text_config.rope_parameters.rope_theta: 5000000.0", "Remove rope_theta"),
        ),
        (
            {"rope_scaling": ADDED | {"factor": 2.0}, "text_config": {"rope_scaling": ADDED}},
            ("rope_scaling.factor: 2.0", "text_config.rope_scaling.factor: 4.0"),
        ),
        (
            {"rope_theta": 1e4, "rope_parameters": {"full_attention": KEPT, "sliding_attention": {"rope_theta": 1e4}}},
            ("rope_theta: 10000.0", "rope_parameters.full_attention.rope_theta: 5000000.0"),
        ),
        (
            {"language_config": {"rope_parameters": KEPT, "rope_scaling": YARN}},
            ("language_config.rope_parameters.", "language_config.rope_scaling."),
        ),
        (
            {"thinker_config": {"text_config": {"rope_parameters": KEPT, "rope_scaling": YARN}}},
            ("thinker_config.text_config.rope_parameters.", "thinker_config.text_config.rope_scaling."),
        ),
        (
            {"model_type": "gpt_neox", "rotary_emb_base": 1e4, "rope_theta": 5e6},
            ("rope_theta: 5000000.0", "rotary_emb_base: 10000.0", "Remove rope_theta"),
        ),
        (
            {"model_type": "olmo3", "rope_scaling": {"type": "yarn", "factor": 8.0}},
            ("rope_scaling.type", "Write rope_type"),
        ),
        (
            {"model_type": "glm4v_moe", "text_config": {"rope_theta": 1e4}},
            ("text_config.model_type", "'glm4v_moe_text'"),
        ),
        ({"rope_scaling": {"rope_type": None, "type": "yarn"}}, ("rope_type: None", "Remove rope_scaling.rope_type")),
        ({"rope_scaling": "yarn"}, ("rope_scaling: 'yarn' must be a JSON object",)),
        (
            {"rope_parameters": {"full_attention": KEPT, "rope_theta": 1e4}},
            ("rope_parameters.rope_theta: 10000.0", "rope_parameters.full_attention.rope_theta: 5000000.0"),
        ),
    ],
)
def test_places_that_disagree_are_named(config: dict[str, Any], places: tuple[str, ...]) -> None:
    with pytest.raises(FactorError) as refused:
        check_places(config)
    assert all(place in str(refused.value) for place in places), str(refused.value)
    with pytest.raises(UsageError, match=r"config\.json: "):
        check_fields("config.json", config)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": KEPT},
        {"rope_parameters": KEPT, "rope_scaling": None},
        {"rope_parameters": KEPT, "rope_scaling": {}},
        {"rope_parameters": KEPT, "rope_scaling": {"type": "default", "rope_theta": 5e6}},
        {"rope_theta": 5e6, "rope_parameters": KEPT, "rope_scaling": {"rope_type": "default"}},
        TOP | {"rope_scaling": YARN | {"partial_rotary_factor": 0.5}},
        {"rope_scaling": {"type": "su", "rope_type": "longrope"}},
        {"rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [1, 2, 3]}},
        {"rope_theta": 5e6, "text_config": {"rope_theta": 5e6}},
        {"rope_theta": 5e6, "text_config": {}},
        # GPT-NeoX checkpoints of Transformers 4 state both names.
        {"model_type": "gpt_neox", "rotary_emb_base": 10000, "rotary_pct": 0.25, **NEOX},
        {"rope_theta": 5e6, "rope_parameters": {"full_attention": KEPT, "sliding_attention": {"rope_theta": 1e4}}},
    ],
)
def test_places_that_agree_are_accepted(config: dict[str, Any]) -> None:
    check_places(config)
    if "rope_type" in config.get("rope_parameters", {}):
        assert rope_parameters(config)["rope_theta"] == 5e6


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"rope_theta": 1e4}, "rope_theta 5000000, from rope_theta of config.json"),
        ({"rope_parameters": KEPT}, "rope_theta 5000000, from rope_parameters.rope_theta of config.json"),
        (
            {"text_config": {"rope_scaling": {"full_attention": KEPT}}},
            "rope_theta 5000000, from text_config.rope_scaling.full_attention.rope_theta of config.json",
        ),
        ({"rotary_emb_base": 1000}, "rope_theta 5000000, from rotary_emb_base of config.json"),
        (
            {"thinker_config": {"text_config": {"rope_theta": 5e6}}},
            "rope_theta 5000000, from thinker_config.text_config.rope_theta of config.json",
        ),
        ({}, "rope_theta 5000000, from the default of model_type llama: config.json states none"),
    ],
)
def test_the_line_of_the_base(config: dict[str, Any], line: str) -> None:
    assert base_line(5e6, base_place(config), "llama") == line


EFFECT = {"rope_theta": 5e6, "rope_type": "default"}


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"rope_theta": 1e6}, "rope_theta: 1000000.0 has no effect: .* ends with 5000000.0"),
        ({"rope_scaling": ADDED}, "rope_scaling.rope_type: 'yarn' has no effect: .* ends with 'default'"),
        (
            {"text_config": {"rope_parameters": {"full_attention": KEPT | {"rope_theta": 1e4}}}},
            "full_attention.rope_theta",
        ),
        ({"rope_theta": 5e6, "rope_scaling": {"type": "mrope"}}, None),
        ({"rope_theta": [1e4, 5e6]}, None),
        ({"head_dim": 64}, None),
    ],
)
def test_what_a_config_or_an_override_states_is_in_effect(stated: dict[str, Any], message: str | None) -> None:
    if message is None:
        check_effect(stated, EFFECT)
        return
    with pytest.raises(FactorError, match=message):
        check_effect(stated, EFFECT)
