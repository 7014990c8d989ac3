"""The real scheduler, driven as vLLM's engine core does, over a model that is a hash function.

The fake model's next token depends on the whole prefix and on the factor set that rotated it, and its keys are written into
a shadow of the paged cache. So a request in the wrong set, a key of another set or another prefix found in its blocks, and a
token lost, repeated or out of order all show.
"""

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from vllm import EngineArgs, SamplingParams
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata
from vllm.utils.hashing import sha256
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.scheduling import engine, length_aware
from ropeswitch.model_patches.scheduling.scheduler import LengthAwareScheduler
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.engine.scheduler import LadderScheduler, LadderSchedulerOutput
from ropeswitch.model_patches.switch.engine_args import configure
from ropeswitch.model_patches.switch.placement import asked_placement, carried_index, placement_of
from tests.model_patches.hash_tier import HashTier

BLOCK, VOCABULARY, DRAFTS = 4, 5, 3
# Starts an engine: the fixture ``start`` of ``conftest.py``.
Start = Callable[..., "Engine"]
LADDER = FactorLadder.checked(
    [{"name": f"to{n}", "max_length": n, "factors": [1.0 + n] * 16} for n in (10, 21, 33, 64)]
)


@lru_cache(maxsize=200_000)
def key(tokens: tuple[int, ...], index: int) -> int:
    """What the fake model stores for the last token of a prefix rotated in one set."""
    return zlib.crc32(bytes((*tokens, 255, index)))


def seconds(chunks: Iterable[tuple[int, int]]) -> float:
    """How long a step takes by the fake engine's clock, given each sequence's (new tokens, all tokens)."""
    return 0.001 * (1 + sum(0.2 * tokens + 0.02 * tokens * context for tokens, context in chunks))


def next_token(tokens: list[int], index: int) -> int:
    return key(tuple(tokens), index) % VOCABULARY


def right_set(length: int, prompt: int, count: int, forced: str | None, policy: str | None) -> int:
    """The set of a sequence of ``length`` tokens whose prompt has ``prompt`` of them and whose answer at most ``count``."""
    if forced is not None:
        return LADDER.names.index(forced)
    return LADDER.index_for(prompt + count if policy == "reserve" else length)


def expected(prompt: list[int], count: int, forced: str | None = None, policy: str | None = None) -> list[int]:
    """The continuation that recomputing the whole sequence at every step gives."""
    tokens = list(prompt)
    for _ in range(count):
        index = right_set(len(tokens), len(prompt), count, forced, policy)
        tokens.append(next_token(tokens, index))
    return tokens[len(prompt) :]


@dataclass(frozen=True)
class Mode:
    """One way to run the engine: which runner's protocol, which scheduler, how many steps may be in flight."""

    v2: bool = False
    asynchronous: bool = False
    stages: int = 1
    drafter: str | None = None
    # Whether the drafter reads the target's hidden states: what it stores for a token depends on the next one too.
    reads_ahead: bool = False
    priority: bool = False
    length_aware: bool = True
    prefix_caching: bool = True
    sequences: int = 4
    prefill_interval: int = 1

    @property
    def depth(self) -> int:
        """``VllmConfig.max_concurrent_batches``."""
        return self.stages + 1 if self.asynchronous else self.stages


MODES = {
    "v1": Mode(),
    "v1-pipeline": Mode(stages=2),
    "v1-ngram": Mode(drafter="ngram"),
    "v1-async": Mode(asynchronous=True),
    "v2": Mode(v2=True),
    "v2-async": Mode(v2=True, asynchronous=True),
    "v2-async-pipeline": Mode(v2=True, asynchronous=True, stages=2),
    "v1-async-ngram": Mode(asynchronous=True, drafter="ngram_gpu"),
    "v2-async-ngram": Mode(v2=True, asynchronous=True, drafter="ngram_gpu"),
    "v2-async-pipeline-ngram": Mode(v2=True, asynchronous=True, stages=2, drafter="ngram_gpu"),
    "v2-async-three-stages-ngram": Mode(v2=True, asynchronous=True, stages=3, drafter="ngram_gpu"),
    "v1-eagle": Mode(drafter="ngram", reads_ahead=True),
    "v2-async-eagle": Mode(v2=True, asynchronous=True, drafter="ngram_gpu", reads_ahead=True),
    "v2-async-pipeline-eagle": Mode(v2=True, asynchronous=True, stages=2, drafter="ngram_gpu", reads_ahead=True),
    "v2-async-priority": Mode(v2=True, asynchronous=True, priority=True),
    "v1-upstream-order": Mode(length_aware=False),
    "v2-async-pipeline-upstream-order": Mode(v2=True, asynchronous=True, stages=2, length_aware=False),
    "v2-async-ngram-upstream-order": Mode(v2=True, asynchronous=True, drafter="ngram_gpu", length_aware=False),
}


def drawing(count: int, **more: Any) -> settings:
    """Settings of a property test over engines: all its examples in ``make test-full`` (``ALL_EXAMPLES``), else a third."""
    values = {"max_examples": count if os.environ.get("ALL_EXAMPLES") else count // 3}
    return settings(**values | {"suppress_health_check": [HealthCheck.function_scoped_fixture]} | more)


def engine_config(folder: Path, mode: Mode) -> VllmConfig:
    drafter = {"method": mode.drafter, "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 2}
    args = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, max_num_seqs=mode.sequences, max_num_batched_tokens=12,
        enforce_eager=True, enable_prefix_caching=mode.prefix_caching,
        speculative_config=drafter if mode.drafter else None, scheduling_policy="priority" if mode.priority else "fcfs",
        prefill_schedule_interval=mode.prefill_interval,
    )  # fmt: skip
    configure(
        args, RopeSettings(LADDER, 10000.0, length_aware=mode.length_aware), {"rope_theta": 10000.0}, device_name="cpu"
    )
    config = args.create_engine_config()
    # The CPU platform turns asynchronous scheduling off and has no devices for stages; the scheduler does not care.
    config.scheduler_config.async_scheduling = mode.asynchronous
    config.parallel_config.pipeline_parallel_size = mode.stages
    if mode.reads_ahead:
        # Proposals come as those of the n-gram drafters, but no model of drafts is read.
        config.speculative_config.method = "eagle"
    return config


@dataclass
class Sequence:
    """What a worker knows of a request: it is ahead of the scheduler by the steps in flight."""

    index: int  # The factor set.
    tokens: list[int]  # Prompt and all that was sampled.
    computed: int  # Tokens whose keys are in the cache, rejected drafts not counted.
    # What the worker's own drafter proposes next; zeros at first, as on upstream's V2 runner; None if it was skipped.
    drafts: list[int] | None = field(default_factory=lambda: [0] * DRAFTS)


class Engine:
    """The scheduler, the shadow cache and the requests of one example; with a tier of that many blocks, offloading too."""

    def __init__(self, config: VllmConfig, mode: Mode, blocks: int, tier: HashTier | None = None) -> None:
        config.cache_config.num_gpu_blocks, config.cache_config.block_size = blocks, BLOCK
        config.kv_transfer_config = None if tier is None else tier.config()
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(mode.v2)))
            kv_cache_config = KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)])
            scheduler = resolve_obj_by_qualname(config.scheduler_config.scheduler_cls)(
                config, kv_cache_config=kv_cache_config, structured_output_manager=StructuredOutputManager(config),
                block_size=BLOCK, hash_block_size=BLOCK,
            )  # fmt: skip
            assert config.max_concurrent_batches == mode.depth
        assert isinstance(scheduler, LadderScheduler)
        assert isinstance(scheduler, AsyncScheduler) == mode.asynchronous
        assert scheduler.use_v2_model_runner == mode.v2
        assert isinstance(scheduler, LengthAwareScheduler) == mode.length_aware
        self.config, self.scheduler, self.mode, self.now = config, scheduler, mode, 0.0
        if isinstance(scheduler, LengthAwareScheduler):
            scheduler.clock = lambda: self.now
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(engine, "LEAST_CHUNK", 2)
                patched.setattr(length_aware, "LEAST_TARGET", 0.0)
                scheduler.calibrate([(count, seconds([(count, 0)])) for count in (1, 12)])
        self.free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        # From 0.33.0 on; before, a hit leaves a block out if the drafter reads ahead.
        ahead = {"num_hash_lookahead_tokens": n} if (n := getattr(scheduler, "num_hash_lookahead_tokens", 0)) else {}
        self.hasher = get_request_block_hasher(BLOCK, sha256, **ahead)
        self.slots: dict[tuple[int, int], int] = {}
        self.transfers = None if tier is None else tier.transfers(config, kv_cache_config, self.slots)
        self.sequences: dict[str, Sequence] = {}
        self.flights: deque[tuple[LadderSchedulerOutput, ModelRunnerOutput]] = deque()
        self.generated: dict[str, list[int]] = {}
        # The step in which each request last sampled a token.
        self.decoded: dict[str, int] = {}

    def add(
        self, name: str, prompt: list[int], count: int, forced: str | None = None, salt: str | None = None,
        policy: str | None = None,
    ) -> None:  # fmt: skip
        asked = {"rope_factor_set": forced, "rope_ladder_policy": policy}
        extra = {field: value for field, value in asked.items() if value is not None} or None
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, extra_args=extra)
        self.generated[name] = []
        self.enter(name, prompt, params, salt, priority=len(prompt) % 3)

    def enter(self, name: str, prompt: list[int], params: SamplingParams, salt: str | None = None, **more: Any) -> None:
        """Add a request as the engine client and the engine core do: placed by its prompt, then hashed."""
        placement = asked_placement(self.scheduler.ladder, params, len(prompt), salt)
        more |= {"cache_salt": placement.salt, "block_hasher": self.hasher}
        self.scheduler.add_request(Request(name, list(prompt), placement.carried_by(params), None, **more))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def finish(self) -> None:
        while self.scheduler.has_requests():
            self.step()

    def check_empty(self) -> None:
        """Nothing is left of any request, and every block is free again."""
        assert not self.scheduler.requests and not self.scheduler.placements and not self.scheduler.has_requests()
        assert self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == self.free

    def step(self, throttle_prefills: bool = False) -> None:
        """As ``vllm.v1.engine.core.EngineCore.step_with_batch_queue``: plan while the queue has room, then take a result."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule(throttle_prefills)
            assert isinstance(output, LadderSchedulerOutput)
            assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())
            self.check_cadence(output)
            self.flights.append((output, self.forward(output)))
            counts = output.num_scheduled_tokens
            self.now += seconds((count, self.sequences[name].computed) for name, count in counts.items())
            if len(self.flights) < self.mode.depth and (output.num_scheduled_tokens or self.scheduler.has_requests()):
                return
        elif not self.flights:
            return
        planned, result = self.flights.popleft()
        for outputs in self.scheduler.update_from_output(planned, result).values():
            for one in outputs.outputs:
                self.generated[one.request_id] += one.new_token_ids
        if self.mode.drafter == "ngram":
            self.draft(planned)

    def check_cadence(self, output: LadderSchedulerOutput) -> None:
        """On V2, a stage learns a sampled token as many steps later as there are stages: no sooner may it decode again."""
        now = self.scheduler.current_step
        for name in output.num_scheduled_tokens:
            if self.mode.v2 and self.mode.asynchronous and name not in output.rope_sets and name in self.decoded:
                assert now - self.decoded[name] >= self.mode.stages
            if self.scheduler.requests[name].is_prefill_chunk:
                self.decoded.pop(name, None)
            else:
                self.decoded[name] = now

    def forward(self, output: LadderSchedulerOutput) -> ModelRunnerOutput:
        """As a model runner: the connector's worker is asked before and after the step's tokens are computed."""
        if self.transfers is None:
            return self.model(output)
        meta = output.kv_connector_metadata
        assert isinstance(meta, OffloadingConnectorMetadata)
        self.transfers.handle_preemptions(meta)
        result = self.model(output)
        self.transfers.start_kv_transfers(meta)
        self.transfers.prepare_store_kv(meta)
        _, received = self.transfers.get_finished(output.finished_req_ids)
        done = self.transfers.build_connector_worker_meta()
        result.kv_connector_output = KVConnectorOutput(finished_recving=received, kv_connector_worker_meta=done)
        return result

    def model(self, output: LadderSchedulerOutput) -> ModelRunnerOutput:
        for name in output.finished_req_ids:
            self.sequences.pop(name, None)
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        # What a worker is told of requests that it does not know, or must forget: here the two runners' protocols differ.
        if self.mode.v2:
            tokens = {new.req_id: new.prefill_token_ids for new in output.scheduled_new_reqs}
            assert {new.req_id: carried_index(new) for new in output.scheduled_new_reqs} == output.rope_sets
        else:
            tokens = {new.req_id: new.prompt_token_ids for new in output.scheduled_new_reqs}
            tokens |= {name: cached.all_token_ids[name] for name in cached.resumed_req_ids}
        for name, index in output.rope_sets.items():
            self.sequences[name] = Sequence(index, list(tokens[name]), starts[name])
        names, sampled = list(output.num_scheduled_tokens), []
        for name in names:
            drafts = output.scheduled_spec_decode_tokens.get(name, [])
            sampled.append(self.compute(name, output.num_scheduled_tokens[name], drafts))
            if getattr(output, "skip_drafts", False):
                self.sequences[name].drafts = None
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)

    def compute(self, name: str, count: int, drafts: list[int]) -> list[int]:
        """Check all earlier tokens' keys, sample where the request is up to date, and write the scheduled tokens' keys."""
        request, sequence = self.scheduler.requests[name], self.sequences[name]
        start, known, index = sequence.computed, len(sequence.tokens), sequence.index
        if self.mode.drafter == "ngram_gpu":
            # The scheduler knows how many drafts there are, the worker knows which. A freshly placed request may be
            # padded with drafts that no one made; the worker takes zeros for them, and one may be accepted.
            assert sequence.drafts is not None or not drafts, f"{name}: its drafts were skipped"
            drafts = (sequence.drafts or [])[: len(drafts)]
        real = [draft for draft in drafts if draft >= 0]
        extra = request.sampling_params.extra_args or {}
        # Internal requests ask for no set by name, but are placed in one.
        forced = placement_of(request).name if "-next-set-" in name else extra.get("rope_factor_set")
        asked = forced, extra.get("rope_ladder_policy")
        right = right_set(known + len(real), request.num_prompt_tokens, request.max_tokens, *asked)
        assert index == right, f"{name} of {known} tokens is in set {index}"
        tokens = sequence.tokens + [draft if draft >= 0 else 0 for draft in drafts]
        (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(name)
        slots = [(blocks[place // BLOCK], place % BLOCK) for place in range(start + count)]
        # Upstream's tier takes no heed of drafters: at the end of a shared prefix it brings another's key of theirs.
        ahead = int(self.mode.reads_ahead and self.transfers is None)
        for place in range(start):
            # Nor does 0.32.0's block hash: a hit may be a block of the same tokens whose sequence continues differently.
            if ahead and place % BLOCK == BLOCK - 1 and not hasattr(self.scheduler, "num_hash_lookahead_tokens"):
                continue
            stored = key(tuple(tokens[: place + 1 + ahead]), index)
            assert self.slots[slots[place]] == stored, f"{name}: the key at {place} is not its own"
        sequence.computed, result = start + count, []
        if start + count >= known:
            assert start + count == known + len(drafts)
            result = [next_token(tokens[:known], index)]
            for draft in real:
                if draft != result[-1]:
                    break
                result.append(next_token(tokens[: known + len(result)], index))
            sequence.computed = known + len(result) - 1
            sequence.tokens = tokens[:known] + result
            sequence.drafts = self.proposal(sequence)
        for place in range(start, start + count):
            then = sequence.tokens[place + 1 : place + 1 + ahead]
            self.slots[slots[place]] = key((*tokens[: place + 1], *then), index)
        return result

    def proposal(self, sequence: Sequence) -> list[int]:
        """What the request will say, or, at odd lengths, something else at the second place."""
        tokens = list(sequence.tokens)
        for _ in range(DRAFTS):
            tokens.append(next_token(tokens, sequence.index))
        if len(sequence.tokens) % 2:
            tokens[len(sequence.tokens) + 1] = 1
        return tokens[len(sequence.tokens) :]

    def draft(self, planned: LadderSchedulerOutput) -> None:
        status = {name: request.status for name, request in self.scheduler.requests.items()}
        names = [name for name in planned.num_scheduled_tokens if status.get(name) == RequestStatus.RUNNING]
        drafts = [list(self.sequences[name].drafts or ()) for name in names]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))
