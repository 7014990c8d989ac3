"""The table of per-length metrics: names, help texts, labels and buckets. The docs are generated from it."""

from dataclasses import dataclass
from typing import Literal, get_args

from ropeswitch.model_patches.switch.placement import CHOSEN_BY

LABELS = ("model_name", "engine", "input_sequence_length", "factor_set")

# Engine and factor set of requests that never reached an engine.
NOWHERE = "none"
# Times beyond four hours share one bucket.
LONGEST_SECONDS = 14400.0

COARSE = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, LONGEST_SECONDS)
PER_TOKEN = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)

ANSWERED = ("stop", "length", "repetition")
OUTCOMES = (*ANSWERED, "abort", "error", "disconnect")
WAITING, GENERATING = "waiting", "generating"
# Outcomes of requests that have not reached an engine.
OUTSIDE = ("error", "disconnect", "rejected")

# Reasons for a rejection; the first depend on the prompt's length.
LENGTH_REASONS = ("prompt_tokens", "queue_requests", "queue_tokens")
Reason = Literal[
    "prompt_tokens", "queue_requests", "queue_tokens", "invalid", "authentication", "body_bytes", "body_timeout",
    "head_bytes", "head_count", "head_timeout", "held_bytes", "key_concurrency", "unavailable",
]  # fmt: skip
REASONS: tuple[str, ...] = get_args(Reason)


# Compared and hashed by identity, because instruments are looked up at every step.
@dataclass(frozen=True, eq=False)
class Instrument:
    """One metric."""

    name: str  # without the suffixes of a histogram's series
    text: str  # its help text
    lowest: float | None = None  # end of the first fine bucket in seconds; None without fine buckets
    buckets: tuple[float, ...] = ()  # ends of the coarse buckets in seconds; empty without coarse buckets
    common: tuple[str, ...] = LABELS  # labels
    label: str | None = None  # an additional label after these
    values: tuple[str, ...] = ()  # of that label
    crossing: bool = False  # whether it shows sequences that have outgrown their prompt's set, under the later set
    starting: bool = True  # whether it shows sequences under their prompt's set
    live: bool = False  # whether it counts sequences in flight, and so can fall

    @property
    def kind(self) -> str:
        if self.live:
            return "gauge"
        return "histogram" if self.lowest or self.buckets else "counter"

    @property
    def labels(self) -> tuple[str, ...]:
        return (*self.common, self.label) if self.label else self.common


TTFT = Instrument(
    "ropeswitch_time_to_first_token_seconds",
    "Seconds from a request's arrival to its first token, or to its embedding.",
    lowest=0.005,
)
GAP = Instrument(
    "ropeswitch_inter_token_latency_seconds",
    "Seconds between a sequence's outputs; an output is one token, or all tokens that one step accepted.",
    lowest=0.001,
    crossing=True,
)
END_TO_END = Instrument(
    "ropeswitch_e2e_request_latency_seconds",
    "Seconds from a request's arrival to its last token, for sequences that completed.",
    lowest=0.01,
    crossing=True,
)
QUEUE = Instrument(
    "ropeswitch_request_queue_time_seconds",
    "Seconds a completed sequence waited in the engine before its first step.",
    buckets=COARSE,
)
PREFILL = Instrument(
    "ropeswitch_request_prefill_time_seconds",
    "Seconds from the first step of a completed sequence to its first token.",
    buckets=COARSE,
)
DECODE = Instrument(
    "ropeswitch_request_decode_time_seconds",
    "Seconds from the first token of a completed sequence to its last, for sequences of at least two tokens.",
    buckets=COARSE,
    crossing=True,
)
PER_OUTPUT_TOKEN = Instrument(
    "ropeswitch_request_time_per_output_token_seconds",
    "Mean seconds per token after the first, for completed sequences of at least two tokens.",
    buckets=PER_TOKEN,
    crossing=True,
)
LIVE = Instrument(
    "ropeswitch_live_requests",
    "Sequences in flight: waiting for their first token, or generating.",
    common=("model_name", "input_sequence_length", "factor_set"),  # it counts before an engine is chosen
    label="state",
    values=(WAITING, GENERATING),
    crossing=True,
    live=True,
)
REQUESTS = Instrument(
    "ropeswitch_requests_total",
    "Sequences that ended in an engine, and requests that never reached one, by outcome.",
    label="outcome",
    values=OUTCOMES,
    crossing=True,
)
PROMPT_TOKENS = Instrument(
    "ropeswitch_prompt_tokens_total", "Prompt tokens, cached ones included, of sequences that had their first output."
)
GENERATED_TOKENS = Instrument("ropeswitch_generated_tokens_total", "Tokens generated.", crossing=True)
SWITCHES = Instrument(
    "ropeswitch_switches_total", "Switches of a sequence to a longer factor set.", crossing=True, starting=False
)
STALL = Instrument(
    "ropeswitch_switch_stall_seconds",
    "Seconds between the last output before a switch of factor sets and the first one after it.",
    buckets=COARSE,
    crossing=True,
    starting=False,
)
RECOMPUTED = Instrument(
    "ropeswitch_switch_recomputed_tokens_total",
    "Tokens recomputed at switches of factor sets.",
    crossing=True,
    starting=False,
)
CACHED = Instrument(
    "ropeswitch_switch_cached_tokens_total",
    "Tokens found in the prefix cache at switches, mostly prefilled in the background.",
    crossing=True,
    starting=False,
)

INSTRUMENTS = (
    *(TTFT, GAP, END_TO_END, QUEUE, PREFILL, DECODE, PER_OUTPUT_TOKEN, LIVE, REQUESTS, PROMPT_TOKENS, GENERATED_TOKENS),
    *(SWITCHES, STALL, RECOMPUTED, CACHED),
)

# Not labelled by length, set or engine: their combinations are left to the latencies.
POLICY = Instrument(
    "ropeswitch_ladder_policy_requests_total",
    "Sequences that had their first output, by how their set was chosen: a ladder policy, or by name in the request.",
    common=("model_name",),
    label="policy",
    values=CHOSEN_BY,
)
# A rejected request has no engine and no factor set.
REJECTIONS = Instrument(
    "ropeswitch_rejections_total",
    "Requests rejected before they reached an engine, by reason.",
    common=("model_name", "input_sequence_length"),
    label="reason",
    values=REASONS,
)
