"""``ropeswitch loadtest`` against a scripted server."""

import itertools
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.loadtests.client.commands import loadtest, ran, refusal, results, workload
from tests.loadtests.client.scripted import MODEL, Reply, Scripted, serving


def test_every_answer_is_checked_and_counted(tmp_path: Path) -> None:
    found, lines = ran(tmp_path, server := Scripted(limits=(100, 100_000)), requests=20)
    counts = {"completed": 20, "failed": 0, "checked": 20, "correct": 20, "miscounted": 0}
    assert {name: found[name] for name in counts} == counts
    assert [line["counted_prompt_tokens"] for line in lines] == [line["prompt_tokens"] for line in lines]
    assert len({line["prompt_tokens"] for line in lines}) > 5
    assert {line["factor_set"] for line in lines} == {"short"}
    assert found["points"][0]["target"]["bands"].keys() == {"0-100", "100-100000"}
    assert server.most_at_once == 2
    assert all(body["model"] == MODEL and body["cache_salt"] for body in server.asked)


def test_a_wrong_answer_and_a_wrong_count_are_told(tmp_path: Path) -> None:
    def reply(number: int, body: Any) -> Reply:
        if number == 2:
            return Reply(text="It is 123456, or 654321.")
        return Reply(prompt_tokens_off=1 if number == 4 else 0)

    flags = ["--assert", "correct==1", "--assert", "miscounted==0", "--assert", "failed==0"]
    found, _ = ran(tmp_path, Scripted(reply), *flags, code=1)
    assert (found["checked"], found["correct"], found["wrong"], found["miscounted"]) == (6, 5, 1, 1)
    assert [check["ok"] for check in found["assertions"]] == [False, False, True]


def test_requests_are_sent_when_they_are_due_whatever_the_server_does(tmp_path: Path) -> None:
    """The first requests stand still until long after the last one is due: none waits for them."""
    scripted = Scripted(lambda number, body: Reply(before=2.0 if number < 5 else 0.0))
    found, lines = ran(tmp_path, scripted, arrival={"poisson": {"rate": 50}}, requests=40)
    slow = min(line["sent"] + line["ttft"] for line in lines if line["ttft"] >= 2.0)
    assert len(lines) == 40 and all(line["due"] <= line["sent"] < slow for line in lines)
    assert max(line["due"] for line in lines) == pytest.approx(40 / 50)
    assert found["max_concurrent_requests"] >= 5
    assert found["median_ttft_due_ms"] >= found["median_ttft_ms"]


def test_lateness_is_told_where_the_client_is_held_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ropeswitch.loadtests.client import sender

    whole = sender.read_events

    async def slow(events: Any) -> Any:
        time.sleep(0.2)
        return await whole(events)

    monkeypatch.setattr(sender, "read_events", slow)
    # One second of sends, far longer than the first answer takes: most are due while the loop stands still.
    found, _ = ran(tmp_path, Scripted(), arrival={"poisson": {"rate": 20}}, requests=20)
    assert found["max_lateness_ms"] > 150 and found["max_ttft_due_ms"] > 150


def test_a_storm_of_refusals_ends_it_and_keeps_what_there_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(number: int, body: Any) -> Reply:
        return Reply(status=429, message="slow down") if number >= 3 else Reply()

    with serving(Scripted(reply)) as server:
        one = workload(tmp_path, arrival={"closed": {"concurrency": 1}}, requests=200)
        assert loadtest(tmp_path, one, server.url, "--most-failures", "7", report=True) == 2
    message = refusal(capsys)
    assert "7 requests in a row failed" in message and "429 slow down" in message and "out" in message
    found = results(tmp_path)
    assert found["completed"] in (2, 3) and not found["complete"]
    # Requests one after the other: which of several at a time fails first would be chance.
    assert found["failed"] == 7
    assert (tmp_path / "out" / "report.html").exists()
    assert len(server.asked) < 15


def test_a_server_that_goes_away_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Scripted(lambda number, body: Reply(before=0.05))
    with ExitStack() as stack:
        stack.enter_context(serving(server))

        def leave() -> None:
            while len(server.asked) < 5:
                time.sleep(0.01)
            stack.close()

        leaving = threading.Thread(target=leave)
        leaving.start()
        assert loadtest(tmp_path, workload(tmp_path, requests=500), server.url, "--most-failures", "6") == 2
        leaving.join()
    assert "requests in a row failed; last error: ClientConnectorError" in refusal(capsys)
    found = results(tmp_path)
    assert found["completed"] >= 3 and 6 <= found["failed"] <= 12


def test_a_few_failures_are_counted_by_what_went_wrong(tmp_path: Path) -> None:
    replies = [Reply(), Reply(status=400, message="bad"), Reply(cut_after=3), Reply(broken_after=2)]
    replies += [Reply(tokens=0), Reply(before=30.0)]
    scripted = Scripted(lambda number, body: replies[number])
    found, lines = ran(tmp_path, scripted, "--timeout", "1.5", arrival={"closed": {"concurrency": 1}})
    errors = [(line["status"], line["error"]) for line in lines]
    assert "payload" in errors.pop(2)[1].lower()
    said = ["bad", "the engine died", "the stream ended without a token", "no complete answer within 1.5 s"]
    assert errors == [("completed", ""), *(("failed", each) for each in said)]
    assert (found["completed"], found["failed"]) == (1, 5)


@pytest.mark.parametrize(
    ("warmup", "said"),
    [
        (3, "all 3 warm-up requests failed; last error: 403 not you"),
        (0, "no request completed; last error: not you"),
    ],
)
def test_a_server_that_refuses_everything_is_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warmup: int, said: str
) -> None:
    with serving(Scripted(lambda number, body: Reply(status=403, message="not you"))) as server:
        assert loadtest(tmp_path, workload(tmp_path, requests=3, warmup=warmup), server.url) == 2
    assert said in refusal(capsys)
    assert len(server.asked) == 3
    assert warmup or results(tmp_path)["p99_ttft_ms"] is None


def test_answers_are_given_up_where_the_workload_says_so(tmp_path: Path) -> None:
    part = {"kind": "chat", "prompt": 100, "output": 200, "cancel": {"share": 0.5, "after": 3}}
    server = Scripted(lambda number, body: Reply(between=0.02))
    found, lines = ran(tmp_path, server, mix=[part], requests=12, arrival={"closed": {"concurrency": 6}})
    given_up = [line for line in lines if line["status"] == "cancelled"]
    assert 0 < len(given_up) < 12
    assert all(3 <= line["output_tokens"] < 200 for line in given_up)
    assert server.left == len(given_up)
    assert (found["cancelled"], found["completed"], found["failed"]) == (len(given_up), 12 - len(given_up), 0)


def test_an_answer_that_fails_before_it_is_given_up_failed(tmp_path: Path) -> None:
    replies = [Reply(broken_after=2), Reply(broken_after=2), Reply(between=0.02)]
    part = {"kind": "chat", "prompt": 100, "output": 200, "cancel": {"share": 1, "after": 10}}
    scripted, arrival = Scripted(lambda number, body: replies[number]), {"closed": {"concurrency": 1}}
    found, lines = ran(tmp_path, scripted, code=2, mix=[part], requests=3, arrival=arrival)
    ends = [(line["status"], line["error"]) for line in lines]
    assert ends == [("failed", "the engine died")] * 2 + [("cancelled", "")] and found["failed"] == 2


@pytest.mark.parametrize("arrival", [{"closed": {"concurrency": 2}}, {"poisson": {"rate": 2}}])
def test_conversations_end_with_the_seconds(tmp_path: Path, arrival: dict[str, Any]) -> None:
    part = {"kind": "chat", "prompt": 60, "output": 44, "turns": {"count": 20, "grow": 200, "think": 0.4}}
    found, lines = ran(tmp_path, Scripted(), mix=[part], requests=2, seconds=1, arrival=arrival)
    assert all(line["turn"] <= 2 and line["sent"] < 1.1 for line in lines) and found["duration"] < 1.6


def test_whole_answers_have_no_first_token(tmp_path: Path) -> None:
    part = {"kind": "whole", "prompt": 100, "output": 50, "stream": False}
    found, _ = ran(tmp_path, Scripted(), "--assert", "correct==1", mix=[part])
    assert found["completed"] == 6 and found["total_output_tokens"] == 300
    assert found["p99_ttft_ms"] is None and found["p99_itl_ms"] is None and found["p99_e2el_ms"] > 0


def test_conversations_grow_turn_by_turn(tmp_path: Path) -> None:
    turns = {"count": 4, "grow": {"uniform": {"min": 40, "max": 90}}}
    part = {"kind": "talk", "prompt": 100, "output": 44, "turns": turns}
    _, lines = ran(tmp_path, server := Scripted(), "--assert", "correct==1", mix=[part], requests=3)
    assert len(lines) == 12
    assert all(line["counted_prompt_tokens"] == line["prompt_tokens"] for line in lines)
    for session in range(3):
        turns = [line for line in lines if line["session"] == session]
        assert [line["turn"] for line in turns] == [0, 1, 2, 3]
        assert all(40 <= b["prompt_tokens"] - a["prompt_tokens"] <= 90 for a, b in itertools.pairwise(turns))
        assert all(b["sent"] >= a["sent"] + a["latency"] for a, b in itertools.pairwise(turns))
    talks = sorted((body["messages"] for body in server.asked), key=len)
    assert [len(each) for each in talks] == [1] * 3 + [3] * 3 + [5] * 3 + [7] * 3


def test_shared_prefixes_are_shared_and_token_ids_are_the_text(tmp_path: Path) -> None:
    parts = [
        {"kind": "text", "prompt": 400, "output": 44, "prefix": {"tokens": 300, "groups": 2}},
        {"kind": "ids", "prompt": 400, "output": 44, "form": "ids", "prefix": {"tokens": 300, "groups": 2}},
    ]
    flags = ["--assert", "correct==1", "--assert", "miscounted==0"]
    ran(tmp_path, server := Scripted(), *flags, mix=parts, requests=16, endpoint="completions")
    rendered = [tuple(server.rendered(body)) for body in server.asked]
    assert {len(each) for each in rendered} == {400} and len(set(rendered)) == 16
    assert len({each[:300] for each in rendered}) == 2
    assert {type(body["prompt"]) for body in server.asked} == {str, list}


def test_a_trace_is_replayed_with_its_times_lengths_and_blocks(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 1000, "input_length": 1200, "output_length": 44, "hash_ids": [7, 8]}\n'
        '{"timestamp": 3000, "input_length": 700, "output_length": 60, "hash_ids": [7]}\n'
        '{"timestamp": 2000, "input_length": 300, "output_length": 50}\n'
    )
    arrival = {"trace": {"file": str(trace), "speed": 10}}
    _, lines = ran(tmp_path, server := Scripted(), arrival=arrival, requests=None, mix=[{"kind": "recorded"}])
    rendered = {len(ids): ids for ids in map(server.rendered, server.asked)}
    lines.sort(key=lambda line: line["due"])
    assert [line["due"] for line in lines] == [0.0, 0.1, 0.2]
    found = [(line["counted_prompt_tokens"], line["output_tokens"]) for line in lines]
    assert found == [(1200, 44), (300, 50), (700, 60)]
    assert rendered[1200][:500] == rendered[700][:500]
    assert rendered[1200][:100] != rendered[300][:100]


def test_prompts_are_the_same_for_a_seed_and_others_for_another(tmp_path: Path) -> None:
    def prompts(seed: str, out: str) -> list[Any]:
        with serving(Scripted()) as server:
            flags = ["--seed", seed, "--repetitions", "2"]
            (tmp_path / out).mkdir()
            one = workload(tmp_path, arrival={"closed": {"concurrency": 1}}, requests=3)
            assert loadtest(tmp_path / out, one, server.url, *flags) == 0
            return [body["messages"] for body in server.asked]

    first, again, other = prompts("1", "a"), prompts("1", "b"), prompts("2", "c")
    assert first == again != other
    texts = [str(each) for each in first]
    assert len(set(texts)) == 6, "repetitions must not send what a prefix cache has"
