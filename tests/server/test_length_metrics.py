"""The metrics by length and the access log of a running server: each request is in both, once, with what became of it."""

import re

import pytest
from vllm.entrypoints.speech_to_text.transcription import api_router as transcription
from vllm.entrypoints.speech_to_text.translation import api_router as translation

from ropeswitch.server.metrics import queue_metrics
from ropeswitch.server.metrics.fates import PATHS
from ropeswitch.server.metrics.scheduling_metrics import GAUGES
from ropeswitch.server.metrics.series import MOST_SERIES
from tests.docs.made import written
from tests.docs.pages import ROOT
from tests.server.asking import wait_until
from tests.server.conftest import MODEL
from tests.server.metrics import page
from tests.server.metrics.ladders import total, values
from tests.server.observed import Log, Moved, generate, leave, scrape
from tests.server.running import Server

SHORT = "1-256"
# Routes that are posted to and run no prompt, by how their paths begin or end.
PROMPTLESS = re.compile(
    r".*/(render|derender|count_tokens|cancel|abort_requests|shutdown_weight_transfer_engine)"
    r"|/(tokenize|detokenize|ping|pause|resume|sleep|wake_up|scale_elastic_ep|is_scaling_elastic_ep|v1/load_lora_adapter)"
    r"|/(v1/unload_lora_adapter|start_profile|stop_profile|abort_requests)"
)


def test_a_short_answer(server: Server) -> None:
    log, before, upstream = Log(server), scrape(server), scrape(server, "vllm:")
    answer = generate(server, 20, 3)
    line, moved = log.only(), Moved(before, scrape(server))
    here = {"model_name": MODEL, "engine": "0", "input_sequence_length": SHORT, "factor_set": "short"}
    counts = {"requests_total": 1, "prompt_tokens_total": 20, "generated_tokens_total": 3}
    times = {"time_to_first_token": 1, "inter_token_latency": 2, "e2e_request_latency": 1, "request_queue_time": 1}
    times |= {"request_prefill_time": 1, "request_decode_time": 1, "request_time_per_output_token": 1}
    counts |= {f"{name}_seconds_count": count for name, count in times.items()}
    for name, count in counts.items():
        assert moved(name, **here) == moved(name) == count, name
    assert moved("requests_total", outcome="length") == 1 and moved("switches_total") == 0
    # vLLM's own metrics say the same.
    after = scrape(server, "vllm:")
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        theirs = total(after, f"vllm:{name}_seconds_sum") - total(upstream, f"vllm:{name}_seconds_sum")
        assert moved(f"{name}_seconds_sum") == pytest.approx(theirs, abs=1e-6), name
    assert 0 < line["seconds_to_first_token"] < line["seconds"] < 30
    assert line["client"].startswith("127.0.0.1:") and line["request_id"] == answer.json["id"]
    assert (line["path"], line["status"], line["model"], line["outcome"]) == ("/v1/completions", 200, MODEL, "length")
    assert (line["prompt_tokens"], line["generated_tokens"], line["length_band"]) == (20, 3, SHORT)
    assert (line["factor_set"], line["later_factor_sets"], line["switches"]) == ("short", [], 0)


def test_an_answer_that_outgrows_its_set(server: Server) -> None:
    """250 tokens and 20 more: those computed from 250 to 256 tokens are in short, those from 257 to 269 in long."""
    log, before = Log(server), scrape(server)
    # A prompt of its own: what a switch finds in the prefix cache is not computed again.
    body = {"prompt": [9] * 250, "stream": True}
    assert generate(server, 0, 20, **body).status == 200
    line, moved = log.only(), Moved(before, scrape(server))
    for name, tokens, ends in (("short", 7, 0), ("long", 13, 1)):
        here = {"factor_set": name, "input_sequence_length": SHORT}
        assert moved("generated_tokens_total", **here) == tokens
        assert moved("requests_total", outcome="length", **here) == moved("switches_total", **here) == ends
    assert 0 < moved("switch_stall_seconds_sum") < moved("inter_token_latency_seconds_sum", factor_set="long")
    again, cached = moved("switch_recomputed_tokens_total"), moved("switch_cached_tokens_total")
    assert again + cached == 256 and again > 0
    assert (line["factor_set"], line["later_factor_sets"], line["switches"]) == ("short", ["long"], 1)
    assert (line["generated_tokens"], line["recomputed_tokens"]) == (20, again)
    # The same once more: its keys in the next set are in the prefix cache now, but for the last blocks.
    before = scrape(server)
    assert generate(server, 0, 20, **body).status == 200
    assert Moved(before, scrape(server))("switch_cached_tokens_total") >= 128


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves(server: Server, stream: bool) -> None:
    body = {"model": MODEL, "prompt": [5] * 100, "max_tokens": 900, "ignore_eos": True, "stream": stream}
    # On a busy machine the answer may be complete before the client has seen its first token.
    for _ in range(20):
        log = Log(server)
        moved = leave(server, body)
        if (line := log.only())["outcome"] != "length":
            break
    assert moved("requests_total", outcome="disconnect", engine="0", input_sequence_length=SHORT) == 1
    assert moved("requests_total") == moved("time_to_first_token_seconds_count") == 1
    assert moved("generated_tokens_total") > 0 and moved("e2e_request_latency_seconds_count") == 0
    assert (line["outcome"], line["status"]) == ("disconnect", 200 if stream else None)
    assert line["prompt_tokens"] == 100 and 0 < line["generated_tokens"] < 900


def test_refused_requests_are_counted_and_logged_once_with_the_reason(server: Server) -> None:
    nowhere = {"engine": "none", "factor_set": "none", "input_sequence_length": "unknown", "outcome": "rejected"}
    for send, status, reason in (
        (lambda: generate(server, 20, 2, vllm_xargs={"rope_factor_set": "nope"}).status, 400, "invalid"),
        (lambda: generate(server, 1100, 2).status, 400, "invalid"),
        (lambda: server.post("/v1/completions", b"{broken").status, 400, "invalid"),
        # By its header, before any of the body is read.
        (lambda: server.announce("/v1/completions", 10**12), 413, "body_bytes"),
    ):
        log, before = Log(server), scrape(server)
        assert send() == status
        line, moved = log.only(), Moved(before, scrape(server))
        assert moved("requests_total", **nowhere) == moved("requests_total") == 1
        assert moved("rejections_total", reason=reason) == moved("rejections_total") == 1
        assert (line["status"], line["outcome"], line["reason"]) == (status, "rejected", reason)


def test_every_route_that_runs_prompts_is_counted(server: Server) -> None:
    paths = server.get("/openapi.json").json["paths"]
    posted = {path for path, methods in paths.items() if "post" in methods}
    # Of models that take speech, which this one does not.
    posted |= {route.path for each in (transcription, translation) for route in each.router.routes}
    assert "/v1/completions" in posted & PATHS
    assert [path for path in sorted(posted - PATHS) if not PROMPTLESS.fullmatch(path)] == []


def test_the_page_and_the_server_list_the_same_metrics(server: Server) -> None:
    text = (ROOT / page.PAGE).read_text(encoding="utf-8")
    assert written(text, "docs-metrics", page.TABLES) == text, "run make docs-metrics"
    documented = dict(re.findall(r"^\| `(ropeswitch_\w+)` \| (\w+) \|", text, re.MULTILINE))
    text = server.get("/metrics").text
    assert dict(re.findall(r"^# TYPE (ropeswitch_\w+) (\w+)$", text, re.MULTILINE)) == documented
    # Whatever other tests have asked of this server.
    assert len(values(text)) <= MOST_SERIES


def test_the_scheduler_s_gauges_are_those_of_the_moment_and_nothing_waits(server: Server) -> None:
    assert generate(server, 250, 20).status == 200
    found = scrape(server)
    target, error, next_set, remaining = (
        total(found, name, model_name=MODEL, engine="0") for name, _ in GAUGES.values()
    )
    assert 0.02 <= target < 60 and error > 0 and next_set >= 0 and remaining == 0

    def empty() -> bool:
        found = scrape(server)
        return not any(total(found, name) for name in (queue_metrics.REQUESTS[0], queue_metrics.TOKENS[0]))

    # Gauges of the queue are written four times a second.
    wait_until(empty, "an empty queue")
