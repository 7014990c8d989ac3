"""Tracks one sequence in an engine: its place on the ladder and its outcome."""

from typing import Any

from ropeswitch.model_patches.switch.placement import Placement
from ropeswitch.server.metrics.series import BandSet


class Track:
    """One sequence, made from its ``vllm.v1.engine.output_processor.RequestState``."""

    def __init__(self, placement: Placement, state: Any, number: int = 0, band_set: BandSet = (0, 0)) -> None:
        self.placement = placement  # where its prompt was placed, then as the engine reports
        self.asked = placement  # of its prompt, or of the last chunk of a session
        self.request_id: str = state.external_req_id  # sequences that answer one prompt share it
        self.prompt: int = state.prompt_len  # tokens
        self.adapter: str | None = state.lora_name
        self.stats = state.stats  # `vllm.v1.metrics.stats.RequestStateStats`, which counts its tokens
        self.number = number  # unique in its API server process
        self.engine: int | None = None  # None before one is chosen
        self.band_set = self.first = band_set  # band and set: now, and of its first output
        self.gaps: list[float] = []  # seconds between its outputs that are not reported yet
        self.tokens = 0  # in these outputs
        self.reported = 0.0  # when they were last reported, in seconds of the engine's clock
        self.live: tuple[BandSet, str] | None = None  # as which it is counted as live
        self.waited: float | None = None  # seconds from its arrival to its first output
        self.later: list[int] = []  # sets that it switched to, in order
        self.recomputed = 0  # tokens, by its switches
        self.outcome: str | None = None  # one of `instruments.OUTCOMES`, once it has ended
