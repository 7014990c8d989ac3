"""Values per head, from the fields that configs have for them."""

from ropeswitch.factors.rules.rope import head_dim, rope_from_config

HEADS = {"hidden_size": 128, "num_attention_heads": 4}


def test_latent_attention_rotates_the_part_that_it_names() -> None:
    assert head_dim(HEADS | {"qk_rope_head_dim": 16, "head_dim": 48}) == 16


def test_a_part_of_no_values_is_none() -> None:
    # As in DeepSeek-OCR's config, whose class derives head_dim from the part.
    assert head_dim(HEADS | {"qk_rope_head_dim": 0, "head_dim": 0}) == 32


def test_bailings_latent_attention_rotates_all_of_it() -> None:
    # As in Ring 2.5's config, whose part is of the heads of linear attention.
    config = HEADS | {"qk_rope_head_dim": 16, "head_dim": 32, "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    found = [
        rope_from_config(config | {"model_type": kind}, original_length=64).rotary_dim
        for kind in ("bailing_hybrid", "")
    ]
    assert found == [16, 8]
