"""passkey-tiny: its files, its prompts, and that it needs the right factor set."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Phi3ForCausalLM, PreTrainedTokenizerBase

from tests.passkey_tiny import FOLDER
from tests.passkey_tiny.evaluate import CASES, measure
from tests.passkey_tiny.generate import generate
from tests.passkey_tiny.passkey import found, make_prompt, prompt_ids
from tests.passkey_tiny.rope_sets import FixedRotary, SetName, force_set, right_set
from tests.passkey_tiny.text import KEY_DIGITS

TRIES = 8
BY_NAME = {case.name: case for case in CASES}
# Longer prompts only cost more here; `tests.passkey_tiny.evaluate` goes to the model's end.
BY_NAME["above"] = dataclasses.replace(BY_NAME["above"], longest=400)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Phi3ForCausalLM:
    return Phi3ForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("total_tokens", [40, 41, 100, 255, 256, 257, 980])
def test_prompts_have_exactly_the_tokens_asked_for(
    tokenizer: PreTrainedTokenizerBase, total_tokens: int, chat: bool
) -> None:
    for seed in range(5):
        prompt, digits = make_prompt(tokenizer, total_tokens, seed, chat=chat)
        assert len(prompt_ids(tokenizer, prompt)) == total_tokens
        text = prompt if isinstance(prompt, str) else prompt[0]["content"]
        assert text.count(f"The pass key is {digits}.") == 1
        assert len(tokenizer.encode(digits, add_special_tokens=False)) == KEY_DIGITS


def test_a_seed_names_one_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    assert make_prompt(tokenizer, 120, 7) == make_prompt(tokenizer, 120, 7)
    assert make_prompt(tokenizer, 120, 7) != make_prompt(tokenizer, 120, 8)


def test_depth_places_the_key(tokenizer: PreTrainedTokenizerBase) -> None:
    for depth, share in ((0.0, 0.0), (1.0, 1.0)):
        prompt, digits = make_prompt(tokenizer, 400, 1, chat=False, depth=depth)
        assert isinstance(prompt, str)
        assert prompt.index(digits) / len(prompt) == pytest.approx(share, abs=0.1)


def test_bad_prompt_sizes_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ValueError, match="total_tokens is 10"):
        make_prompt(tokenizer, 10, 0)
    with pytest.raises(ValueError, match="depth is 2"):
        make_prompt(tokenizer, 100, 0, depth=2)


def test_found_wants_both_statements_and_no_other_number() -> None:
    assert found("The pass key is 123456. To be sure: it is 123456.", "123456")
    assert not found("The pass key is 123456.", "123456")
    assert not found("The pass key is 123456. To be sure: it is ??????.", "123456")
    assert not found("The pass key is 123456. To be sure: it is 123457.", "123456")


def test_files_are_small_and_state_the_two_set_rule() -> None:
    files = [path for path in Path(FOLDER).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 10_000_000
    config = json.loads((FOLDER / "config.json").read_text())
    rope = config["rope_parameters"]
    assert config["model_type"] == "phi3"
    assert rope["rope_type"] == "longrope"
    assert config["original_max_position_embeddings"] == 256
    assert config["max_position_embeddings"] == 1024
    pairs = config["hidden_size"] // config["num_attention_heads"] // 2
    assert len(rope["short_factor"]) == len(rope["long_factor"]) == pairs
    assert all(a < b for a, b in zip(rope["short_factor"], rope["long_factor"], strict=True))


@pytest.mark.parametrize("length", [200, 256, 257, 300])
def test_forcing_the_right_set_changes_nothing(model: Phi3ForCausalLM, length: int) -> None:
    positions = torch.arange(length)[None]
    x = torch.zeros(1)
    own = model.model.rotary_emb(x, positions)
    forced = FixedRotary(model.config, right_set(model.config, length))(x, positions)
    assert torch.equal(own[0], forced[0]) and torch.equal(own[1], forced[1])


def test_force_set_puts_the_models_own_module_back(model: Phi3ForCausalLM) -> None:
    own = model.model.rotary_emb
    with pytest.raises(RuntimeError, match="inside"), force_set(model, "long"):
        raise RuntimeError("inside")
    assert model.model.rotary_emb is own


def test_generate_refuses_prompts_of_two_lengths(model: Phi3ForCausalLM) -> None:
    with pytest.raises(ValueError, match=r"lengths \[2, 3\]"):
        generate(model, [[1, 5], [1, 5, 6]], 1)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_right_set_finds_the_key(model: Phi3ForCausalLM, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    result = measure(model, tokenizer, BY_NAME[name], None, TRIES)
    assert result.found >= 0.75 * TRIES


@pytest.mark.parametrize(("name", "forced"), [(case.name, forced) for case in CASES for forced in case.wrong])
def test_the_wrong_set_does_clearly_worse(
    model: Phi3ForCausalLM, tokenizer: PreTrainedTokenizerBase, name: str, forced: SetName
) -> None:
    assert measure(model, tokenizer, BY_NAME[name], forced, TRIES // 2).found <= 0.25 * TRIES
