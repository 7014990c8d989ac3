"""Evaluates every layout of a model on a number of GPUs, and recommends one."""

from dataclasses import dataclass, replace

from ropeswitch.deploy.plan.costs import GIB, Bounds, Memory, Workload, bounds, memory
from ropeswitch.deploy.plan.gpus import Gpu
from ropeswitch.deploy.plan.layouts import Layout, Placement, broken_rule, layouts, place
from ropeswitch.deploy.plan.max_num_seqs import Reserved, reserve
from ropeswitch.deploy.plan.model_shape import ModelShape


@dataclass(frozen=True)
class Cluster:
    """The available GPUs and the target they must meet."""

    gpu: Gpu
    gpus: int
    node_size: int
    target_concurrency: int  # full-length sequences that must fit at once, over all replicas
    node_memory: int | None = None  # host memory of a node in bytes, if known

    def pod_memory(self, placement: Placement) -> int | None:
        """Return the host memory of one pod in bytes, on a node full of such pods; None if unknown."""
        if self.node_memory is None:
            return None
        return self.node_memory // max(1, min(self.node_size, self.gpus) // placement.gpus_per_node)


@dataclass(frozen=True)
class Refused:
    """A layout that vLLM rejects, or that cannot be placed on the nodes, and the broken rule with its numbers."""

    layout: Layout
    rule: str


@dataclass(frozen=True)
class Candidate:
    """A layout that vLLM accepts; the verdict is ``fits``, or what is missing, with numbers."""

    layout: Layout
    placement: Placement
    memory: Memory
    reserved: Reserved
    bounds: Bounds
    verdict: str

    @property
    def sequences(self) -> int:
        """Full-length sequences that all replicas together hold at once."""
        return self.memory.sequences * self.placement.replicas

    @property
    def fits(self) -> bool:
        return self.verdict == FITS


@dataclass(frozen=True)
class Plan:
    """The result for every layout."""

    candidates: tuple[Candidate, ...]  # best first
    refused: tuple[Refused, ...]
    recommended: Candidate | None  # the first that fits
    fewest_gpus: int | None  # that meet the target with any candidate


FITS = "fits"


def make_plan(shape: ModelShape, cluster: Cluster, load: Workload) -> Plan:
    """Return the result for every layout, best first.

    The best layout meets the target, keeps tensor parallel inside a node, has the lowest bound on the first token, then on
    the next token, then holds the most sequences, then has the lowest DCP.
    """
    refused: list[Refused] = []
    candidates: list[Candidate] = []
    for layout in layouts(cluster.gpus):
        placement = broken_rule(shape, layout) or place(layout, cluster.gpus, cluster.node_size)
        if isinstance(placement, str):
            refused.append(Refused(layout, placement))
        else:
            candidates.append(_candidate(shape, cluster, load, layout, placement))
    candidates.sort(
        key=lambda each: (
            *(not each.fits, each.layout.tensor > cluster.node_size, each.bounds.first_token, each.bounds.next_token),
            *(-each.sequences, each.layout.decode_context, each.layout.tensor),
        )
    )
    fitting = [candidate for candidate in candidates if candidate.fits]
    needs = [
        candidate.layout.gpus * -(-cluster.target_concurrency // candidate.memory.sequences) for candidate in fitting
    ]
    return Plan(tuple(candidates), tuple(refused), fitting[0] if fitting else None, min(needs, default=None))


def _candidate(shape: ModelShape, cluster: Cluster, load: Workload, layout: Layout, placement: Placement) -> Candidate:
    reserved = reserve(layout, placement, cluster.gpu, load, cluster.pod_memory(placement))
    held = memory(shape, layout, cluster.gpu, load)
    if reserved.max_num_seqs:
        held = replace(held, sequences=min(held.sequences, reserved.max_num_seqs))
    verdict, total = FITS, held.sequences * placement.replicas
    if held.kv_available == 0:
        verdict = f"the weights do not fit: {held.weights / GIB:.2f} GiB per GPU"
    elif held.sequences == 0:
        needed, free = held.kv_per_sequence / GIB, held.kv_available / GIB
        verdict = f"does not fit: {needed:.2f} GiB of KV needed, {free:.2f} GiB free; at most {held.longest} tokens"
    elif reserved.max_num_seqs == 0:
        verdict = f"does not fit: {reserved.missing}"
    elif total < cluster.target_concurrency:
        verdict = f"holds {total} of the {cluster.target_concurrency} target sequences"
    return Candidate(layout, placement, held, reserved, bounds(shape, layout, cluster.gpu, load), verdict)
