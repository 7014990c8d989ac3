"""Two API servers over two engines: headers, metrics, traces, which a receiver on the loopback takes, and access logs."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.server.asking import wait_until
from tests.server.conftest import MODEL
from tests.server.metrics.ladders import total, values
from tests.server.observed import Log
from tests.server.running import ENGINE, Server, running

pytestmark = pytest.mark.full
SECONDS = 30.0
PROMPTS = {"model": MODEL, "prompt": ["a" * 20, "b" * 300], "max_tokens": 3, "ignore_eos": True}
TRACE = "0af7651916cd43dd8448eb211c80319c"


@dataclass
class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans as an OpenTelemetry collector does: the attributes of each span of a request, and its trace."""

    spans: list[dict[str, Any]] = field(default_factory=list)

    def Export(self, request: Any, context: Any) -> Any:
        for span in (span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans):
            if span.name == "llm_request":
                values = {each.key: each.value for each in span.attributes}
                attributes = {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}
                self.spans.append(attributes | {"trace": span.trace_id.hex()})
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, request_id: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["gen_ai.request.id"].startswith(request_id)]


@dataclass(frozen=True)
class Traced:
    """A server, and the receiver of its spans."""

    server: Server
    receiver: Receiver


@pytest.fixture(scope="module")
def traced(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    receiver, collector = Receiver(), grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, collector)
    port = collector.add_insecure_port("127.0.0.1:0")
    collector.start()
    flags = ["--served-model-name", MODEL, "--api-server-count", "2", "--data-parallel-size", "2"]
    flags += ["--access-log", "all", "--log-prompts"]
    flags += ["--otlp-traces-endpoint", f"http://127.0.0.1:{port}"]
    with pytest.MonkeyPatch.context() as patch:
        # Milliseconds after which spans are sent.
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with running(tmp_path_factory.mktemp("traced"), str(checkpoint), *ENGINE, *flags) as server:
            yield Traced(server, receiver)
    collector.stop(None)


def test_every_process_answers_and_shows_the_metrics_of_all(traced: Traced) -> None:
    """Runs first: the counts are those of the whole server, whichever process answers."""
    server = traced.server
    for _ in range(8):
        answer = server.post("/v1/completions", PROMPTS)
        assert (answer.status, answer.sets) == (200, "short, long"), answer.text
        assert server.post("/v1/completions", PROMPTS | {"vllm_xargs": {"rope_factor_set": "nope"}}).status == 400
    for _ in range(6):
        found = values(server.get("/metrics").text)
        outcomes = [total(found, "ropeswitch_requests_total", outcome=name) for name in ("length", "rejected")]
        assert outcomes == [16, 8]
        for length, name in ((20, "short"), (300, "long")):
            assert total(found, "ropeswitch_prompt_tokens_total", factor_set=name) == 8 * length
        assert all(total(found, "ropeswitch_prompt_tokens_total", engine=engine) for engine in "01")
        figures = server.get("/v1/status").json["figures"]
        assert (figures["outcomes"]["length"], figures["outcomes"]["rejected"]) == (16, 8)
        assert not any(each["waiting"] or each["generating"] for each in figures["live"])


def test_a_span_of_the_client_s_trace_has_the_switch_that_log_and_metrics_have(traced: Traced) -> None:
    log = Log(traced.server)
    body = {"model": MODEL, "prompt": [7] * 250, "max_tokens": 20, "ignore_eos": True}
    answer = traced.server.post("/v1/completions", body, traceparent=f"00-{TRACE}-b7ad6b7169203331-01")
    wait_until(lambda: traced.receiver.of(answer.json["id"]), time.monotonic(), "a span", SECONDS)
    [span], line = traced.receiver.of(answer.json["id"]), log.only()
    assert span["trace"] == TRACE
    assert (span["gen_ai.usage.prompt_tokens"], span["gen_ai.usage.completion_tokens"]) == (250, 20)
    assert (span["ropeswitch.factor_set"], span["ropeswitch.factor_set_end"]) == ("short", "long")
    found = values(traced.server.get("/metrics").text)
    recomputed = total(found, "ropeswitch_switch_recomputed_tokens_total")
    assert span["ropeswitch.recomputed_tokens"] == line["recomputed_tokens"] == recomputed > 0


def test_each_process_logs_its_requests_whole(traced: Traced) -> None:
    log = Log(traced.server)
    for number in range(8):
        body = {"model": MODEL, "prompt": f"marzipan {number}", "max_tokens": 2}
        assert traced.server.post("/v1/completions", body).status == 200
    assert traced.server.get("/metrics").status == 200
    # A line is written when its answer is sent.
    wait_until(lambda: len(log.lines()) == 9, time.monotonic(), "lines of the log", SECONDS)
    prompts = sorted(str(line["prompts"]) for line in log.lines() if "prompts" in line)
    assert prompts == [f"['marzipan {number}']" for number in range(8)]
