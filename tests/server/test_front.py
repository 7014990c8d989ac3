"""Keys, limits and TLS on real servers, as clients meet them."""

import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from ropeswitch.server.front.limits.keys import digest
from tests.server.asking import wait_until
from tests.server.conftest import MODEL
from tests.server.front.certificates import certificate
from tests.server.metrics.ladders import total, values
from tests.server.running import ENGINE, Server, running

GIVEN = "given-4f1b9e"
SCRAPER = "scraper-77c0d2"


def client_of(server: Server, key: str) -> openai.OpenAI:
    assert server.tls is not None
    http = httpx2.Client(verify=server.tls)
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, http_client=http)


def key(number: int) -> str:
    return f"filed-{number}-a83cd1"


@pytest.fixture(scope="module")
def guarded(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("guarded")
    keys = folder / "keys"
    keys.write_text("# of the tests\n" + "\n".join(key(number) for number in range(20)))
    cert, cert_key = certificate(folder / "tls")
    context = ssl.create_default_context(cafile=cert)
    flags = ["--served-model-name", MODEL, "--api-key", GIVEN, "--api-key-file", str(keys), "--metrics-key", SCRAPER]
    flags += ["--ssl-certfile", cert, "--ssl-keyfile", cert_key]
    flags += ["--max-queued-requests", "long=1", "--max-num-seqs", "1", "--enable-log-requests"]
    with running(folder, str(checkpoint), *ENGINE, *flags, tls=context) as server:
        yield server


def test_every_route_needs_a_key(guarded: Server) -> None:
    for path in "/v1/models /v1/rope /version /load /docs /openapi.json /ping /nothing".split():
        assert guarded.get(path).status == guarded.get(path, authorization="Bearer other").status == 401
        assert guarded.get(path, authorization=f"Bearer {GIVEN}").status in (200, 404)
    for path in "/tokenize /detokenize /invocations /v1/completions /v1/messages /inference/v1/generate /ping".split():
        assert guarded.post(path, {"model": MODEL, "prompt": "a"}).status == 401, path
    assert guarded.get("/health").status == 200 and guarded.get("/metrics").status == 401
    assert guarded.get("/metrics", authorization=f"Bearer {SCRAPER}").status == 200
    assert guarded.get("/v1/models", authorization=f"Bearer {SCRAPER}").status == 401


def test_a_key_learns_nothing_of_other_keys_prompts(guarded: Server) -> None:
    def cached(name: str, **body: Any) -> int:
        prompt = [5, *[7] * 300]
        answer = client_of(guarded, name).completions.create(model=MODEL, prompt=prompt, max_tokens=1, extra_body=body)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert cached(key(11)) == 0 and cached(key(11)) == 256
    assert cached(key(12)) == cached(key(12), cache_salt=f"key:{digest(key(11).encode())[:16].hex()}:") == 0
    assert cached(key(12)) == 256


def test_a_full_class_leaves_the_other(guarded: Server) -> None:
    """One answer at a time: while a stream is being answered, one long prompt may wait, no second, and short ones may."""
    client = client_of(guarded, key(6))

    def ask(length: int) -> Any:
        return client.completions.create(model=MODEL, prompt=[5] * length, max_tokens=1)

    def wait_for(length_class: str) -> None:
        def waits() -> bool:
            text = guarded.get("/metrics", authorization=f"Bearer {SCRAPER}").text
            return total(values(text), "ropeswitch_queued_requests", length_class=length_class) == 1

        wait_until(waits, f"a {length_class} prompt waits")

    endless = {"ignore_eos": True}
    stream = client.completions.create(model=MODEL, prompt="a", max_tokens=1000, stream=True, extra_body=endless)
    with ThreadPoolExecutor() as pool:
        next(iter(stream))
        waiting = [pool.submit(ask, 300)]
        wait_for("long")
        with pytest.raises(openai.InternalServerError) as refused:
            ask(300)
        waiting.append(pool.submit(ask, 20))
        wait_for("short")
        stream.close()
        assert all(each.result(60).choices for each in waiting)
    assert (refused.value.status_code, refused.value.code) == (503, "queue_full")


def test_no_key_is_in_the_log_the_metrics_or_the_api(guarded: Server) -> None:
    """Runs last: the log then holds what the tests above did."""
    secrets = [GIVEN, SCRAPER, *(key(number) for number in range(20))]
    allowed = {"authorization": f"Bearer {GIVEN}"}
    texts = [guarded.log.read_text()]
    texts += [guarded.get(path, **allowed).text for path in ("/metrics", "/openapi.json", "/v1/rope", "/v1/models")]
    for text in texts:
        assert text and not [each for each in secrets if each in text]


def test_a_chat_does_not_wait_for_another_client_s_list(server: Server) -> None:
    """Nor finds all slots taken; without keys, an address is a client."""
    finished = 0
    listed = {"model": MODEL, "prompt": ["a"] * 60, "max_tokens": 50, "ignore_eos": True, "stream": True}
    chat = {"model": MODEL, "prompt": "a longer one " * 3, "max_tokens": 5}
    url, other = f"{server.url}/v1/completions", httpx2.HTTPTransport(local_address="127.0.0.2")
    with (
        httpx2.stream("POST", url, json=listed, timeout=120) as answer,
        httpx2.Client(transport=other) as client,
        ThreadPoolExecutor() as pool,
    ):

        def ask() -> int:
            before = finished
            assert client.post(url, json=chat, timeout=120).status_code == 200
            return finished - before

        asked = None
        for line in answer.iter_lines():
            finished += '"finish_reason":"length"' in line
            if finished == 1 and asked is None:
                asked = pool.submit(ask)
        # Behind the list it would see nearly all of it; a busy machine sends and reads the chat late.
        assert asked is not None and asked.result() <= 30
    assert finished == 60
