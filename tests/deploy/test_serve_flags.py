"""The recommended command is one that the server's own argument parser takes, and means what the plan says."""

import pytest

from ropeswitch.deploy.plan.costs import Workload
from ropeswitch.deploy.plan.gpus import load
from ropeswitch.deploy.plan.layouts import Layout
from ropeswitch.deploy.plan.model_shape import shape_from_config
from ropeswitch.deploy.plan.planner import Cluster, make_plan
from ropeswitch.deploy.plan.serve_flags import Serving, serve_flags
from ropeswitch.factors.ladders.choice import from_flags
from ropeswitch.model_patches.switch.settings import RESERVE
from ropeswitch.server import vllm_adapter
from ropeswitch.server.serve import _add_flags
from tests.deploy.configs import MISTRAL_7B


@pytest.mark.parametrize(
    ("layout", "nodes"), [(Layout(1), 1), (Layout(16, 2), 2), (Layout(8, 1, 2), 2), (Layout(4, 1, 2), 1)], ids=str
)
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_the_servers_parser_takes_the_flags(layout: Layout, nodes: int, kv_cache_dtype: str) -> None:
    shape = shape_from_config("mistral", MISTRAL_7B)
    plan = make_plan(shape, Cluster(load()["A100-80GB"], 16, 8, 1), Workload(65536, 2, 0.85, 3))
    [chosen] = [candidate for candidate in plan.candidates if candidate.layout == layout]
    flags = serve_flags(Serving("a/model", 65536, 0.85, kv_cache_dtype, from_flags(None, "f.json")), chosen)
    assert flags[0] == "serve"
    args = vllm_adapter.parse(flags[1:], _add_flags)
    assert (args.model, args.factors, args.max_model_len) == ("a/model", "f.json", 65536)
    assert (args.gpu_memory_utilization, args.kv_cache_dtype) == (0.85, kv_cache_dtype)
    assert args.tensor_parallel_size == layout.tensor
    assert args.decode_context_parallel_size == layout.decode_context
    assert args.pipeline_parallel_size == layout.pipeline
    assert (args.nnodes, args.node_rank) == (nodes, 0)


def test_the_servers_parser_takes_the_ladders_flags() -> None:
    shape = shape_from_config("mistral", MISTRAL_7B)
    plan = make_plan(shape, Cluster(load()["A100-80GB"], 16, 8, 1), Workload(131072, 2, 0.9, 3))
    assert plan.recommended is not None
    serving = Serving("a/model", 131072, 0.9, "auto", from_flags("yarn:2x,4x", None), 32768, RESERVE)
    args = vllm_adapter.parse(serve_flags(serving, plan.recommended)[1:], _add_flags)
    assert (args.ladder, args.native_window, args.ladder_policy) == ("yarn:2x,4x", 32768, RESERVE)
