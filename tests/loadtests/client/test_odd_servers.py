"""Servers, and input, that are not as they should be: each ends with a message, and what was measured before is kept."""

import itertools
import json
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.loadtests.client.commands import loadtest, ran, refusal, requests, results, workload
from tests.loadtests.client.scripted import Reply, Scripted, serving
from tests.loadtests.client.test_going_on import start
from tests.server.asking import wait_until

Handler = Callable[[Any, web.Request], Coroutine[Any, Any, web.StreamResponse]]


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [None]},
        {"choices": {"text": "a"}},
        {"choices": [{"delta": "a"}]},
        {"choices": [{"text": "a"}], "usage": "many"},
        {"choices": [], "usage": {"prompt_tokens": "7"}},
        {"choices": [], "usage": {"completion_tokens": -7}},
        [],
    ],
)
def test_a_chunk_that_is_none_fails_its_request_alone(tmp_path: Path, chunk: Any) -> None:
    class Odd(Scripted):
        async def _answer(self, request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
            if len(self.asked) != 2:
                return await super()._answer(request, body, reply)
            token = {"choices": [{"delta": {"content": "a"}}]}
            events = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (token, chunk))
            return web.Response(body=events)

    found, lines = ran(tmp_path, Odd())
    assert (found["completed"], found["failed"]) == (5, 1)
    assert [line["error"].partition(":")[0] for line in lines if line["error"]] == ["ValueError"]


def test_halves_of_characters_do_not_lose_the_report(tmp_path: Path) -> None:
    def reply(number: int, body: Any) -> Reply:
        return Reply(status=400, message="no \ud800") if number == 1 else Reply(text="\udfff")

    with serving(Scripted(reply)) as server:
        assert loadtest(tmp_path, workload(tmp_path), server.url, report=True) == 0
    assert {line["answer"] or line["error"] for line in requests(tmp_path)} == {"\ufffd" + "." * 43, "no \ufffd"}


def test_redirects_are_not_followed(tmp_path: Path) -> None:
    async def elsewhere(self: Any, request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/v1/chat/completions")

    _, lines = ran(tmp_path, type("Odd", (Scripted,), {"_complete": elsewhere})(), code=2)
    assert {line["http_status"] for line in lines} == {307}


def test_a_full_disk_ends_a_run_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "requests.jsonl").symlink_to("/dev/full")
    with serving(Scripted()) as server:
        assert loadtest(tmp_path, workload(tmp_path), server.url) == 2
    assert "No space left on device" in refusal(capsys)


@pytest.mark.full
def test_an_interrupted_conversation_that_thinks_ends_at_once(tmp_path: Path) -> None:
    """It is interrupted while it waits for an answer, and would then think for an hour."""
    mix = [{"kind": "chat", "prompt": 60, "output": 44, "turns": {"count": 2, "grow": 200, "think": 3600}}]
    with serving(Scripted(lambda number, body: Reply(before=60))) as server:
        process = start(tmp_path, workload(tmp_path, mix=mix), server.url)
        wait_until(lambda: len(server.asked) == 2, "both requests", 120)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert results(tmp_path)["interrupted"] == 2


def test_prefixes_are_cut_with_their_prompts(tmp_path: Path) -> None:
    part = [{"kind": "a", "prompt": 5000, "output": 44, "prefix": {"tokens": 4000}}]
    flags = ["--longest", "300", "--assert", "correct==1", "--assert", "miscounted==0"]
    ran(tmp_path, server := Scripted(card={"max_model_len": 300}), *flags, mix=part)
    rendered = [server.rendered(body) for body in server.asked]
    assert {len(each) for each in rendered} == {256}
    shared = sum(1 for _ in itertools.takewhile(lambda same: len(set(same)) == 1, zip(*rendered, strict=True)))
    assert 100 < shared < 200


def test_rates_that_differ_a_little_are_two(tmp_path: Path) -> None:
    ran(tmp_path, server := Scripted(), "--rate", "99.99991,99.99992", arrival={"poisson": {"rate": 1}})
    assert len(server.asked) == 12


@pytest.mark.parametrize(("rate", "seconds", "sent"), [(50, 0.1, 5), (26, 0.1, 2), (3, 1 / 3, 1), (300, 0.01, 3)])
def test_all_that_is_planned_is_due_in_time(tmp_path: Path, rate: float, seconds: float, sent: int) -> None:
    ran(tmp_path, server := Scripted(), arrival={"poisson": {"rate": rate}}, requests=None, seconds=seconds)
    assert len(server.asked) == sent


def test_a_rate_and_a_time_that_make_no_request_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Scripted()) as server:
        for rate, seconds in ((0.2, 2), (100_000, 86_400)):
            file = workload(tmp_path, arrival={"poisson": {"rate": rate}}, requests=None, seconds=seconds)
            assert loadtest(tmp_path, file, server.url) == 2
            assert "requests; allowed: 1 to 10,000,000" in refusal(capsys)


def test_a_refusal_leaves_nothing_that_refuses_what_it_advised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Scripted(card={"max_model_len": 200})) as server:
        assert loadtest(tmp_path, workload(tmp_path), server.url) == 2
        assert "use --longest 200" in refusal(capsys)
        assert loadtest(tmp_path, workload(tmp_path), server.url, "--longest", "200") == 0
        assert loadtest(tmp_path, workload(tmp_path), server.url, "--longest", "190") == 2
        assert "has the results of a load test" in refusal(capsys)
