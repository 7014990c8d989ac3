"""The two halves of a disaggregated pair: each release's values give a server that starts, and let the other half in."""

import json
from typing import Any

import pytest
import yaml
from vllm.config import KVTransferConfig

from ropeswitch.model_patches.switch.kv.connectors import check_connector
from tests.deploy.chart.helm import CHART, Values, one, pods, render
from tests.deploy.chart.kinds import check
from tests.deploy.chart.test_flags import parsed

ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def half(role: str) -> list[dict[str, Any]]:
    """The objects of one release."""
    own: Values = yaml.safe_load((CHART / f"values-{role}.yaml").read_text(encoding="utf-8"))
    return render({"model": "Qwen/Qwen3-8B", "maxModelLen": 131072, **own})


@pytest.mark.parametrize("role", ROLES)
def test_the_server_takes_the_flags(role: str) -> None:
    objects = half(role)
    for each in objects:
        check(each, "1.31")
    pod = pods(objects)["demo-ropeswitch"]
    config = parsed(pod, "0").kv_transfer_config
    assert isinstance(config, KVTransferConfig) and config.kv_role == ROLES[role]
    assert config.kv_load_failure_policy == "recompute"
    check_connector(config)
    variables = {each["name"]: each for each in pod["containers"][0]["env"]}
    address = variables["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]
    assert address == {"fieldRef": {"fieldPath": "status.podIP"}} and "VLLM_NIXL_SIDE_CHANNEL_PORT" in variables


def test_each_half_reaches_the_other() -> None:
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        policy = one(half(role), "NetworkPolicy")["spec"]
        labels = one(half(other), "Deployment")["spec"]["template"]["metadata"]["labels"]
        labels = labels | {"app.kubernetes.io/instance": "another"}
        for rules, field in ((policy["ingress"], "from"), (policy["egress"], "to")):
            open_to = [
                peer["podSelector"]["matchLabels"]
                for rule in rules
                if "ports" not in rule
                for peer in rule.get(field, ())
            ]
            # The release's own pods, and the other half's, which is a release of its own.
            assert [selector.items() <= labels.items() for selector in open_to] == [False, True], json.dumps(open_to)


def test_one_half_is_the_other_but_for_the_role() -> None:
    texts = [(CHART / f"values-{role}.yaml").read_text(encoding="utf-8").split("\n", 2)[2] for role in ROLES]
    assert texts[0] == texts[1].replace("kv_consumer", "kv_producer")
