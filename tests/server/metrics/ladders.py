"""Ladders and readings of metrics that these tests share."""

from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ropeswitch.factors.factor_set import FactorLadder

DEFAULT = (256, 1024)
PHI3 = (4096, 131072)
LLAMA2 = (8192, 2097152)
SEVEN = (4096, 8192, 32768, 262144, 524288, 1048576, 2097152)


def ladder(*ends: int) -> FactorLadder:
    """A ladder whose sets end there, named set0, set1 and so on."""
    sets = [{"name": f"set{i}", "max_length": end, "factors": [1.0 + i]} for i, end in enumerate(ends)]
    return FactorLadder.checked(sets)


LADDERS = st.lists(st.integers(1, 2**21), min_size=1, max_size=24, unique=True).map(lambda ends: ladder(*sorted(ends)))

Labels = frozenset[tuple[str, str]]


def values(text: str, prefix: str = "ropeswitch_") -> dict[tuple[str, Labels], float]:
    """By name and labels, the samples of our metrics, or of vLLM's, in what ``/metrics`` answers."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(prefix)
    }


def read(registry: CollectorRegistry) -> dict[tuple[str, Labels], float]:
    """As :func:`values`, of a registry."""
    return values(generate_latest(registry).decode())


def total(found: dict[tuple[str, Labels], float], name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    return sum(value for (each, has), value in found.items() if each == name and labels.items() <= has)
