"""Values per head, from the fields that configs have for them."""

from ropeswitch.factors.rules.rope import head_dim

HEADS = {"hidden_size": 128, "num_attention_heads": 4}


def test_latent_attention_rotates_the_part_that_it_names() -> None:
    assert head_dim(HEADS | {"qk_rope_head_dim": 16, "head_dim": 48}) == 16


def test_a_part_of_no_values_is_none() -> None:
    # As in DeepSeek-OCR's config, whose class derives head_dim from the part.
    assert head_dim(HEADS | {"qk_rope_head_dim": 0, "head_dim": 0}) == 32
