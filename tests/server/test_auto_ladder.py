"""``ropeswitch serve MODEL --max-model-len N`` on a plain model: its ladder as it is shown, and Hugging Face's tokens."""

from pathlib import Path

import pytest
from transformers import AutoConfig, Qwen3Config, Qwen3ForCausalLM

from tests.exactness import checkpoints
from tests.exactness.engines import prompts
from tests.exactness.reference import Reference
from tests.server.checkpoint import byte_tokenizer
from tests.server.running import ENGINE, running

WINDOW = 64
SETS = {"original": (64, 1.0), "128": (128, 2.0), "256": (256, 4.0)}


def static(folder: Path, factor: float) -> Reference:
    """Hugging Face's own model with static YaRN, or without any scaling."""
    reference = Reference.load(folder)
    config = AutoConfig.from_pretrained(folder)
    if factor > 1:
        config.rope_parameters = {
            "rope_type": "yarn",
            "rope_theta": config.rope_parameters["rope_theta"],
            "factor": factor,
            "original_max_position_embeddings": WINDOW,
        }
    model = Qwen3ForCausalLM(config).float().eval()
    model.load_state_dict(reference.model.state_dict())
    return Reference(model)


@pytest.mark.full
def test_every_length_gets_the_tokens_of_hugging_face(tmp_path: Path) -> None:
    """One request goes through all three sets; others begin in each."""
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    shape = checkpoints.SHAPE | {"vocab_size": len(tokenizer), "head_dim": 32}
    checkpoints.save(Qwen3ForCausalLM, Qwen3Config(max_position_embeddings=WINDOW, **shape), tmp_path, 0)
    references = [(end, static(tmp_path, factor)) for end, factor in SETS.values()]
    batch = prompts([20, 50, 63, 64, 100, 140], len(tokenizer))
    body = {"model": "qwen3", "prompt": batch, "max_tokens": 90, "temperature": 0, "logprobs": 1}
    flags = ["--max-model-len", "256", "--served-model-name", "qwen3"]
    with running(tmp_path, str(tmp_path), *ENGINE, *flags) as server:
        answer = server.post("/v1/completions", body | {"ignore_eos": True, "return_token_ids": True})
    assert answer.sets == "original, original, original, original, 128, 256", answer.text
    for prompt, choice in zip(batch, answer.json["choices"], strict=True):
        tokens = list(prompt)
        for token, log_prob in zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True):
            reference = next(each for end, each in references if len(tokens) <= end)
            reference.check(tokens, [token], [log_prob])
            tokens.append(token)
        assert len(tokens) == len(prompt) + 90
