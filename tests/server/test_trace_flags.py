"""Traces that could not be made are refused at once."""

import sys
from argparse import Namespace

import pytest

from ropeswitch.server.errors import UsageError
from ropeswitch.server.trace_flags import PROTOCOL, check

GIVEN = Namespace(otlp_traces_endpoint="http://127.0.0.1:4317", disable_log_stats=False)


def test_what_is_pinned_can_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    check(GIVEN)
    monkeypatch.setenv(PROTOCOL, "http/protobuf")
    check(GIVEN)


def test_nothing_is_looked_at_without_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROTOCOL, "smoke")
    check(Namespace(otlp_traces_endpoint=None, disable_log_stats=True))


def test_traces_need_statistics() -> None:
    with pytest.raises(UsageError, match=r"--otlp-traces-endpoint: 'x' needs .*--disable-log-stats"):
        check(Namespace(otlp_traces_endpoint="x", disable_log_stats=True))


def test_an_unknown_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROTOCOL, "smoke")
    with pytest.raises(UsageError, match="'smoke' must be one of grpc, http/protobuf"):
        check(GIVEN)


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(UsageError, match="needs OpenTelemetry's packages"):
        check(GIVEN)
