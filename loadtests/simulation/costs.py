"""How long a step of the simulated engine takes: a roofline over the arithmetic and the bytes of exactly that step.

Deliberately no sum of fixed, per-token and per-context terms, which is what a scheduler would fit: each part takes the
larger of its compute and its memory time, so that small chunks, decodes and deep chunks bend as they do on hardware.
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
    """What of the datasheet's peaks is taken to be reached, and what a step costs besides. The one place of assumptions.

    Attributes:
        linear: Of the tensor cores' peak, by large matrix products; cuBLAS comes to 0.7 to 0.8 on an A100, and the norms,
            activations and rotations between the products, which are not counted, take some of it.
        attention: Of the same peak, by attention over a paged cache. FlashAttention-2's authors report up to 0.73 for a
            forward pass on an A100 (arXiv:2307.08691); paging and ragged chunks cost some.
        memory: Of the memory's bandwidth; large copies come to 0.85 to 0.9 of it.
        link: Of the link's rate in one direction, by a ring all-reduce.
        step_seconds: Once a step: scheduling, inputs, launches, sampling, none of it overlapped.
        all_reduce_seconds: Once an all-reduce, however small.
        piecewise_seconds: A layer's launches in a step with a piecewise graph, whose attention is outside it: on the host,
            hidden where the GPU takes longer. A whole graph is one launch.
        eager_seconds: A layer's launches in a step without a graph.
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
    """Step times of one cluster, seconds.

    Attributes:
        captured: Tokens of the largest step that has a CUDA graph, by default.
    """

    def __init__(self, cluster: Cluster, achieved: Achieved | None = None) -> None:
        self.achieved = achieved = achieved or Achieved()
        shape, ranks, gpu = cluster.shape, cluster.gpus, cluster.gpu
        flops, bandwidth = gpu.bf16_tflops * 1e12, gpu.memory_gb_per_s * 1e9 * achieved.memory
        weights = active_weights(shape, ranks)
        self._linear_per_token = 2 * weights.linear / (flops * achieved.linear)
        self._weights_read = weights.bytes(shape) / bandwidth
        # The output head runs for the sequences' last tokens alone.
        head = shape.hidden * shape.vocab / ranks
        self._head_per_sequence = 2 * head / (flops * achieved.linear)
        pair = 4 * shape.layers * (shape.heads // ranks) * shape.head_dim
        self._per_pair = pair / (flops * achieved.attention)
        self._per_key = token_bytes(shape, cluster.layout, shape.layers, KV_BYTES) / bandwidth
        # A ring sends every value twice, less one part in `ranks`.
        reduced = shape.layers * ALL_REDUCES * shape.hidden * DTYPE_BYTES * 2 * (ranks - 1) / ranks
        self._reduce_per_token = reduced / (gpu.link_gb_per_s * 1e9 * achieved.link)
        self._launches = {
            "full": 0.0,
            "piecewise": shape.layers * achieved.piecewise_seconds,
            "none": shape.layers * achieved.eager_seconds,
        }
        # `VllmConfig._set_cudagraph_sizes`: twice the sequences, at most 512, on Blackwell 1,024.
        self.captured = min(2 * server_defaults(gpu)[1], 1024 if gpu.name.startswith("B") else 512)
        self._reduces = shape.layers * ALL_REDUCES * achieved.all_reduce_seconds if ranks > 1 else 0.0

    def seconds(self, sequences: Sequence[tuple[int, int]]) -> float:
        """The duration of one step.

        Args:
            sequences: For each scheduled request, how many of its tokens are cached and how many more are computed now.
        """
        tokens, attention = 0, 0.0
        for context, new in sequences:
            tokens += new
            # Token i attends to context + i tokens; each key is read once, for all of the chunk.
            compute = self._per_pair * new * (context + (new + 1) / 2)
            reading = self._per_key * (context + new)
            attention += compute if compute > reading else reading
        linear = max(self._linear_per_token * tokens + self._head_per_sequence * len(sequences), self._weights_read)
        device = linear + attention + self._reduces + self._reduce_per_token * tokens
        return self.achieved.step_seconds + max(device, self._launches[self.graph(sequences)])

    def graph(self, sequences: Sequence[tuple[int, int]]) -> str:
        """The CUDA graph that vLLM runs a step with under ``FULL_AND_PIECEWISE``, its default.

        ``full`` where each request has one token, ``piecewise`` for other steps of captured sizes, or ``none``.
        """
        if sum(new for _, new in sequences) > self.captured:
            return "none"
        return "full" if all(new == 1 for _, new in sequences) else "piecewise"

    def prefill_seconds(self, prompt: int, chunk: int) -> float:
        """A prompt's prefill alone, in chunks of ``chunk`` tokens."""
        starts = range(0, prompt, chunk)
        return sum(self.seconds([(start, min(chunk, prompt - start))]) for start in starts)
