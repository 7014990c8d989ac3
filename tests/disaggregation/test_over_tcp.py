"""Two servers that transfer over TCP, which needs both: over shared memory one reads the other's without its help."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ropeswitch.factors.hf_config import ladder_from_config
from tests.disaggregation.servers import PATH, Pair, body, first_choice, metric, pair, server, transfer
from tests.exactness.checkpoints import ladder_file
from tests.exactness.engines import prompts
from tests.exactness.reference import Reference
from tests.server.test_exactness import VOCABULARY


@pytest.fixture(scope="module")
def over_tcp(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("tcp"), checkpoint, UCX_TLS="tcp") as started:
        yield started


def test_another_ladder_is_refused_at_the_handshake(
    over_tcp: Pair, checkpoint: Path, reference: Reference, tmp_path: Path
) -> None:
    """A different ladder with the same first set: only the handshake can refuse it."""
    ladder = ladder_from_config(reference.model.config.to_dict())
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
    reference.check(never, *first_choice(over_tcp.proxy.post(PATH, body(never))))
    deadline = time.monotonic() + 30
    while metric(decode, "kv_cache_usage_perc") and time.monotonic() < deadline:
        time.sleep(0.5)
    assert metric(decode, "kv_cache_usage_perc") == 0
