"""The per-length metrics of a running server: the right series move, by the right amounts, and no others."""

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from vllm.entrypoints.speech_to_text.transcription import api_router as transcription
from vllm.entrypoints.speech_to_text.translation import api_router as translation

from ropeswitch.server.metrics import queue_metrics
from ropeswitch.server.metrics.fates import PATHS
from ropeswitch.server.metrics.instruments import (
    INSTRUMENTS,
    LABELS,
    POLICY,
    POLICY_LABELS,
    REJECTIONS,
    REJECTIONS_LABELS,
)
from ropeswitch.server.metrics.series import MOST_SERIES
from tests.docs.pages import ROOT
from tests.server.conftest import MODEL
from tests.server.metrics.ladders import Labels, total, values
from tests.server.running import Server

SHORT, LONG = "1-256", "257-1024"
# Routes that are posted to and run no prompt, by how their paths begin or end.
PROMPTLESS = re.compile(
    r".*/(render|derender|count_tokens|cancel|abort_requests|shutdown_weight_transfer_engine)"
    r"|/(tokenize|detokenize|ping|pause|resume|sleep|wake_up|scale_elastic_ep|is_scaling_elastic_ep|v1/load_lora_adapter)"
    r"|/(v1/unload_lora_adapter|start_profile|stop_profile|abort_requests)"
)

Found = dict[tuple[str, Labels], float]


def scrape(server: Server, prefix: str = "ropeswitch_") -> Found:
    return values(server.get("/metrics").text, prefix)


class Moved:
    """How much the metrics moved since before a block of requests; the gauges, which are read anew, left out."""

    def __init__(self, before: Found, after: Found) -> None:
        self.by = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}

    def __call__(self, name: str, **labels: str) -> float:
        return total(self.by, f"ropeswitch_{name}", **labels)

    def places(self, name: str) -> set[tuple[str, str]]:
        """The bands and sets in which a metric moved."""
        labels = [dict(key[1]) for key in self.by if key[0] == f"ropeswitch_{name}"]
        return {(each["input_sequence_length"], each["factor_set"]) for each in labels}


def generate(server: Server, prompt: int, tokens: int, **more: Any) -> Any:
    body = {"model": MODEL, "prompt": [5 + i % 200 for i in range(prompt)], "max_tokens": tokens, "ignore_eos": True}
    return server.post("/v1/completions", body | {"temperature": 0} | more)


def test_a_short_answer(server: Server) -> None:
    before, upstream = scrape(server), scrape(server, "vllm:")
    assert generate(server, 20, 3).status == 200
    moved = Moved(before, scrape(server))
    here = {"model_name": MODEL, "engine": "0", "input_sequence_length": SHORT, "factor_set": "short"}
    assert moved("requests_total", outcome="length", **here) == moved("requests_total") == 1
    assert moved("prompt_tokens_total", **here) == moved("prompt_tokens_total") == 20
    assert moved("generated_tokens_total", **here) == moved("generated_tokens_total") == 3
    expected = {"time_to_first_token": 1, "inter_token_latency": 2, "e2e_request_latency": 1, "request_queue_time": 1}
    expected |= {"request_prefill_time": 1, "request_decode_time": 1, "request_time_per_output_token": 1}
    for name, count in expected.items():
        assert moved(f"{name}_seconds_count", **here) == moved(f"{name}_seconds_count") == count, name
    assert moved("switches_total") == 0
    # vLLM's own metrics say the same.
    after = scrape(server, "vllm:")
    for name in (
        "time_to_first_token_seconds_sum",
        "inter_token_latency_seconds_sum",
        "e2e_request_latency_seconds_sum",
    ):
        theirs = total(after, f"vllm:{name}") - total(upstream, f"vllm:{name}")
        assert moved(name) == pytest.approx(theirs, abs=1e-6), name


def test_a_stream_that_outgrows_its_set(server: Server) -> None:
    """250 tokens and 20 more: those computed from 250 to 256 tokens are in short, those from 257 to 269 in long."""
    before = scrape(server)
    assert generate(server, 250, 20).status == 200
    moved = Moved(before, scrape(server))
    first, later = {"factor_set": "short"}, {"factor_set": "long"}
    for labels, tokens, gaps, starts, ends in ((first, 7, 6, 1, 0), (later, 13, 13, 0, 1)):
        here = labels | {"input_sequence_length": SHORT}
        assert moved("generated_tokens_total", **here) == tokens
        assert moved("inter_token_latency_seconds_count", **here) == gaps
        assert moved("time_to_first_token_seconds_count", **here) == starts
        assert moved("e2e_request_latency_seconds_count", **here) == ends
        assert moved("requests_total", outcome="length", **here) == ends
    assert moved("switches_total", **later) == moved("switches_total") == 1
    assert moved("switch_stall_seconds_count", **later) == 1
    assert 0 < moved("switch_stall_seconds_sum", **later) < moved("inter_token_latency_seconds_sum", **later)
    again, cached = moved("switch_recomputed_tokens_total"), moved("switch_cached_tokens_total")
    assert again + cached == 256 and again > 0
    # The same once more: its keys in the next set are in the prefix cache now, but for the last blocks.
    before = scrape(server)
    assert generate(server, 250, 20).status == 200
    moved = Moved(before, scrape(server))
    again, cached = moved("switch_recomputed_tokens_total"), moved("switch_cached_tokens_total")
    assert again + cached == 256 and cached >= 128


def test_a_set_that_a_request_asks_for(server: Server) -> None:
    before = scrape(server)
    assert generate(server, 20, 2, vllm_xargs={"rope_factor_set": "long"}).status == 200
    assert generate(server, 300, 2).status == 200
    moved = Moved(before, scrape(server))
    assert moved.places("requests_total") == {(SHORT, "long"), (LONG, "long")}
    assert moved.places("time_to_first_token_seconds_count") == {(SHORT, "long"), (LONG, "long")}


def test_answers_count_one_by_one(server: Server) -> None:
    before = scrape(server)
    assert generate(server, 20, 2, n=3, temperature=1).status == 200
    moved = Moved(before, scrape(server))
    assert moved("requests_total") == 3 and moved("prompt_tokens_total") == 60


@contextmanager
def connection(server: Server, body: dict[str, Any]) -> Iterator[http.client.HTTPConnection]:
    """A request that was sent, whose answer nobody has read; the client is gone at the end."""
    host, port = server.url.removeprefix("http://").split(":")
    opened = http.client.HTTPConnection(host, int(port), timeout=60)
    opened.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    try:
        yield opened
    finally:
        if opened.sock is not None:
            opened.sock.shutdown(socket.SHUT_RDWR)
        opened.close()


def leave(server: Server, body: dict[str, Any]) -> Moved:
    """Disconnect once a request has its first token; return how the metrics moved until it was counted."""
    before = scrape(server)
    deadline = time.monotonic() + 60
    with connection(server, body) as opened:
        if body["stream"]:
            assert b"data:" in opened.getresponse().readline()
        while not Moved(before, scrape(server))("time_to_first_token_seconds_count"):
            assert time.monotonic() < deadline, "no first token"
    while not (moved := Moved(before, scrape(server)))("requests_total"):
        assert time.monotonic() < deadline, "a client that left is not counted"
        time.sleep(0.05)
    return moved


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves(server: Server, stream: bool) -> None:
    body = {"model": MODEL, "prompt": [5] * 100, "max_tokens": 900, "ignore_eos": True, "stream": stream}
    # On a busy machine the answer may be complete before the client has seen its first token.
    for _ in range(20):
        if not (moved := leave(server, body))("requests_total", outcome="length"):
            break
    assert moved("requests_total", outcome="disconnect", engine="0", input_sequence_length=SHORT) == 1
    assert moved("requests_total") == 1
    # It had some tokens and no end.
    assert moved("time_to_first_token_seconds_count") == 1 and moved("generated_tokens_total") > 0
    assert moved("e2e_request_latency_seconds_count") == 0


def test_refused_requests(server: Server) -> None:
    before = scrape(server)
    assert generate(server, 20, 2, vllm_xargs={"rope_factor_set": "nope"}).status == 400
    assert generate(server, 1100, 2).status == 400
    assert server.post("/v1/completions", b"{broken").status == 400
    assert generate(server, 20, 2, logprobs=100).status == 400
    moved = Moved(before, scrape(server))
    nowhere = {"engine": "none", "factor_set": "none", "input_sequence_length": "unknown"}
    assert moved("requests_total", outcome="rejected", **nowhere) == moved("requests_total") == 4
    assert moved("rejections_total", reason="invalid") == moved("rejections_total") == 4


def test_what_the_front_refuses_is_counted_once(server: Server) -> None:
    """By its header, before any of the body is read."""
    before = scrape(server)
    assert server.announce("/v1/completions", 10**12) == 413
    moved = Moved(before, scrape(server))
    assert moved("requests_total", outcome="rejected", engine="none") == moved("requests_total") == 1
    assert moved("rejections_total", reason="body_bytes") == moved("rejections_total") == 1


def test_every_route_that_runs_prompts_is_known(server: Server) -> None:
    paths = server.get("/openapi.json").json["paths"]
    posted = {path for path, methods in paths.items() if "post" in methods}
    # Of models that take speech, which this one does not.
    posted |= {route.path for each in (transcription, translation) for route in each.router.routes}
    assert "/v1/completions" in posted & PATHS
    assert [path for path in sorted(posted - PATHS) if not PROMPTLESS.fullmatch(path)] == []


def test_the_page_and_the_server_list_the_same_metrics(server: Server) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(ropeswitch_\w+)` \| (\w+) \|", page, re.MULTILINE))
    text = server.get("/metrics").text
    shown = dict(re.findall(r"^# TYPE (ropeswitch_\w+) (\w+)$", text, re.MULTILINE))
    assert shown == documented
    labels = {each.name: {*each.labels} for each in INSTRUMENTS} | {REJECTIONS: {*REJECTIONS_LABELS}}
    labels |= {name: {*queue_metrics.LABELS} for name, _ in (queue_metrics.REQUESTS, queue_metrics.TOKENS)}
    labels[POLICY] = {*POLICY_LABELS}
    for (name, has), _ in values(text).items():
        name = re.sub("_(bucket|sum|count)$", "", name)
        assert {key for key, _ in has} - {"le"} == labels.get(name, {*LABELS[:2]}), name
    # Whatever other tests have asked of this server.
    assert len(values(text)) <= MOST_SERIES


def test_help_texts_are_sentences() -> None:
    for each in INSTRUMENTS:
        assert each.text[0].isupper() and each.text.endswith("."), each.name
