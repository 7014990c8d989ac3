"""What clients get through the proxy is Hugging Face's answer, token by token, whichever server computed the prompt."""

import asyncio
from typing import Any

import pytest

from ropeswitch.factors.hf_config import ladder_from_config
from tests.disaggregation.proxy import prefill_body
from tests.disaggregation.servers import PATH, Pair, body, fetched, first_choice
from tests.exactness.engines import prompts
from tests.exactness.reference import Reference
from tests.server.checkpoint import WINDOW
from tests.server.running import Answer
from tests.server.test_exactness import LENGTHS, SHARED, TOKENS, VOCABULARY, answers


def test_staggered_requests_get_the_tokens_of_hugging_face(engines: Pair, reference: Reference) -> None:
    [text] = prompts([max(SHARED)], VOCABULARY, seed=2)
    requests = prompts(LENGTHS, VOCABULARY) + [text[:length] for length in SHARED]
    before = fetched(engines.decode)
    # Twice: the second time the prefix caches are warm, and the order is another one.
    for order in (requests, requests[::-1]):
        for prompt, (tokens, log_probs, sets) in zip(order, asyncio.run(answers(engines.proxy, order)), strict=True):
            assert len(tokens) == TOKENS
            assert sets == ("short" if len(prompt) <= WINDOW else "long")
            reference.check(prompt, tokens, log_probs)
    assert fetched(engines.decode) - before >= sum(LENGTHS)


def test_a_prompt_is_computed_on_the_prefill_server_alone(engines: Pair, reference: Reference) -> None:
    for length in (WINDOW - 30, WINDOW, WINDOW + 1, 600):
        [prompt] = prompts([length], VOCABULARY, seed=length)
        before = fetched(engines.decode)
        reference.check(prompt, *first_choice(ask(engines, body(prompt))))
        assert fetched(engines.decode) - before == length


@pytest.mark.parametrize(
    ("prompt", "asked", "given", "fetches"),
    [
        (90, {"rope_factor_set": "long"}, {}, True),
        # The prefill server reserves for one token, in `short`; the decode server for the whole answer, in `long`.
        (WINDOW - 10, {"rope_ladder_policy": "reserve"}, {}, False),
        (WINDOW - 10, {"rope_ladder_policy": "reserve"}, {"rope_max_tokens": 30}, True),
    ],
    ids=["forced", "reserved-by-the-decode-server", "reserved-by-both"],
)
def test_a_prompt_is_transferred_where_both_servers_chose_one_set(
    engines: Pair, reference: Reference, prompt: int, asked: dict[str, Any], given: dict[str, Any], fetches: bool
) -> None:
    [tokens] = prompts([prompt], VOCABULARY, seed=21 + len(given))
    before = fetched(engines.decode)
    answer = ask(engines, body(tokens, 30, vllm_xargs=asked), **given)
    ladder = ladder_from_config(reference.model.config.to_dict())
    Reference(reference.model, ladder, "long").check(tokens, *first_choice(answer))
    assert answer.sets == "long" and fetched(engines.decode) - before == (prompt if fetches else 0)


def ask(engines: Pair, request: dict[str, Any], **params: Any) -> Answer:
    """Send a request to both servers in turn, as the proxy does; ``params`` go to the first."""
    first = engines.prefill.post(PATH, prefill_body(request, **params))
    return engines.decode.post(PATH, request | {"kv_transfer_params": first.json["kv_transfer_params"]})
