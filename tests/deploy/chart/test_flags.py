"""The command of every pod is one that the server's own parser takes, and a plan's values give the plan's command."""

from argparse import Namespace

import pytest

from ropeswitch.deploy.plan.costs import Workload
from ropeswitch.deploy.plan.gpus import load
from ropeswitch.deploy.plan.layouts import Layout
from ropeswitch.deploy.plan.model_shape import shape_from_config
from ropeswitch.deploy.plan.planner import Cluster, make_plan
from ropeswitch.deploy.plan.serve_flags import Serving, helm_values, serve_flags
from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.start import flags
from tests.deploy.chart.helm import CASES, CHART, Object, case, pods, render
from tests.deploy.configs import LLAMA2_7B, MISTRAL_7B

IN_A_CLUSTER = {
    "$(LWS_LEADER_ADDRESS)": "demo-0.demo.llm",
    # The parser looks whether it is there.
    "/etc/ropeswitch/chat-template/chat-template.jinja": str(CHART / "values.yaml"),
}


def parsed(pod: Object, rank: str) -> Namespace:
    container = pod["containers"][0]
    args = [{**IN_A_CLUSTER, "$(LWS_WORKER_INDEX)": rank}.get(arg, arg) for arg in container["args"]]
    assert args[0] == "serve" and not any("$(" in arg for arg in args)
    return vllm_adapter.parse(args[1:], flags.add)


@pytest.mark.parametrize("name", CASES)
def test_the_servers_parser_takes_the_flags(name: str) -> None:
    for where, pod in pods(render(case(name))).items():
        if where.endswith(("-test", "/job")):
            continue
        worker = where.endswith("/worker")
        args = parsed(pod, "1" if worker else "0")
        assert args.headless is worker
        if not worker:
            assert args.port == pod["containers"][0]["ports"][0]["containerPort"]
            assert args.shutdown_timeout + 30 < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(
    ("config", "layout", "length"),
    [
        (("llama", LLAMA2_7B), Layout(8, 1, 2), 2097152),
        (("mistral", MISTRAL_7B), Layout(16, 2), 2097152),
        (("mistral", MISTRAL_7B), Layout(8), 65536),
        (("mistral", MISTRAL_7B), Layout(1), 65536),
    ],
)
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_a_plan_and_its_values_say_the_same(
    config: tuple[str, dict[str, object]], layout: Layout, length: int, kv_cache_dtype: str
) -> None:
    shape = shape_from_config(*config)
    plan = make_plan(shape, Cluster(load()["A100-80GB"], 16, 8, 1), Workload(length, 2, 0.9, 3))
    [chosen] = [candidate for candidate in plan.candidates if candidate.layout == layout]
    serving = Serving("a/model", length, 0.9, kv_cache_dtype)
    rendered = pods(render(helm_values(serving, shape, chosen)))
    head = rendered.get("demo-ropeswitch/leader") or rendered["demo-ropeswitch"]
    planned, served = vllm_adapter.parse(serve_flags(serving, chosen)[1:], flags.add), parsed(head, "0")
    # The port is vLLM's default as it is, and the address of the first node is only known in the cluster.
    for name in set(vars(planned)) - {"master_addr"}:
        assert getattr(served, name) == getattr(planned, name), name
    [container] = head["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == chosen.placement.gpus_per_node
    assert ("demo-ropeswitch/worker" in rendered) == (chosen.placement.nodes > 1)


def test_the_capacity_is_the_longest_that_fits() -> None:
    shape = shape_from_config("llama", LLAMA2_7B)

    def at(length: int) -> tuple[bool, int]:
        plan = make_plan(shape, Cluster(load()["A100-80GB"], 8, 8, 1), Workload(length, 2, 0.9, 3))
        [chosen] = [candidate for candidate in plan.candidates if candidate.layout == Layout(8)]
        return chosen.fits, chosen.memory.capacity

    _, capacity = at(4096)
    assert at(capacity) == (True, capacity)
    assert at(capacity + 1) == (False, capacity)


def test_values_of_a_plan_from_before_the_capacity_was_told() -> None:
    """A chart takes the values that were written for the one before it."""
    values = {
        "model": "mistral-7b",
        "maxModelLen": 2097152,
        "gpuMemoryUtilization": 0.9,
        "kvCacheDtype": "auto",
        "parallelism": {
            **{"tensor": 16, "decodeContext": 2, "pipeline": 1},
            **{"nodes": 1, "gpusPerNode": 16, "dataParallelReplicas": 1},
        },
        "resources": {"limits": {"nvidia.com/gpu": 16}},
    }
    assert parsed(pods(render(values))["demo-ropeswitch"], "0").decode_context_parallel_size == 2
