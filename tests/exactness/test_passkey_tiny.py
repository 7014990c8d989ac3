"""passkey-tiny in the engine: pass keys below, above and across its limit, and with the wrong set forced."""

import random
from collections.abc import Callable

import pytest
from transformers import AutoTokenizer
from vllm import LLM

from tests.exactness.engines import greedy
from tests.passkey_tiny import FOLDER
from tests.passkey_tiny.passkey import REPLY_TOKENS, found, make_prompt, prompt_ids

TRIES = 100
# Tokens that its short and its long factor set reach.
LIMIT, MAX_LENGTH = 256, 1024


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "shortest", "longest", "wrong"),
    [
        ("below", 40, LIMIT - REPLY_TOKENS, ["long"]),
        ("crossing", LIMIT - REPLY_TOKENS + 6, LIMIT - 6, ["short", "long"]),
        ("above", LIMIT + 1, MAX_LENGTH - REPLY_TOKENS, ["short"]),
    ],
)
def test_pass_keys(start: Callable[..., LLM], name: str, shortest: int, longest: int, wrong: list[str]) -> None:
    """At least 9 in 10 by the rule, at most half as many with a wrong set, over 100 random tries each, all in one batch."""
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    llm = start(FOLDER, kv_cache_memory_bytes=256 << 20, max_num_seqs=64, max_num_batched_tokens=2048)
    rng = random.Random(name)
    made = [
        make_prompt(tokenizer, rng.randint(shortest, longest), rng.getrandbits(32), chat=number % 2 == 0)
        for number in range(TRIES)
    ]
    prompts = [{"prompt_token_ids": prompt_ids(tokenizer, prompt)} for prompt, _ in made]
    hits = {}
    for forced in (None, *wrong):
        extra = None if forced is None else {"rope_factor_set": forced}
        params = greedy(REPLY_TOKENS, ignore_eos=False, stop_token_ids=[tokenizer.eos_token_id], extra_args=extra)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        hits[forced] = sum(
            found(tokenizer.decode(list(output.outputs[0].token_ids)), digits)
            for output, (_, digits) in zip(outputs, made, strict=True)
        )
    print(name, hits)
    assert hits.pop(None) >= 0.9 * TRIES
    assert all(count <= 0.45 * TRIES for count in hits.values()), hits
