"""Checks the tracing flags before the model is loaded."""

import argparse
import os

from ropeswitch.server.errors import UsageError

PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
PROTOCOLS = ("grpc", "http/protobuf")


def check(args: argparse.Namespace) -> None:
    """Refuse traces that could not be exported.

    Raises:
        UsageError: naming the flag or variable and its value.
    """
    if args.otlp_traces_endpoint is None:
        return
    flag = f"--otlp-traces-endpoint: {args.otlp_traces_endpoint!r}"
    if args.disable_log_stats:
        raise UsageError(f"{flag} needs the statistics that --disable-log-stats turns off; leave one of the two out")
    if (protocol := os.environ.get(PROTOCOL, PROTOCOLS[0])) not in PROTOCOLS:
        raise UsageError(f"{PROTOCOL}: {protocol!r} must be one of {', '.join(PROTOCOLS)}")
    try:
        # vLLM's exporters.
        import opentelemetry.exporter.otlp.proto.grpc.trace_exporter
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"{flag} needs OpenTelemetry's packages; install opentelemetry-exporter-otlp: {error}"
        ) from error
