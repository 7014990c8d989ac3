"""Tracks one sequence in an engine: its place on the ladder and its outcome."""

from typing import Any

from ropeswitch.model_patches.switch.placement import Placement
from ropeswitch.server.metrics.series import BandSet


class Track:
    """One sequence.

    Attributes:
        placement: Where it is on the ladder: where its prompt was placed, then as the engine reports.
        asked: Where its prompt was placed, or the last chunk of a session.
        number: Unique among the sequences of its API server process.
        band_set: Its band and current set.
        first: The band and set of its first output.
        engine: The index of its engine; None before its first output.
        request_id: The ID under which its prompt came; sequences that answer one prompt share it.
        prompt: Tokens of its prompt.
        adapter: The name of the LoRA that it runs with, or None.
        stats: ``vllm.v1.metrics.stats.RequestStateStats``, which counts its tokens.
        gaps: Seconds between its outputs that are not reported yet.
        tokens: Number of tokens in these outputs.
        reported: When they were last reported, in seconds of the engine's clock.
        live: The band and set and the state under which it is counted as live; None if it is not.
        waited: Seconds from its arrival to its first output; None before that.
        later: The sets that it switched to, in order.
        recomputed: Tokens that its switches recomputed.
        outcome: One of ``instruments.OUTCOMES``; None until it has ended.
    """

    __slots__ = (
        "adapter",
        "asked",
        "band_set",
        "engine",
        "first",
        "gaps",
        "later",
        "live",
        "number",
        "outcome",
        "placement",
        "prompt",
        "recomputed",
        "reported",
        "request_id",
        "stats",
        "tokens",
        "waited",
    )

    def __init__(self, placement: Placement, state: Any) -> None:
        """
        Args:
            placement: Where its prompt was placed.
            state: ``vllm.v1.engine.output_processor.RequestState``, of which nothing large is kept.
        """
        self.number = 0
        self.placement = self.asked = placement
        self.band_set: BandSet = (0, 0)
        self.first: BandSet = (0, 0)
        self.engine: int | None = None
        self.request_id: str = state.external_req_id
        self.prompt: int = state.prompt_len
        self.adapter: str | None = state.lora_name
        self.stats = state.stats
        self.gaps: list[float] = []
        self.tokens = 0
        self.reported = 0.0
        self.live: tuple[BandSet, str] | None = None
        self.waited: float | None = None
        self.later: list[int] = []
        self.recomputed = 0
        self.outcome: str | None = None

    def take_unreported(self) -> tuple[BandSet, list[float], int]:
        """Remove and return the unreported outputs: their band and set, the seconds between them, their tokens."""
        unreported = self.band_set, self.gaps, self.tokens
        self.gaps, self.tokens = [], 0
        return unreported
