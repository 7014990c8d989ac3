"""Servers of all kinds: what they are asked, and which of them, and of their answers, are refused."""

import json
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate import endpoint
from ropeswitch.factors.evaluate.endpoint_target import EndpointTarget
from ropeswitch.factors.evaluate.run import Evaluation, Grid
from ropeswitch.factors.evaluate.target import Window
from ropeswitch.factors.factor_set import FactorError
from tests.factors.evaluate.scripted import Scripted
from tests.loadtests.client.scripted import serving
from tests.server.front.certificates import certificate

LADDER = [{"name": "short", "max_length": 256}, {"name": "long", "max_length": 1024}]
WINDOW = Window([1, 65, 66, 67], 2)
Handler = Callable[[Any, web.Request], Coroutine[Any, Any, web.StreamResponse]]


def connect(url: str, model: str | None = None, chat: bool = False) -> EndpointTarget:
    return EndpointTarget.connect(url, model, None, chat)


@contextmanager
def served(**how: Any) -> Iterator[tuple[Scripted, EndpointTarget]]:
    server = Scripted(**how)
    with serving(server):
        yield server, connect(server.url + "/v1")


def test_sets_are_forced_by_name() -> None:
    with served(sets=LADDER) as (server, target):
        assert (target.sets, target.opening) == (("switched", "short", "long"), (1,))
        found = {name: list(target.losses([WINDOW, Window([1, 70], 1)], name)) for name in target.sets}
        assert found == {"switched": [[1, 1], [1]], "short": [[2, 2], [2]], "long": [[3, 3], [3]]}
        assert sorted(len(body["prompt"]) for body in server.asked) == [2, 2, 2, 4, 4, 4]
        forced = [body.get("vllm_xargs", {}).get("rope_factor_set") for body in server.asked[::2]]
        assert forced == [None, "short", "long"]
        grid = Grid(("passkey",), (400,), target.sets, tries=3)
        evaluation = Evaluation(target, grid)
        scores = {each.set_name: [one["score"] for one in evaluation.measure(each)] for each in grid.cells()}
        assert scores == {"switched": [1, 1, 1], "short": [0, 0, 0], "long": [1, 1, 1]}
        body = server.asked[-1]
        assert (body["max_tokens"], body["temperature"], len(body["prompt"])) == (10, 0, 399)


def test_chats() -> None:
    grid = Grid(("passkey",), (400,), ("served",), tries=1)
    with serving(Scripted()) as server:
        target = connect(server.url, "scripted", chat=True)
        (found,) = Evaluation(target, grid, chat=True).measure(grid.cells()[0])
    assert found["score"] == 1 and server.asked[0]["max_tokens"] == 64
    assert server.asked[0]["messages"][0]["content"].startswith("There is an important info")


@pytest.mark.parametrize(("sets", "name"), [(None, "served"), (LADDER, "long")])
def test_lengths_end_where_the_server_does_whatever_set_is_forced(sets: Any, name: str) -> None:
    with served(sets=sets, card={"max_model_len": 500}) as (_, target):
        assert name in target.sets
        Evaluation(target, Grid(("passkey",), (490,), (name,))).checked()
        with pytest.raises(FactorError, match=r"--lengths: 491 must be at most 490: .* a reply of 10 tokens"):
            Evaluation(target, Grid(("passkey",), (491,), (name,))).checked()
        if sets is None:
            with pytest.raises(FactorError, match="known sets are 'served'; the server has no /v1/rope"):
                Evaluation(target, Grid(("passkey",), (400,), ("short",))).checked()


def reply(target: EndpointTarget) -> Any:
    return list(target.replies(["The pass key is 5."], target.sets[0], 3))


def loss(target: EndpointTarget) -> Any:
    return list(target.losses([WINDOW] * 9, target.sets[-1]))


NO_LOSS = {"choices": [{"logprobs": {"token_logprobs": [0, 0, None, 0]}}]}


@pytest.mark.parametrize(
    ("how", "ask", "message"),
    [
        ({"status": 503}, reply, "/v1/completions answered 503: not today"),
        ({"change": lambda answer: "<html>"}, reply, r"answered b'<html>', which is not a response of an"),
        ({"change": lambda answer: {"choices": []}}, reply, "which is not a response"),
        ({"change": lambda answer: {"choices": [{"text": 5}]}}, reply, "which is not a response"),
        ({"change": lambda answer: answer | {"usage": {"prompt_tokens": 7}}}, reply, "counted 7 tokens in a prompt"),
        ({"change": lambda answer: {"choices": [{"text": "x", "logprobs": None}]}}, loss, "no log-probabilities for"),
        ({"change": lambda answer: NO_LOSS}, loss, "which is not a response"),
        ({"sets": LADDER, "header": "short"}, loss, "rotated with set 'short' although 'long' was requested"),
    ],
)
def test_answers_that_are_none(how: dict[str, Any], ask: Callable[[Any], Any], message: str) -> None:
    with served(**how) as (_, target), pytest.raises(FactorError, match=message):
        ask(target)


def test_minus_infinity_is_no_loss_and_a_server_that_went_down_is_named() -> None:
    answer = {"choices": [{"logprobs": {"token_logprobs": [None, -1, -9999.0, -2]}}]}
    with served(change=lambda _: answer) as (_, target):
        assert next(target.losses([WINDOW], "served")) == [float("inf"), 2]
    with pytest.raises(FactorError, match=r"http://127.0.0.1:\d+/v1/completions does not answer"):
        list(target.losses([WINDOW], "served"))


def says(content: Any, status: int = 200) -> Handler:
    """A handler that answers this, JSON unless it is bytes."""

    async def handle(self: Any, request: web.Request) -> web.StreamResponse:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return web.Response(body=body, status=status)

    return handle


def odd(**handlers: Handler) -> Scripted:
    server: Scripted = type("Odd", (Scripted,), handlers)()
    return server


NO_SET = "/v1/rope: sets: every set must have a name, and"


@pytest.mark.parametrize(
    ("handlers", "message"),
    [
        ({"_tokenize": says({"detail": "Not Found"}, 404)}, r"/tokenize answered 404 .*Set --tokenizer"),
        ({"_tokenize": says({"error": "no such path"})}, r'/tokenize answered 200 \(b\'{"error"'),
        ({"_tokenize": says({"tokens": ["a"]})}, r"which has no tokens\): tokens cannot be counted. Set --tokenizer"),
        ({"_rope": says({"sets": [{"max_length": 5}]})}, NO_SET),
        ({"_rope": says({"sets": [{"name": "a", "max_length": "long"}]})}, NO_SET),
        *(({"_rope": says("no", status)}, f"/v1/rope answered {status}: no") for status in (401, 408, 429, 500)),
        ({"_rope": says("no", 403)}, "/v1/rope answered 403: no; a gateway that lets only known routes through"),
        ({"_rope": says({"sets": LADDER * 2})}, "sets: the name 'short' is duplicate or reserved"),
        ({"_rope": says({"sets": [{"name": "switched", "max_length": 5}]})}, "'switched' is duplicate or reserved"),
        ({"_models": says({"error": "no"}, 401)}, r"rejects the key \(401\): set the environment variable OPENAI"),
        ({"_models": says({"detail": [{"msg": "a"}]}, 503)}, r"answered 503: \[{'msg': 'a'}\]$"),
        ({"_models": says(b"<html>\n Bad  Gateway</html>", 502)}, "answered 502: <html> Bad Gateway</html>$"),
        ({"_models": says({"data": []})}, "lists no model: is it an OpenAI-compatible server?"),
        ({"_models": says({"data": [{"id": "a", "max_model_len": "8k"}]})}, "max_model_len: '8k' must be a number"),
        ({"_models": says(b"[" * 100_000)}, "the server's response is not JSON"),
    ],
)
def test_servers_that_cannot_be_used(handlers: dict[str, Handler], message: str) -> None:
    with serving(odd(**handlers)) as server, pytest.raises((UsageError, FactorError), match=message):
        connect(server.url)
    with serving(Scripted()) as other, pytest.raises(UsageError, match="'nope' is not served"):
        connect(other.url, "nope")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://[::1", "must be like http://127.0.0.1:8000"),
        ("127.0.0.1:9", "must be like"),
        ("http://" + "a" * 80, "does not answer"),
        ("http://127.0.0.1:9", "does not answer: .*Connection refused"),
        ("http://me:secret@127.0.0.1:9", "url of '127.0.0.1': must not contain a user"),
    ],
)
def test_addresses_that_are_none(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        connect(url)
    assert "secret" not in str(error.value)


def test_a_server_that_answers_every_path_has_no_factor_sets() -> None:
    for page in ({"error": "Unexpected endpoint"}, b"<html></html>", [1]):
        with serving(odd(_rope=says(page))) as server:
            assert connect(server.url).sets == ("served",)


def test_keys_that_no_header_takes_are_told_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Scripted()) as server:
        for key in ("sk-se\ncret", "sk-sécret"):
            monkeypatch.setenv("OPENAI_API_KEY", key)
            with pytest.raises(UsageError, match="OPENAI_API_KEY must contain a key of printable ASCII") as error:
                endpoint.connect(server.url, None, None, 0)
            assert "cret" not in str(error.value)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\n")
        assert endpoint.connect(server.url, None, None, 0).headers["Authorization"] == "Bearer sk-secret"


def test_nothing_is_asked_by_way_of_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(Scripted()) as server:
        assert connect(server.url).sets == ("served",)


def test_a_certificate_is_trusted_beside_the_systems(tmp_path: Path) -> None:
    system = ssl.create_default_context().cert_store_stats()["x509"]
    trusted = endpoint._trust("https://127.0.0.1", certificate(tmp_path)[0])
    assert system and trusted is not None and trusted.cert_store_stats()["x509"] == system + 1
