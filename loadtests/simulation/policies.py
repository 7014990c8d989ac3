"""The compared schedulers, built as an engine builds them: stock with defaults, stock tuned, and ours."""

import json
import os
from collections.abc import Callable
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
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from ropeswitch.deploy.plan.costs import BLOCK_SIZE
from ropeswitch.deploy.plan.gpus import Gpu, server_defaults
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.loadtests.simulation.cluster import MAX_MODEL_LEN, MODELS, Cluster
from ropeswitch.loadtests.simulation.costs import StepCosts
from ropeswitch.loadtests.simulation.driver import Simulation
from ropeswitch.loadtests.simulation.records import Clock
from ropeswitch.loadtests.simulation.workloads import FIRST_SET, SHORT, Arrival, Workload
from ropeswitch.model_patches.scheduling import scheduler as length_aware
from ropeswitch.model_patches.switch.config.settings import LADDER_POLICY, RopeSettings
from ropeswitch.model_patches.switch.engine import scheduler as switch
from ropeswitch.model_patches.switch.engine_args import configure
from ropeswitch.model_patches.switch.placement import EngineLadder, asked_placement

# The simulated ladder: recovered short factors up to 8k tokens, long ones above. Equal factors would share cached keys.
LADDER_ENDS = (("8k", FIRST_SET), ("2048k", MAX_MODEL_LEN))
# The kinds of policy that switch factor sets.
LADDERED = ("ours", "core")


@dataclass(frozen=True)
class Policy:
    """A scheduler and its settings.

    Attributes:
        kind: ``default`` and ``tuned`` are stock vLLM, ``ours`` is ropeswitch, and ``core`` is its switch alone, in vLLM's
            own order.
        max_num_batched_tokens: Maximum tokens per step.
        threshold: vLLM's ``--long-prefill-token-threshold``; 0 for none.
        adaptive: vLLM's ``--long-prefill-token-threshold-adaptive``.
        target: Ours: ``step_latency_target`` in seconds; None for the default.
        priority: Stock: ``--scheduling-policy priority``, with clients that give short prompts a higher priority.
        interval: Stock: ``--prefill-schedule-interval``; running requests decode between two steps with prefills. vLLM 0.32
            supports it only with data parallelism; here every engine does.
        reserve: Ours: requests use the set of their longest possible length from the start (``rope_ladder_policy``).
    """

    kind: str
    max_num_batched_tokens: int
    threshold: int = 0
    adaptive: bool = False
    target: float | None = None
    priority: bool = False
    interval: int = 1
    reserve: bool = False

    def __str__(self) -> str:
        if self.kind == "ours":
            name = "ours" if self.target is None else f"ours, target {self.target:g} s"
            return f"{name}, reserve" if self.reserve else name
        name = f"stock {self.kind}: {self.max_num_batched_tokens}"
        if self.threshold:
            name += f", threshold {self.threshold}{' adaptive' if self.adaptive else ''}"
        name += ", priority" if self.priority else ""
        return f"{name}, interval {self.interval}" if self.interval > 1 else name


@dataclass(frozen=True)
class Options:
    """Settings shared by all policies of a comparison.

    Attributes:
        asynchronous: Plan a step while the previous one runs.
        prefix_caching: Hash prompts and keep the blocks of finished requests; no two requests share a prefix.
        noise: Standard deviation of the logarithm of a step's random slowdown or speed-up.
        seed: Random seed of the noise.
    """

    asynchronous: bool = False
    prefix_caching: bool = False
    noise: float = 0.0
    seed: int = 0


def stock_default(gpu: Gpu) -> Policy:
    """Return the policy of ``vllm serve`` without flags."""
    return Policy("default", server_defaults(gpu)[0])


def stock_tuned() -> tuple[Policy, ...]:
    """Return settings of stock's flags for long prompts, with small and large steps."""
    plain = [Policy("tuned", 512), Policy("tuned", 2048, 128), Policy("tuned", 2048, 512), Policy("tuned", 8192, 256)]
    plain += [Policy("tuned", 8192, 1024)]
    return (*plain, *(replace(policy, adaptive=True) for policy in plain[2::2]))


def ours(gpu: Gpu, target: float | None = None) -> Policy:
    return Policy("ours", server_defaults(gpu)[0], target=target)


class Builder:
    """Builds schedulers for one cluster; ``folder`` gets a config that vLLM can read, without weights."""

    def __init__(self, cluster: Cluster, costs: StepCosts, folder: Path) -> None:
        self.cluster, self.costs, self.folder = cluster, costs, folder
        (folder / "config.json").write_text(json.dumps(MODELS[cluster.model]), encoding="utf-8")
        pairs = cluster.shape.head_dim // 2
        self.ladder = FactorLadder.checked(
            [
                {"name": name, "max_length": end, "factors": [factor] * pairs}
                for factor, (name, end) in enumerate(LADDER_ENDS, 1)
            ]
        )
        init_none_hash(sha256)

    def simulation(self, policy: Policy, workload: Workload, options: Options) -> Simulation:
        """Return a simulation of a workload on a new scheduler, at time 0."""
        config = self._config(policy, options)
        config.cache_config.num_gpu_blocks = workload.kv_blocks
        shape = self.cluster.shape
        heads = max(1, shape.kv_heads // self.cluster.gpus)
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=heads, head_size=shape.head_dim, dtype=torch.bfloat16
        )
        kv_cache = KVCacheConfig(workload.kv_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
        stock = AsyncScheduler if options.asynchronous else Scheduler
        make = {"ours": length_aware.make_scheduler, "core": switch.make_scheduler}.get(policy.kind, stock)
        # The GPU model runner; the V1 runner's protocol resends all tokens of a request that skipped a step.
        with patch.dict(os.environ, {"VLLM_USE_V2_MODEL_RUNNER": "1"}):
            scheduler = make(
                config,
                kv_cache_config=kv_cache,
                structured_output_manager=StructuredOutputManager(config),
                block_size=BLOCK_SIZE,
                hash_block_size=BLOCK_SIZE,
            )
            depth = config.max_concurrent_batches
        clock = Clock()
        if policy.kind == "ours":
            scheduler.clock = clock
            # An engine measures these at start-up: steps without context, of one token and of the maximum number.
            sizes = (1, policy.max_num_batched_tokens)
            scheduler.calibrate([(tokens, self.costs.seconds([(0, tokens)])) for tokens in sizes])
        hasher = get_request_block_hasher(BLOCK_SIZE, sha256) if options.prefix_caching else None
        ladder = scheduler.ladder if policy.kind in LADDERED else None
        return Simulation(
            scheduler,
            clock,
            self.costs,
            workload.arrivals,
            _Requests(hasher, policy, ladder),
            depth,
            interval=policy.interval,
            noise=options.noise,
            seed=options.seed,
        )

    def _config(self, policy: Policy, options: Options) -> VllmConfig:
        args = EngineArgs(
            model=str(self.folder),
            skip_tokenizer_init=True,
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=policy.max_num_batched_tokens,
            # vLLM rejects a step limit below the number of sequences.
            max_num_seqs=min(server_defaults(self.cluster.gpu)[1], policy.max_num_batched_tokens),
            scheduling_policy="priority" if policy.priority else "fcfs",
            long_prefill_token_threshold=policy.threshold,
            long_prefill_token_threshold_adaptive=policy.adaptive,
            enable_prefix_caching=options.prefix_caching,
            enforce_eager=True,
        )
        if policy.kind in LADDERED:
            theta = MODELS[self.cluster.model]["rope_theta"]
            by_length = policy.kind == "ours"
            settings = RopeSettings(self.ladder, theta, length_aware=by_length, step_latency_target=policy.target)
            configure(args, settings, MODELS[self.cluster.model], device_name=current_platform.device_name)
        config = args.create_engine_config()
        # The CPU platform, on which the simulator runs, turns it off.
        config.scheduler_config.async_scheduling = options.asynchronous
        return config


class _Requests:
    """Makes the scheduler's requests as the engine makes them from client requests."""

    def __init__(
        self, hasher: Callable[[Request], list[Any]] | None, policy: Policy, ladder: EngineLadder | None
    ) -> None:
        self._hasher, self._ladder = hasher, ladder
        self._by_length = policy.priority
        self._extra = {LADDER_POLICY: "reserve"} if policy.reserve else None

    def __call__(self, name: str, arrival: Arrival, prompt: list[int]) -> Request:
        params = SamplingParams(temperature=0.0, max_tokens=arrival.output, ignore_eos=True, extra_args=self._extra)
        priority = int(arrival.prompt > SHORT) if self._by_length else 0
        # All prompts repeat one token; the salt keeps their prefixes apart.
        salt = arrival.session or name
        if self._ladder is not None:
            placement = asked_placement(self._ladder, params, len(prompt), salt)
            params, salt = placement.carried_by(params), placement.salt
        return Request(
            name, prompt, params, None, arrival_time=arrival.at, cache_salt=salt, priority=priority,
            block_hasher=self._hasher,
        )  # fmt: skip
