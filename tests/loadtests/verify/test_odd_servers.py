"""Where nothing can be told, ``ropeswitch verify`` says why in one line, exits with 2 and calls nothing exact."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from ropeswitch.server import cli
from tests.loadtests.client.scripted import Reply, Scripted, serving

LIMITS = (256, 1024)


@dataclass
class Scored(Scripted):
    """A server that is as sure of every token in every set."""

    limits: tuple[int, ...] = LIMITS
    change: Callable[["Scored"], None] = lambda server: None
    log_probs: bool = True

    async def _answer(self, request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
        self.change(self)
        if reply.status != 200:
            return web.json_response({"error": {"message": reply.message}}, status=reply.status)
        count = body["max_tokens"]
        if "messages" in body:
            log_probs = {"content": [{"logprob": -1.0}] * count}
            event = {
                "prompt_token_ids": self.rendered(body),
                "choices": [{"token_ids": [1] * count, "logprobs": log_probs}],
            }
            return web.Response(text=f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")
        choice = {"text": "a", "token_ids": [1] * count, "logprobs": {"token_logprobs": [-1.0] * count}}
        choice["prompt_logprobs"] = [None, *({str(token): {"logprob": -1.0}} for token in body["prompt"][1:])]
        return web.json_response({"choices": [choice if self.log_probs else {"text": "a"}]})


def other_model(server: Scored) -> None:
    server.card = server.card | {"max_model_len": 50_000}


@pytest.mark.parametrize(
    ("server", "flags", "said"),
    [
        (Scripted(), [], "lists no factor sets at /v1/rope"),
        (Scored(card={}), [], "states no max_model_len"),
        (Scored(), ["--longest", "200"], "--longest 200: the shortest set ends at 256 tokens"),
        (Scored(), ["--factors", "a.json"], "--factors: applies to --reference only"),
        (Scored(log_probs=False), [], "returns no log-probabilities for an answer"),
        (Scored(reply=lambda number, body: Reply(400, "logprobs: not here")), [], "answered 400: logprobs: not here"),
        (Scored(cut=r"\S+", change=other_model), [], "the model or its ladder changed during the run"),
    ],
)
def test_one_line_and_exit_code_2(
    server: Scripted, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(server):
        assert cli.main(["verify", server.url, *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err.splitlines()[-1]


def test_sets_that_score_alike_are_not_called_exact(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Scored(cut=r"\S+")) as server:
        assert cli.main(["verify", server.url]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:] if line.startswith("256") and " alone " not in line] == ["tell"] * 10
    assert lines[-1].startswith("cannot tell around 256 tokens: the sets on both sides score the same tokens alike")
