"""Keys, limits, TLS and the shape of errors on real servers, as the official client and raw sockets meet them."""

import asyncio
import json
import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from ropeswitch.server.front.limits.keys import digest
from ropeswitch.server.metrics import queue_metrics
from tests.server.asking import wait_until
from tests.server.checkpoint import MAXIMUM
from tests.server.conftest import CONCURRENT, MODEL
from tests.server.front.certificates import certificate
from tests.server.metrics.ladders import total, values
from tests.server.running import ENGINE, Server, running

GIVEN = "given-4f1b9e"
SCRAPER = "scraper-77c0d2"
LIMIT = 20000
LONGEST = 600


@dataclass(frozen=True)
class Guarded:
    """A server with keys, limits and TLS.

    Attributes:
        keys: Its file of keys; each test takes one of its own.
    """

    server: Server
    keys: Path
    tls: Path

    def client(self, key: str) -> openai.OpenAI:
        assert self.server.tls is not None
        http = httpx2.Client(verify=self.server.tls)
        return openai.OpenAI(base_url=f"{self.server.url}/v1", api_key=key, max_retries=0, http_client=http)

    def raw(self, data: bytes) -> ssl.SSLSocket:
        """A connection on which ``data`` was sent."""
        assert self.server.tls is not None
        address = ("127.0.0.1", int(self.server.url.rsplit(":", 1)[1]))
        connection = socket.create_connection(address, timeout=30)
        wrapped = self.server.tls.wrap_socket(connection, server_hostname="127.0.0.1")
        wrapped.sendall(data)
        return wrapped


def key(number: int) -> str:
    return f"filed-{number}-a83cd1"


def head(name: str, *lines: str, path: str = "/v1/completions") -> bytes:
    whole = [
        f"POST {path} HTTP/1.1",
        "host: x",
        "content-type: application/json",
        f"authorization: Bearer {name}",
        *lines,
    ]
    return ("\r\n".join(whole) + "\r\n\r\n").encode()


def answer_on(connection: ssl.SSLSocket) -> tuple[int, dict[str, str], Any]:
    """The status, headers and JSON of the answer after which the server closes the connection."""
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    start, _, body = data.partition(b"\r\n\r\n")
    first, *lines = start.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)


@pytest.fixture(scope="module")
def guarded(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    keys = folder / "keys"
    keys.write_text("# of the tests\n" + "\n".join(key(number) for number in range(20)))
    cert, cert_key = certificate(folder / "tls")
    context = ssl.create_default_context(cafile=cert)
    flags = ["--served-model-name", MODEL, "--api-key", GIVEN, "--api-key-file", str(keys), "--metrics-key", SCRAPER]
    flags += ["--ssl-certfile", cert, "--ssl-keyfile", cert_key]
    flags += ["--max-body-bytes", str(LIMIT), "--body-timeout", "1", "--max-prompt-tokens", str(LONGEST)]
    flags += ["--max-queued-requests", "long=1", "--max-sequences-per-key", "4"]
    flags += ["--max-num-seqs", "1", "--enable-log-requests"]
    with running(folder, str(checkpoint), *ENGINE, *flags, tls=context) as server:
        yield Guarded(server, keys, folder / "tls")


def test_every_route_needs_a_key(guarded: Guarded) -> None:
    server = guarded.server
    for path in "/v1/models /v1/rope /version /load /docs /openapi.json /ping /nothing".split():
        assert server.get(path).status == server.get(path, authorization="Bearer other").status == 401
        assert server.get(path, authorization=f"Bearer {GIVEN}").status in (200, 404)
    for path in "/tokenize /detokenize /invocations /v1/completions /v1/messages /inference/v1/generate /ping".split():
        answer = server.post(path, {"model": MODEL, "prompt": "a"})
        assert answer.status == 401 and answer.json["error"]["code"] == "invalid_api_key", path
    assert server.get("/health").status == 200
    assert server.get("/metrics").status == 401
    assert server.get("/metrics", authorization=f"Bearer {SCRAPER}").status == 200
    assert server.get("/v1/models", authorization=f"Bearer {SCRAPER}").status == 401
    with pytest.raises(openai.AuthenticationError) as refused:
        guarded.client("other").models.list()
    assert (refused.value.type, refused.value.code) == ("authentication_error", "invalid_api_key")


def test_keys_from_the_flag_and_the_file(guarded: Guarded) -> None:
    for name in (GIVEN, key(0)):
        assert guarded.client(name).completions.create(model=MODEL, prompt="a", max_tokens=1).choices


def test_the_file_of_keys_is_read_again(guarded: Guarded) -> None:
    before = guarded.keys.read_text()
    guarded.keys.write_text(before.replace(key(19), "renewed-51be"))
    deadline = time.monotonic() + 20
    while guarded.server.get("/v1/models", authorization="Bearer renewed-51be").status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert guarded.server.get("/v1/models", authorization=f"Bearer {key(19)}").status == 401
    guarded.keys.write_text("")
    time.sleep(2.5)
    assert guarded.server.get("/v1/models", authorization="Bearer renewed-51be").status == 200
    deadline = time.monotonic() + 20
    while not (found := guarded.server.log.read_text().count("the previous content stays in force")):
        assert time.monotonic() < deadline  # the command prints its processes' log a little later
        time.sleep(0.1)
    assert found == 1
    guarded.keys.write_text(before)


def test_a_key_learns_nothing_of_other_keys_prompts(guarded: Guarded) -> None:
    def cached(name: str, **body: Any) -> int:
        prompt = [5, *[7] * 300]
        answer = guarded.client(name).completions.create(model=MODEL, prompt=prompt, max_tokens=1, extra_body=body)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert cached(key(11)) == 0 and cached(key(11)) == 256
    assert cached(key(12)) == cached(key(12), cache_salt=f"key:{digest(key(11).encode())[:16].hex()}:") == 0
    assert cached(key(12)) == 256


def test_bodies_that_are_too_large(guarded: Guarded) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        guarded.client(key(1)).completions.create(model=MODEL, prompt="a" * 1_000_000)
    assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")
    # By its header alone, before any of it is sent.
    status, headers, answer = answer_on(guarded.raw(head(key(1), "content-length: 1000000000", "expect: 100-continue")))
    assert status == 413 and headers["connection"] == "close" and answer["error"]["code"] == "request_too_large"
    # Counted, where no header tells.
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    status, _, answer = answer_on(guarded.raw(head(key(1), "transfer-encoding: chunked") + chunk * 6 + b"0\r\n\r\n"))
    assert status == 413 and answer["error"]["code"] == "request_too_large"


def test_half_sent_bodies(guarded: Guarded) -> None:
    for lines in (("content-length: 100",), ("transfer-encoding: chunked",)):
        part = b'{"model"' if "length" in lines[0] else b'8\r\n{"model"\r\n'
        started = time.monotonic()
        status, headers, answer = answer_on(guarded.raw(head(key(2), *lines) + part))
        assert (status, headers["connection"]) == (408, "close")
        assert answer["error"]["code"] == "request_timeout" and 0.9 < time.monotonic() - started < 10
    # Others are answered all the while, and a client that leaves in its body disturbs nobody.
    guarded.raw(head(key(2), "content-length: 100") + b"{").close()
    assert guarded.server.get("/v1/models", authorization=f"Bearer {key(2)}").status == 200


def test_prompts_that_are_too_long(guarded: Guarded) -> None:
    client = guarded.client(key(3))
    assert client.completions.create(model=MODEL, prompt=[5] * LONGEST, max_tokens=1).choices
    asked: tuple[Callable[[int], Any], ...] = (
        lambda n: client.completions.create(model=MODEL, prompt=[5] * n, max_tokens=1),
        lambda n: client.completions.create(model=MODEL, prompt=[5] * n, max_tokens=1, stream=True),
        lambda n: client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a" * n}]),
        lambda n: client.responses.create(model=MODEL, input="a" * n),
    )
    for length in (LONGEST + 1, MAXIMUM + 1):
        for ask in asked:
            with pytest.raises(openai.BadRequestError) as refused:
                ask(length)
            assert refused.value.code == "context_length_exceeded"
    message = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "a" * (LONGEST + 1)}]}
    answer = guarded.server.post("/v1/messages", message, authorization=f"Bearer {key(3)}")
    assert (answer.status, answer.json["type"]) == (400, "error")
    assert answer.json["error"]["type"] == "invalid_request_error"


def test_requests_at_once(guarded: Guarded) -> None:
    server, client = guarded.server, guarded.client(key(4))
    held = [guarded.raw(head(key(4), "content-length: 100")) for _ in range(4)]
    time.sleep(0.3)
    with pytest.raises(openai.RateLimitError) as refused:
        client.completions.create(model=MODEL, prompt="a", max_tokens=1)
    assert (refused.value.type, refused.value.code) == ("rate_limit_error", "rate_limit_exceeded")
    assert refused.value.response.headers["retry-after"] == "1"
    assert (
        server.post("/v1/completions", {"model": MODEL, "prompt": "a"}, authorization=f"Bearer {key(5)}").status == 200
    )
    for connection in held:
        assert answer_on(connection)[0] == 408
    assert client.completions.create(model=MODEL, prompt="a", max_tokens=1).choices


def test_a_full_class_leaves_the_other(guarded: Guarded) -> None:
    """One answer at a time: while a stream is being answered, one long prompt may wait, no second, and short ones may."""
    client = guarded.client(key(6))
    done: list[Any] = []

    def ask(length: int) -> threading.Thread:
        def run() -> None:
            done.append((length, client.completions.create(model=MODEL, prompt=[5] * length, max_tokens=1)))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def waits(length_class: str) -> bool:
        text = guarded.server.get("/metrics", authorization=f"Bearer {SCRAPER}").text
        return total(values(text), "ropeswitch_queued_requests", length_class=length_class) == 1

    # On a busy machine the others may come when the stream is over.
    for _ in range(5):
        done.clear()
        refused: openai.InternalServerError | None = None
        endless = {"ignore_eos": True}
        stream = client.completions.create(model=MODEL, prompt="a", max_tokens=1000, stream=True, extra_body=endless)
        next(iter(stream))
        threads = [ask(300)]
        wait_until(lambda: waits("long") or done, time.monotonic(), "a long prompt that waits", 60)
        try:
            client.completions.create(model=MODEL, prompt=[5] * 300, max_tokens=1)
        except openai.InternalServerError as error:
            refused = error
        threads.append(ask(20))
        wait_until(lambda: waits("short") or done, time.monotonic(), "a short prompt that waits", 60)
        early = list(done)
        stream.close()
        for thread in threads:
            thread.join(60)
        if refused is not None and not early:
            break
    assert refused is not None and not early, "the stream was too short to wait behind"
    assert (refused.status_code, refused.type, refused.code) == (503, "server_error", "queue_full")
    assert 1 <= int(refused.response.headers["retry-after"]) <= 60
    assert sorted(length for length, _ in done) == [20, 300]


def test_no_key_is_in_the_log_the_metrics_or_the_api(guarded: Guarded) -> None:
    """Runs last: the log then holds what the tests above did."""
    secrets = [GIVEN, SCRAPER, "renewed-51be", *(key(number) for number in range(20))]
    allowed = {"authorization": f"Bearer {GIVEN}"}
    texts = [guarded.server.log.read_text()]
    texts += [
        guarded.server.get(path, **allowed).text for path in ("/metrics", "/openapi.json", "/v1/rope", "/v1/models")
    ]
    for text in texts:
        assert text and not [each for each in secrets if each in text]


def test_a_chat_does_not_wait_for_another_client_s_list(server: Server) -> None:
    """Nor finds all slots taken; without keys, an address is a client."""
    finished = 0
    listed = {"model": MODEL, "prompt": ["a"] * 150, "max_tokens": 100, "ignore_eos": True, "stream": True}
    chat = {"model": MODEL, "prompt": "a longer one " * 3, "max_tokens": 5}
    url, other = f"{server.url}/v1/completions", httpx2.HTTPTransport(local_address="127.0.0.2")
    with httpx2.stream("POST", url, json=listed, timeout=120) as answer, httpx2.Client(transport=other) as client:
        chats: list[threading.Thread] = []
        at: list[int] = []

        def ask() -> None:
            before = finished
            assert client.post(url, json=chat, timeout=120).status_code == 200
            at.append(finished - before)

        for line in answer.iter_lines():
            finished += '"finish_reason":"length"' in line
            if finished == 1 and not chats:
                chats.append(threading.Thread(target=ask))
                chats[0].start()
        chats[0].join()
    assert finished == 150 and at[0] <= 14


@pytest.mark.full
def test_nothing_is_left_of_a_thousand_requests(server: Server) -> None:
    """Of all kinds, answered, refused and left by their clients at every stage: the server's own counts return to zero."""
    rng = random.Random(3)
    chat = {"messages": [{"role": "user", "content": "b" * 20}], "max_tokens": 4}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": "a" * 20, "max_tokens": 8}),
        ("/v1/completions", {"prompt": [5] * 300, "max_tokens": 30, "stream": True}),
        ("/v1/completions", {"prompt": ["a" * 20, "b" * 300, [5] * 40], "max_tokens": 4, "n": 2}),
        ("/v1/completions", {"prompt": "a" * 250, "max_tokens": 20, "stream": True}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 2, "n": 2, "use_beam_search": True}),
        ("/v1/completions", {"prompt": [5] * 2000}),
        ("/v1/completions", {"prompt": "a", "temperature": -1}),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", chat | {"stream": True, "max_tokens": 30}),
        ("/v1/responses", {"input": "a" * 20, "max_output_tokens": 16}),
        ("/v1/responses", {"input": "a" * 300, "max_output_tokens": 16, "stream": True}),
        ("/v1/messages", chat),
        ("/tokenize", {"prompt": "a"}),
        ("/nothing", {}),
    ]
    statuses: dict[int, int] = {}
    left = 0

    async def one(client: httpx2.AsyncClient, gate: asyncio.Semaphore) -> None:
        nonlocal left
        path, body = rng.choice(kinds)
        # Some leave at once, some in the prefill, some in the stream, some in a switch.
        patience = rng.choice([0.0, 0.01, 0.05, 0.2]) if rng.random() < 0.4 else 60
        async with gate:
            try:
                answer = await asyncio.wait_for(client.post(path, json=body | {"model": MODEL}), patience)
            except TimeoutError:
                left += 1
            else:
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1

    async def run() -> None:
        gate = asyncio.Semaphore(24)
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
            await asyncio.gather(*(one(client, gate) for _ in range(1000)))

    asyncio.run(run())
    assert set(statuses) == {200, 400, 404} and left > 100, (statuses, left)
    queued = {queue_metrics.REQUESTS[0], queue_metrics.TOKENS[0]}

    def left_queued() -> float:
        found = values(server.get("/metrics").text)
        return sum(value for (name, _), value in found.items() if name in queued)

    wait_until(lambda: left_queued() == 0, time.monotonic(), "an empty queue", 20)
    # As many requests as the limit allows are accepted, and one more is not.
    sent = head("any", "content-length: 100")
    opened = [socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) for _ in range(CONCURRENT)]
    for connection in opened:
        connection.sendall(sent)
    refusals = lambda: server.post("/tokenize", {"model": MODEL, "prompt": "a"}).status == 429  # noqa: E731
    wait_until(refusals, time.monotonic(), "the limit of concurrent requests", 20)
    assert select.select(opened, [], [], 0)[0] == []
    for connection in opened:
        connection.close()
