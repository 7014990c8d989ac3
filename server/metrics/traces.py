"""Adds attributes to the spans of vLLM's output processor (``outputs.py``).

why: vLLM's request spans (``--otlp-traces-endpoint``) have neither the factor set nor the cost of a switch.
what differs: each span named ``llm_request`` also has the attributes of :func:`attributes`.
limits: vLLM makes a span for each completed sequence, and none for an aborted one.
when it can go: when vLLM lets a plugin add attributes to its spans.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.metrics.bands import Bands
from ropeswitch.server.metrics.track import Track

Attributes = Mapping[str, str | int]
_of_span: ContextVar[Attributes | None] = ContextVar("ropeswitch_span", default=None)


class AddAttributes(SpanProcessor):
    """Adds the attributes of the request being traced to its span; it reads them from a context variable."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if (ours := _of_span.get()) is not None:
            span.set_attributes(ours)


def start(processor: Any, ladder: FactorLadder) -> None:
    """Add our attributes to the spans of a ``WatchedOutputs`` with ``tracing_enabled`` and metrics.

    Raises:
        AttributeError: when the installed trace provider is not that of OpenTelemetry's SDK; we cannot extend its spans.
    """
    provider: Any = trace.get_tracer_provider()
    provider.add_span_processor(AddAttributes())
    processor.ropeswitch.spans = partial(_adding, Bands(ladder), ladder.names)


def attributes(track: Track, bands: Bands, sets: Sequence[str]) -> Attributes:
    """Return the attributes that a sequence's span has in addition to upstream's ``gen_ai.*``."""
    return {
        "ropeswitch.length_band": bands.names[track.first[0]],
        "ropeswitch.factor_set": sets[track.first[1]],
        "ropeswitch.ladder_policy": track.placement.chosen_by,
        "ropeswitch.factor_set_end": sets[track.band_set[1]],
        "ropeswitch.switches": len(track.later),
        "ropeswitch.recomputed_tokens": track.recomputed,
    }


@contextmanager
def _adding(bands: Bands, sets: Sequence[str], track: Track) -> Iterator[None]:
    """Give the span that is made in this context the attributes of a sequence."""
    token = _of_span.set(attributes(track, bands, sets))
    try:
        yield
    finally:
        _of_span.reset(token)
