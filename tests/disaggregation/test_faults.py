"""Whatever goes wrong between two servers, an answer is the right one, and every request that can be answered is."""

import time
from typing import Any

from ropeswitch.model_patches.switch.kv.nixl_connector import IN_TIME
from tests.disaggregation.proxy import prefill_body
from tests.disaggregation.servers import LEASE, MODEL, PATH, Pair, body, fetched, first_choice, transfer
from tests.exactness.engines import prompts
from tests.exactness.reference import Reference
from tests.server.checkpoint import WINDOW
from tests.server.test_exactness import VOCABULARY


def test_parameters_that_no_prefill_server_returned(engines: Pair, reference: Reference) -> None:
    """Lost, mixed up and mistyped ones: the decode server computes the prompt, and fetches nothing."""
    first, second = prompts([WINDOW - 40, WINDOW + 60], VOCABULARY, seed=31)
    good, other = (transfer(engines.prefill, prompt) for prompt in (first, second))
    before = fetched(engines.decode)
    wrong: list[dict[str, Any]] = [{name: value for name, value in good.items() if name != "rope_seal"}]
    wrong += [
        good | {name: other[name]}
        for name in ("rope_seal", "rope_set", "rope_until", "remote_block_ids", "remote_request_id")
    ]
    for value in (None, "abc", -1, [[10**9]], [["a"]], {}):
        wrong += [good | {name: value} for name in ("remote_block_ids", "remote_host", "remote_port", "tp_size")]
    wrong += [other, good | {"do_remote_decode": True}, {"do_remote_prefill": True}]
    for params in wrong:
        answer = engines.decode.post(PATH, body(first, 4, kv_transfer_params=params))
        reference.check(first, *first_choice(answer))
        # Of a request that is refused, the connector frees the blocks.
        refused = body(first, 4, kv_transfer_params=params, model=f"{MODEL}@unknown")
        assert engines.decode.post(PATH, refused).status == 400
    assert fetched(engines.decode) == before
    # The right ones still serve.
    reference.check(first, *first_choice(engines.decode.post(PATH, body(first, 4, kv_transfer_params=good))))


def test_a_transfer_serves_once_and_in_time(engines: Pair, reference: Reference) -> None:
    """Afterwards the prefill server may hold other keys in the same blocks."""
    once, late, twice = prompts([210, 220, 230], VOCABULARY, seed=35)
    params, expired = transfer(engines.prefill, once), transfer(engines.prefill, late)
    before = fetched(engines.decode)
    # Greedy requests have one choice; among one token there is no other either.
    request = body(twice, 6, n=2, temperature=1, top_k=1, kv_transfer_params=transfer(engines.prefill, twice))
    for choice in engines.decode.post(PATH, request).json["choices"]:
        reference.check(twice, choice["token_ids"], choice["logprobs"]["token_logprobs"])
    assert fetched(engines.decode) - before == len(twice)
    for count in (len(once), 0):
        before = fetched(engines.decode)
        # Without the decode server's own blocks of it.
        answer = engines.decode.post(PATH, body(once, 6, kv_transfer_params=params, cache_salt=str(count)))
        reference.check(once, *first_choice(answer))
        assert fetched(engines.decode) - before == count
    time.sleep(IN_TIME * LEASE)
    before = fetched(engines.decode)
    reference.check(late, *first_choice(engines.decode.post(PATH, body(late, 6, kv_transfer_params=expired))))
    assert fetched(engines.decode) == before


def test_a_prefill_server_that_is_told_to_fetch_does_not_wait(engines: Pair) -> None:
    [prompt] = prompts([200], VOCABULARY, seed=32)
    asked = prefill_body(body(prompt), remote_block_ids=[[1]], remote_engine_id="d", remote_request_id="r")
    asked["kv_transfer_params"] |= {"remote_host": "127.0.0.1", "remote_port": 1, "remote_num_tokens": 200}
    assert engines.prefill.post(PATH, asked).status == 200
