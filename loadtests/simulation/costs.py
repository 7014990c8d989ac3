"""Cost model of the simulated engine: a step's duration from a roofline over that step's arithmetic and bytes.

Deliberately not a sum of fixed, per-token and per-context terms, which a scheduler would fit: each part takes the larger of
its compute time and its memory time, so that small chunks, decodes and chunks at large context behave as on hardware.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ropeswitch.deploy.plan.costs import ALL_REDUCES, token_bytes
from ropeswitch.deploy.plan.gpus import server_defaults
from ropeswitch.deploy.plan.model_shape import DTYPE_BYTES
from ropeswitch.deploy.plan.weights import active_weights
from ropeswitch.loadtests.simulation.cluster import KV_BYTES, Cluster


@dataclass(frozen=True)
class Achieved:
    """All assumptions of the cost model: the achieved shares of datasheet peaks, and fixed costs in seconds.

    Attributes:
        linear: Share of the tensor cores' peak achieved by large matrix products. cuBLAS reaches 0.7 to 0.8 on an A100;
            norms, activations and rotations between the products, which are not counted, take some of it.
        attention: Share of the same peak achieved by attention over a paged cache. FlashAttention-2's authors report up to
            0.73 for a forward pass on an A100 (arXiv:2307.08691); paging and ragged chunks cost some.
        memory: Share of the memory bandwidth; large copies reach 0.85 to 0.9.
        link: Share of the link's one-way rate achieved by a ring all-reduce.
        step_seconds: Per step: scheduling, inputs, launches and sampling, none of it overlapped.
        all_reduce_seconds: Latency of an all-reduce of any size.
        piecewise_seconds: Host time per layer for the launches of a step with a piecewise graph, whose attention is outside
            the graph; hidden where the GPU takes longer. A full graph is one launch.
        eager_seconds: Host time per layer for the launches of a step without a graph.
    """

    linear: float = 0.65
    attention: float = 0.6
    memory: float = 0.8
    link: float = 0.7
    step_seconds: float = 0.003
    all_reduce_seconds: float = 15e-6
    piecewise_seconds: float = 60e-6
    eager_seconds: float = 200e-6


class StepCosts:
    """Step times of one cluster, in seconds."""

    def __init__(self, cluster: Cluster, achieved: Achieved | None = None) -> None:
        self.achieved = achieved = achieved or Achieved()
        shape, ranks, gpu = cluster.shape, cluster.gpus, cluster.gpu
        flops, bandwidth = gpu.bf16_tflops * 1e12, gpu.memory_gb_per_s * 1e9 * achieved.memory
        weights = active_weights(shape, ranks)
        self._linear_per_token = 2 * weights.linear / (flops * achieved.linear)
        self._weights_read = weights.bytes(shape) / bandwidth
        # The output head runs only for each sequence's last token.
        head = shape.hidden * shape.vocab / ranks
        self._head_per_sequence = 2 * head / (flops * achieved.linear)
        pair = 4 * shape.layers * (shape.heads // ranks) * shape.head_dim
        self._per_pair = pair / (flops * achieved.attention)
        self._per_key = token_bytes(shape, cluster.layout, shape.layers, KV_BYTES) / bandwidth
        # A ring all-reduce sends every value 2 * (ranks - 1) / ranks times.
        reduced = shape.layers * ALL_REDUCES * shape.hidden * DTYPE_BYTES * 2 * (ranks - 1) / ranks
        self._reduce_per_token = reduced / (gpu.link_gb_per_s * 1e9 * achieved.link)
        self._launches = {
            "full": 0.0,
            "piecewise": shape.layers * achieved.piecewise_seconds,
            "none": shape.layers * achieved.eager_seconds,
        }
        # Tokens of the largest step with a CUDA graph (`VllmConfig._set_cudagraph_sizes`): twice the maximum sequences, at
        # most 512 (1,024 on Blackwell).
        self._captured = min(2 * server_defaults(gpu)[1], 1024 if gpu.name.startswith("B") else 512)
        self._reduces = shape.layers * ALL_REDUCES * achieved.all_reduce_seconds if ranks > 1 else 0.0

    def seconds(self, sequences: Sequence[tuple[int, int]]) -> float:
        """Return the duration of one step, in seconds.

        Args:
            sequences: Cached tokens and tokens to compute of each scheduled request.
        """
        tokens, attention = 0, 0.0
        for context, new in sequences:
            tokens += new
            # Token i attends to context + i tokens; each key is read once per chunk.
            compute = self._per_pair * new * (context + (new + 1) / 2)
            reading = self._per_key * (context + new)
            attention += compute if compute > reading else reading
        linear = max(self._linear_per_token * tokens + self._head_per_sequence * len(sequences), self._weights_read)
        device = linear + attention + self._reduces + self._reduce_per_token * tokens
        return self.achieved.step_seconds + max(device, self._launches[self.graph(sequences)])

    def graph(self, sequences: Sequence[tuple[int, int]]) -> str:
        """Return the CUDA graph that vLLM uses for a step under ``FULL_AND_PIECEWISE``, its default.

        ``full`` if each request has one token, ``piecewise`` for other steps of captured sizes, else ``none``.
        """
        if sum(new for _, new in sequences) > self._captured:
            return "none"
        return "full" if all(new == 1 for _, new in sequences) else "piecewise"

    def prefill_seconds(self, prompt: int, chunk: int) -> float:
        """Return the seconds to prefill a prompt alone, in chunks of ``chunk`` tokens."""
        starts = range(0, prompt, chunk)
        return sum(self.seconds([(start, min(chunk, prompt - start))]) for start in starts)
