"""Models with several bases, M-RoPE, position-scaled attention or recurrent layers equal Hugging Face with static YaRN."""

import pkgutil
from pathlib import Path

import pytest
from transformers import HrmTextConfig, HrmTextForCausalLM

from ropeswitch.model_patches.switch.config.settings import UnsupportedError
from ropeswitch.model_patches.switch.rows.position_readers import METHODS
from tests.exactness.auto_cases import CHUNKED, check_twice
from tests.exactness.batches import Start, full_but
from tests.exactness.checkpoints import SHAPE, save
from tests.exactness.families import FAMILIES

# One of each mechanism; the others are among the long tests.
SOON = ("gemma3", "llama4", "lfm2", "gptj")


@pytest.mark.parametrize("name", full_but(SOON, FAMILIES))
def test_a_family(start: Start, tmp_path: Path, name: str) -> None:
    each = FAMILIES[name]
    folder = each.save(tmp_path)
    check_twice(start(folder, each.key, **CHUNKED, **each.engine), each.reference(folder, each.sets))


@pytest.mark.parametrize(("name", "reader"), list(zip(("llama4", "ministral3"), METHODS, strict=True)))
def test_a_layer_that_reads_positions_is_found(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reader: str
) -> None:
    """With upstream's own method, which would scale by row numbers; before weights are read, since there are none."""
    each, owner, method = FAMILIES[name], pkgutil.resolve_name(reader), METHODS[reader]
    folder = each.save(tmp_path)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    upstream = getattr(owner, method)
    monkeypatch.setattr(owner, method, getattr(upstream, "__wrapped__", upstream))
    monkeypatch.setattr("ropeswitch.model_patches.switch.rows.position_readers.METHODS", {})
    with pytest.raises(UnsupportedError, match=f"{owner.__name__}.{method} reads positions outside a rotary module"):
        start(folder, each.key, **CHUNKED, **each.engine)


def test_prompts_that_attend_both_ways_are_refused(start: Start, tmp_path: Path) -> None:
    """A switch makes generated tokens a part of the prompt."""
    shape = SHAPE | {"max_position_embeddings": 64, "num_key_value_heads": 4, "head_dim": 32}
    config = HrmTextConfig(**shape, num_layers_per_stack=1, H_cycles=1, L_cycles=1)
    folder = save(HrmTextForCausalLM, config, tmp_path, 0)
    with pytest.raises(UnsupportedError, match="PrefillPrefixLMAttention attends to prompts both ways"):
        start(folder, {"ladder": "auto"}, max_model_len=128)
