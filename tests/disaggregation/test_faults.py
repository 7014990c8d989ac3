"""Whatever goes wrong between two servers, an answer is the right one, and every request that can be answered is."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.factors.hf_config import ladder_from_config
from ropeswitch.model_patches.switch.nixl_connector import IN_TIME
from tests.disaggregation.proxy import prefill_body
from tests.disaggregation.servers import LEASE, MODEL, PATH, Pair, body, fetched, first_choice, metric, pair, server
from tests.exactness.checkpoints import ladder_file
from tests.exactness.engines import prompts
from tests.exactness.reference import Reference, load_model
from tests.server.checkpoint import WINDOW
from tests.server.running import Answer, Server
from tests.server.test_exactness import VOCABULARY

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def over_tcp(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two servers whose transfers need both: over shared memory one reads the other's without its help."""
    with pair(tmp_path_factory.mktemp("tcp"), checkpoint, UCX_TLS="tcp") as started:
        yield started


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


def test_another_ladder_is_refused_at_the_handshake(
    over_tcp: Pair, checkpoint: Path, reference: Reference, tmp_path: Path
) -> None:
    """Its first set is the same one, so that the handshake alone stands between."""
    ladder = ladder_from_config(load_model(checkpoint).config.to_dict())
    assert ladder is not None
    sets = ladder.to_json()
    sets[1]["factors"] = [1.01 * factor for factor in sets[1]["factors"]]
    file = ladder_file(tmp_path / "factors.json", sets)
    moved = metric(over_tcp.decode, "nixl_bytes_transferred_sum")
    with server(tmp_path / "other", checkpoint, "prefill", "--factors", str(file)) as other:
        for length in (100, 400):
            [prompt] = prompts([length], VOCABULARY, seed=33)
            answer = over_tcp.decode.post(PATH, body(prompt, kv_transfer_params=transfer(other, prompt)))
            reference.check(prompt, *first_choice(answer))
    assert metric(over_tcp.decode, "nixl_bytes_transferred_sum") == moved
    log = over_tcp.decode.log.read_text()
    assert "NIXL compatibility hash mismatch. Local: " in log and ", ladder " in log


def test_a_prefill_server_that_dies_in_a_transfer(over_tcp: Pair, reference: Reference) -> None:
    """Stopped first, so that transfers are under way: a client leaves, and then the server is killed."""
    prefill, decode = over_tcp.prefill, over_tcp.decode
    [warm, left, lost, never] = prompts([300, 310, 320, 330], VOCABULARY, seed=34)
    reference.check(warm, *first_choice(decode.post(PATH, body(warm, kv_transfer_params=transfer(prefill, warm)))))
    params = [transfer(prefill, prompt) for prompt in (left, lost)]
    os.killpg(prefill.process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(decode.post, PATH, body(prompt, kv_transfer_params=each))
            for prompt, each in zip((left, lost), params, strict=True)
        ]
        time.sleep(3)
        assert not any(each.done() for each in waiting)
        os.killpg(prefill.process.pid, signal.SIGKILL)
        for prompt, each in zip((left, lost), waiting, strict=True):
            reference.check(prompt, *first_choice(each.result(timeout=100)))
    # The proxy asks the decode server alone.
    proxy = Server(over_tcp.url, decode.log, decode.process)
    reference.check(never, *first_choice(proxy.post(PATH, body(never))))
    deadline = time.monotonic() + 30
    while metric(decode, "kv_cache_usage_perc") and time.monotonic() < deadline:
        time.sleep(0.5)
    assert metric(decode, "kv_cache_usage_perc") == 0


def transfer(prefill: Server, prompt: list[int]) -> dict[str, Any]:
    """What a prefill server says of a prompt's blocks."""
    answer: Answer = prefill.post(PATH, prefill_body(body(prompt)))
    params: dict[str, Any] = answer.json["kv_transfer_params"]
    assert params["rope_seal"]
    return params
