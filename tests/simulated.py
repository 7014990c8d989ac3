"""vLLM's engine core in virtual time: a real scheduler, and a roofline of the hardware in place of the model.

Mistral-7B with a ladder of two factor sets (8k and 2,048k tokens) on 16 tensor-parallel A100s. The property tests of the
scheduler and ``loadtests/bench/schedule.py`` use it.
"""

import json
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from vllm import EngineArgs, SamplingParams
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.scheduling import scheduler as length_aware
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.engine import scheduler as switch
from ropeswitch.model_patches.switch.engine_args import configure
from ropeswitch.model_patches.switch.placement import EngineLadder, asked_placement

# Ends of the two factor sets, in tokens.
FIRST_SET, MAX_MODEL_LEN = 8192, 2_097_152
BLOCK_SIZE, HEAD_SIZE = 16, 128
# What `vllm serve` chooses for an A100: maximum tokens and sequences per step.
STEP_TOKENS, SEQUENCES = 2048, 256
# The cost model reads no tokens, so any value works.
TOKEN = 1
# Consecutive steps without a planned token, while requests wait, after which the scheduler counts as stuck.
STUCK = 1000
CONFIG: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu", "torch_dtype": "bfloat16",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 32000, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": None,
    "tie_word_embeddings": False, "max_position_embeddings": MAX_MODEL_LEN,
}  # fmt: skip


@dataclass(frozen=True)
class Arrival:
    """One request: its arrival in virtual seconds, its prompt's tokens and its answer's."""

    at: float
    prompt: int
    output: int
    client: str | None = None


# Seconds of a step on that hardware at 0.6 to 0.8 of its datasheet's peaks: scheduling, launches and all-reduces; a token in
# the linear layers and the all-reduces; reading all weights; a token that attends to another; reading one key and value.
STEP_SECONDS, TOKEN_SECONDS, REDUCE_SECONDS = 0.004, 4.5e-6, 4.7e-6
WEIGHTS_SECONDS, PAIR_SECONDS, KEY_SECONDS = 5.7e-4, 1.75e-10, 1e-8


def step_seconds(sequences: Sequence[tuple[int, int]]) -> float:
    """Return the duration of one step, from each request's cached tokens and tokens to compute.

    Each part takes the larger of its compute time and its memory time: a sum of fixed, per-token and per-context terms would
    be what the scheduler fits.
    """
    tokens, attention = sum(new for _, new in sequences), 0.0
    for context, new in sequences:
        # Token i attends to context + i tokens; each key is read once per chunk.
        attention += max(PAIR_SECONDS * new * (context + (new + 1) / 2), KEY_SECONDS * (context + new))
    return STEP_SECONDS + max(TOKEN_SECONDS * tokens, WEIGHTS_SECONDS) + attention + REDUCE_SECONDS * tokens


def prefill_seconds(prompt: int, chunk: int = FIRST_SET) -> float:
    """Return the seconds to prefill a prompt alone, in chunks of ``chunk`` tokens."""
    return sum(step_seconds([(start, min(chunk, prompt - start))]) for start in range(0, prompt, chunk))


class Clock:
    """Virtual seconds; calling it returns the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, to: float) -> None:
        """Advance to a later time."""
        assert to >= self.now, f"time would run backwards, from {self.now} s to {to} s"
        self.now = to


@dataclass
class Record:
    """One request: the times of its first and latest token, and ``known``, its tokens in the worker."""

    arrival: Arrival
    known: int
    first: float | None = None
    last: float = 0.0
    worst_gap: float = 0.0
    tokens: int = 0
    # Moves to the next factor set included.
    preemptions: int = 0

    def add(self, tokens: int, now: float) -> None:
        """Record ``tokens`` more tokens at time ``now``."""
        if tokens and self.first is None:
            self.first = now
        elif tokens:
            self.worst_gap = max(self.worst_gap, now - self.last)
        self.last = now if tokens else self.last
        self.tokens += tokens

    @property
    def first_token_seconds(self) -> float:
        """Time to first token."""
        assert self.first is not None
        return self.first - self.arrival.at


@dataclass(frozen=True)
class Step:
    """One step: its start and duration in virtual seconds, and the scheduled tokens by request id."""

    start: float
    seconds: float
    tokens: dict[str, int]


@dataclass
class Simulation:
    """One scheduler and the requests that arrive at it, named by their place in ``arrivals``.

    Attributes:
        clock: Clock at 0; shared with the scheduler if that reads the time.
        make_request: Makes a request from an id, an arrival and a list of prompt tokens.
        depth: Maximum steps in flight, ``VllmConfig.max_concurrent_batches``.
        noise: Standard deviation of the logarithm of a step's random slowdown or speed-up; 0 for none.
        watch: Called for every step that computed tokens, after the scheduler has processed its result.
    """

    scheduler: Scheduler
    clock: Clock
    arrivals: Sequence[Arrival]
    make_request: Callable[[str, Arrival, list[int]], Request]
    depth: int = 1
    noise: float = 0.0
    seed: int = 0
    watch: Callable[[Step], None] | None = None

    def __post_init__(self) -> None:
        self._noise = random.Random(self.seed)
        self._requests: dict[str, tuple[Request, Record]] = {}
        self._flights: deque[tuple[SchedulerOutput, ModelRunnerOutput, Step]] = deque()
        self._busy_until = 0.0
        self._idle_steps = 0

    def run(self) -> list[Record]:
        """Simulate until every request has finished.

        Raises:
            AssertionError: if the scheduler is stuck, or a request got more or fewer tokens than it requested.
        """
        records = [Record(arrival, arrival.prompt) for arrival in self.arrivals]
        waiting = deque(enumerate(records))
        while waiting or self._requests or self._flights:
            while waiting and waiting[0][1].arrival.at <= self.clock.now:
                number, record = waiting.popleft()
                request = self.make_request(str(number), record.arrival, [TOKEN] * record.arrival.prompt)
                self._requests[str(number)] = request, record
                self.scheduler.add_request(request)
            if self._requests or self._flights:
                self._step()
            else:
                self.clock.advance(waiting[0][1].arrival.at)
        return records

    def _step(self) -> None:
        """Plan a step if one more may be in flight, like ``EngineCore.step_with_batch_queue``; else process the oldest."""
        if self.scheduler.has_requests() and len(self._flights) < self.depth:
            plan = self.scheduler.schedule()
            self._flights.append((plan, self._forward(plan), self._timed(plan)))
            if plan.total_num_scheduled_tokens and len(self._flights) < self.depth:
                return
        self._finish(*self._flights.popleft())

    def _timed(self, plan: SchedulerOutput) -> Step:
        """Start a planned step on the hardware once the previous one is done."""
        start = max(self.clock.now, self._busy_until)
        if plan.total_num_scheduled_tokens:
            self._idle_steps = 0
            cached = _cached_tokens(plan)
            sequences = [(cached[name], new) for name, new in plan.num_scheduled_tokens.items()]
            seconds = step_seconds(sequences) * self._noise.lognormvariate(0.0, self.noise)
        else:
            self._idle_steps += 1
            assert self._idle_steps <= STUCK, f"nothing was planned while requests wait: {list(self._requests)[:5]}"
            # With nothing in flight, the host plans again after the fixed time of a step.
            seconds = 0.0 if self._flights else STEP_SECONDS
        self._busy_until = start + seconds
        return Step(start, seconds, plan.num_scheduled_tokens)

    def _forward(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Return a token for each request whose known tokens are all computed after this step."""
        cached, names = _cached_tokens(plan), list(plan.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for name, count in plan.num_scheduled_tokens.items():
            sampled.append([])
            # The scheduler's internal request, which fills the prefix cache, has no record and generates nothing.
            if name in self._requests:
                record, end = self._requests[name][1], cached[name] + count
                assert end <= record.known, f"request {name}: scheduled up to token {end}, but it has {record.known}"
                if end == record.known:
                    sampled[-1], record.known = [TOKEN], end + 1
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)

    def _finish(self, plan: SchedulerOutput, result: ModelRunnerOutput, step: Step) -> None:
        """Pass a step's result to the scheduler and record the token times."""
        self.clock.advance(step.start + step.seconds)
        for outputs in self.scheduler.update_from_output(plan, result).values():
            for one in outputs.outputs:
                request, record = self._requests[one.request_id]
                record.add(len(one.new_token_ids), self.clock.now)
                if one.finish_reason is not None:
                    assert record.tokens == record.arrival.output, f"request {one.request_id}"
                    record.preemptions = request.num_preemptions
                    del self._requests[one.request_id]
        if step.tokens and self.watch is not None:
            self.watch(step)


def _cached_tokens(plan: SchedulerOutput) -> dict[str, int]:
    """Return the computed tokens of each scheduled request before the step."""
    cached = plan.scheduled_cached_reqs
    new = {each.req_id: each.num_computed_tokens for each in plan.scheduled_new_reqs}
    return new | dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))


class Builder:
    """Builds schedulers as an engine does; ``folder`` gets a config that vLLM can read, without weights."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        # Equal factors would share cached keys.
        ends = (("8k", FIRST_SET, 1), ("2048k", MAX_MODEL_LEN, 2))
        self.ladder = FactorLadder.checked(
            [{"name": name, "max_length": end, "factors": [factor] * (HEAD_SIZE // 2)} for name, end, factor in ends]
        )
        init_none_hash(sha256)

    def simulation(
        self, kind: str, arrivals: Sequence[Arrival], kv_blocks: int = 140_000, *, tokens: int = STEP_TOKENS,
        target: float | None = None, asynchronous: bool = False, caching: bool = False, noise: float = 0.0, seed: int = 0,
        sequences: int = SEQUENCES,
    ) -> Simulation:  # fmt: skip
        """Return a simulation on a new scheduler, at time 0.

        Args:
            kind: ``stock`` vLLM, ``ours``, or ``core``: our switch in vLLM's own order.
            arrivals: Requests, ordered by time. No two of them share a prefix.
            kv_blocks: KV blocks of 16 tokens, including the null block, which no request gets.
            tokens: Maximum tokens per step.
            target: Ours: ``step_latency_target`` in seconds; None for the default.
            asynchronous: Whether a step is planned while the previous one runs.
            caching: Whether to hash prompts and keep the blocks of finished requests.
            noise: As in :class:`Simulation`; so is ``seed``.
            sequences: Maximum running sequences.
        """
        config = self._config(kind, tokens, target, caching, sequences)
        # The CPU platform, on which this runs, turns it off.
        config.scheduler_config.async_scheduling = asynchronous
        config.cache_config.num_gpu_blocks = kv_blocks
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=HEAD_SIZE, dtype=torch.bfloat16)
        stock = AsyncScheduler if asynchronous else Scheduler
        make = {"ours": length_aware.make_scheduler, "core": switch.make_scheduler, "stock": stock}[kind]
        # The GPU model runner; the V1 runner's protocol resends all tokens of a request that skipped a step.
        with patch.dict(os.environ, {"VLLM_USE_V2_MODEL_RUNNER": "1"}):
            kv_cache = KVCacheConfig(kv_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
            outputs = StructuredOutputManager(config)
            scheduler = make(
                config, kv_cache_config=kv_cache, structured_output_manager=outputs, block_size=BLOCK_SIZE,
                hash_block_size=BLOCK_SIZE,
            )  # fmt: skip
            depth = config.max_concurrent_batches
        clock = Clock()
        if kind == "ours":
            scheduler.clock = clock
            # An engine measures these at start-up: steps without context, of one token and of the maximum number.
            scheduler.calibrate([(count, step_seconds([(0, count)])) for count in (1, tokens)])
        hasher = get_request_block_hasher(BLOCK_SIZE, sha256) if caching else None
        ladder: EngineLadder | None = None if kind == "stock" else scheduler.ladder

        def make_request(name: str, arrival: Arrival, prompt: list[int]) -> Request:
            # All prompts repeat one token; the salt keeps their prefixes apart.
            params, salt = SamplingParams(temperature=0.0, max_tokens=arrival.output, ignore_eos=True), name
            if ladder is not None:
                placement = replace(asked_placement(ladder, params, len(prompt), name), client=arrival.client)
                params, salt = placement.carried_by(params), placement.salt
            return Request(name, prompt, params, None, arrival_time=arrival.at, cache_salt=salt, block_hasher=hasher)

        return Simulation(scheduler, clock, arrivals, make_request, depth, noise, seed)

    def _config(self, kind: str, tokens: int, target: float | None, caching: bool, sequences: int) -> VllmConfig:
        args = EngineArgs(
            model=str(self.folder), skip_tokenizer_init=True, max_model_len=MAX_MODEL_LEN, enforce_eager=True,
            max_num_batched_tokens=tokens, enable_prefix_caching=caching,
            # vLLM rejects a step limit below the number of sequences.
            max_num_seqs=min(sequences, tokens),
        )  # fmt: skip
        if kind != "stock":
            theta, by_length = CONFIG["rope_theta"], kind == "ours"
            settings = RopeSettings(self.ladder, theta, length_aware=by_length, step_latency_target=target)
            configure(args, settings, CONFIG, device_name=current_platform.device_name)
        return args.create_engine_config()
