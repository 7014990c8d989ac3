"""Bounds on time worked out by hand, and rejected layouts; plan_expected.yaml has the rest of the arithmetic."""

import pytest

from ropeswitch.deploy.plan.costs import Workload
from ropeswitch.deploy.plan.gpus import load
from ropeswitch.deploy.plan.layouts import Layout, broken_rule
from ropeswitch.deploy.plan.model_shape import shape_from_config
from tests.deploy.configs import ALL, LLAMA2_7B, MISTRAL_7B, PHI4_MINI, REFUSED, Config

TWO_MILLION = 2_097_152
KIB = 1024
A100 = load()["A100-80GB"]
H100 = load()["H100-80GB"]
LLAMA = shape_from_config("llama", LLAMA2_7B)
MISTRAL = shape_from_config("mistral", MISTRAL_7B)
PHI = shape_from_config("phi", PHI4_MINI)


def _load(tokens: int, kv_bytes: int = 2) -> Workload:
    return Workload(tokens, kv_bytes, memory_utilization=0.9, reserve_gib=3.0)


@pytest.mark.parametrize(("name", "change", "layout", "rule"), REFUSED["layouts"])
def test_a_rejected_layout_names_the_rule_and_its_numbers(
    name: str, change: Config, layout: list[int], rule: str | None
) -> None:
    found = broken_rule(shape_from_config("c", ALL[name] | change), Layout(*layout))
    assert (found is None) if rule is None else (found or "").startswith(rule)
