"""``ropeswitch serve MODEL --max-model-len N`` on a plain model: its ladder as it is shown, and Hugging Face's tokens."""

from pathlib import Path

import pytest

from tests.exactness import checkpoints
from tests.exactness.auto_cases import PLAIN, yarn_sets
from tests.exactness.engines import prompts
from tests.exactness.static_reference import StaticReference
from tests.server.checkpoint import byte_tokenizer
from tests.server.running import ENGINE, running


@pytest.mark.full
def test_every_length_gets_the_tokens_of_hugging_face(tmp_path: Path) -> None:
    """One request goes through all three sets; others begin in each."""
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    checkpoints.of_family(tmp_path, "Qwen3", PLAIN, vocab_size=len(tokenizer), head_dim=32)
    reference = StaticReference.load(tmp_path, yarn_sets(PLAIN, (128, 256)))
    batch = prompts([20, 50, 63, 64, 100, 140], len(tokenizer))
    body = {"model": "qwen3", "prompt": batch, "max_tokens": 90, "temperature": 0, "logprobs": 1}
    flags = ["--max-model-len", "256", "--served-model-name", "qwen3"]
    with running(tmp_path, str(tmp_path), *ENGINE, *flags) as server:
        answer = server.post("/v1/completions", body | {"ignore_eos": True, "return_token_ids": True})
    assert answer.sets == "original, original, original, original, 128, 256", answer.text
    for prompt, choice in zip(batch, answer.json["choices"], strict=True):
        assert len(choice["token_ids"]) == 90
        reference.check(prompt, choice["token_ids"], choice["logprobs"]["token_logprobs"])
