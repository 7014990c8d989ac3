"""What clients get over HTTP is Hugging Face's answer, token by token, however the requests meet in the batches."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.exactness.engines import prompts
from tests.exactness.reference import Reference
from tests.server.checkpoint import WINDOW
from tests.server.conftest import MODEL
from tests.server.running import Server

VOCABULARY = 259  # the byte tokenizer's
TOKENS = 12
# Well below the limit, crossing it while decoding, at it, one past it, and well above.
LENGTHS = [17, 60, WINDOW - 5, WINDOW - 1, WINDOW, WINDOW + 1, 300, 420]
# Prefixes of the same text, as of one conversation that goes on: two before the limit, two beyond it.
SHARED = [WINDOW // 2, WINDOW - 8, WINDOW + 9, 380]


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return Reference.load(checkpoint)


def test_staggered_requests_get_the_tokens_of_hugging_face(server: Server, reference: Reference) -> None:
    [text] = prompts([max(SHARED)], VOCABULARY, seed=2)
    requests = prompts(LENGTHS, VOCABULARY) + [text[:length] for length in SHARED]
    # Twice: the second time the prefix cache is warm, and the order is another one.
    for order in (requests, requests[::-1]):
        for prompt, (tokens, log_probs, sets) in zip(order, asyncio.run(answers(server, order)), strict=True):
            assert len(tokens) == TOKENS
            assert sets == ("short" if len(prompt) <= WINDOW else "long")
            reference.check(prompt, tokens, log_probs)


async def answers(server: Server, requests: list[list[int]]) -> list[tuple[list[int], list[float], str]]:
    """Tokens, log-probabilities and factor sets of all requests, every other one streamed, started 40 ms apart."""
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        async def one(index: int, prompt: list[int]) -> tuple[list[int], list[float], str]:
            await asyncio.sleep(0.04 * index)
            return await answer(client, prompt, stream=index % 2 == 1)

        return await asyncio.gather(*(one(index, prompt) for index, prompt in enumerate(requests)))


async def answer(client: AsyncOpenAI, prompt: list[int], stream: bool) -> tuple[list[int], list[float], str]:
    body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 1}
    extra = {"return_token_ids": True, "ignore_eos": True}
    response = await client.completions.with_raw_response.create(**body, stream=stream, extra_body=extra)
    parsed: Any = response.parse()
    choices = [event.choices[0] async for event in parsed if event.choices] if stream else parsed.choices
    tokens = [token for choice in choices for token in choice.token_ids or ()]
    log_probs = [value for choice in choices if choice.logprobs for value in choice.logprobs.token_logprobs]
    return tokens, log_probs, response.headers["x-rope-factor-set"]
