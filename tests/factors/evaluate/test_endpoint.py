"""Servers of all kinds: what they are asked, and what is said of answers that are no answers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.evaluate.endpoint_target import EndpointTarget
from ropeswitch.factors.evaluate.run import Evaluation, Grid
from ropeswitch.factors.evaluate.target import Window
from ropeswitch.factors.factor_set import FactorError
from tests.factors.evaluate.scripted import Scripted
from tests.loadtests.client.scripted import serving
from tests.server.running import free_port

LADDER = [{"name": "short", "max_length": 256}, {"name": "long", "max_length": 1024}]
WINDOW = Window([1, 65, 66, 67], 2)


@contextmanager
def served(**how: Any) -> Iterator[tuple[Scripted, EndpointTarget]]:
    server = Scripted(**how)
    with serving(server):
        yield server, EndpointTarget.connect(server.url + "/v1", None, None, False)


def test_sets_are_forced_by_name() -> None:
    with served(sets=LADDER) as (server, target):
        assert (target.sets, target.opening) == (("switched", "short", "long"), (1,))
        found = {name: list(target.losses([WINDOW, Window([1, 70], 1)], name)) for name in target.sets}
        assert found == {"switched": [[1, 1], [1]], "short": [[2, 2], [2]], "long": [[3, 3], [3]]}
        assert sorted(len(body["prompt"]) for body in server.asked) == [2, 2, 2, 4, 4, 4]
        assert [body.get("vllm_xargs", {}).get("rope_factor_set") for body in server.asked[::2]] == [
            None,
            "short",
            "long",
        ]
        grid = Grid(("passkey",), (400,), target.sets, tries=3)
        scores = {
            cell.set_name: [each["score"] for each in Evaluation(target, grid).measure(cell)] for cell in grid.cells()
        }
        assert scores == {"switched": [1, 1, 1], "short": [0, 0, 0], "long": [1, 1, 1]}
        body = server.asked[-1]
        assert (body["max_tokens"], body["temperature"], len(body["prompt"])) == (10, 0, 399)


def test_chats() -> None:
    server = Scripted()
    with serving(server):
        target = EndpointTarget.connect(server.url, "scripted", None, True)
        grid = Grid(("passkey",), (400,), ("served",), tries=1)
        (found,) = Evaluation(target, grid, chat=True).measure(grid.cells()[0])
        assert found["score"] == 1
        assert server.asked[0]["messages"][0]["content"].startswith("There is an important info")
        assert server.asked[0]["max_tokens"] == 64


def test_a_server_without_sets_is_measured_as_it_is() -> None:
    with served(max_model_len=500) as (_, target):
        assert target.sets == ("served",)
        with pytest.raises(
            FactorError, match="unknown set 'short'; known sets are 'served'; the server has no /v1/rope"
        ):
            Evaluation(target, Grid(("passkey",), (400,), ("short",))).checked()
        with pytest.raises(
            FactorError, match=r"--lengths: 491 must be at most 490: .* a reply of 10 tokens \(passkey\)"
        ):
            Evaluation(target, Grid(("passkey",), (491,), ("served",))).checked()
    # A forced set does not make the server take more.
    with served(sets=LADDER, max_model_len=500) as (_, target):
        with pytest.raises(
            FactorError, match=r"--lengths: 491 must be at most 490: .* a reply of 10 tokens \(passkey\)"
        ):
            Evaluation(target, Grid(("passkey",), (491,), ("long",))).checked()
        Evaluation(target, Grid(("passkey",), (490,), ("short",))).checked()


Ask = Callable[[EndpointTarget], Any]


def reply(target: EndpointTarget) -> Any:
    return list(target.replies(["The pass key is 5."], target.sets[0], 3))


def loss(target: EndpointTarget) -> Any:
    return list(target.losses([WINDOW] * 9, target.sets[-1]))


@pytest.mark.parametrize(
    ("how", "ask", "message"),
    [
        ({"status": 503}, reply, "/v1/completions answered 503: not today"),
        ({"change": lambda answer: "<html>"}, reply, r"answered b'<html>', which is not a response of an"),
        ({"change": lambda answer: []}, reply, r"answered b'\[\]', which is not a response"),
        ({"change": lambda answer: {"choices": []}}, reply, "which is not a response"),
        ({"change": lambda answer: {"choices": [{"text": 5}]}}, reply, "which is not a response"),
        ({"change": lambda answer: answer | {"usage": {"prompt_tokens": 7}}}, reply, "counted 7 tokens in a prompt"),
        (
            {"change": lambda answer: {"choices": [{"text": "x", "logprobs": None}]}},
            loss,
            "returns no log-probabilities for a prompt",
        ),
        (
            {"change": lambda answer: {"choices": [{"logprobs": {"token_logprobs": [0, 0, None, 0]}}]}},
            loss,
            "which is not a response",
        ),
        ({"sets": LADDER, "header": "short"}, loss, "rotated with set 'short' although 'long' was requested"),
    ],
)
def test_answers_that_are_none(how: dict[str, Any], ask: Ask, message: str) -> None:
    with served(**how) as (_, target), pytest.raises(FactorError, match=message):
        ask(target)


def test_minus_infinity_is_no_loss() -> None:
    answer = {"choices": [{"logprobs": {"token_logprobs": [None, -1, -9999.0, -2]}}]}
    with served(change=lambda _: answer) as (_, target):
        assert next(target.losses([WINDOW], "served")) == [float("inf"), 2]


def test_a_server_that_goes_down() -> None:
    with served() as (_, target):
        pass
    with pytest.raises(FactorError, match=r"http://127.0.0.1:\d+/v1/completions does not answer"):
        list(target.losses([WINDOW], "served"))


def _connect(url: str) -> AbstractContextManager[Any]:
    EndpointTarget.connect(url, None, None, False)
    raise AssertionError("connected")


def test_servers_that_cannot_be_used() -> None:
    with pytest.raises(UsageError, match="does not answer"):
        _connect(f"http://127.0.0.1:{free_port()}")
    server = Scripted(has_tokenize=False)
    with serving(server), pytest.raises(UsageError, match=r"/tokenize answered 404 .*Set --tokenizer"):
        _connect(server.url)
    server = Scripted(sets=[{"max_length": 5}])
    with serving(server), pytest.raises(UsageError, match="/v1/rope: sets: every set must have a name"):
        _connect(server.url)
    for status in (401, 403, 408, 429, 500, 503):
        server = Scripted(rope_status=status)
        with serving(server), pytest.raises(UsageError, match=f"/v1/rope answered {status}: no message"):
            _connect(server.url)
    for names in (["a", "a"], ["a", "switched"]):
        server = Scripted(sets=[{"name": name, "max_length": 5 + place} for place, name in enumerate(names)])
        with (
            serving(server),
            pytest.raises(FactorError, match=f"sets: the name '{names[-1]}' is duplicate or reserved"),
        ):
            _connect(server.url)
    with serving(Scripted()) as other, pytest.raises(UsageError, match="'nope' is not served"):
        EndpointTarget.connect(other.url, "nope", None, False)
