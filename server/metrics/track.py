"""Tracks one sequence in an engine: its place on the ladder and its outcome."""

from dataclasses import InitVar, dataclass, field
from typing import Any

from ropeswitch.model_patches.switch.placement import Placement
from ropeswitch.server.metrics.series import BandSet


@dataclass(slots=True, eq=False)
class Track:
    """One sequence, made from its ``vllm.v1.engine.output_processor.RequestState``.

    Attributes:
        placement: Where it is on the ladder: where its prompt was placed, then as the engine reports.
        asked: Where its prompt was placed, or the last chunk of a session.
        request_id: The ID under which its prompt came; sequences that answer one prompt share it.
        prompt: Tokens of its prompt.
        adapter: The name of the LoRA that it runs with, or None.
        stats: ``vllm.v1.metrics.stats.RequestStateStats``, which counts its tokens.
        number: Unique among the sequences of its API server process.
        engine: The index of its engine; None before one is chosen.
        band_set: Its band and current set.
        first: The band and set of its first output.
        gaps: Seconds between its outputs that are not reported yet.
        tokens: Number of tokens in these outputs.
        reported: When they were last reported, in seconds of the engine's clock.
        live: The band and set and the state under which it is counted as live; None if it is not.
        waited: Seconds from its arrival to its first output; None before that.
        later: The sets that it switched to, in order.
        recomputed: Tokens that its switches recomputed.
        outcome: One of ``instruments.OUTCOMES``; None until it has ended.
    """

    placement: Placement
    state: InitVar[Any]
    asked: Placement = field(init=False)
    request_id: str = field(init=False)
    prompt: int = field(init=False)
    adapter: str | None = field(init=False)
    stats: Any = field(init=False)
    number: int = 0
    engine: int | None = None
    band_set: BandSet = (0, 0)
    first: BandSet = (0, 0)
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    reported: float = 0.0
    live: tuple[BandSet, str] | None = None
    waited: float | None = None
    later: list[int] = field(default_factory=list)
    recomputed: int = 0
    outcome: str | None = None

    def __post_init__(self, state: Any) -> None:
        self.asked, self.request_id, self.prompt = self.placement, state.external_req_id, state.prompt_len
        self.adapter, self.stats = state.lora_name, state.stats
