"""vLLM's engine core in virtual time: a real scheduler, and a roofline of the hardware in place of the model.

Mistral-7B's shape with a ladder of two factor sets (8k and 2,048k tokens) on one tensor-parallel replica. The property tests
of the scheduler and ``loadtests/bench/schedule.py`` use it.
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

from ropeswitch.deploy.plan.costs import ALL_REDUCES, BLOCK_SIZE, token_bytes
from ropeswitch.deploy.plan.gpus import Gpu, server_defaults
from ropeswitch.deploy.plan.layouts import Layout
from ropeswitch.deploy.plan.model_shape import DTYPE_BYTES, shape_from_config
from ropeswitch.deploy.plan.weights import active_weights
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.scheduling import scheduler as length_aware
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.engine import scheduler as switch
from ropeswitch.model_patches.switch.engine_args import configure
from ropeswitch.model_patches.switch.placement import EngineLadder, asked_placement

# Ends of the two factor sets, in tokens.
FIRST_SET, MAX_MODEL_LEN = 8192, 2_097_152
# Bytes of one stored key or value.
KV_BYTES = 2
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
SHAPE = shape_from_config("mistral-7b", CONFIG)


@dataclass(frozen=True)
class Arrival:
    """One request: its arrival in virtual seconds, its prompt's tokens and its answer's."""

    at: float
    prompt: int
    output: int
    client: str | None = None


# Assumptions of the cost model: achieved shares of datasheet peaks, and fixed costs in seconds. Matrix products reach 0.7 to
# 0.8 on an A100 with cuBLAS, less the norms and activations between them, which are not counted. FlashAttention-2 reaches up
# to 0.73 (arXiv:2307.08691); paging and ragged chunks cost some.
LINEAR, ATTENTION, MEMORY, LINK = 0.65, 0.6, 0.8, 0.7
# Per step: scheduling, inputs, launches and sampling, none of it overlapped.
STEP_SECONDS, ALL_REDUCE_SECONDS = 0.003, 15e-6
# Host time per layer for launches outside a graph, hidden where the GPU takes longer.
PIECEWISE_SECONDS, EAGER_SECONDS = 60e-6, 200e-6


class StepCosts:
    """Step times of one tensor-parallel replica, in seconds.

    Each part takes the larger of its compute time and its memory time: a sum of fixed, per-token and per-context terms would
    be what the scheduler fits.
    """

    def __init__(self, gpu: Gpu, ranks: int) -> None:
        self.gpu, self.ranks = gpu, ranks
        flops, bandwidth = gpu.bf16_tflops * 1e12, gpu.memory_gb_per_s * 1e9 * MEMORY
        weights = active_weights(SHAPE, ranks)
        self._linear_per_token = 2 * weights.linear / (flops * LINEAR)
        self._weights_read = weights.bytes(SHAPE) / bandwidth
        # The output head runs only for each sequence's last token.
        self._head_per_sequence = 2 * SHAPE.hidden * SHAPE.vocab / ranks / (flops * LINEAR)
        pair = 4 * SHAPE.layers * (SHAPE.heads // ranks) * SHAPE.head_dim
        self._per_pair = pair / (flops * ATTENTION)
        self._per_key = token_bytes(SHAPE, Layout(ranks), SHAPE.layers, KV_BYTES) / bandwidth
        # A ring all-reduce sends every value 2 * (ranks - 1) / ranks times.
        reduced = SHAPE.layers * ALL_REDUCES * SHAPE.hidden * DTYPE_BYTES * 2 * (ranks - 1) / ranks
        self._reduce_per_token = reduced / (gpu.link_gb_per_s * 1e9 * LINK)
        self._reduces = SHAPE.layers * ALL_REDUCES * ALL_REDUCE_SECONDS if ranks > 1 else 0.0
        # Tokens of the largest step with a CUDA graph (`VllmConfig._set_cudagraph_sizes`).
        self._captured = min(2 * server_defaults(gpu)[1], 1024 if gpu.name.startswith("B") else 512)

    def seconds(self, sequences: Sequence[tuple[int, int]]) -> float:
        """Return the duration of one step, from each request's cached tokens and tokens to compute."""
        tokens, attention = 0, 0.0
        for context, new in sequences:
            tokens += new
            # Token i attends to context + i tokens; each key is read once per chunk.
            attention += max(self._per_pair * new * (context + (new + 1) / 2), self._per_key * (context + new))
        linear = max(self._linear_per_token * tokens + self._head_per_sequence * len(sequences), self._weights_read)
        device = linear + attention + self._reduces + self._reduce_per_token * tokens
        return STEP_SECONDS + max(device, SHAPE.layers * self._launches(tokens, sequences))

    def _launches(self, tokens: int, sequences: Sequence[tuple[int, int]]) -> float:
        """Host seconds per layer: a step of one token per request is one graph, other captured sizes are piecewise."""
        if tokens > self._captured:
            return EAGER_SECONDS
        return 0.0 if all(new == 1 for _, new in sequences) else PIECEWISE_SECONDS

    def prefill_seconds(self, prompt: int, chunk: int = FIRST_SET) -> float:
        """Return the seconds to prefill a prompt alone, in chunks of ``chunk`` tokens."""
        starts = range(0, prompt, chunk)
        return sum(self.seconds([(start, min(chunk, prompt - start))]) for start in starts)


class Clock:
    """Virtual seconds; calling it returns the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, to: float) -> None:
        """Advance to a later time; raises AssertionError for an earlier one."""
        if to < self.now:
            raise AssertionError(f"time would run backwards, from {self.now} s to {to} s")
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
    costs: StepCosts
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
        # A list of two million tokens takes 16 MiB, so requests of one length share it.
        self._prompts: dict[int, list[int]] = {}

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
                self._add(str(number), record)
            if self._requests or self._flights:
                self._step()
            else:
                self.clock.advance(waiting[0][1].arrival.at)
        return records

    def _add(self, name: str, record: Record) -> None:
        length = record.arrival.prompt
        prompt = self._prompts.setdefault(length, [TOKEN] * length)
        request = self.make_request(name, record.arrival, prompt)
        self._requests[name] = request, record
        self.scheduler.add_request(request)

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
            seconds = self.costs.seconds(sequences) * self._noise.lognormvariate(0.0, self.noise)
        else:
            self._idle_steps += 1
            if self._idle_steps > STUCK:
                names = ", ".join(list(self._requests)[:5])
                raise AssertionError(
                    f"the scheduler planned nothing for {STUCK} steps while {len(self._requests)} requests wait: {names}"
                )
            # With nothing in flight, the host plans again after the fixed time of a step.
            seconds = 0.0 if self._flights else STEP_SECONDS
        self._busy_until = start + seconds
        return Step(start, seconds, plan.num_scheduled_tokens)

    def _forward(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Return a token for each request whose known tokens are all computed after this step."""
        cached, names = _cached_tokens(plan), list(plan.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for name, count in plan.num_scheduled_tokens.items():
            # The scheduler's internal request, which fills the prefix cache, has no record and generates nothing.
            _, record = self._requests.get(name, (None, None))
            end = cached[name] + count
            if record is not None and end > record.known:
                raise AssertionError(f"request {name}: scheduled up to token {end}, but it has {record.known}")
            done = record is not None and end == record.known
            sampled.append([TOKEN] if done else [])
            if record is not None:
                record.known += done
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)

    def _finish(self, plan: SchedulerOutput, result: ModelRunnerOutput, step: Step) -> None:
        """Pass a step's result to the scheduler and record the token times."""
        self.clock.advance(step.start + step.seconds)
        for outputs in self.scheduler.update_from_output(plan, result).values():
            for one in outputs.outputs:
                request, record = self._requests[one.request_id]
                record.add(len(one.new_token_ids), self.clock.now)
                if one.finish_reason is not None:
                    wanted = record.arrival.output
                    if record.tokens != wanted:
                        raise AssertionError(f"request {one.request_id}: {record.tokens} tokens instead of {wanted}")
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

    def __init__(self, costs: StepCosts, folder: Path) -> None:
        self.costs, self.folder = costs, folder
        (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        # Equal factors would share cached keys.
        ends = (("8k", FIRST_SET, 1), ("2048k", MAX_MODEL_LEN, 2))
        pairs = SHAPE.head_dim // 2
        self.ladder = FactorLadder.checked(
            [{"name": name, "max_length": end, "factors": [factor] * pairs} for name, end, factor in ends]
        )
        init_none_hash(sha256)

    def simulation(
        self, kind: str, arrivals: Sequence[Arrival], kv_blocks: int = 200_000, *, tokens: int | None = None,
        target: float | None = None, asynchronous: bool = False, caching: bool = False, noise: float = 0.0, seed: int = 0,
        sequences: int | None = None,
    ) -> Simulation:  # fmt: skip
        """Return a simulation on a new scheduler, at time 0.

        Args:
            kind: ``stock`` vLLM, ``ours``, or ``core``: our switch in vLLM's own order.
            arrivals: Requests, ordered by time. No two of them share a prefix.
            kv_blocks: KV blocks of 16 tokens, including the null block, which no request gets.
            tokens: Maximum tokens per step; None for the default of ``vllm serve``.
            target: Ours: ``step_latency_target`` in seconds; None for the default.
            asynchronous: Whether a step is planned while the previous one runs.
            caching: Whether to hash prompts and keep the blocks of finished requests.
            noise: As in :class:`Simulation`; so is ``seed``.
            sequences: Maximum running sequences; None for the default of ``vllm serve``.
        """
        tokens = tokens or server_defaults(self.costs.gpu)[0]
        config = self._config(kind, tokens, target, caching, sequences or server_defaults(self.costs.gpu)[1])
        # The CPU platform, on which this runs, turns it off.
        config.scheduler_config.async_scheduling = asynchronous
        config.cache_config.num_gpu_blocks = kv_blocks
        heads = max(1, SHAPE.kv_heads // self.costs.ranks)
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=heads, head_size=SHAPE.head_dim, dtype=torch.bfloat16
        )
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
            scheduler.calibrate([(count, self.costs.seconds([(0, count)])) for count in (1, tokens)])
        hasher = get_request_block_hasher(BLOCK_SIZE, sha256) if caching else None
        ladder: EngineLadder | None = None if kind == "stock" else scheduler.ladder

        def make_request(name: str, arrival: Arrival, prompt: list[int]) -> Request:
            # All prompts repeat one token; the salt keeps their prefixes apart.
            params, salt = SamplingParams(temperature=0.0, max_tokens=arrival.output, ignore_eos=True), name
            if ladder is not None:
                placement = replace(asked_placement(ladder, params, len(prompt), name), client=arrival.client)
                params, salt = placement.carried_by(params), placement.salt
            return Request(name, prompt, params, None, arrival_time=arrival.at, cache_salt=salt, block_hasher=hasher)

        return Simulation(scheduler, clock, self.costs, arrivals, make_request, depth, noise, seed)

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
