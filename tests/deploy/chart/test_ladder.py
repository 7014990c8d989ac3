"""The ladder's values: which flags they become in which pod, what the schema takes, and that a plan's command is kept."""

from typing import Any

import pytest
from helm_python import HelmValuesError

from ropeswitch.deploy.plan.costs import Workload
from ropeswitch.deploy.plan.gpus import load
from ropeswitch.deploy.plan.model_shape import shape_from_config
from ropeswitch.deploy.plan.planner import Cluster, make_plan
from ropeswitch.deploy.plan.serve_flags import Serving, helm_values, serve_flags
from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.ladders.choice import parse
from ropeswitch.factors.rules.catalogue import RULES
from ropeswitch.model_patches.switch.config.settings import POLICIES
from tests.deploy.chart.helm import Object, Values, case, chart, notes, pods, render
from tests.deploy.configs import QWEN3_8B

LADDER = {"ladder": "yarn:4x", "nativeWindow": 32768, "ladderPolicy": "reserve", "ladderAliases": True}
FLAGS = ("--ladder", "--native-window", "--ladder-policy")


def flags(pod: Object) -> dict[str, str]:
    """The ladder's flags in a pod's command, and the word behind each."""
    args = pod["containers"][0]["args"]
    return {flag: args[args.index(flag) + 1] for flag in FLAGS if flag in args}


def served(values: Values) -> dict[str, Object]:
    return {name: pod for name, pod in pods(render(values)).items() if not name.endswith(("-test", "/job"))}


def test_nothing_is_said_of_the_ladder_by_default() -> None:
    [pod] = served({}).values()
    assert flags(pod) == {} and "--ladder-aliases" not in pod["containers"][0]["args"]


def test_every_rank_has_the_ladder_and_api_servers_the_names() -> None:
    nodes = {"parallelism": {"tensor": 16, "nodes": 2, "gpusPerNode": 8}}
    found = served({"model": "a/b", **nodes, **LADDER})
    assert set(found) == {"demo-ropeswitch/leader", "demo-ropeswitch/worker"}
    for name, pod in found.items():
        assert flags(pod) == {"--ladder": "yarn:4x", "--native-window": "32768", "--ladder-policy": "reserve"}
        assert ("--ladder-aliases" in pod["containers"][0]["args"]) == name.endswith("/leader")


def test_a_pool_may_have_a_ladder_and_a_policy_of_its_own() -> None:
    long = {"enabled": True, "values": {"ladder": "ntk:8x", "ladderPolicy": "length"}}
    found = served({"model": "a/b", **LADDER, "longPool": long})
    assert flags(found["demo-ropeswitch"]) == {
        "--ladder": "yarn:4x",
        "--native-window": "32768",
        "--ladder-policy": "reserve",
    }
    assert flags(found["demo-ropeswitch-long"]) == {
        "--ladder": "ntk:8x",
        "--native-window": "32768",
        "--ladder-policy": "length",
    }


@pytest.mark.parametrize("text", ["auto", "none", "yarn:64k,128k", "yarn:65536", "yarn:2x,4.5x", "ntk:1M"])
def test_the_schema_takes_what_the_server_takes(text: str) -> None:
    parse(text)
    chart().validate_schema({"ladder": text})


@pytest.mark.parametrize("rule", [each.name for each in RULES])
def test_the_schema_knows_every_rule(rule: str) -> None:
    chart().validate_schema({"ladder": rule})
    chart().validate_schema({"ladder": f"{rule}:64k"})


@pytest.mark.parametrize(
    "text", ["yarm", "yarn:", "yarn:64k,", "yarn:,64k", "yarn:x", "yarn:64q", "auto:2x", "none:64k", "file:", " yarn"]
)
def test_the_schema_refuses_what_the_server_refuses(text: str) -> None:
    with pytest.raises(FactorError):
        parse(text)
    with pytest.raises(HelmValuesError, match="ladder"):
        chart().validate_schema({"ladder": text})


@pytest.mark.parametrize("policy", POLICIES)
def test_the_schema_knows_every_policy(policy: str) -> None:
    chart().validate_schema({"ladderPolicy": policy})


@pytest.mark.parametrize("values", [{"ladderPolicy": "longest"}, {"nativeWindow": -1}, {"nativeWindow": "32k"}])
def test_the_schema_refuses_other_values(values: dict[str, Any]) -> None:
    with pytest.raises(HelmValuesError, match=next(iter(values))):
        chart().validate_schema(values)


def test_notes_say_how_to_list_the_sets() -> None:
    assert "List the sets:\n\n  curl http://127.0.0.1:8000/v1/rope\n" in notes({})
    shown = notes(case("ladder") | LADDER)
    assert (
        "the first factor set that is long enough for its prompt and output limit. List the sets of the ladder" in shown
    )
    assert "ladder yarn:4x:" in shown


def test_a_plans_command_is_the_pods() -> None:
    shape = shape_from_config("qwen3-8b", QWEN3_8B)
    plan = make_plan(shape, Cluster(load()["A100-80GB"], 1, 8, 1), Workload(131072, 2, 0.9, 3))
    assert plan.recommended is not None
    serving = Serving("Qwen/Qwen3-8B", 131072, 0.9, "auto", parse("yarn:2x,4x"), 32768, "reserve")
    words = serve_flags(serving, plan.recommended)
    [pod] = served(helm_values(serving, shape, plan.recommended)).values()
    args = pod["containers"][0]["args"]
    assert words == args[: len(words)]
    assert flags(pod) == {"--ladder": "yarn:2x,4x", "--native-window": "32768", "--ladder-policy": "reserve"}
