"""Servers that ``ropeswitch verify`` cannot verify: one line with the reason, exit code 2, and no row that is exact."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ropeswitch.loadtests.verify.plan import ALONE, BATCH, CACHED, Ladder
from ropeswitch.loadtests.verify.run import DIFFERS, EXACT, Gap, Row, Verification
from ropeswitch.server import cli
from tests.loadtests.client.scripted import Reply, Scripted, serving


@dataclass
class Scored(Scripted):
    """A server that is as sure of every token in every set."""

    limits: tuple[int, ...] = (256, 1024)
    change: Callable[["Scored"], None] = lambda server: None
    log_prob: float | None = -1.0
    rope: dict[str, Any] = field(default_factory=lambda: dict(max_model_len=1024, policy="length", dtype="float32"))

    async def _rope(self, request: web.Request) -> web.Response:
        sets = [{"name": f"r{limit}", "max_length": limit} for limit in self.limits]
        return web.json_response({"sets": sets, **self.rope})

    async def _answer(self, request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
        self.change(self)
        if reply.status != 200:
            return web.json_response({"error": {"message": reply.message}}, status=reply.status)
        count = body["max_tokens"]
        if "messages" in body:
            choice = {"token_ids": [1] * count, "logprobs": {"content": [{"logprob": -1.0}] * count}}
            event = {"prompt_token_ids": self.rendered(body), "choices": [choice]}
            return web.Response(text=f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")
        choice = {"text": "a", "token_ids": [1] * count, "logprobs": {"token_logprobs": [self.log_prob] * count}}
        choice["prompt_logprobs"] = [None, *({str(token): {"logprob": -1.0}} for token in body["prompt"][1:])]
        again = len(body["prompt"]) > 500 and sum(each.get("prompt") == body["prompt"] for each in self.asked) > 2
        usage = {"prompt_tokens_details": {"cached_tokens": int(again)}}
        return web.json_response({"choices": [choice if self.log_prob else {"text": "a"}], "usage": usage})


def other_policy(server: Scored) -> None:
    server.rope = server.rope | {"policy": "reserve"}


@pytest.mark.parametrize(
    ("server", "flags", "said"),
    [
        (Scripted(), [], "lists no factor sets at /v1/rope"),
        (Scored(rope={}), [], "/v1/rope: has no 'max_model_len'"),
        (Scored(), ["--longest", "100"], "--longest: '100' must be a number of tokens, at least 209"),
        (Scored(limits=(100, 150)), [], "takes 150 tokens, but verification needs 209"),
        (Scored(), ["--reference", "/nowhere"], "model '/nowhere': cannot be opened"),
        (Scored(), ["--factors", "a.json"], "--ladder and --factors: apply to --reference only"),
        (Scored(log_prob=None), [], "returns no log-probabilities for an answer"),
        (Scored(log_prob=math.nan), [], "returns no log-probabilities for an answer"),
        (Scored(reply=lambda number, body: Reply(400, "logprobs: not here")), [], "answered 400: logprobs: not here"),
        (Scored(cut=r"\S+", change=other_policy), [], "the model or its ladder changed during the run"),
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


def test_sets_that_score_alike_are_not_called_exact(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with serving(Scored(cut=r"\S+")) as server:
        command = ["verify", server.url, "-o", str(tmp_path / "out.json")]
        assert cli.main(command) == 2
        lines, report = (each.splitlines() for each in capsys.readouterr())
        assert sum("in a batch: 5 requests" in each for each in report) == 5, "other words are tried"
        assert cli.main(command) == 2 and "exists" in capsys.readouterr().err
        assert cli.main([*command, "--force"]) == 2 and capsys.readouterr().out.splitlines() == lines
    unknown = [line for line in lines if line.startswith(("256 ", "1,024 ")) and line.endswith("cannot tell")]
    assert len(unknown) == 4 + 1 + 4 + 1 + 1 + 1 and not [line for line in lines if line.endswith("DIFFERS")]
    assert [line[:4] for line in lines if line.endswith("the prefix cache had nothing of the prompt")] == ["256 "] * 4
    assert lines[-2].startswith("cannot tell around 256 tokens: the sets on both sides score the same tokens alike")


def test_full_queues_are_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass
    class Full(Scored):
        async def _answer(self, request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
            if len(self.asked) % 2:
                return web.json_response({"error": {"message": "full"}}, status=429, headers={"retry-after": "0"})
            return await super()._answer(request, body, reply)

    with serving(Full(cut=r"\S+")) as server:
        assert cli.main(["verify", server.url]) == 2
    printed = capsys.readouterr()
    assert "full" not in printed.out + printed.err and "in a batch" in printed.out


def test_means_show_a_wrong_set_where_rounding_hides_it_in_single_tokens() -> None:
    run = Verification(None, Ladder(("a", "b"), (512, 1024), "length", "bfloat16", 1024), None, print)  # type: ignore[arg-type]
    # As measured on SmolLM2: two sets are 0.6 (0.13) apart, and a lone request is off by 0.3 (0.045).
    run.apart["a", "b"] = Gap(0.6, 0.13)
    for how, gap in ((ALONE, Gap(0.3, 0.045)), (BATCH, Gap(0.5, 0.12)), (CACHED, Gap(0.5, 0.08))):
        run.rows[512, how, ""] = Row(512, how, "", [gap])
    assert [run.verdict(row) for row in run.rows.values()] == [EXACT, DIFFERS, EXACT]
