"""Which sets a choice and a config give, and what is refused."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.ladders.choice import MOST_SETS, parse
from ropeswitch.factors.ladders.choose import choose
from ropeswitch.factors.ladders.made import MadeLadder
from tests.factors.ladders import configs


def sets(made: MadeLadder) -> list[tuple[str, int, float | None]]:
    """Name, longest sequence and extension ratio of each set."""
    pairs = zip(made.ladder.sets, made.origins, strict=True)
    return [(each.name, each.max_length, origin.factor) for each, origin in pairs]


ONE = [("original", 40960, 1.0)]
STEEP = configs.LLAMA_31 | {"rope_scaling": configs.LLAMA3 | {"low_freq_factor": 5.0}}
SARVAM = configs.config("sarvam_mla", 4096, rope_type="deepseek_yarn", factor=4.0, mscale=1.0, mscale_all_dim=1.0)
SARVAM |= {"kv_lora_rank": 64, "qk_rope_head_dim": 64}
THREE = [("original", 32768, 1.0), ("64k", 65536, 2.0), ("128k", 131072, 4.0)]


@pytest.mark.parametrize(
    ("text", "config", "longest", "window", "expected"),
    [
        ("auto", configs.QWEN3, 131072, None, THREE),
        ("auto", configs.QWEN3, None, None, ONE),
        ("auto", configs.QWEN3, -1, None, ONE),
        ("auto", configs.QWEN3, 32000, None, THREE[:1]),
        ("auto", configs.QWEN3, 36000, None, [THREE[0], ("36000", 36000, 36000 / 32768)]),
        ("auto", configs.QWEN3, 65536, None, THREE[:2]),
        ("auto", configs.QWEN3, 100000, None, [*THREE[:2], ("100000", 100000, 100000 / 32768)]),
        ("auto", configs.QWEN3, None, 16384, [("original", 16384, 1.0)]),
        ("auto", configs.QWEN3, 65536, 40960, [("original", 40960, 1.0), ("64k", 65536, 1.6)]),
        ("auto", configs.QWEN3 | {"original_max_position_embeddings": 8192}, 65536, None,
            [("original", 8192, 1.0), ("16k", 16384, 2.0), ("32k", 32768, 4.0), ("64k", 65536, 8.0)]),
        # The default of Phi-3's config class, in a config that says nothing of its window.
        ("auto", configs.config("phi3", 2048) | {"original_max_position_embeddings": 4096}, 8192, None,
            [("original", 2048, 1.0), ("4k", 4096, 2.0), ("8k", 8192, 4.0)]),
        ("yarn:2x,4x", configs.QWEN3, None, None, THREE),
        ("yarn:64k,128k", configs.QWEN3, 100000, None, THREE),
        ("yarn:4x", configs.QWEN3, None, None, [THREE[0], THREE[2]]),
        ("theta:65536", configs.QWEN3, None, None, THREE[:2]),
        ("none", configs.QWEN3, None, None, ONE),
        # Users add yarn to these families: the window stays unscaled.
        ("auto", configs.QWEN3_YARN, None, None, THREE),
        *(("auto", configs.config(name, 131072, **configs.YARN), None, None, THREE) for name in
            ("qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_5_text", "qwen3_5_moe_text", "smollm3")),
        ("yarn", configs.QWEN3_YARN, None, None, THREE),
        ("none", configs.QWEN3_YARN, None, None, [("static", 131072, 4.0)]),
        ("yarn", configs.LLAMA_YARN, None, None, THREE),
        # Trained with it: kept.
        ("auto", configs.LLAMA_31, None, None, [("original", 131072, 8.0)]),
        ("auto", configs.LLAMA_4_SCOUT, None, None, [("original", 10485760, 16.0)]),
        # Its maximum has the factor in it.
        ("auto", configs.GEMMA_3, None, None, [("original", 131072, 8.0)]),
        ("none", configs.GEMMA_3, None, None, [("static", 131072, 8.0)]),
        ("auto", configs.GPT_OSS, None, None, [("original", 131072, 32.0)]),
        ("auto", configs.GPT_OSS, 262144, None, [("original", 131072, 32.0), ("256k", 262144, 64.0)]),
        ("yarn:2x", configs.GPT_OSS, None, None, [("original", 131072, 32.0), ("256k", 262144, 64.0)]),
        ("auto", configs.LONGROPE, None, None, [("short", 4096, None), ("long", 131072, None)]),
        ("none", configs.LONGROPE, None, None, [("short", 4096, None)]),
        ("none", configs.LONGROPE, 8192, None, [("long", 131072, None)]),
        ("none", configs.LONGROPE, 4096, None, [("short", 4096, None)]),
        ("pi", configs.LINEAR, None, None, [("original", 4096, 1.0), ("8k", 8192, 2.0), ("16k", 16384, 4.0)]),
        # Command R's window is in another field, and the shortest of the others counts.
        ("auto", configs.LLAMA | {"model_max_length": 131072}, None, None, [("original", 131072, 1.0)]),
        ("auto", configs.LLAMA | {"max_sequence_length": 2048}, 4096, None, [("original", 2048, 1.0), ("4k", 4096, 2.0)]),
        # Its config class has 4,096 where config.json says nothing.
        ("auto", configs.config("phi3", 16384) | {"original_max_position_embeddings": 4096}, 32768, None,
            [("original", 16384, 1.0), ("32k", 32768, 2.0)]),
        ("none", configs.LINEAR, None, None, [("static", 16384, 4.0)]),
        ("auto", configs.DYNAMIC, None, None, [("original", 4096, 1.0), ("8k", 8192, 2.0), ("16k", 16384, 4.0)]),
    ],
)  # fmt: skip
def test_sets(text: str, config: dict[str, Any], longest: int | None, window: int | None, expected: Any) -> None:
    assert sets(choose(parse(text), config, longest, window)) == expected


@pytest.mark.parametrize(
    ("text", "config", "longest", "window", "reason"),
    [
        ("yarn", configs.QWEN3, None, None, "'yarn' needs lengths; give them, as in yarn:4x, or set --max-model-len"),
        ("none", configs.QWEN3, 131072, None, "--max-model-len: 131072 exceeds 40960"),
        ("none", configs.QWEN3, None, 16384, "--native-window: 16384 cannot be combined with --ladder none"),
        ("yarn:64k", configs.QWEN3, 131072, None, "--max-model-len: 131072 exceeds 65536"),
        ("yarn:1x", configs.QWEN3, None, None, "do not exceed the native window"),
        ("yarn:16k", configs.QWEN3, None, None, "16384 tokens do not exceed the native window of 32768"),
        ("yarn:128k,64k", configs.QWEN3, None, None, "lengths must increase"),
        ("auto", configs.QWEN3, None, 40961, "--native-window: 40961 exceeds 40960"),
        ("auto", configs.QWEN3_YARN, None, 40960, "--native-window: 40960 exceeds 32768"),
        ("auto", configs.LLAMA_YARN, None, None, "--ladder none.* --ladder yarn$"),
        ("auto", configs.LINEAR, None, None, "--ladder none.* --ladder pi$"),
        ("auto", configs.GEMMA_3, 200000, None, "200000 exceeds 131072, the end of the linear scaling that the model"),
        ("auto", configs.LLAMA_31, 200000, None, "no published rule extends it"),
        ("yarn", configs.LLAMA_31, 200000, None, "which the model was trained with"),
        ("auto", configs.LLAMA_31, None, 4096, "--native-window: 4096 cannot be combined with the llama3 scaling"),
        ("pi:256k", configs.GPT_OSS, None, None, "which the model was trained with"),
        ("yarn:256k", configs.LONGROPE, None, None, "would replace the LongRoPE factors"),
        ("auto", configs.LONGROPE, None, 2048, "--native-window: 2048 cannot be combined with LongRoPE factors"),
        ("auto", configs.QWEN3, 2**31 - 1, 7, "30 sets from the native window of 7 up; 16 sets reach 131072 tokens"),
        ("auto", configs.QWEN3 | {"rope_theta": None}, None, None, "the config states no rotary base"),
        ("auto", configs.config("x", 4096, rope_type="fourier"), None, None, "'fourier' is unsupported"),
        ("auto", configs.config("llama", 4096, rope_type="linear"), None, None, "rope_scaling.factor"),
        ("auto", configs.config("qwen3", 4096, rope_type="yarn", factor="x"), None, None, "rope_scaling.factor"),
        ("none", configs.config("x", 4096, rope_type="linear", factor=0.5), None, None, "0.5 must be at least 1"),
        ("none", configs.config("x", 4096, rope_type="dynamic", alpha=1e300), None, None, "range of float64"),
        ("auto", STEEP, None, None, "low_freq_factor: 5 exceeds high_freq_factor, 4"),
        ("auto", {k: v for k, v in configs.LLAMA.items() if k != "max_position_embeddings"}, None, None, "missing"),
        ("file:/nowhere.json", configs.QWEN3, None, None, "/nowhere.json"),
        ("foo", configs.QWEN3, None, None, "'foo' is unknown; allowed: auto"),
        ("yarn:", configs.QWEN3, None, None, "no lengths after the colon"),
        ("yarn:4y", configs.QWEN3, None, None, "'4y' must be"),
        ("yarn:0x", configs.QWEN3, None, None, "multiple of the native window"),
        ("auto:4x", configs.QWEN3, None, None, "takes no lengths"),
        ("file:", configs.QWEN3, None, None, "must be followed by the path"),
        ("yarn:" + ",".join(str(i) for i in range(16)), configs.QWEN3, None, None, "must be"),
        ("yarn:" + ",".join(f"{i}k" for i in range(1, 17)), configs.QWEN3, None, None, "at most 16 sets"),
        ("yarn", SARVAM, 8192, None, "scales the softmax of this model's layers for that name alone"),
    ],
)
def test_refused(text: str, config: dict[str, Any], longest: int | None, window: int | None, reason: str) -> None:
    with pytest.raises(FactorError, match=reason):
        choose(parse(text), config, longest, window)


@given(st.integers(7, 1 << 20), st.integers(1, 1 << 24))
def test_automatic_lengths(window: int, longest: int) -> None:
    """They rise from the window to the longest sequence, at most doubling until the last, unless there are too many."""
    config = configs.config("llama", window)
    try:
        made = choose(parse("auto"), config, longest)
    except FactorError as error:
        assert "16 sets reach" in str(error) and longest > window << 14
        return
    lengths = [each.max_length for each in made.ladder.sets]
    assert len(lengths) <= MOST_SETS and lengths[0] == window and lengths[-1] == max(longest, window)
    assert all(after <= 2 * before for before, after in itertools.pairwise(lengths))
    assert all(not each & (each - 1) for each in lengths[1:-1])
    assert made.ladder.sets[0].factors == (1.0,) * 32
