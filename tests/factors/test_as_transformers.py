"""Configs of every form that people write: our reading is what Transformers' own ``AutoConfig`` ends with, or a refusal."""

import copy
from collections import Counter
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.hf_config import rope_parameters
from ropeswitch.factors.places import check_places

PAIRS = 8
SHAPE = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 64,
    "intermediate_size": 64, "head_dim": 2 * PAIRS,
}  # fmt: skip
# Every rope_type of transformers, and what vLLM and old checkpoints call them.
KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "su", "mrope")
BLOCKS = ("rope_parameters", "rope_scaling")
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "olmo2", "glm4", "phi", "granite", "smollm3", "gpt_neox")
WINDOW = "original_max_position_embeddings"
# Fields whose values must be those of transformers.
READ = [
    "rope_theta",
    "rope_type",
    "factor",
    WINDOW,
    *"partial_rotary_factor short_factor long_factor beta_fast".split(),
]
REFUSALS = (ValueError, TypeError, KeyError, AttributeError, ImportError, OSError, NotImplementedError)
REFUSALS += (StrictDataclassError,)
MISSING: Any = object()


def maybe(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from((MISSING, *values))


def stated(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not MISSING}


bases = maybe(10000, 1e4, 5e6, 1000000.0, None, "1e6")
windows = maybe(256, 512, None)
parts = maybe(1.0, 0.5, 0.25, None)


@st.composite
def blocks(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(KINDS))
    names = draw(st.sampled_from((("rope_type",), ("type",), ("rope_type", "type"))))
    block = dict.fromkeys(names, kind)
    if len(names) == 2 and draw(st.booleans()):
        block["type"] = draw(st.sampled_from(KINDS))
    block |= stated(
        rope_theta=draw(bases), factor=draw(maybe(4, 4.0, 2.0, None, "4.0")), partial_rotary_factor=draw(parts)
    )
    block |= {WINDOW: window} if (window := draw(windows)) is not MISSING else {}
    if kind in ("longrope", "su"):
        block |= {"short_factor": [1.0] * PAIRS, "long_factor": [2.0] * PAIRS}
    if kind == "llama3":
        block |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "mrope":
        block["mrope_section"] = [2, 3, 3]
    return block


@st.composite
def layered(draw: st.DrawFn) -> dict[str, Any]:
    block = {"full_attention": draw(blocks()), "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    return block | stated(rope_theta=draw(maybe(1e4, 5e6)))


@st.composite
def texts(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(FAMILIES))
    by_layer = kind in ("qwen2", "qwen3") and draw(st.booleans())
    block = layered() if by_layer else blocks()
    config: dict[str, Any] = SHAPE | {"model_type": kind}
    # The window itself, or already multiplied.
    config["max_position_embeddings"] = draw(st.sampled_from((256, 512, 1024)))
    config |= {"layer_types": ["full_attention", "sliding_attention"]} if by_layer else {}
    for name in draw(st.sampled_from(((), BLOCKS[:1], BLOCKS[1:], BLOCKS))):
        config[name] = draw(st.one_of(block, st.sampled_from((None, {}))))
    if config.get("rope_parameters") and "rope_scaling" in config and draw(st.booleans()):
        config["rope_scaling"] = copy.deepcopy(config["rope_parameters"])
    top = stated(rope_theta=draw(bases), partial_rotary_factor=draw(parts))
    return config | top | ({WINDOW: window} if (window := draw(windows)) is not MISSING else {})


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    text = draw(texts())
    if text["model_type"] not in ("llama", "mistral") or draw(st.booleans()):
        return text
    outer = {"model_type": "llava", "text_config": text, "vision_config": {"model_type": "clip_vision_model"}}
    return outer | stated(rope_theta=draw(maybe(1e4, 5e6)))


def ours(config: dict[str, Any]) -> dict[str, Any] | None:
    """What every command reads; None for a refusal."""
    try:
        check_places(config)
        rope = rope_parameters(config.get("text_config", config))
    except FactorError:
        return None
    # A missing base or one that is no number is refused where it is used.
    return rope if isinstance(rope.get("rope_theta"), int | float) else None


def theirs(config: dict[str, Any]) -> dict[str, Any] | None:
    """What ``AutoConfig`` ends with; None if it refuses the config."""
    try:
        read = AutoConfig.for_model(**copy.deepcopy(config)).get_text_config()
    except REFUSALS:
        return None
    rope: dict[str, Any] = getattr(read, "rope_parameters", None) or {}
    rope = rope.get("full_attention") or rope
    # transformers leaves it at the top level for types that do not use it.
    top = {WINDOW: getattr(read, WINDOW, None)} if WINDOW in config.get("text_config", config) else {}
    return top | rope


def read_alike(mine: dict[str, Any], upstream: dict[str, Any]) -> list[str]:
    """The fields that differ; a rotated part that is missing is the whole head."""
    wrong = []
    for field in READ:
        default = 1.0 if field == "partial_rotary_factor" else None
        here, there = (default if each.get(field) is None else each[field] for each in (mine, upstream))
        here, there = ("longrope" if each == "su" else each for each in (here, there))
        if here != there:
            wrong.append(f"{field} {here!r}, transformers {there!r}")
    return wrong


def test_the_same_rotation_or_a_refusal_and_most_configs_are_read() -> None:
    seen: Counter[tuple[bool, bool]] = Counter()

    @settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
    @given(configs())
    def compare(config: dict[str, Any]) -> None:
        mine, upstream = ours(copy.deepcopy(config)), theirs(config)
        seen[mine is not None, upstream is not None] += 1
        if mine is not None and upstream is not None:
            assert not (found := read_alike(mine, upstream)), (found, config)

    compare()
    assert seen[True, True] > 0.15 * seen.total(), seen
