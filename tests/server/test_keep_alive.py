"""A stream that waits is kept open by comments, which the official client skips."""

import threading
import urllib.request
from pathlib import Path

import pytest

from ropeswitch.server.app import vllm_adapter
from tests.passkey_tiny import SERVED
from tests.server.running import running
from tests.server.test_life_cycle import FLAGS, stream


@pytest.mark.parametrize(("flags", "seconds"), [([], 15), (["--sse-keep-alive-interval", "0"], 0)])
def test_streams_are_kept_alive_unless_told_otherwise(flags: list[str], seconds: int) -> None:
    assert vllm_adapter.parse(flags, lambda parser: None).sse_keep_alive_interval == seconds


@pytest.mark.full
def test_a_stream_that_waits_for_another_is_kept_alive(tmp_path: Path) -> None:
    with running(tmp_path, *SERVED, *FLAGS, "--max-num-seqs", "1", "--sse-keep-alive-interval", "1") as server:
        first = stream(server, 1000)
        next(first)
        # Read on, or the server would wait for this client.
        threading.Thread(target=list, args=(first,), daemon=True).start()
        body = b'{"model": "passkey-tiny", "prompt": "The", "max_tokens": 2, "stream": true}'
        request = urllib.request.Request(server.url + "/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            lines = [line for line in response.read().decode().split("\n") if line]
        assert lines[0] == ": keep-alive" and lines[-1] == "data: [DONE]"
        assert list(stream(server, 2))[-1].choices[0].finish_reason == "length"


def test_ids_cached_tokens_and_compact_json_unless_told_otherwise() -> None:
    def parsed(*flags: str) -> tuple[object, ...]:
        args = vllm_adapter.parse(flags, lambda parser: None)
        outputs = args.structured_outputs_config
        ids, details = args.enable_request_id_headers, args.enable_prompt_tokens_details
        return ids, details, outputs.backend, outputs.disable_any_whitespace

    assert parsed() == (True, None, "xgrammar", True)
    assert parsed("--no-enable-request-id-headers", "--no-enable-prompt-tokens-details")[:2] == (False, False)
    assert parsed("--structured-outputs-config", '{"backend": "auto"}')[2:] == ("auto", False)
    assert parsed("--reasoning-parser", "qwen3") == (True, None, "xgrammar", True)


def test_heads_are_small_unless_told_otherwise() -> None:
    for flags, size in (([], 65536), (["--h11-max-incomplete-event-size", "100000"], 100000)):
        assert vllm_adapter.parse(flags, lambda parser: None).h11_max_incomplete_event_size == size
